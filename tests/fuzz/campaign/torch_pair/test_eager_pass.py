"""What two eagers make of a program, from what their processes answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from fuzz.campaign.torch_pair.eager_pass import DIFFERS, SAME_BITS, UNDECIDED, WITHIN_POLICY, compare_eagers
from fuzz.campaign.torch_pair.remote_runner import RemoteRunner
from fuzz.execute.call import Result
from oracles import Finding
from tests.support.fuzz.small_programs import SINE

FINDING = Finding("values", "out", "1.0", "2.0", "out: 1.0 in eager, 2.0 in the target")


class _Answering:
    """Answers each kind of item with what it is given."""

    def __init__(self, digest: dict[str, Any], judged: Mapping[str, Any] | None = None) -> None:
        self.answers = {"eager digest": digest, "eager": {"value": ["seen"]}, "judge eager": judged}
        self.asked: list[str] = []

    def handle(self, item: Mapping[str, Any]) -> Any:
        self.asked.append(item["kind"])
        if item["kind"] == "judge eager":
            assert item["observations"] == ["seen"]
        return self.answers[item["kind"]]


def _compared(before: _Answering, after: _Answering) -> tuple[str, str, tuple[Finding, ...]]:
    case = compare_eagers(3, SINE, cast(RemoteRunner, before), cast(RemoteRunner, after))
    assert case.index == 3
    return case.outcome, case.reason, case.findings


def test_programs_with_one_digest_stay_where_they_are() -> None:
    before, after = _Answering({"value": "a"}), _Answering({"value": "a"})
    assert _compared(before, after) == (SAME_BITS, "", ())
    assert before.asked == after.asked == ["eager digest"]


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (Result("agree", reason="agree"), WITHIN_POLICY),
        (Result("finding", (FINDING,), "it"), DIFFERS),
        (Result("poisoned", reason="eager is unstable"), UNDECIDED),
    ],
)
def test_the_eager_before_judges_the_one_after(result: Result, outcome: str) -> None:
    before = _Answering({"value": "a"}, {"value": result.to_json()})
    after = _Answering({"value": "b"})
    assert _compared(before, after) == (outcome, result.reason, result.findings)
    assert (before.asked, after.asked) == (["eager digest", "judge eager"], ["eager digest", "eager"])


def test_an_eager_that_dies_differs_from_one_that_returns() -> None:
    died = {"died": "killed by SIGSEGV"}
    outcome, reason, findings = _compared(_Answering({"value": "a"}), _Answering(died))
    assert (outcome, findings[0].target) == (DIFFERS, "killed by SIGSEGV")
    assert reason == "before: returns; after: killed by SIGSEGV"
    assert _compared(_Answering(died), _Answering(died))[0] == UNDECIDED


def test_what_the_fuzzer_fails_on_is_no_difference() -> None:
    failed = {"failed": "Traceback\nValueError: torch 2.11.0 has no dtype 'float9'\n"}
    assert _compared(_Answering({"value": "a"}), _Answering(failed))[0] == UNDECIDED
    outcome, reason, _ = _compared(_Answering({"value": "a"}, failed), _Answering({"value": "b"}))
    assert (outcome, reason) == (UNDECIDED, "before: ValueError: torch 2.11.0 has no dtype 'float9'")
