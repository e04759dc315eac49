"""One finding under the lens: seen again in a fresh worker, reduced, confirmed, and given its script.

Each step runs programs in the pool, so a reduced program that segfaults or hangs costs a worker and not the
finding. An investigation is an ordinary blocking function in a thread of its own; it reaches the pool through
`Runner`, whose futures the driver's loop fulfils.

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
# A death that is seldom the target's doing: the kernel's when memory is short, or an administrator's.
KILLED = "killed by SIGKILL"
# How often a run is repeated whose worker was killed so, or on which the fuzzer failed.
AGAIN = 3
# How many fresh workers a finding is shown to before it is called flaky or unconfirmed.
REPLAYS = 4


def run_of_event(event: Event) -> RunOutcome:
    """What an event of the pool says about the program that ran; PoolError for a mistake of the fuzzer."""
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
    """What an investigation needs of whoever runs its programs."""

    @property
    def limit(self) -> float:
        """Seconds that one run may take."""

    def begin(self, program: Program, target: str, *, limit: float | None = None) -> None:
        """Have a program run that may be asked for next."""

    def run(
        self, program: Program, target: str, *, fresh: bool = False, limit: float | None = None
    ) -> RunOutcome:
        """Run a program and wait for it."""

    def shows(self, text: str, finding: Finding) -> bool:
        """Whether a repro script shows its difference, and not another one."""


class Runner:
    """Runs programs in the pool for threads other than the driver's."""

    def __init__(self, pool: Workers, limit: float, clauses: Sequence[str] = ()) -> None:
        """`clauses` are those that are judged, if not all that a target promises."""
        self._pool = pool
        self._clauses = clauses
        self.limit = limit
        self._cancelled = False
        self._waiting: set[Future[Event]] = set()
        self._begun: dict[tuple[Program, str], Future[Event]] = {}

    def begin(self, program: Program, target: str, *, limit: float | None = None) -> None:
        """Have a program run that may be asked for next, in a worker that has nothing else to do."""
        if (program, target) not in self._begun and not self._cancelled:
            item = handlers.program_item(program, target, self._clauses)
            self._begun[program, target] = self._submit(item, False, limit)

    def run(
        self, program: Program, target: str, *, fresh: bool = False, limit: float | None = None
    ) -> RunOutcome:
        """Run a program and wait for it; CancelledError when the campaign ends first."""
        begun = None if fresh else self._begun.pop((program, target), None)
        item = handlers.program_item(program, target, self._clauses)
        return run_of_event(self.ask(item, fresh, limit, begun))

    def shows(self, text: str, finding: Finding) -> bool:
        """Whether a repro script shows its difference, and not another one."""
        event = self.ask(handlers.script_item(text), True, None)
        if isinstance(event, Death):
            # A worker that dies of a script has died of what the script is about, or the script is not it.
            return finding.target.startswith(("crash", "timeout")) or finding.clause != "errors"
        return isinstance(event, Answer) and repro_trial.is_difference_shown_by_repro(finding, event.value)

    def wake(self) -> None:
        """Let the driver's loop look at what has been done."""
        self._pool.wake()

    def cancel(self) -> None:
        """Let no thread wait any longer."""
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
        """Have an item handled (`fuzz.campaign.workers.handlers`) and wait for what comes of it."""
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
    """The result of `work`, which asks a `Runner` in a thread, while this thread serves the pool."""
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
    """Confirm, reduce and describe one finding. Whatever fails on the way, the finding itself is kept.

    With `ahead`, for a pool that has nothing else to do, its workers run what may be asked for next. Once
    `hurried` says so, the smallest program so far is the result.
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
        # A fresh worker shows it and a used one does not: real, but not to be made smaller this way.
        smaller = suspect.program
    final = runner.run(smaller, suspect.target, fresh=True)
    if final.signature != signature:
        return _doubtful_finding(suspect, [again], runner, evaluations=spent())
    return _confirmed_finding(suspect, smaller, final, runner, evaluations=spent())


def _is_interesting_to_investigation(
    suspect: Suspect, runner: ProgramRunner, budget: Budget, hurried: Callable[[], bool]
) -> tuple[Callable[[Program], bool], Callable[[Program], None], Callable[[], int]]:
    """The reducer's predicate, how a call of it is begun, and a count of its calls.

    A program is interesting if it has the same signature, is no less severe, and is within the budget of
    time.
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
            # The target's observation includes what eager does: a program that kills eager shows nothing.
            return runner.run(program, EAGER, limit=limit).outcome == "agree"
        return same

    def begin(program: Program) -> None:
        if seconds <= budget.seconds and not hurried():
            runner.begin(program, suspect.target, limit=limit)

    return interesting, begin, lambda: calls


def _confirmed_finding(
    suspect: Suspect, program: Program, seen: RunOutcome, runner: ProgramRunner, *, evaluations: int
) -> Example:
    """A finding that fresh workers show: in a bucket, with its script tried."""
    finding = buckets.primary_finding(seen.findings)
    program = as_promised(program, find_target(suspect.target))
    bucket = buckets.bucket(seen.findings, program)
    # A short script looks at one thing. What it does not show, one that looks at everything may.
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
    """A finding that comes and goes, or needs what an earlier case left behind, with what each run gave.

    `runs` are those that fresh workers have made of the program already.
    """
    runs = [*runs]
    while len(runs) < REPLAYS:
        runs.append(runner.run(suspect.program, suspect.target, fresh=True))
    same = [seen.signature == suspect.seen.signature for seen in runs]
    # One that all fresh workers show is real; it was its reduction that came and went.
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
    """A run in a few words."""
    if seen.signature:
        return f"finding: {seen.signature}"
    return f"{seen.outcome}: {seen.reason}" if seen.reason not in ("", seen.outcome) else seen.outcome
