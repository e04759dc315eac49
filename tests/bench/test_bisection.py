"""The twenty seeded faults: each shows itself, and what is blamed for them is judged as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.__main__ import main
from bench.fuzzer.bisection import is_right, status
from bench.fuzzer.inductor_faults import FAULTS, Fault
from bench.report import Table
from fuzz.bisection.layers import Blame


def test_faults_are_twenty_of_each_part() -> None:
    assert len({fault.name for fault in FAULTS}) == 20
    assert {fault.part for fault in FAULTS} == {
        "decomposition",
        "joint_graph_passes",
        "lowerings",
        "post_grad_passes",
        "pre_grad_passes",
    }


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_only_the_culprit_confirmed_is_right(fault: Fault) -> None:
    blame = Blame("2.13.0", "Inductor", part=fault.part, name=fault.culprit, is_confirmed=True)
    assert is_right(fault, blame)
    for part, name, confirmed in (
        ("cudagraphs", fault.culprit, True),
        (fault.part, "something else", True),
        (fault.part, fault.culprit, False),
    ):
        assert not is_right(fault, Blame("2.13.0", "Inductor", "", part, name, is_confirmed=confirmed))


@pytest.mark.parametrize(("right", "left", "expected"), [(18, 0, 0), (17, 0, 1), (20, 1, 1)])
def test_eighteen_are_enough_if_no_file_is_left(right: int, left: int, expected: int) -> None:
    rows = tuple(
        ("fault", "right" if number < right else "WRONG", "", "", 1, left if number == 0 else 0, 1.0)
        for number in range(20)
    )
    assert status([Table("", (), rows)]) == expected


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_faults_are_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of one core at most: each fault costs twenty compiles."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert main(["bisection"]) == 0
