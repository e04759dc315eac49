"""The catalogue of faults, the hook that makes them, and that must-find faults are found."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import power
from bench.faults import FAULTS, STAGES, Fault, FaultError, install, source_of
from bench.faults.hook import compiled
from bench.power import Track, Trial
from bench.streams import Ran, Seen, Stretch, WorkerError, Workers
from oracles import CLAUSES

ROOT = Path(__file__).parents[2]
BY_NAME = {fault.name: fault for fault in FAULTS}

# Found in the first programs of the first stream.
MUST_FIND = (
    "grad mode is left off",
    "views show what was there before a write",
    "graphs with a backward write to their inputs",
    "of several gradients one counts",
    "a recomputed value comes after its first reader",
    "the last arguments are kept",
)
CASES = 50


def test_the_catalogue_is_large_enough() -> None:
    stages = Counter(fault.stage for fault in FAULTS)
    assert set(stages) == set(STAGES)
    assert min(stages.values()) >= 5
    assert len(FAULTS) >= 80


def test_faults_are_told_apart_by_name() -> None:
    assert len(BY_NAME) == len(FAULTS)
    assert set(MUST_FIND) <= BY_NAME.keys()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_its_module(fault: Fault) -> None:
    source = source_of(fault.module)
    assert fault.made_in(source) != source
    assert compiled(fault, source, fault.module).co_names
    assert set(fault.clauses) <= set(CLAUSES)


def test_a_fault_whose_text_is_gone_is_named() -> None:
    lost = replace(FAULTS[0], find="no such text")
    with pytest.raises(FaultError, match=rf"{lost.name}.* 0 times in {lost.module}"):
        lost.made_in(source_of(lost.module))


def test_a_fault_whose_text_is_there_twice_is_named() -> None:
    with pytest.raises(FaultError, match=r"2 times in aot\.x"):
        replace(FAULTS[0], module="aot.x", find="one").made_in("one\none\n")


def test_a_fault_whose_module_is_gone_is_named() -> None:
    with pytest.raises(FaultError, match=r"no module aot\.nowhere"):
        source_of("aot.nowhere")


def test_a_fault_that_begins_at_no_statement_is_named() -> None:
    astray = replace(FAULTS[0], find="# why", replace="# how")
    with pytest.raises(FaultError, match=r"line 2 .* in no statement"):
        compiled(astray, "one = 1\n# why\ntwo = 2\n", "aot.x")


def test_a_fault_is_not_made_where_aot_is_loaded() -> None:
    import aot

    assert aot.__name__ in sys.modules
    finders = list(sys.meta_path)
    with pytest.raises(FaultError, match="has been imported"):
        install(FAULTS[0])
    assert sys.meta_path == finders


_PROBE = """
from bench.faults import Fault, install

fault = Fault("all numbers are one", "inputs", "aot.constants", "return (type(value), value)\\n",
              "return (type(value),\\n        0)\\n", ("repeat",), "A later call gets another one's number.")
installed = install(fault)
from aot.constants import key_of
seen = [installed.reached(), key_of(1) == key_of(2), installed.reached()]
key_of(1.5)
print(*seen, installed.reached())
"""


def test_the_hook_makes_the_fault_says_when_it_is_reached_and_leaves_nothing_on_disk() -> None:
    def on_disk() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (ROOT / "aot").rglob("constants*.py*")}

    before = on_disk()
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout.split() == ["False", "True", "True", "False"], done.stderr
    assert before
    assert on_disk() == before


@pytest.fixture(scope="module")
def workers() -> Any:
    with Workers(jobs=1) as some:
        yield some


def _run(workers: Workers, fault: Fault | None, **more: Any) -> Ran:
    stretch = Stretch(**{"seed": 0, "first": 0, "until": CASES, "seconds": 60.0, **more})
    (ran,) = workers.run(fault, "aot" if fault is None else fault.target, [stretch]).result()
    return ran


@pytest.mark.parametrize("name", MUST_FIND)
def test_must_find(name: str, workers: Workers) -> None:
    fault = BY_NAME[name]
    ran = _run(workers, fault)
    (seen,) = ran.found
    assert ran.reached
    assert ran.until == seen.index + 1 <= CASES
    assert seen.clause in fault.clauses


def test_a_stream_goes_on_where_it_ended_and_is_the_same_each_time(workers: Workers) -> None:
    fault = BY_NAME["views show what was there before a write"]
    once = _run(workers, fault)
    (seen,) = once.found
    first = _run(workers, fault, until=seen.index)
    assert (first.until, first.found) == (seen.index, ())
    again = _run(workers, fault, first=seen.index)
    assert (again.until, again.found, first.reached + again.reached) == (once.until, once.found, once.reached)


def test_nothing_is_found_without_a_fault(workers: Workers) -> None:
    assert _run(workers, None, until=20, goes_on=True).found == ()


def test_a_stream_ends_with_its_time(workers: Workers) -> None:
    assert _run(workers, None, seconds=0.0).until == 0


_LEAVE = Fault(
    "a crash", "runtime", "aot.api", "        return specialization.answer(arguments.all, leaves)\n",
    "        import os\n        os._exit(3)\n", ("errors",), "The process ends."
)  # fmt: skip


def test_a_crash_is_a_finding(workers: Workers) -> None:
    ran = _run(workers, _LEAVE)
    (seen,) = ran.found
    assert (seen.index, ran.until, seen.clause) == (0, 1, "errors")
    assert "process down" in seen.signature or "crash" in seen.signature


_REFUSE = Fault(
    "a refusal of calls with two arguments", "runtime", "aot.api",
    "        return specialization.answer(arguments.all, leaves)\n",
    "        if len(args) == 2:\n            raise errors.UnsupportedArgument('two are too many')\n"
    "        return specialization.answer(arguments.all, leaves)\n", (), "Nothing is done."
)  # fmt: skip


def test_too_many_refusals_are_a_finding(workers: Workers) -> None:
    ran = _run(workers, _REFUSE)
    (seen,) = ran.found
    assert (seen.clause, seen.signature) == ("refusals", "refusals/UnsupportedArgument")
    assert 1 < ran.refused <= ran.until == seen.index + 1 < CASES
    # A stream that was interrupted counts on.
    first = _run(workers, _REFUSE, until=seen.index)
    again = _run(workers, _REFUSE, first=seen.index, refused=first.refused)
    assert (first.found, again.found) == ((), ran.found)
    assert first.refused + again.refused == ran.refused


def test_a_fault_with_which_nothing_can_be_imported_is_a_mistake(workers: Workers) -> None:
    broken = Fault("a broken import", "inputs", "aot.constants", "import torch\n", "import torhc\n", (), "")
    with pytest.raises(WorkerError, match=r"(?s)a broken import.*torhc"):
        _run(workers, broken)
    assert _run(workers, None, until=1).until == 1  # the worker is still there


def test_a_finding_is_reduced(workers: Workers) -> None:
    fault = BY_NAME["the last arguments are kept"]
    seen = _run(workers, fault).found
    (smaller,) = workers.reduce(fault, fault.target, seen, 60).result()
    assert smaller.after is not None
    assert smaller.bucket is not None
    assert smaller.after < smaller.before
    assert smaller.bucket.startswith("lifetime/")
    trial = Trial(fault, fault.target, [Track(0, found=list(seen))])
    ((name, *_, bucket),) = power._buckets([trial], {fault.name: [smaller]}).rows
    assert (name, bucket) == (fault.name, smaller.bucket)


def _trial(name: str, *tracks: tuple[int, float, bool]) -> Trial:
    found = Seen(0, 0, "values", "values/out")
    return Trial(
        BY_NAME[name],
        "aot",
        [Track(i, n, 1, 0, s, [found] if f else []) for i, (n, s, f) in enumerate(tracks)],
    )


def test_tables() -> None:
    trials = [
        Trial(None, "aot", [Track(0, 5000, 0, 0, 9.0, [Seen(0, 7, "values", "values/out")])]),
        _trial(MUST_FIND[0], (4, 1.0, True), (6, 3.0, True)),
        _trial(MUST_FIND[1], (20, 6.0, False), (10, 2.0, True)),
    ]
    first, second = power._faults(trials).rows
    assert first[1:8] == (MUST_FIND[0], 2, 20.0, 2, 5, 2.0, 6)
    assert second[4:7] == (1, 10, 2.0)
    overall = dict(power._overall(trials).rows)
    assert overall["detected in 80% of the streams, %"] == 50
    assert overall["mean time to detection within 6.0 CPU s"] == pytest.approx(3.0)
    assert overall["mean time to detection within 20.0 cases"] == pytest.approx(10.0)
    assert dict(power._survival(trials).rows) == {1: 100.0, 3: 100.0, 10: 25.0, 20: 25.0}
    assert power._alarms(trials).rows == (("aot", 5000, 1, 2.0),)


def test_rounds_go_on_up_to_the_limit_of_cases(workers: Workers) -> None:
    trials = [
        Trial(None, "aot", [Track(0)]),
        Trial(BY_NAME[MUST_FIND[0]], "aot", [Track(0)]),
    ]
    power._run(workers, trials, Namespace(minutes=5.0, cases=33, jobs=1))
    (control,), (track,) = (trial.tracks for trial in trials)
    assert control.cases == 33
    assert track.found
    assert track.cases == track.found[0].index + 1
