"""A corpus dated: each version's states, and the layer of the newest that differs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.bisection import corpus_dates
from fuzz.bisection.corpus_dates import date_cases, write_script
from fuzz.bisection.layers import Blame
from fuzz.corpus.case_file import Case, read
from fuzz.errors import InterpreterError, ScriptError
from fuzz.interpreters import Ran

CORPUS = Path(__file__).parents[3] / "corpus"
FILE = CORPUS / "scalar-write-lost.json"
LETTERS = {"d": "finding", "o": "finding", "a": "agree", "u": "refused", "l": "left out"}


@dataclass(frozen=True)
class Replaying:
    """An interpreter whose replays give what is written here: a letter for each target."""

    torch: str
    letters: Mapping[str, str]
    python: Path = Path("python")

    def run(self, words: Sequence[str], *, limit: float, **_options: Any) -> Ran:
        assert words[:4] == ["-P", "-m", "fuzz.cli", "replay"]
        file = words[4]
        asked = [words[at + 1] for at, word in enumerate(words) if word == "--target"]
        rows = [
            {
                "file": file,
                "target": target,
                "outcome": LETTERS[letter],
                "same_bucket": letter == "d",
                "bucket": None,
            }
            for target in asked or self._case().expected
            if (letter := self.letters.get(target, "a"))
        ]
        return Ran(0, f"table\n{json.dumps({'results': rows})}\n", "")

    def _case(self) -> Case:
        return read(FILE)


@pytest.fixture
def case() -> Case:
    return replace(read(FILE), dated={}, layer="")


def dated(case: Case, folder: Path, *interpreters: Replaying) -> corpus_dates.Dated:
    (found,) = date_cases([(FILE, case)], interpreters, folder=folder)  # type: ignore[arg-type]
    return found


def test_states_are_by_target_and_version(case: Case, tmp_path: Path) -> None:
    found = dated(
        case,
        tmp_path,
        Replaying("2.15.0+cpu", {"torch-aot-eager": "a", "aot": "u"}),
        Replaying("2.11.0", {"torch-aot-eager": "d", "aot": "o"}),
    )
    assert found.case.dated == {
        "aot": {"2.11.0": "differs otherwise", "2.15.0": "unclear"},
        "torch-aot-eager": {"2.11.0": "differs", "2.15.0": "agrees"},
        "torch-aot-function": {"2.11.0": "agrees", "2.15.0": "agrees"},
    }
    assert found.case.layer == "AOTAutograd"
    assert found.case.expected == case.expected


def test_earlier_dates_are_kept(case: Case, tmp_path: Path) -> None:
    before = replace(case, dated={"torch-aot-eager": {"2.12.0": "differs"}}, layer="Dynamo")
    found = dated(before, tmp_path, Replaying("2.15.0", {}))
    assert found.case.dated["torch-aot-eager"] == {"2.12.0": "differs", "2.15.0": "agrees"}
    assert found.case.layer == "Dynamo"


def test_what_cannot_run_here_says_nothing(case: Case, tmp_path: Path) -> None:
    letters = dict.fromkeys(case.expected, "l")
    assert dated(case, tmp_path, Replaying("2.15.0", letters)).case == case


@pytest.mark.parametrize(
    ("letters", "layer"),
    [
        ({"torch-aot-eager": "d", "torch-dynamo": "d"}, "Dynamo"),
        ({"torch-aot-eager": "d", "torch-dynamo": "o"}, "AOTAutograd"),
        ({"torch-aot-function": "d"}, "AOTAutograd"),
        ({}, ""),
    ],
)
def test_layers_are_told_apart_by_targets(
    letters: Mapping[str, str], layer: str, case: Case, tmp_path: Path
) -> None:
    assert dated(case, tmp_path, Replaying("2.13.0", letters)).case.layer == layer


def test_what_inductor_alone_shows_is_left_to_the_bisector(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(case, dated={"torch-inductor": {"2.13.0": "differs"}})
    interpreter = Replaying("2.13.0", {"torch-inductor": "d"})
    monkeypatch.setattr(
        corpus_dates, "find_layer", lambda *_args, **_options: Blame("2.13.0", "Inductor", "module: inductor")
    )
    assert dated(case, tmp_path, interpreter).case.layer == "Inductor"

    def refuse(*_args: Any, **_options: Any) -> Blame:
        raise ScriptError("it is right")

    monkeypatch.setattr(corpus_dates, "find_layer", refuse)
    found = dated(case, tmp_path, interpreter)
    assert (found.case.layer, found.said) == ("", "it is right")


def test_an_interpreter_that_cannot_replay_is_named(case: Case, tmp_path: Path) -> None:
    class Failing(Replaying):
        def run(self, words: Sequence[str], *, limit: float, **_options: Any) -> Ran:
            return Ran(2, "", "aotfuzz: no workers\n")

    with pytest.raises(InterpreterError, match=r"python cannot replay cases: ended with status 2: .*no"):
        dated(case, tmp_path, Failing("2.13.0", {}))


def test_the_script_of_a_case_is_written_where_it_is_wanted(case: Case, tmp_path: Path) -> None:
    script = write_script(case, "torch-aot-eager", tmp_path / "new")
    assert script.file == tmp_path / "new" / "repro.py"
    assert 'torch.compile(f, backend="aot_eager")' in script.file.read_text()
