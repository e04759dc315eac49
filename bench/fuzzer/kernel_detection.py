"""Which faults of Inductor's kernels the fuzzer finds: one after the other, each in a process of its own.

A compile takes seconds, so that faults are not sought together, as those of `aot` are: a process makes one
fault and runs the programs of a seed until one is a finding. What is the same finding without the fault does
not count.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from bench.fuzzer.cases import forked, settle
from bench.fuzzer.inductor_faults import FAULTS, Fault
from bench.fuzzer.kernel_faults import KERNEL_FAULTS
from bench.fuzzer.reach import warm
from bench.report import Table
from fuzz.campaign.workers.handlers import program
from fuzz.corpus import buckets
from fuzz.execute.case import execute
from fuzz.targets.catalog import find_target

TARGET = "torch-inductor"
SECONDS = 90  # on the wall, for one program
ALL_FAULTS = {fault.name: fault for fault in (*KERNEL_FAULTS, *FAULTS)}


@dataclass(frozen=True, slots=True)
class Detection:
    """What became of one fault.

    Attributes:
        fault: the fault.
        case: the index of the program that is a finding with the fault alone; None where none was found.
        cases: how many programs ran with the fault.
        seconds: of CPU time until then.
        signature: of the finding.
    """

    fault: Fault
    case: int | None
    cases: int
    seconds: float
    signature: str = ""


def measure_kernels(profile: str, seed: int, seconds: float) -> list[Table]:
    """Look for each fault for so many seconds of CPU time in the programs of a profile."""
    warm(find_target(TARGET))
    found = [detect(fault, profile, seed, seconds) for fault in ALL_FAULTS.values()]
    return [kernel_table(found, profile, seconds)]


def detect(fault: Fault, profile: str, seed: int, seconds: float) -> Detection:
    """Look for a fault: the first program that is a finding with it (or dies), and none of its bucket without
    it. A program that dies without it says nothing."""
    start, spent, cases = 0, 0.0, 0
    with tempfile.NamedTemporaryFile() as place:
        while spent < seconds:
            given = {"fault": fault.name, "start": start, "seed": seed, "profile": profile}
            given |= {"seconds": seconds - spent, "place": place.name}
            found, died, used = forked(_search, given)
            spent += used
            found = found or _last_program(Path(place.name), start, died)
            cases += found["cases"]
            if found["case"] is None:
                return Detection(fault, None, cases, spent, found["signature"])
            clean, _, used = forked(_run_clean, given | {"start": found["case"]})
            spent += used
            if clean is not None and clean != found["signature"]:
                return Detection(fault, found["case"], cases, spent, found["signature"])
            start = found["case"] + 1
    return Detection(fault, None, cases, spent)


def _last_program(place: Path, start: int, died: str) -> dict[str, Any]:
    """What a search has found that died: the program at which it did, if it came to one."""
    signature = died.strip().splitlines()[-1] if died else ""
    at = place.read_text(encoding="ascii")
    if not at or int(at) < start:
        return {"case": None, "cases": 0, "signature": signature}
    return {"case": int(at), "cases": int(at) - start + 1, "signature": signature}


def kernel_table(found: list[Detection], profile: str, seconds: float) -> Table:
    """The faults, and which program finds each."""
    rows = tuple(
        (one.fault.name, one.fault.part, one.case, one.cases, round(one.seconds), one.signature[:50])
        for one in found
    )
    hit = sum(one.case is not None for one in found)
    return Table(
        f"Faults of Inductor that programs of {profile} find within {seconds:g} s of CPU time each",
        ("fault", "part", "program", "programs run", "CPU s", "bucket"),
        rows,
        (f"{hit} of {len(found)} are found",),
    )


def _search(given: dict[str, Any]) -> dict[str, Any]:
    """The first finding of a seed's programs, with a fault."""
    ALL_FAULTS[given["fault"]].seed()
    end = time.process_time() + given["seconds"]
    index = given["start"]
    with _own_kernels():
        while time.process_time() < end:
            Path(given["place"]).write_text(str(index), encoding="ascii")
            signature = _signature(given, index)
            if signature:
                return {"case": index, "cases": index - given["start"] + 1, "signature": signature}
            index += 1
    return {"case": None, "cases": index - given["start"], "signature": ""}


def _run_clean(given: dict[str, Any]) -> str:
    with _own_kernels():
        return _signature(given, given["start"])


def _signature(given: dict[str, Any], index: int) -> str:
    """The bucket of a program's finding; "" if it is none."""
    signal.alarm(SECONDS)
    result = execute(program(given["seed"], index, given["profile"]), find_target(TARGET))
    signal.alarm(0)
    return buckets.signature(result.findings) if result.outcome == "finding" else ""


@contextmanager
def _own_kernels() -> Iterator[None]:
    """While this lasts, kernels are compiled in a folder that is removed then."""
    settle()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict("os.environ", TORCHINDUCTOR_CACHE_DIR=folder),
    ):
        yield
