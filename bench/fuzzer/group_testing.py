"""A stream of programs against many faults at once, each of which is found by itself.

Programs are few where each has to be run against each fault. So all faults that are still hidden are made
together (`Switches`), and a program runs once for all of them. Where it fails, and does not without a fault,
it is run again with half of those that it has reached, and so on down to single ones (group testing by
halves, after R. Dorfman, The detection of defective members of large populations, Annals of Mathematical
Statistics 14, 1943). What counts is only a program that fails with one fault alone, in a process where no
other has been made. A fault that covers what another one does may keep that hidden; it never makes a
detection.

Each fault comes by one target, and a program runs for the faults of one. Two that change the same words take
turns.

    warm(["aot"])
    Stream(0, FAULTS).run(seconds=120.0, cases=10_000)      # -> Outcome
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from bench.fuzzer.cases import OURS, REFUSALS, Seen, ended, judged, of_death, program, settle
from bench.fuzzer.seeded_bugs import Fault, Switches, overlap
from fuzz.campaign.refusal_rate import too_often
from fuzz.targets.catalog import find_target

_WARM = 8  # programs of each target
_LOOKED_AT = 4  # programs that reach a fault, for whether they trigger it


@dataclass(frozen=True, slots=True)
class Track:
    """What a stream has shown of a fault.

    Attributes:
        fault: its name.
        cases: programs that were run with it, up to its detection.
        reached: of these, those that ran its lines.
        seconds: CPU time of the stream until then, in which it searched for all others, too.
        found: its detection.
        triggered: whether it was found, or `aot` made something else with it (a graph, a wrapper, guards) of
            one of the programs that reached it, of which a few were looked at.
    """

    fault: str
    cases: int
    reached: int
    seconds: float
    found: Seen | None
    triggered: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has come of a stream.

    Attributes:
        tracks: one for each fault.
        cases: programs by target.
        alarms: what a target without a fault was found to do, by target.
        runs: how often a program was run.
        seconds: CPU time.
    """

    tracks: tuple[Track, ...]
    cases: dict[str, int]
    alarms: tuple[tuple[str, Seen], ...]
    runs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Run:
    """How a program ran: its outcome, what was seen, which faults were reached; whether the process is as it
    was, how much CPU time it has used, and what was made of the program, if that was asked."""

    outcome: str
    reached: frozenset[str]
    seen: Seen | None = None
    reason: str = ""
    intact: bool = True
    seconds: float = 0.0
    made: str = ""

    @property
    def fails(self) -> bool:
        return self.outcome in ("finding", "refused")


@dataclass(slots=True)
class _Open:
    """A fault that is still hidden."""

    fault: Fault
    cases: int = 0
    reached: int = 0
    refused: int = 0
    found: Seen | None = None
    seconds: float = 0.0
    reaching: list[int] = field(default_factory=list)  # programs


class Stream:
    """The programs of a seed against some faults. `aot` has been imported, without one."""

    def __init__(self, seed: int, faults: Sequence[Fault], method: str = OURS) -> None:
        self._seed = seed
        self._all = {fault.name: _Open(fault) for fault in faults}
        self._next = dict.fromkeys((fault.target for fault in faults), 0)
        self._rivals = {
            one.name: frozenset(other.name for other in faults if other != one and overlap(one, other))
            for one in faults
        }
        self._alarms: list[tuple[str, Seen]] = []
        self._runs = 0
        self._runner = _Runner(seed, method, Switches(faults))

    def run(self, seconds: float, cases: int) -> Outcome:
        """Run programs for so much CPU time, or so many for each target, or until all faults are found."""
        try:
            while (target := self._turn(cases)) and self._runner.seconds() < seconds:
                self._case(target)
            spent = self._runner.seconds()
            triggered = {name for name, one in self._all.items() if one.found or self._triggers(one)}
        finally:
            self._runner.close()
        tracks = tuple(
            Track(
                name,
                one.cases,
                one.reached,
                one.seconds if one.found else spent,
                one.found,
                name in triggered,
            )
            for name, one in self._all.items()
        )
        return Outcome(tracks, self._next, tuple(self._alarms), self._runs, spent)

    def _hidden(self, target: str) -> list[str]:
        return [name for name, one in self._all.items() if one.found is None and one.fault.target == target]

    def _turn(self, cases: int) -> str | None:
        """The target that is most behind. One with few hidden faults has fewer programs, and not in
        proportion: each of them needs as many as any other."""
        going = [one for one in self._next if self._next[one] < cases and self._hidden(one)]
        return min(going, key=lambda one: self._next[one] / math.sqrt(len(self._hidden(one))), default=None)

    def _case(self, target: str) -> None:
        index = self._next[target]
        self._next[target] += 1
        pool = self._pool(target, index)
        run = self._try(target, index, pool)
        for name in pool:
            self._all[name].cases += 1
            if name in run.reached:
                self._all[name].reached += 1
                self._all[name].reaching.append(index)
        if run.fails and not self._fails_anyway(target, index):
            self._divide(target, index, [name for name in pool if name in run.reached])

    def _pool(self, target: str, index: int) -> list[str]:
        """Those that are hidden, of two rivals the one whose turn it is."""
        hidden = self._hidden(target)
        pool: dict[str, None] = {}
        for name in hidden if index % 2 else reversed(hidden):
            if self._rivals[name].isdisjoint(pool):
                pool[name] = None
        return list(pool)

    def _try(self, target: str, index: int, pool: Sequence[str]) -> _Run:
        self._runs += 1
        return self._runner.run(target, index, pool)

    def _fails_anyway(self, target: str, index: int) -> bool:
        """Whether a program fails without a fault. That is a false alarm if it is a finding, and twice: what
        is left of a fault may have been the cause."""
        run = self._try(target, index, ())
        if run.outcome == "finding":
            self._runner.renew()
            run = self._try(target, index, ())
            if run.seen is not None:
                self._alarms.append((target, run.seen))
        return run.outcome != "agree"

    def _triggers(self, one: _Open) -> bool:
        """Whether `aot` makes something else with a fault of a program that reaches it, and makes the same
        without it twice."""
        step = max(len(one.reaching) // _LOOKED_AT, 1)
        for index in one.reaching[::step][:_LOOKED_AT]:
            once, again, with_it = (
                self._runner.run(one.fault.target, index, pool, look=True).made
                for pool in ((), (), (one.fault.name,))
            )
            if once == again != with_it:
                return True
        return False

    def _divide(self, target: str, index: int, suspects: list[str]) -> None:
        """Those of some faults that make a program fail, which some of them do."""
        if len(suspects) == 1:
            self._convict(target, index, suspects[0])
        elif suspects:
            middle = len(suspects) // 2
            fails = self._ask(target, index, suspects[:middle])
            if fails:
                self._ask(target, index, suspects[middle:])
            else:  # then it is the other half
                self._divide(target, index, suspects[middle:])

    def _ask(self, target: str, index: int, suspects: list[str]) -> bool:
        """Whether a program fails with some faults; if so, it is told with which."""
        if len(suspects) == 1:
            return self._convict(target, index, suspects[0])
        run = self._try(target, index, suspects)
        if run.fails:
            self._divide(target, index, [name for name in suspects if name in run.reached])
        return run.fails

    def _convict(self, target: str, index: int, name: str) -> bool:
        """Whether a program fails with one fault alone; a finding counts in a process without a past."""
        one = self._all[name]
        run = self._try(target, index, (name,))
        if run.seen is not None:
            self._runner.renew()
            run = self._try(target, index, (name,))
        found = run.seen
        if run.outcome == "refused":
            one.refused += 1
            if too_often(one.refused, one.cases, find_target(target).refuses):
                found = Seen(self._seed, index, REFUSALS, f"{REFUSALS}/{run.reason}")
        if found is not None:
            one.found = found
            one.seconds = self._runner.seconds()
        return run.fails


def warm(targets: Iterable[str], method: str = OURS) -> None:
    """Fill what torch, the fuzzer and `aot` remember; processes that are forked from now on share it."""
    for target in targets:
        compiler = find_target(target)
        compiler.prepare()
        for index in range(_WARM):
            judged(program(-1, index, method), compiler, method)
    gc.collect()
    gc.freeze()


class _Runner:
    """A process that runs programs with faults, and another one whenever it ends or is not as it was."""

    def __init__(self, seed: int, method: str, switches: Switches) -> None:
        self._seed = seed
        self._method = method
        self._switches = switches
        self._began = time.process_time()
        self._of_others = 0.0  # CPU time of those that have ended
        self._of_this = 0.0
        self._process: _Process | None = None

    def run(self, target: str, index: int, pool: Sequence[str], look: bool = False) -> _Run:
        """Run a program with some faults; `look` at what is made of it."""
        if self._process is None:
            self._process = _Process(self._seed, self._method, self._switches)
        run = self._process.run(target, index, pool, look)
        self._of_this = run.seconds
        if not run.intact:
            self.renew()
        return run

    def renew(self) -> None:
        """The next program runs in a process of its own."""
        if self._process is not None:
            self._of_others += self._process.close()
            self._of_this = 0.0
            self._process = None

    close = renew

    def seconds(self) -> float:
        """CPU time so far."""
        return time.process_time() - self._began + self._of_others + self._of_this


class _Process:
    """One process, forked from this one: a question in each line that it gets, an answer in each of its."""

    def __init__(self, seed: int, method: str, switches: Switches) -> None:
        theirs, ours = os.pipe(), os.pipe()
        self._seed = seed
        self._pid = os.fork()
        if self._pid == 0:
            try:
                settle()
                os.close(theirs[1])
                os.close(ours[0])
                with os.fdopen(theirs[0]) as questions, os.fdopen(ours[1], "w") as answers:
                    for answer in _answers(seed, method, switches, questions):
                        answers.write(json.dumps(answer) + "\n")
                        answers.flush()
            finally:
                os._exit(0)
        os.close(theirs[0])
        os.close(ours[1])
        self._questions, self._answers = os.fdopen(theirs[1], "w"), os.fdopen(ours[0])
        self._ended: float | None = None

    def run(self, target: str, index: int, pool: Sequence[str], look: bool) -> _Run:
        self._questions.write(json.dumps((target, index, list(pool), look)) + "\n")
        self._questions.flush()
        line = self._answers.readline()
        if line.endswith("\n"):
            answer = json.loads(line)
            seen = Seen(**answer.pop("seen")) if answer["seen"] else answer.pop("seen")
            return _Run(reached=frozenset(answer.pop("reached")), seen=seen, **answer)
        died, self._ended = ended(self._pid)
        seen = of_death(self._seed, index, died or "exit status 0")
        return _Run("finding", frozenset(pool), seen, "", False, self._ended)

    def close(self) -> float:
        """End it: its CPU time."""
        self._questions.close()
        self._answers.close()
        if self._ended is None:
            _, self._ended = ended(self._pid)
        return self._ended


def _answers(seed: int, method: str, switches: Switches, questions: IO[str]) -> Iterator[dict[str, object]]:
    """The life of such a process."""
    for line in questions:
        target, index, pool, look = json.loads(line)
        given = program(seed, index, method)
        switches.turn(pool)
        made = _Made()
        with made if look else contextlib.nullcontext():
            said = judged(given, find_target(target), method)
        seen = None
        if said.outcome == "finding":
            seen = {"seed": seed, "index": index, "clause": said.clause, "signature": said.signature}
        yield {
            "outcome": said.outcome,
            "seen": seen,
            "reached": sorted(switches.reached()),
            "reason": said.reason,
            "intact": said.intact,
            "seconds": time.process_time(),
            "made": made.digest,
        }


class _Made(logging.Handler):
    """A digest of what `aot` logs of what it makes, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._hash = hashlib.sha256()
        self._logger = logging.getLogger("aot")
        self._level = self._logger.level

    @property
    def digest(self) -> str:
        """Equal for two runs in which the same was made."""
        return self._hash.hexdigest()

    def emit(self, record: logging.LogRecord) -> None:
        title, _, text = record.getMessage().partition("\n")
        self._hash.update((_COUNT.sub("", title) + _ADDRESS.sub("", text)).encode())

    def __enter__(self) -> None:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.DEBUG)

    def __exit__(self, *_: object) -> None:
        self._logger.setLevel(self._level)
        self._logger.removeHandler(self)


_ADDRESS = re.compile("0x[0-9a-f]+")
_COUNT = re.compile("[0-9]+")  # of compiles in this process
