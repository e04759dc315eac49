"""Call: run one call of a function in eager and on a target, each on fresh arguments, and judge the target.

In: a function, how to compile it, and a `CallSpec`. Out: a `Result`. Eager and the target start from the same
seed. The reruns that tell noise from a difference, such as the float64 reference, run only if the judge asks
for them. A call that two threads make at once (`Scenario.threads`) is observed in both, and each must see
what eager sees in one call.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import Barrier, Lock, Thread
from typing import Any, Literal

import torch

from fuzz.corpus import case_file
from fuzz.corpus.severity import worst_finding
from fuzz.execute.process_state import Builtins, Change, ProcessState, recursion_limit_lowered
from fuzz.ir.nodes import Scenario
from fuzz.program.printer import Make
from fuzz.targets.target import Function, Target
from oracles import Arguments, Finding, Observation, Outcome, Refusal, Step, as_on_cpu, judge, observe
from oracles.comparison.context import outcome
from oracles.object_names import encodable, message_of
from oracles.observation.ambient import record_ambient
from oracles.observation.exception_origin import exception_origin
from oracles.observation.operation_mode import OperationMode
from oracles.rerun.dense_operands import DenseOperands
from oracles.rerun.double_by_default import double_by_default
from oracles.rerun.random_rounding import RandomRounding
from oracles.rerun.replay_rng import RecordDraws, ReplayDraws


class EscapedException(Exception):
    """A target raised SystemExit, KeyboardInterrupt or the like, which must not end a call."""

    # Recorded signatures of findings have this name.
    __module__ = "fuzz.call"
    __qualname__ = "Escape"


OutcomeName = Literal["agree", "poisoned", "finding", "refused"]
SEED = 0
LACKS = "lacks "  # begins the reason of a refusal that `Target.lacks` or `Target.declines` announces
# The time that one of two threads runs before the other. A short compilation then has a thousand turns;
# otherwise it would be over before the second thread begins.
_SWITCH_SECONDS = 1e-5


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one case: plain data, the same on every run except for `seconds`.

    `reason` is the name of the refusal for "refused", why the case proves nothing for "poisoned", or the
    first finding's message. `origin` is the target's function that raised, if it is known. `seconds` is the
    wall time. `intact`: another case may run in this process. `comparable`: a later call of this case finds
    the same state as in eager.
    """

    outcome: OutcomeName
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    intact: bool = True
    comparable: bool = True
    origin: str = ""

    def to_json(self) -> dict[str, Any]:
        """The result as plain data for a worker's pipe, without the fields for the worker alone."""
        return {
            "outcome": self.outcome,
            "findings": [case_file.finding_to_json(finding) for finding in self.findings],
            "reason": self.reason,
            "seconds": self.seconds,
            "origin": self.origin,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """The inverse of `to_json`."""
        findings = tuple(case_file.finding_from_json(finding) for finding in data["findings"])
        return cls(data["outcome"], findings, data["reason"], data["seconds"], origin=data.get("origin", ""))


Twin = tuple[Function, Make, object]
"""A function in double precision, a function that makes its arguments, and its state between calls."""


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One call of a function: its arguments, its modes, and the steps after it.

    `exact` gives the same function and arguments in double precision, or None; it may be None. `mode` is the
    function mode of a call that is `swapped`. `state` is what the function keeps between calls, if anything.
    Then `anew` gives the function and all its calls with a new state, as before the first call, and `number`
    is this call's place among them.
    """

    make: Make
    scenario: Scenario = field(default_factory=Scenario)
    steps: tuple[Step, ...] = ()
    exact: Callable[[], Twin | None] | None = None
    mode: Callable[[], AbstractContextManager[object]] | None = None
    state: object = None
    anew: Callable[[], tuple[Function, Sequence[CallSpec]]] | None = None
    number: int = 0


Baseline = Callable[[Function], Function]


def eager_itself(function: Function) -> Function:
    return function


def in_one_thread(trial: CallSpec) -> CallSpec:
    return replace(trial, scenario=replace(trial.scenario, threads=False))


def _observer_failure(error: BaseException) -> Result:
    """The result if the observer, which runs torch, fails: the target broke torch, or returned an
    object that raises.
    """
    here = "all can be looked at" if _is_torch_intact() else "torch works"
    said = _in_short(error)
    message = f"after the call: {here} in eager, {said} in the target"
    finding = Finding("errors", "after the call", here, said, message)
    origin = exception_origin(error.__traceback__)
    return Result("finding", (finding,), str(finding), intact=False, origin=origin)


def _process_change_after_call(left: Sequence[Change]) -> Result:
    """The result if the target has changed its process, and nothing else can be compared."""
    findings = tuple(
        Finding(
            one.clause,
            one.what,
            one.before,
            one.after,
            f"{one.what}: {one.before} in eager, {one.after} in the target",
        )
        for one in left
    )
    return Result("finding", findings, str(findings[0]), intact=False)


def reset_target(target: Target) -> str | None:
    """Reset a target. Returns the exception that it raises in words, or None."""
    try:
        target.reset()
    except BaseException as error:
        if _is_the_users(error):
            raise
        return _in_short(error)
    return None


def _in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {(message_of(error).splitlines() or [''])[0]}"


def judge_call(
    trial: CallSpec,
    standard: Baseline,
    function: Function,
    compiled: LazyCompiled,
    own: CallSpec,
    *,
    elsewhere: bool = False,
    known: Observation | None = None,
) -> Result:
    """Judge one call.

    `trial` is the call on the baseline `standard` (eager or a control), which made `function`; `known` is its
    observation, if there is one. `own` is the call on the target `compiled`. It may be `elsewhere`, on
    another device; then a call that draws random numbers cannot be compared.
    """
    try:
        eager = run_and_observe(trial, function) if known is None else known
        _settle()
    except Exception as error:
        if _settled():
            raise
        return Result("poisoned", reason=f"eager breaks the device: {_in_short(error)}", intact=False)
    before, surroundings = compiled.runs, ProcessState()
    try:
        with _garbage_kept():
            # If a function is compiled in pieces, some may have run, and changed anything, before a refusal.
            has_clause = standard is eager_itself and not compiled.target.in_pieces
            retry = compiled.function if has_clause else None
            observations = _observe_target_calls(own, compiled, retry)
            runs = compiled.runs - before
            observations = [_observe_without_first_growth(seen, own, compiled) for seen in observations]
            left = (*compiled.left, *surroundings.left())
            new = surroundings.new_threads()
            if new and not left:
                left = _threads_of_each_call(own, compiled)
            left = tuple(one for one in left if one.clause in compiled.target.promised)
        _settle()
    except BaseException as error:
        surroundings.restore_process_state()
        if _is_the_users(error):
            raise
        return _observer_failure(error)
    if left:
        surroundings.restore_process_state()
        return _process_change_after_call(left)
    if elsewhere:
        if eager.drew:
            return Result("poisoned", reason="each device draws numbers of its own")
        observations = [as_on_cpu(seen) for seen in observations]

    compilers = observations if standard is eager_itself else (eager, *observations)
    # Nobody knows what a new thread does next.
    intact = not new and (not any(map(_raised, compilers)) or _is_torch_intact())
    arithmetic = compiled.target.arithmetic
    eps = arithmetic.of_double.eps
    further = baseline_reruns(trial, standard, function, drew=eager.drew, eps=eps) if intact else ()
    exact = compiled.target.exact and not elsewhere
    promised = compiled.target.promised
    verdicts = [
        judge(eager, seen, *further, exact=exact, clauses=promised, arithmetic=arithmetic)
        for seen in observations
    ]
    for seen, verdict in zip(observations, verdicts, strict=True):
        # If the call returned, and only a backward is refused, everything else counts.
        in_part = compiled.target.in_pieces and seen.refused is not None and seen.raised is not None
        if verdict.outcome is Outcome.FINDING and not in_part:
            origin = _origin(seen, verdict.findings)
            return Result("finding", verdict.findings, verdict.reason, intact=intact, origin=origin)
    once = len(observations)
    if compiled.target.once and runs > once and "once" in promised:
        what = "one call" if once == 1 else "two calls at once"
        message = f"runs of the function in {what}: {once} in eager, {runs} in the target"
        finding = Finding("once", "call", str(once), str(runs), message)
        return Result("finding", (finding,), str(finding), intact=intact)
    comparable = all(_leaves_same_python_state(eager, seen) for seen in observations)
    for seen in observations:
        if seen.refused is not None:
            reason = encodable(str(seen.refused))
            return Result("refused", reason=reason, intact=intact, comparable=comparable)
    poisoned = next((verdict for verdict in verdicts if verdict.outcome is Outcome.POISONED), None)
    word: OutcomeName = "agree" if poisoned is None else "poisoned"
    return Result(word, reason=(poisoned or verdicts[0]).reason, intact=intact, comparable=comparable)


Reruns = tuple[
    Callable[[], Observation | None],
    Callable[[], Observation],
    Callable[[], Observation],
    Callable[[int], Observation],
    Callable[[int], Observation],
]
"""The reruns for which `oracles.judge` may ask: `reference`, `control`, `densely`, `rounded` and `moved`."""


def baseline_reruns(
    trial: CallSpec,
    standard: Baseline,
    function: Function,
    *,
    drew: bool,
    eps: float = torch.finfo(torch.float64).eps,
) -> Reruns:
    """The reruns of a call for which the judge may ask.

    The baseline made `function`, and its call `drew` random numbers or not. `eps` is that of the precision in
    which the target computes double precision.
    """

    def once_more(**options: Any) -> Observation:
        """Eager's call again, with the state that it had."""
        if trial.anew is None:
            return run_and_observe(trial, function, **options)
        other, same = replay_earlier_calls(trial)
        return run_and_observe(same, standard(other), **options)

    def in_double() -> Twin | None:
        return None if trial.exact is None else trial.exact()

    def reference() -> Observation | None:
        twin = in_double()
        if twin is None:
            return None
        exact, make, state = twin
        double = replace(trial, make=make, state=state)
        if not drew:
            with double_by_default():
                return run_and_observe(double, standard(exact))
        noted = RecordDraws()
        once_more(under=noted)
        with double_by_default():
            return run_and_observe(double, standard(exact), under=ReplayDraws(noted.draws))

    def rounded(seed: int) -> Observation:
        twin = in_double()
        assert twin is not None  # the judge asks for it only after the reference
        exact, make, state = twin
        double = replace(trial, make=make, state=state)
        with double_by_default():
            return run_and_observe(double, standard(exact), under=RandomRounding(seed, eps))

    def control() -> Observation:
        return once_more(terms=True)

    def densely() -> Observation:
        return once_more(under=DenseOperands())

    def moved(seed: int) -> Observation:
        return once_more(under=RandomRounding(seed, None))

    return reference, control, densely, rounded, moved


def _leaves_same_python_state(eager: Observation, seen: Observation) -> bool:
    """Whether a target's call has left the same Python state as eager's call. A call that raises may leave
    less, which is no finding. After a refused call the state is the retry's."""
    if seen.raised is not None and seen.refused is not None:
        return seen.retried is not None and seen.retried.python == eager.python
    return eager.raised is None or seen.python == eager.python


def replay_earlier_calls(trial: CallSpec) -> tuple[Function, CallSpec]:
    """A call and its function, after the calls before it were made in eager."""
    assert trial.anew is not None
    function, trials = trial.anew()
    for earlier in trials[: trial.number]:
        run_and_observe(earlier, function)
    return function, trials[trial.number]


def _observe_target_calls(
    trial: CallSpec, compiled: LazyCompiled, retry: Function | None
) -> Sequence[Observation]:
    """The observations of a target's call, one a thread. After a refused one eager calls `retry` on the
    same objects."""
    if trial.scenario.threads:
        return _observe_in_two_threads(trial, compiled, retry)
    return [run_and_observe(trial, compiled, compiled.target.refusal, retry=retry)]


def _threads_of_each_call(trial: CallSpec, compiled: LazyCompiled) -> tuple[Change, ...]:
    """The threads that one more call leaves running. Threads that a target starts once are allowed."""
    again = ProcessState()
    run_and_observe(trial, compiled, compiled.target.refusal)
    new = again.new_threads()
    return (Change("lifetime", "threads that a call leaves running", "none", str(new)),) if new else ()


def _is_the_users(error: BaseException) -> bool:
    """Whether a Ctrl-C may be meant for this process. Workers ignore it, so theirs is the target's."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return isinstance(error, KeyboardInterrupt) and not ignored


def _observe_without_first_growth(seen: Observation, trial: CallSpec, compiled: LazyCompiled) -> Observation:
    """An observation without memory that is taken once, as by kernels' workspaces. Leaks grow at every
    call."""
    for _ in range(2):
        if seen.grown > 0:
            same, once_more = trial, compiled
            if trial.anew is not None:  # a call has changed the state
                function, same = replay_earlier_calls(trial)
                once_more = LazyCompiled(compiled.target, function)
            again = run_and_observe(same, once_more, compiled.target.refusal)
            seen = replace(seen, grown=min(seen.grown, again.grown))
    return seen


def _observe_in_two_threads(
    trial: CallSpec, compiled: LazyCompiled, retry: Function | None
) -> Sequence[Observation]:
    """The observations of two threads that make a call at once.

    The second thread observes everything within the call of the first. So only the calls run together. What
    comes before and after them runs in one thread at a time.
    """
    gate = Barrier(2)
    sights: list[Observation] = []
    errors: list[BaseException] = []

    def at_once(*args: Any) -> Any:
        gate.wait()
        try:
            return compiled(*args)
        finally:
            gate.wait()

    def second() -> None:
        try:
            sights.append(run_and_observe(trial, at_once, compiled.target.refusal, retry=retry))
        except BaseException as error:
            errors.append(error)
            gate.abort()

    thread = Thread(target=second, name="second caller", daemon=True)

    def first(*args: Any) -> Any:
        thread.start()
        try:
            return at_once(*args)
        finally:
            thread.join()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        sights.append(run_and_observe(trial, first, compiled.target.refusal, retry=retry))
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    # CUDA's allocator counts the memory of both threads together.
    return [replace(seen, grown=0) for seen in sights]


def _raised(seen: Observation) -> bool:
    """Whether the call or a backward of the target raised."""
    runs = (seen, *seen.gradients, *seen.steps, *seen.later_gradients)
    return any(run.raised is not None for run in runs)


def _origin(seen: Observation, findings: Sequence[Finding]) -> str:
    """The function that raised the exception of the worst finding, or ""."""
    said = worst_finding(findings).target
    runs = (seen, *seen.gradients, *seen.steps, *seen.later_writes, *seen.later_gradients)
    ends = (run.raised for run in runs if run.raised is not None)
    return next((raised.origin for raised in ends if outcome(raised) == said), "")


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """While it lasts, no cycle is collected, so that garbage of a target does its harm at one known point.

    A compiler that fails may leave guards of torch's dispatcher in cycles of garbage. When they are
    collected, they restore the state from when they were made. `_is_torch_intact` collects them, and then
    checks torch.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _is_torch_intact() -> bool:
    """Whether torch still works, after what a failure left is collected (`_garbage_kept`). After an
    illegal access or a failed assertion on a CUDA device, nothing works there any more."""
    gc.collect()
    try:
        record_ambient()
        _settle()
    except (Exception, SystemExit):
        return False
    return True


def _settled() -> bool:
    """Whether the devices still work."""
    try:
        _settle()
    except Exception:
        return False
    return True


def _settle() -> None:
    """Wait until a device has finished its work, so that an error is blamed on the right call."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def run_and_observe(
    trial: CallSpec,
    function: Function,
    refusal: Refusal | None = None,
    *,
    retry: Function | None = None,
    terms: bool = False,
    under: OperationMode | None = None,
) -> Observation:
    def arguments() -> Arguments:
        args, leaves, tensors = trial.make()
        return Arguments(args, leaves, tensors, {} if trial.state is None else {"state": trial.state})

    return observe(
        _function_as_called(function, trial),
        arguments,
        seed=SEED,
        grad=trial.scenario.grad,
        inference=trial.scenario.inference,
        differentiate=trial.scenario.differentiate,
        steps=trial.steps,
        refusal=refusal,
        retry=None if retry is None else _function_as_called(retry, trial),
        terms=terms,
        under=under,
    )


def _function_as_called(function: Function, trial: CallSpec) -> Function:
    """The function, called under autocast or a function mode as the scenario says."""
    scenario, mode = trial.scenario, trial.mode
    if scenario.autocast is None and not scenario.swapped:
        return function

    def under(*args: Any) -> Any:
        with ExitStack() as entered:
            if scenario.autocast is not None:
                device = scenario.device.partition(":")[0]
                entered.enter_context(torch.autocast(device, dtype=getattr(torch, scenario.autocast)))
            if scenario.swapped and mode is not None:
                entered.enter_context(mode())
            return function(*args)

    return under


class LazyCompiled:
    """A function that is compiled at its first call.

    So an exception of the compiler counts as one of the call. `runs` counts how often a target ran the
    function itself, if it promises to run it once.
    """

    def __init__(self, target: Target, function: Function) -> None:
        self.target = target
        self.function = function
        self._runs: list[None] = []
        self._function = _count_function_runs(function, self._runs) if target.once else function
        self._compiled: Function | None = None
        self._lock = Lock()  # threads call one compiled function
        self._entrance, self._calls, self._builtins = Lock(), 0, Builtins()
        self.left: list[Change] = []

    @property
    def runs(self) -> int:
        return len(self._runs)

    def __call__(self, *args: Any) -> Any:
        limit = sys.getrecursionlimit()
        with self._entrance:
            # A compiler may replace built-in functions while it works, and another thread would see that.
            if self._calls == 0:
                self._builtins = Builtins()
            self._calls += 1
        try:
            with self._lock:
                if self._compiled is None:
                    self._compiled = self.target.compile(self._function)
            return self._compiled(*args)
        except Exception:
            raise
        except BaseException as error:
            raise EscapedException(f"{type(error).__name__}: {message_of(error)}") from error
        finally:
            # This comes first, because all other checks call built-in functions.
            with self._entrance:
                self._calls -= 1
                if self._calls == 0:
                    self.left += self._builtins.restore()
            if sys.getrecursionlimit() < limit:
                self.left.append(recursion_limit_lowered(limit))
                sys.setrecursionlimit(limit)


class _NotedModule(torch.nn.Module):
    """A module whose runs are counted."""

    def __init__(self, module: torch.nn.Module, note: Callable[[None], None]) -> None:
        super().__init__()
        self.module = module
        self.note = note

    def forward(self, *args: Any) -> Any:
        self.note(None)
        return self.module(*args)


def _count_function_runs(function: Function, runs: list[None]) -> Function:
    """A function whose runs are counted. It refers to nothing else, because a compiler may look at such
    objects."""
    note = runs.append
    if isinstance(function, torch.nn.Module):
        return _NotedModule(function, note)

    def noted(*args: Any) -> Any:
        note(None)
        return function(*args)

    return noted
