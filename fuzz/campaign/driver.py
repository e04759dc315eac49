"""Driver: a campaign of generated programs on several targets, bounded by time or by cases.

In: a `Configuration`, and perhaps a store. Out: a `Summary`. All targets get the same programs. Case `index`
depends only on seed, index and profile, so it is the same on one worker or on twenty.

Answers come in any order. Each is written to the store when it comes, and counts from then on. So a campaign
that was killed can go on with the cases without an answer. The ledger settles answers in the order of their
indices; when time is up, the settled cases are a prefix. If a worker dies in a case, that is a finding of its
own kind, unless eager dies of the same program.

    summary = Campaign(Configuration(targets=("aot",), seed=1, cases=5000)).run()
    summary.findings, summary.buckets
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.devices import gpu_names
from fuzz.campaign.investigate import EAGER, KILLED, Runner, run_of_event
from fuzz.campaign.ledger import Tally
from fuzz.campaign.memory_gauge import Gauge
from fuzz.campaign.records import RunOutcome
from fuzz.campaign.store import Row, Store, utc_now
from fuzz.campaign.summary import Summary, rebuild_ledger, summarize, write_files
from fuzz.campaign.triage import Triage
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Answer, Death, Event, Failure, Job, Workers, WorkerStatus
from fuzz.errors import StoreError, WorkersLost
from fuzz.execute.case import shared_difference
from fuzz.features.traits import traits
from fuzz.safe_text import shell_command
from fuzz.targets.catalog import find_target

LARGEST_LEASE = 256
# After the time is up, the first finding of each group may still be reduced for so much of that time, in
# seconds and as a share: silent ones first. From half of that on all come to their end with what they have.
MOST_GRACE = 30.0
GRACE = 0.25
# No new cases while so many wait for another run: they would only pile up.
MOST_AGAIN = 64
# Who kills a worker so is seldom the target: so often has it to happen before the target is blamed.
KILLS = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """A running campaign, for a live view. `left` is an estimate of the seconds to its end."""

    seconds: float
    tallies: dict[str, Tally]
    buckets: int
    workers: list[WorkerStatus]
    finishing: bool
    left: float | None = None


@dataclass(frozen=True, slots=True)
class _Lease:
    """The tag of a job: a lease of cases."""

    target: str
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Rerun:
    """The tag of a job: a case that runs again, alone.

    Its worker was killed so many times, perhaps because of others; or the fuzzer failed on it after other
    cases had run in the same worker.
    """

    target: str
    index: int
    kills: int


@dataclass(frozen=True, slots=True)
class _Control:
    """The tag of a job: a program on which a worker died, on another target (eager, or a control).

    That run was killed so many times.
    """

    target: str
    index: int
    dead: RunOutcome
    other: str = EAGER
    kills: int = 0


class Campaign:
    """One campaign. `run` may be called once."""

    def __init__(
        self,
        configuration: Configuration,
        store: Store | None = None,
        watch: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        """Prepare a campaign. `watch` is called a few times a second with its progress.

        If the store has cases already, the campaign goes on from there.
        """
        self._configuration = configuration
        self._store = store or Store.in_memory(configuration)
        self._watch = watch
        self._ledger = rebuild_ledger(self._store)
        self._before = self._store.elapsed
        self._troubles: Counter[str] = Counter()
        self._gauge = Gauge()
        self._again = 0
        self._leave = False
        self._start = time.monotonic()

    def run(self) -> Summary:
        """Run to the end, or to Ctrl-C or SIGTERM, and return the summary.

        A store that can no longer be written, and lost workers, end the campaign early. The summary then has
        the reason among its troubles.

        Raises:
            PoolError: workers cannot start.
        """
        writable = True
        lost = ""
        sessions = [
            *self._store.get("sessions"),
            {"started": utc_now(), "from": self._before, "ended": "killed"},
        ]
        complete = False
        with self._make_workers() as pool, _campaign_signals_handled(self._interrupt):
            self._pool = pool
            runner = Runner(pool, self._configuration.limit, self._configuration.clauses)
            budget = self._configuration.budget
            if self._configuration.seconds is None:
                budget = replace(budget, seconds=math.inf)
            triage = Triage(
                self._ledger,
                runner,
                self._store.keep,
                at_once=max(1, self._configuration.jobs),
                budget=budget,
                seconds=self._configuration.seconds,
            )
            self._start = time.monotonic()
            try:
                self._store.set("sessions", sessions, self._elapsed())
                self._store.set("ended", "killed", self._elapsed())
                # A later reader of the file need not have the targets, nor run their code.
                shares = {name: find_target(name).refuses for name in self._configuration.targets}
                self._store.set("refuses", shares, self._elapsed())
                complete = self._run_campaign_loop(triage)
            except KeyboardInterrupt:
                pass
            except StoreError as error:
                self._troubles[str(error)] += 1
                writable = False
            except WorkersLost as error:
                go_on = (
                    shell_command("aotfuzz", "resume", self._store.folder)
                    if self._store.folder
                    else "a new one"
                )
                lost = f"{error}; what was stored is intact, and `{go_on}` goes on from there"
            finally:
                with contextlib.suppress(StoreError):
                    triage.stop()
                self._troubles.update(triage.troubles)
        if writable:
            sessions[-1]["ended"] = "complete" if complete else "interrupted"
            try:
                self._store.set("sessions", sessions, self._elapsed())
                self._store.set("ended", sessions[-1]["ended"], self._elapsed())
                self._store.set(
                    "troubles", [*self._store.get("troubles"), *self._trouble_texts()], self._elapsed()
                )
                self._troubles.clear()
                write_files(self._store, self._ledger.buckets())
            except StoreError as error:
                self._troubles[str(error)] += 1
        if lost:  # a campaign that is continued later drops this trouble
            self._troubles[lost] += 1
        return summarize(self._store, self._ledger, interrupted=not complete, troubles=self._trouble_texts())

    def _trouble_texts(self) -> tuple[str, ...]:
        """The troubles, each once."""
        return tuple(
            text if count == 1 else f"{text}\n({count} times)" for text, count in self._troubles.items()
        )

    def _make_workers(self) -> contextlib.AbstractContextManager[Workers]:
        configuration = self._configuration
        if configuration.cluster:
            from fuzz.campaign.workers.cluster import Cluster, Node

            return Cluster(configuration.cluster, Node.of(configuration, configuration.jobs))
        return Pool(
            handlers.HANDLER,
            jobs=configuration.jobs,
            memory=configuration.memory,
            warm=configuration.targets,
            gpus=gpu_names(configuration.device),
        )

    def _interrupt(self) -> None:
        self._leave = True
        self._pool.wake()

    def _elapsed(self) -> float:
        return self._before + time.monotonic() - self._start

    def _run_campaign_loop(self, triage: Triage) -> bool:
        """Run the loop to the end. Returns whether the end was reached."""
        configuration, pool, ledger = self._configuration, self._pool, self._ledger
        end = configuration.seconds
        grace = min(MOST_GRACE, GRACE * (end or 0.0))
        shown = -1.0
        while not self._leave:
            elapsed = self._elapsed()
            late = end is not None and elapsed >= end
            if late and not triage.firsts_only:
                triage.hurry(loud_only=True)
            triage.firsts_only = late
            if end is not None and elapsed >= end + grace / 2:
                triage.hurry(loud_only=False)
            if not late:
                self._issue_leases()
            busy = triage.advance(elapsed)
            for event in pool.wait(0.2):
                self._route_worker_event(event)
            sample = self._gauge.read(self._elapsed())
            if sample is not None:
                self._store.measure(sample)
            # Cases count once the store has them.
            self._store.commit(self._elapsed())
            ledger.settle()
            if elapsed - shown > 0.25:
                shown = elapsed
                self._watch(self._campaign_progress(late))
            if ledger.complete:
                done = late or all(line.issued == configuration.cases for line in ledger.lines.values())
                # What is silently wrong may take as long again, to be seen once more when it is reduced.
                patience = 2 * grace if triage.has_silent else grace
                out_of_time = end is not None and elapsed >= end + patience
                if done and (out_of_time or not (busy or triage.advance(elapsed))):
                    self._store.commit(self._elapsed())
                    return True
        return False

    def _issue_leases(self) -> None:
        """Keep leases waiting for the workers. The target that is furthest behind comes first.

        If time bounds the campaign, the target with the least time is behind, so that slow cases of one
        target leave the others their time. If cases bound it, the target with the fewest cases is behind.
        """
        configuration = self._configuration
        cases = configuration.cases
        while self._pool.backlog < self._pool.wanted and self._again < MOST_AGAIN:
            lines, tallies = self._ledger.lines, self._ledger.tallies
            open_lines = [name for name, line in lines.items() if cases is None or line.issued < cases]
            if not open_lines:
                return
            name = min(
                open_lines,
                key=lambda name: (0.0 if cases is not None else tallies[name].seconds, lines[name].issued),
            )
            line = lines[name]
            start, stop = line.issued, line.issued + self._lease(name)
            if cases is not None:
                stop = min(stop, cases)
            line.issued = stop
            # An earlier session may have answered some of them.
            indices = tuple(index for index in range(start, stop) if not line.knows(index))
            if indices:
                items = tuple(self._item(name, index) for index in indices)
                label = f"{name} {indices[0]}-{indices[-1]}"
                self._pool.submit(Job(items, configuration.limit, tag=_Lease(name, indices), label=label))

    def _lease(self, target: str) -> int:
        tally = self._ledger.tallies[target]
        if not tally.cases:
            return 1
        rate = tally.cases / max(tally.seconds, 1e-9)
        return max(1, min(LARGEST_LEASE, int(self._pool.lease_seconds * rate)))

    def _item(self, target: str, index: int) -> dict[str, Any]:
        configuration = self._configuration
        return handlers.case_item(
            configuration.seed,
            index,
            configuration.profile,
            configuration.device,
            target,
            configuration.clauses,
        )

    def _route_worker_event(self, event: Event) -> None:
        """Give an event to the investigation that waits for it, or to its line of cases."""
        if isinstance(event, Answer):
            self._gauge.heard(event.resident)
        tag = event.job.tag
        if isinstance(tag, Future):
            if not tag.cancelled():
                tag.set_result(event)
            return
        if not isinstance(tag, _Lease):
            self._again -= 1
        if isinstance(event, Failure) and not isinstance(tag, _Lease):
            self._troubles[event.text] += 1
        killed = isinstance(event, Death) and event.cause == KILLED
        if isinstance(tag, _Control):
            seen = judge_death(tag.dead, event, tag.other)
            others = (EAGER, *find_target(tag.target).controls)
            left = others[others.index(tag.other) + 1 :]
            if killed and tag.kills < KILLS:
                self._control(replace(tag, kills=tag.kills + 1))
            elif seen.kind and left:
                self._control(replace(tag, other=left[0], kills=0))
            else:
                self._settle_arrived_case(tag.target, tag.index, seen)
            return
        name, index = tag.target, tag.index if isinstance(tag, _Rerun) else tag.indices[event.position]
        kills = tag.kills if isinstance(tag, _Rerun) else 0
        seen = _unable(event) if isinstance(event, Failure) else run_of_event(event)
        if isinstance(event, Failure) and isinstance(tag, _Lease):
            # Perhaps it is what ran before in that worker that is to blame.
            self._urgent(self._item(name, index), _Rerun(name, index, kills))
        elif killed and kills < KILLS:
            self._urgent(self._item(name, index), _Rerun(name, index, kills + 1))
        elif seen.kind:
            # A program that kills eager or a control too proves nothing about the target.
            self._control(_Control(name, index, seen))
        else:
            self._settle_arrived_case(name, index, seen)

    def _control(self, tag: _Control) -> None:
        self._urgent(handlers.program_item(self._program(tag.index), tag.other), tag)

    def _urgent(self, item: dict[str, Any], tag: _Rerun | _Control) -> None:
        label = f"{tag.target} {tag.index} again"
        job = Job((item,), self._configuration.limit, urgent=True, fresh=True, tag=tag, label=label)
        self._again += 1
        self._pool.submit(job)

    def _settle_arrived_case(self, name: str, index: int, seen: RunOutcome) -> None:
        if self._ledger.lines[name].knows(index):
            # A lease may be answered twice, if its node was wrongly thought dead.
            return
        if not seen.traits:
            seen = replace(seen, traits=self._traits(index))
        at = self._elapsed()
        self._store.add(Row(name, index, seen, at))
        if name == self._configuration.targets[0]:
            self._store.cover(seen.traits)
        self._ledger.arrive(name, index, replace(seen, findings=(), stack="", traits=()), at)

    def _traits(self, index: int) -> tuple[str, ...]:
        """The traits of a program whose worker died before it could report them."""
        try:
            return tuple(traits(self._program(index)))
        except Exception:  # the generator raises, and the worker has reported that
            return ()

    def _program(self, index: int) -> Any:
        configuration = self._configuration
        return handlers.program(configuration.seed, index, configuration.profile, configuration.device)

    def _campaign_progress(self, finishing: bool) -> Progress:
        """The progress of the campaign.

        `finishing` says that the time is up; without cases left it is finishing too.
        """
        elapsed, configuration = self._elapsed(), self._configuration
        left = None
        if configuration.seconds is not None:
            left = max(0.0, configuration.seconds - elapsed)
        elif configuration.cases is not None:
            settled = sum(tally.cases for tally in self._ledger.tallies.values())
            wanted = configuration.cases * len(self._ledger.tallies)
            finishing = settled == wanted
            if settled:
                left = elapsed * (wanted / settled - 1)
        return Progress(
            elapsed, self._ledger.tallies, self._ledger.known, self._pool.states(), finishing, left
        )


@contextlib.contextmanager
def _campaign_signals_handled(interrupt: Callable[[], None]) -> Iterator[None]:
    """While it lasts, a first Ctrl-C or SIGTERM ends the campaign in order, and a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        interrupt()

    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
    for kind in before:
        signal.signal(kind, leave)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def judge_death(dead: RunOutcome, event: Event, other: str) -> RunOutcome:
    """Decide whose death it was.

    `event` is the result of another target on the program on which a worker died.
    """
    seen = _unable(event) if isinstance(event, Failure) else run_of_event(event)
    if not seen.kind:
        return dead
    return RunOutcome("poisoned", "", (), shared_difference(other, seen.reason), dead.seconds)


def _unable(event: Failure) -> RunOutcome:
    """The outcome of a case on which the fuzzer itself failed.

    It counts as poisoned, and the failure is reported.
    """
    return RunOutcome("poisoned", "", (), "the fuzzer failed on it", 0.0)
