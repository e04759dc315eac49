"""A target that declines more than it may is a finding of the campaign, whatever else agrees."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import pytest

from fuzz.campaign.ledger import Tally
from fuzz.campaign.refusal_rate import excessive_refusals, too_often
from fuzz.cli import main
from fuzz.execute.case import execute
from fuzz.targets.builtin_targets import SHIPPED
from fuzz.targets.target import Target
from tests.support.fuzz.small_programs import SINE


def tail(refused: int, cases: int, share: float) -> float:
    """The probability of so many refusals, or more."""
    counts = range(refused, cases + 1)
    return sum(comb(cases, k) * share**k * (1 - share) ** (cases - k) for k in counts)


@pytest.mark.parametrize("cases", [1, 30, 300])
@pytest.mark.parametrize("share", [0.01, 0.2])
def test_what_is_too_often_is_no_chance(cases: int, share: float) -> None:
    verdicts = [too_often(refused, cases, share) for refused in range(cases + 1)]
    assert verdicts == sorted(verdicts), "more are not less"
    first = verdicts.index(True) if True in verdicts else cases + 1
    assert all(tail(refused, cases, share) < 1e-6 for refused in range(first, cases + 1))
    if cases > 1:
        # The bound is no exact one, but near.
        assert tail(first, cases, share) > 1e-9


def test_what_may_be_declined() -> None:
    assert not too_often(50, 50, 1.0)
    assert not too_often(0, 50, 0.0) and too_often(1, 50, 0.0)
    assert not too_often(0, 0, 0.0)


def test_what_a_target_lacks_is_not_declined() -> None:
    tally = Tally(cases=100, refused=60)
    tally.refusals.update({"lacks module": 60})
    assert excessive_refusals({"one": tally}, {"one": 0.01}) == {}
    tally.refusals.update({"StorageMutation": 30})
    found = excessive_refusals({"one": tally, "another": tally, "third": tally}, {"one": 0.01, "third": 1.0})
    assert list(found) == ["one"]
    assert "30 of 100 cases, 30.00%" in found["one"]


def test_what_a_target_says_it_declines_is_run_and_does_not_count() -> None:
    target = Target("one", "", _declining, lambda error: "hard", declines=("operator: sin",))
    [reason] = {execute(SINE, target).reason}
    assert reason == "lacks operator: sin: hard"
    tally = Tally(cases=100, refused=100)
    tally.refusals.update({reason: 100})
    assert excessive_refusals({"one": tally}, {"one": 0.01}) == {}
    left = Target("one", "", _writing_and_declining, lambda error: "hard", declines=("operator: sin",))
    assert [finding.clause for finding in execute(SINE, left).findings] == ["refusals"]
    assert execute(SINE, replace(target, declines=("operator: cos",))).reason == "hard"


def _declining(function: Callable[..., Any]) -> Callable[..., Any]:
    def compiled(*args: Any) -> Any:
        raise RuntimeError

    return compiled


def _writing_and_declining(function: Callable[..., Any]) -> Callable[..., Any]:
    def compiled(*args: Any) -> Any:
        args[0].data.mul_(2)
        raise RuntimeError

    return compiled


def test_ours_promises_something() -> None:
    assert all(target.refuses < 0.05 for name, target in SHIPPED.items() if name.startswith("aot"))


@pytest.mark.parametrize(("name", "status"), [("declines", 1), ("may_decline", 0)])
def test_a_campaign_in_which_everything_is_declined(
    name: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"tests.fuzz.declining_targets:{name}"
    out = tmp_path / "out"
    arguments = ["run", "--target", target, "--cases", "12", "--jobs", "1", "--out", str(out), "--json"]
    assert main(arguments) == status
    said = capsys.readouterr()
    found = json.loads(said.out.splitlines()[-1])
    assert found["refused"] == 12 and found["findings"] == 0
    assert list(found["reticent"]) == [target] * status
    assert ("Too much refused" in said.err) == bool(status)
    assert ("Too much refused" in (out / "report.html").read_text()) == bool(status)
