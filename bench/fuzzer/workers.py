"""Worker processes that measure the fuzzer: streams of programs against faults, each in a process of its own.

A worker, which is `python -m bench.fuzzer.workers`, has torch, the oracles and the fuzzer loaded, and `aot`
not. It forks a process for what it is asked, which makes a fault and imports `aot`, or imports that as it is
and makes many in turn (`bench.fuzzer.group_testing`). What a stream finds is decided by its seed; only how
far it comes depends on time, which is CPU time.

    with Workers(jobs=2) as workers:
        outcome = workers.search(0, FAULTS, seconds=120.0, cases=10_000).result()
        ran = workers.run(fault, "aot", [Stretch(seed=0, first=0, until=100, seconds=60.0)]).result()
"""

from __future__ import annotations

import gc
import importlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Any

from bench.fuzzer.cases import OURS, REFUSALS, SECONDS, Seen, forked, judged, of_death, program
from bench.fuzzer.group_testing import Outcome, Stream, Track, warm
from bench.fuzzer.seeded_bugs import Fault, Installed, install
from fuzz.campaign.refusal_rate import too_often
from fuzz.campaign.workers.worker import PRELOAD
from fuzz.corpus import buckets
from fuzz.execute.case import execute
from fuzz.program.decode import Program
from fuzz.reduce import ReductionError, reduce
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target

_WARM = 16  # programs


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is to be run of a stream: the cases from `first` to before `until`, for at most `seconds` of CPU
    time; only up to the first finding, unless it `goes_on`. Of those before `first` `refused` were. By which
    method (`bench.fuzzer.cases.METHODS`)."""

    seed: int
    first: int
    until: int
    seconds: float
    goes_on: bool = False
    refused: int = 0
    method: str = OURS


@dataclass(frozen=True, slots=True)
class Ran:
    """What has been run of a stream: all cases before `until`, `reached` of which ran the fault's lines, and
    `refused` of which were, in `seconds` of CPU time."""

    until: int
    reached: int
    seconds: float
    found: tuple[Seen, ...]
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Smaller:
    """A finding's program, reduced: how many statements it had and has, in how many evaluations, and its
    bucket; None for the last three if it could not be reduced."""

    before: int
    after: int | None = None
    evaluations: int | None = None
    bucket: str | None = None


class Workers:
    """Worker processes, each of which does one thing at a time. They end with the `with` statement."""

    def __init__(self, jobs: int) -> None:
        self._threads = ThreadPoolExecutor(jobs)
        self._all = [_start() for _ in range(jobs)]
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        for process in self._all:
            self._idle.put(process)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            _pipe(process.stdin).close()
            process.wait()
            _pipe(process.stdout).close()

    def run(self, fault: Fault | None, target: str, stretches: Sequence[Stretch]) -> Future[list[Ran]]:
        """Run stretches of streams against a fault, or against `aot` as it is. The future raises WorkerError
        if `aot` cannot be imported with the fault in it."""

        def ran() -> list[Ran]:
            answers = self._ask("run", fault, target, [asdict(one) for one in stretches])
            return [Ran(**{**one, "found": tuple(Seen(**seen) for seen in one["found"])}) for one in answers]

        return self._threads.submit(ran)

    def search(
        self, seed: int, faults: Sequence[Fault], seconds: float, cases: int, method: str = OURS
    ) -> Future[Outcome]:
        """Run a stream against many faults, for so much CPU time and at most so many programs of each
        target."""

        def outcome() -> Outcome:
            made = [asdict(one) for one in faults]
            items = [{"seed": seed, "faults": made, "seconds": seconds, "cases": cases, "method": method}]
            (answer,) = self._ask("search", None, "aot", items)
            tracks = [Track(**{**one, "found": _seen(one["found"])}) for one in answer["tracks"]]
            alarms = [(target, Seen(**seen)) for target, seen in answer["alarms"]]
            return Outcome(**{**answer, "tracks": tuple(tracks), "alarms": tuple(alarms)})

        return self._threads.submit(outcome)

    def reduce(self, fault: Fault, target: str, seen: Sequence[Seen], budget: int) -> Future[list[Smaller]]:
        """Reduce the programs of some findings, in at most `budget` evaluations each."""

        def reduced() -> list[Smaller]:
            items = [{"seen": asdict(one), "budget": budget} for one in seen]
            return [Smaller(**one) for one in self._ask("reduce", fault, target, items)]

        return self._threads.submit(reduced)

    def _ask(self, what: str, fault: Fault | None, target: str, items: list[Any]) -> Any:
        process = self._idle.get()
        try:
            task = {
                "what": what,
                "fault": None if fault is None else asdict(fault),
                "target": target,
                "items": items,
            }
            stdin, stdout = _pipe(process.stdin), _pipe(process.stdout)
            stdin.write(json.dumps(task) + "\n")
            stdin.flush()
            line = stdout.readline()
        finally:
            self._idle.put(process)
        if not line:
            raise WorkerError(f"a worker has ended, with exit status {process.wait()}; see what it printed")
        answer = json.loads(line)
        if answer["failure"]:
            name = "no fault" if fault is None else f"fault {fault.name!r}"
            raise WorkerError(f"with {name}: {answer['failure']}")
        return answer["value"]


class WorkerError(RuntimeError):
    """A worker could not do what it was asked: a mistake in a fault or in the fuzzer."""


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.fuzzer.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


# ---- in a worker


def main() -> None:
    """The life of a worker: a task in each line of its input, an answer in each line of its output."""
    # What a target prints is not to come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    importlib.import_module(PRELOAD)
    control = find_target("eager")
    for index in range(_WARM):  # fills caches of torch's and of the fuzzer's
        execute(program(-1, index), control)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        value, failure, _ = forked(lambda task: _do(**task), json.loads(line))
        answers.write(json.dumps({"value": value, "failure": failure}) + "\n")
        answers.flush()


def _do(what: str, fault: dict[str, Any] | None, target: str, items: list[Any]) -> list[dict[str, Any]]:
    """One task, in a process of its own."""
    installed = None if fault is None else install(_fault(fault))
    importlib.import_module("aot")  # the streams' processes, which are forked from here, have it then
    if what == "search":
        return [asdict(_searched(**one)) for one in items]
    compiler = find_target(target)
    compiler.prepare()
    if what == "run":
        return [asdict(_stretch(Stretch(**one), compiler, installed)) for one in items]
    return [asdict(_reduced(Seen(**one["seen"]), compiler, one["budget"])) for one in items]


def _fault(given: dict[str, Any]) -> Fault:
    return Fault(**{**given, "clauses": tuple(given["clauses"])})


def _seen(given: dict[str, Any] | None) -> Seen | None:
    return None if given is None else Seen(**given)


def _searched(seed: int, faults: list[dict[str, Any]], seconds: float, cases: int, method: str) -> Outcome:
    made = [_fault(one) for one in faults]
    warm(dict.fromkeys(fault.target for fault in made), method)
    return Stream(seed, made, method).run(seconds, cases)


def _stretch(stretch: Stretch, target: Target, installed: Installed | None) -> Ran:
    with _shared(3) as counts:
        answer, died, seconds = forked(lambda _: _cases(stretch, target, installed, counts))
        done, reached, refused = counts
    found = [Seen(**seen) for seen in answer or ()]
    if died:
        found.append(of_death(stretch.seed, done, died))
        done += 1
    return Ran(done, reached, seconds, tuple(found), refused)


def _cases(
    stretch: Stretch, target: Target, installed: Installed | None, counts: memoryview
) -> list[dict[str, Any]]:
    """Run the cases; `counts` tells, whatever happens, which one is running, how many reached the fault, and
    how many were refused."""
    found = []
    counts[0] = stretch.first
    while counts[0] < stretch.until and time.process_time() < stretch.seconds:
        index = counts[0]
        given = program(stretch.seed, index, stretch.method)
        if installed is not None:
            installed.reached()
        said = judged(given, target, stretch.method)
        counts[1] += installed is not None and installed.reached()
        counts[0] = index + 1
        counts[2] += said.outcome == "refused"
        if too_often(stretch.refused + counts[2], index + 1, target.refuses) and said.outcome == "refused":
            found.append(asdict(Seen(stretch.seed, index, REFUSALS, f"{REFUSALS}/{said.reason}")))
            break
        if said.outcome == "finding":
            found.append(asdict(Seen(stretch.seed, index, said.clause, said.signature)))
            if not (stretch.goes_on and said.intact):
                break
    return found


def _reduced(seen: Seen, target: Target, budget: int) -> Smaller:
    given = program(seen.seed, seen.index)

    def signature(candidate: Program) -> str:
        signal.alarm(SECONDS)
        result = execute(candidate, target)
        signal.alarm(0)
        return buckets.signature(result.findings) if result.outcome == "finding" else ""

    def work(_: None) -> dict[str, Any] | None:
        try:
            reduction = reduce(given, lambda one: signature(one) == seen.signature, budget=budget)
        except ReductionError:
            return None
        final = execute(reduction.program, target)
        if final.outcome != "finding":
            return None
        bucket = buckets.bucket(final.findings, reduction.program)
        return asdict(
            Smaller(reduction.statements_before, reduction.statements_after, reduction.evaluations, bucket)
        )

    answer, _, _ = forked(work)
    return Smaller(len(given.statements)) if answer is None else Smaller(**answer)


@contextmanager
def _shared(numbers: int) -> Iterator[memoryview]:
    """Numbers that a forked process shares with this one."""
    with mmap.mmap(-1, numbers * struct.calcsize("q")) as memory:
        view = memoryview(memory)
        counts = view.cast("q")
        try:
            yield counts
        finally:
            counts.release()
            view.release()


if __name__ == "__main__":
    main()
