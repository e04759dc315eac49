"""Mutants of mutmut's: how a mutated text becomes a fault, and what is counted."""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future
from typing import Any

import pytest

from bench.fuzzer import mutmut
from bench.fuzzer.mutmut import difference
from bench.fuzzer.seeded_bugs import Fault
from bench.fuzzer.workers import Ran, Seen, WorkerError
from tests.bench.test_commands import tables


def test_a_missing_mutmut_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="mutmut is not installed"):
        tables(capsys, "mutants")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("a\nb\nc\n", "a\nB\nc\n", (2, "b\n", "B\n")),
        ("a\nb\nc\na\nd\n", "a\nb\nc\nA\nd\n", (4, "a\nd\n", "A\nd\n")),
        ("a\nb\nc\n", "a\nc\n", (2, "b\n", "")),
        ("a\nb\n", "a\nx\ny\nb\n", (2, "b\n", "x\ny\nb\n")),
    ],
    ids=["a line", "a line that is there twice", "a line that is gone", "lines more"],
)
def test_where_a_mutant_differs_is_told_once(before: str, after: str, expected: tuple[int, str, str]) -> None:
    assert difference(before, after) == expected
    _, find, replace = expected
    assert before.count(find) == 1
    assert before.replace(find, replace) == after


class _Parsed:
    """Mutants, each of which does what its name says."""

    count = 4

    def __init__(self, path: Any) -> None:
        self._module = f"aot.{path.stem}"

    def mutant(self, number: int) -> Fault:
        name = ("killed", "survives", "hidden", "broken")[number]
        return Fault(name, "", self._module, "there", "instead", (), "")


class _Workers:
    def __init__(self, jobs: int) -> None:
        pass

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, fault: Fault, target: str, stretches: Any) -> Future[list[Ran]]:
        answer: Future[list[Ran]] = Future()
        found = (Seen(0, 7, "values", "values/out"),) if fault.name == "killed" else ()
        if fault.name == "broken":
            answer.set_exception(WorkerError("no import"))
        else:
            answer.set_result([Ran(100, 0 if fault.name == "hidden" else 9, 1.0, found)])
        return answer


def test_what_is_killed_survives_and_is_not_reached_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(mutmut, "_Parsed", _Parsed)
    monkeypatch.setattr(mutmut, "Workers", _Workers)
    scores, clauses, survivors = tables(capsys, "mutants", "--module", "tensors.views")
    assert scores["rows"] == [["aot.views", 4, 2, 1, 1, 50.0], ["all", 4, 2, 1, 1, 50.0]]
    assert sorted(clauses["rows"]) == [["import", 1], ["values", 1]]
    assert [row[:2] for row in survivors["rows"]] == [["survives", 9], ["hidden", 0]]
