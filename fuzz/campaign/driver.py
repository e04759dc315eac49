"""A campaign: the same generated programs for every target, run in the pool, bounded by time or by cases.

Case `index` of a campaign is made from (seed, index, profile) alone, so it is the same case on one worker or
on twenty. Answers come back in any order and are settled in the order of their indices; when time is up, what
counts is a prefix of the cases. A worker that dies in a case gives a finding of its own kind, unless eager
dies of the same program. Findings go to triage; everything goes to the store as it comes.

    summary = Campaign(Configuration(targets=("aot",), seed=1, cases=5000)).run()
    summary.findings, summary.buckets
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from fuzz import buckets, corpus
from fuzz.campaign import jobs
from fuzz.campaign.investigate import DEFAULT_BUDGET, EAGER, Budget, Runner, Seen, understand
from fuzz.campaign.pool import Event, Failure, Job, Pool
from fuzz.campaign.store import Row, Store
from fuzz.campaign.triage import Bucket, Triage
from fuzz.errors import StoreError

# Seconds of one target's work in a lease: long enough to hide the pipe, short enough to end on time.
LEASE_SECONDS = 0.25
LARGEST_LEASE = 64
# After the time is up, the first finding of each signature may still be reduced for so much of that time, in
# seconds and as a share.
MOST_GRACE = 30.0
GRACE = 0.15


@dataclass(frozen=True, slots=True)
class Configuration:
    """What to run. `seconds` and `cases` (per target) bound it together; one of them must be given.

    `limit` is the seconds that one case may take; `memory` the bytes of data of one worker.
    """

    targets: tuple[str, ...]
    seed: int = 0
    profile: str = "mixed"
    device: str = "cpu"
    jobs: int = 1
    seconds: float | None = None
    cases: int | None = None
    limit: float = 30.0
    memory: int = 4 << 30
    budget: Budget = DEFAULT_BUDGET


@dataclass(slots=True)
class Tally:
    """Counts of one target's settled cases."""

    cases: int = 0
    agree: int = 0
    poisoned: int = 0
    refused: int = 0
    findings: int = 0
    crashes: int = 0
    timeouts: int = 0
    seconds: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)

    def count(self, seen: Seen) -> None:
        """Count one settled case."""
        self.cases += 1
        self.seconds += seen.seconds
        match seen.outcome:
            case "agree":
                self.agree += 1
            case "poisoned":
                self.poisoned += 1
            case "refused":
                self.refused += 1
                self.refusals[seen.reason] += 1
            case _:
                self.findings += 1
                self.crashes += seen.kind == "crash"
                self.timeouts += seen.kind == "timeout"


@dataclass(frozen=True, slots=True)
class Progress:
    """A campaign in flight, for a live view."""

    seconds: float
    tallies: dict[str, Tally]
    buckets: int
    workers: list[str]
    finishing: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """A campaign that ended. `troubles` are mistakes of the fuzzer itself, as tracebacks."""

    configuration: Configuration
    seconds: float
    tallies: dict[str, Tally]
    buckets: list[Bucket]
    files: dict[tuple[str, str], tuple[str, str]]
    interrupted: bool
    troubles: list[str]

    def total(self, name: str) -> int:
        """A count over all targets."""
        return sum(int(getattr(tally, name)) for tally in self.tallies.values())


@dataclass(slots=True)
class _Line:
    """One target's way through the cases: issued up to `issued`, settled up to `settled`."""

    issued: int = 0
    settled: int = 0
    waiting: dict[int, tuple[Seen, float]] = field(default_factory=dict)


class Campaign:
    """One campaign; `run` it once."""

    def __init__(
        self,
        configuration: Configuration,
        store: Store | None = None,
        watch: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        """`watch` is called a few times a second with what there is to show."""
        self._configuration = configuration
        self._store = store
        self._watch = watch
        self._tallies = {name: Tally() for name in configuration.targets}
        self._lines = {name: _Line() for name in configuration.targets}
        self._troubles: list[str] = []
        self._start = time.monotonic()

    def run(self) -> Summary:
        """Run to the end, or to Ctrl-C, and say what came of it.

        Raises PoolError if workers cannot start. A store that can no longer be written ends the campaign
        early; the summary then has the reason among its troubles.
        """
        interrupted = False
        configuration = self._configuration
        with Pool(
            jobs.HANDLER,
            jobs=configuration.jobs,
            memory=configuration.memory,
            warm=configuration.targets,
        ) as pool:
            self._pool = pool
            runner = Runner(pool, configuration.limit)
            self._triage = Triage(
                runner, self._program, at_once=configuration.jobs, budget=configuration.budget
            )
            self._start = time.monotonic()
            try:
                self._loop()
            except KeyboardInterrupt:
                interrupted = True
            except StoreError as error:
                self._troubles.append(str(error))
                self._store = None
            finally:
                self._triage.stop()
        return self._summary(interrupted)

    def _loop(self) -> None:
        configuration, pool = self._configuration, self._pool
        end = None if configuration.seconds is None else self._start + configuration.seconds
        grace = min(MOST_GRACE, GRACE * (configuration.seconds or 0.0))
        shown = 0.0
        while True:
            now = time.monotonic()
            late = end is not None and now >= end
            self._triage.firsts_only = late
            if not late:
                self._issue()
            busy = self._triage.advance()
            for event in pool.wait(0.2):
                self._route(event)
            self._settle()
            if self._store is not None:
                self._store.commit()
            if now - shown > 0.25:
                shown = now
                self._watch(self._progress(late))
            if all(line.settled == line.issued for line in self._lines.values()):
                done = late or all(line.issued == configuration.cases for line in self._lines.values())
                out_of_time = end is not None and now >= end + grace
                if done and (out_of_time or not (busy or self._triage.advance())):
                    return

    def _issue(self) -> None:
        """Keep one lease waiting for each worker; the target that is furthest behind comes first."""
        cases = self._configuration.cases
        while self._pool.backlog < self._configuration.jobs:
            open_lines = [
                (line.issued, name)
                for name, line in self._lines.items()
                if cases is None or line.issued < cases
            ]
            if not open_lines:
                return
            start, name = min(open_lines, key=lambda entry: entry[0])
            stop = start + self._lease(name)
            if cases is not None:
                stop = min(stop, cases)
            self._lines[name].issued = stop
            configuration = self._configuration
            items = tuple(
                jobs.case_item(configuration.seed, index, configuration.profile, configuration.device, name)
                for index in range(start, stop)
            )
            self._pool.submit(Job(items, configuration.limit, tag=(name, start)))

    def _lease(self, target: str) -> int:
        tally = self._tallies[target]
        if not tally.cases:
            return 1
        return max(1, min(LARGEST_LEASE, int(LEASE_SECONDS * tally.cases / max(tally.seconds, 1e-9))))

    def _route(self, event: Event) -> None:
        """Give an event to whoever asked: an investigation's future, or a line of cases."""
        tag = event.job.tag
        if isinstance(tag, Future):
            if not tag.cancelled():
                tag.set_result(event)
            return
        if isinstance(event, Failure):
            self._troubles.append(event.text)
        if len(tag) == 3:
            name, index, dead = tag
            self._arrive(name, index, judge_death(dead, event))
            return
        name, start = tag
        index = start + event.position
        seen = _unable(event) if isinstance(event, Failure) else understand(event)
        if seen.kind:
            # Whose death was it? A program that kills eager as well proves nothing.
            item = jobs.program_item(self._program(index), EAGER)
            self._pool.submit(
                Job((item,), self._configuration.limit, urgent=True, fresh=True, tag=(name, index, seen))
            )
        else:
            self._arrive(name, index, seen)

    def _arrive(self, name: str, index: int, seen: Seen) -> None:
        self._lines[name].waiting[index] = (seen, time.monotonic() - self._start)

    def _settle(self) -> None:
        """Count, store and triage what has arrived, as far as nothing before it is missing."""
        for name, line in self._lines.items():
            while line.settled in line.waiting:
                index = line.settled
                seen, at = line.waiting.pop(index)
                line.settled += 1
                self._tallies[name].count(seen)
                if seen.signature:
                    self._triage.add(name, index, seen, at)
                if self._store is not None:
                    self._store.add(_row(name, index, seen, at))

    def _program(self, index: int) -> Any:
        configuration = self._configuration
        return jobs.program(configuration.seed, index, configuration.profile, configuration.device)

    def _progress(self, finishing: bool) -> Progress:
        seconds = time.monotonic() - self._start
        return Progress(seconds, self._tallies, self._triage.known, self._pool.states(), finishing)

    def _summary(self, interrupted: bool) -> Summary:
        seconds = time.monotonic() - self._start
        found = self._triage.buckets()
        files: dict[tuple[str, str], tuple[str, str]] = {}
        troubles = [*self._troubles, *self._triage.troubles]
        summary = Summary(self._configuration, seconds, self._tallies, found, files, interrupted, troubles)
        if self._store is not None:
            try:
                for bucket in found:
                    case = recorded(bucket, self._configuration)
                    file, script = self._store.bucket(bucket.target, bucket.name, case, bucket.example.script)
                    files[bucket.target, bucket.name] = (str(file), str(script))
            except StoreError as error:
                troubles.append(str(error))
        return summary


def recorded(bucket: Bucket, configuration: Configuration) -> corpus.Case:
    """A bucket's example as a corpus case."""
    import torch

    example = bucket.example
    finding = buckets.main(example.seen.findings)
    origin = corpus.Origin(bucket.target, configuration.seed, example.suspect.index, configuration.profile)
    return corpus.Case(
        program=example.program,
        # Not the campaign's name for it, which may say "unreduced": a replay computes this one again.
        bucket=buckets.bucket(example.seen.findings, example.program),
        clause=bucket.clause,
        torch=torch.__version__.split("+")[0],
        origin=origin,
        expected={bucket.target: corpus.DIFFERS},
        findings=example.seen.findings,
        note=finding.message,
    )


def judge_death(dead: Seen, event: Event) -> Seen:
    """Whose death it was: `event` says what eager did of the program on which a worker died."""
    eager = _unable(event) if isinstance(event, Failure) else understand(event)
    if not eager.kind:
        return dead
    return Seen("poisoned", "", (), f"eager does it too: {eager.reason}", dead.seconds)


def _unable(event: Failure) -> Seen:
    """A case on which the fuzzer itself failed: it counts as poisoned, and the failure is reported."""
    return Seen("poisoned", "", (), "the fuzzer failed on it", 0.0)


def _row(name: str, index: int, seen: Seen, at: float) -> Row:
    findings = tuple(corpus.finding_to_json(finding) for finding in seen.findings)
    return Row(name, index, seen.outcome, seen.reason, seen.signature, seen.seconds, at, findings, seen.stack)


def workers() -> int:
    """How many workers a campaign gets by default: the cores that this process may use."""
    return len(os.sched_getaffinity(0))
