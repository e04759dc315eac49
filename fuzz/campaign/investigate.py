"""Investigate: see one finding again in a fresh worker, reduce it, confirm it, and make its script.

In: a `Suspect`. Out: an `Example`. Every program runs in the pool, so a reduced program that segfaults or
hangs costs a worker, and not the finding. An investigation is a blocking function in its own thread. It
reaches the pool by a `Runner`, whose futures the driver's loop fulfils.

    example = investigate(suspect, Runner(pool, limit=30.0), budget=Budget())
    example.bucket, example.program
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from fuzz.campaign import repro_trial
from fuzz.campaign.configuration import DEFAULT_BUDGET, Budget
from fuzz.campaign.records import Example, RunOutcome, State, Suspect, doubtful_bucket
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Answer, Death, Event, Failure, Job, Workers
from fuzz.corpus import buckets
from fuzz.corpus.severity import severity
from fuzz.errors import PoolError
from fuzz.execute.call import Result
from fuzz.execute.case import as_promised
from fuzz.program.decode import Program
from fuzz.reduce import ReductionError, reduce
from fuzz.repro import script as repro_script
from fuzz.targets.catalog import find_target
from oracles import Finding

T = TypeVar("T")
EAGER = "eager"
# The target is seldom the reason: the kernel kills when memory is short, or an administrator does.
KILLED = "killed by SIGKILL"
# How often a run is repeated if its worker was killed so, or if the fuzzer failed on it.
AGAIN = 3
# How many fresh workers try a finding before it is called flaky or unconfirmed.
REPLAYS = 4


def run_of_event(event: Event) -> RunOutcome:
    """The outcome of a run in an event of the pool.

    Raises:
        PoolError: the event is a mistake of the fuzzer.
    """
    match event:
        case Answer(_, _, value, seconds):
            result = Result.from_json(value)
            signature = buckets.signature(result.findings) if result.outcome == "finding" else ""
            traits = tuple(value.get("traits", ()))
            return RunOutcome(
                result.outcome,
                signature,
                result.findings,
                result.reason,
                seconds,
                traits=traits,
                origin=result.origin,
            )
        case Death(_, _, kind, cause, stack, output, seconds):
            finding = buckets.death(kind, cause, stack)
            text = "\n".join(part for part in (stack, output) if part)
            return RunOutcome(
                "finding", buckets.signature((finding,)), (finding,), finding.message, seconds, kind, text
            )
        case _:
            raise PoolError(f"the fuzzer failed on a case:\n{event.text}")


class ProgramRunner(Protocol):
    """What an investigation needs to run programs."""

    @property
    def limit(self) -> float:
        """The time limit of one run in seconds."""

    def begin(self, program: Program, target: str, *, limit: float | None = None) -> None:
        """Have a program run that may be asked for next."""

    def run(
        self, program: Program, target: str, *, fresh: bool = False, limit: float | None = None
    ) -> RunOutcome:
        """Run a program and wait for it."""

    def shows(self, text: str, finding: Finding) -> bool:
        """Whether a repro script shows its difference, and not another one."""


class Runner:
    """Runs programs in the pool, for threads other than the driver's."""

    def __init__(self, pool: Workers, limit: float, clauses: Sequence[str] = ()) -> None:
        """Prepare a runner. `clauses` are judged of those that a target promises; empty means all."""
        self._pool = pool
        self._clauses = clauses
        self.limit = limit
        self._cancelled = False
        self._waiting: set[Future[Event]] = set()
        self._begun: dict[tuple[Program, str], Future[Event]] = {}

    def begin(self, program: Program, target: str, *, limit: float | None = None) -> None:
        """Start a program that may be needed next, in a worker that has nothing else to do."""
        if (program, target) not in self._begun and not self._cancelled:
            item = handlers.program_item(program, target, self._clauses)
            self._begun[program, target] = self._submit(item, False, limit)

    def run(
        self, program: Program, target: str, *, fresh: bool = False, limit: float | None = None
    ) -> RunOutcome:
        """Run a program and wait for it.

        Raises:
            CancelledError: the campaign ends first.
        """
        begun = None if fresh else self._begun.pop((program, target), None)
        item = handlers.program_item(program, target, self._clauses)
        return run_of_event(self.ask(item, fresh, limit, begun))

    def shows(self, text: str, finding: Finding) -> bool:
        """Whether a repro script shows its difference, and not another one."""
        event = self.ask(handlers.script_item(text), True, None)
        if isinstance(event, Death):
            # If the worker dies of the script, that is the difference only for a finding of a death.
            return finding.target.startswith(("crash", "timeout")) or finding.clause != "errors"
        return isinstance(event, Answer) and repro_trial.is_difference_shown_by_repro(finding, event.value)

    def wake(self) -> None:
        """Wake the driver's loop."""
        self._pool.wake()

    def cancel(self) -> None:
        """Cancel everything that threads wait for."""
        self._cancelled = True
        for future in list(self._waiting):
            future.cancel()

    def ask(
        self,
        item: dict[str, Any],
        fresh: bool = False,
        limit: float | None = None,
        begun: Future[Event] | None = None,
    ) -> Event:
        """Hand an item to the pool (`fuzz.campaign.workers.handlers`), and wait for its event."""
        for _ in range(AGAIN):
            future = begun or self._submit(item, fresh, limit)
            begun = None
            try:
                event = future.result()
            finally:
                self._waiting.discard(future)
            if isinstance(event, Failure):
                # Perhaps it is what ran before in that worker that is to blame.
                fresh = True
            elif not (isinstance(event, Death) and event.cause == KILLED):
                break
        return event

    def _submit(self, item: dict[str, Any], fresh: bool, limit: float | None) -> Future[Event]:
        if self._cancelled:
            raise CancelledError
        future: Future[Event] = Future()
        self._waiting.add(future)
        self._pool.submit(Job((item,), limit or self.limit, urgent=True, fresh=fresh, tag=future))
        return future


def serve_pool_during(pool: Pool, work: Callable[[], T]) -> T:
    """Run `work`, which uses a `Runner`, in another thread, and serve the pool until it returns."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(work)
        future.add_done_callback(lambda _: pool.wake())
        while not future.done():
            for event in pool.wait(1.0):
                if not event.job.tag.cancelled():
                    event.job.tag.set_result(event)
        return future.result()


def _never() -> bool:
    return False


def investigate(
    suspect: Suspect,
    runner: ProgramRunner,
    budget: Budget = DEFAULT_BUDGET,
    *,
    ahead: bool = False,
    hurried: Callable[[], bool] = _never,
) -> Example:
    """Confirm, reduce and describe one finding. If a step fails, the finding itself is kept.

    With `ahead`, for a pool that has nothing else to do, workers run programs early that may be needed next.
    When `hurried` returns true, the smallest program so far is the result.
    """
    signature = suspect.seen.signature
    again = runner.run(suspect.program, suspect.target, fresh=True)
    if again.signature != signature:
        return _doubtful_finding(suspect, [again], runner, evaluations=0)
    predicate, begin, spent = _is_interesting_to_investigation(suspect, runner, budget, hurried)
    try:
        smaller = reduce(
            suspect.program, predicate, budget=budget.evaluations, ahead=begin if ahead else None
        ).program
    except ReductionError:
        # A fresh worker shows it and a used one does not: it is real, but cannot be reduced in this way.
        smaller = suspect.program
    final = runner.run(smaller, suspect.target, fresh=True)
    if final.signature != signature:
        return _doubtful_finding(suspect, [again], runner, evaluations=spent())
    return _confirmed_finding(suspect, smaller, final, runner, evaluations=spent())


def _is_interesting_to_investigation(
    suspect: Suspect, runner: ProgramRunner, budget: Budget, hurried: Callable[[], bool]
) -> tuple[Callable[[Program], bool], Callable[[Program], None], Callable[[], int]]:
    """The reducer's predicate, a function that starts a call of it early, and a count of its calls.

    A program is interesting if it has the same signature, is at least as severe, and there is time left in
    the budget.
    """
    calls = 0
    seconds = 0.0
    hangs = suspect.seen.kind == "timeout"
    worst = severity(suspect.seen.findings)
    limit = min(runner.limit, budget.hang_limit) if hangs else runner.limit

    def interesting(program: Program) -> bool:
        nonlocal calls, seconds
        if seconds > budget.seconds or hurried():
            return False
        calls += 1
        seen = runner.run(program, suspect.target, limit=limit)
        seconds += seen.seconds
        same = seen.signature == suspect.seen.signature and severity(seen.findings) <= worst
        if same and seen.kind:
            # A death counts only if eager alone survives the program.
            return runner.run(program, EAGER, limit=limit).outcome == "agree"
        return same

    def begin(program: Program) -> None:
        if seconds <= budget.seconds and not hurried():
            runner.begin(program, suspect.target, limit=limit)

    return interesting, begin, lambda: calls


def _confirmed_finding(
    suspect: Suspect, program: Program, seen: RunOutcome, runner: ProgramRunner, *, evaluations: int
) -> Example:
    """The example of a finding that fresh workers show, with its bucket, after its script was tried."""
    finding = buckets.primary_finding(seen.findings)
    program = as_promised(program, find_target(suspect.target))
    bucket = buckets.bucket(seen.findings, program)
    # A short script checks one thing. If it does not show the difference, a script that checks all may.
    texts = dict.fromkeys(
        repro_script.repro_script(program, suspect.target, finding, long=long) for long in (False, True)
    )
    shown = next((text for text in texts if runner.shows(text, finding)), None)
    text = shown or next(iter(texts))
    state: State = "confirmed" if shown is None else "shown"
    return Example(suspect, program, seen, bucket, text, state, evaluations)


def _doubtful_finding(
    suspect: Suspect, runs: list[RunOutcome], runner: ProgramRunner, *, evaluations: int
) -> Example:
    """The example of a finding that not all fresh workers show, with the result of each.

    Such a finding is flaky, or depends on an earlier case. `runs` has the runs that fresh workers have made
    already.
    """
    runs = [*runs]
    while len(runs) < REPLAYS:
        runs.append(runner.run(suspect.program, suspect.target, fresh=True))
    same = [seen.signature == suspect.seen.signature for seen in runs]
    # If all fresh workers show it, it is real, and only its reduction was unstable.
    if all(same):
        return _confirmed_finding(suspect, suspect.program, runs[-1], runner, evaluations=evaluations)
    state: State = "flaky" if any(same) else "unconfirmed"
    replays = [
        "as in the campaign" if alike else _words(seen) for alike, seen in zip(same, runs, strict=True)
    ]
    text = repro_script.repro_script(
        suspect.program, suspect.target, buckets.primary_finding(suspect.seen.findings)
    )
    bucket = doubtful_bucket(state, suspect)
    return Example(suspect, suspect.program, suspect.seen, bucket, text, state, evaluations, tuple(replays))


def _words(seen: RunOutcome) -> str:
    """The outcome of a run in a few words."""
    if seen.signature:
        return f"finding: {seen.signature}"
    return f"{seen.outcome}: {seen.reason}" if seen.reason not in ("", seen.outcome) else seen.outcome
