"""The seeded faults of Inductor's kernels: each shows itself, and only what is due to it is its detection."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench.fuzzer import kernel_detection
from bench.fuzzer.cases import forked
from bench.fuzzer.inductor_faults import FAULTS, differs
from bench.fuzzer.kernel_detection import ALL_FAULTS, Detection, detect, kernel_table
from bench.fuzzer.kernel_faults import KERNEL_FAULTS

QUICK = "relu drops NaN"


def test_there_are_twenty_two_beside_those_of_the_bisection() -> None:
    assert len(KERNEL_FAULTS) == 22
    assert len(ALL_FAULTS) == len(KERNEL_FAULTS) + len(FAULTS)
    assert {fault.part for fault in KERNEL_FAULTS} >= {"kernels", "lowerings", "decomposition"}


def shows(name: str) -> list[bool]:
    """Whether the program of a fault differs without it, and with it."""
    import torch._inductor.config

    torch._inductor.config.fx_graph_cache = False
    torch._inductor.config.compile_threads = 1
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict("os.environ", TORCHINDUCTOR_CACHE_DIR=folder),
    ):
        before = differs(ALL_FAULTS[name])
        torch._dynamo.reset()
        ALL_FAULTS[name].seed()
        return [before, differs(ALL_FAULTS[name])]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(fault.name, marks=() if fault.name == QUICK else pytest.mark.nightly)
        for fault in KERNEL_FAULTS
    ],
)
def test_a_fault_shows_in_its_own_program_alone(name: str) -> None:
    value, failure, _ = forked(shows, name)
    assert (value, failure) == ([False, True], "")


def test_what_is_found_without_the_fault_as_well_is_no_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def answer(work: object, given: dict[str, int]) -> tuple[object, str, float]:
        if work is kernel_detection._run_clean:
            return ("values/out" if given["start"] == 3 else ""), "", 1.0
        searched.append(given["start"])
        case = 3 if given["start"] == 0 else 9
        return {"case": case, "cases": case - given["start"] + 1, "signature": "values/out"}, "", 2.0

    monkeypatch.setattr(kernel_detection, "forked", answer)
    found = detect(KERNEL_FAULTS[0], "mixed", 0, 60.0)
    assert (found.case, found.cases, found.seconds, searched) == (9, 10, 6.0, [0, 4])
    monkeypatch.setattr(kernel_detection, "forked", lambda *given: (None, "SIGSEGV", 1.0))
    assert detect(KERNEL_FAULTS[0], "mixed", 0, 60.0).case is None

    def dying(work: object, given: dict[str, Any]) -> tuple[object, str, float]:
        if work is kernel_detection._run_clean:
            return (None if given["start"] == 4 else ""), "SIGALRM", 1.0
        case = 4 if given["start"] == 0 else 7
        Path(given["place"]).write_text(str(case), encoding="ascii")
        return None, "SIGSEGV", 2.0

    monkeypatch.setattr(kernel_detection, "forked", dying)
    killed = detect(KERNEL_FAULTS[0], "mixed", 0, 60.0)
    assert (killed.case, killed.cases, killed.signature) == (7, 8, "SIGSEGV")
    table = kernel_table([found, Detection(KERNEL_FAULTS[1], None, 4, 60.0)], "mixed", 60.0)
    assert table.notes == ("1 of 2 are found",)
