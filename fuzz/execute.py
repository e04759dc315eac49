"""One case: a program run eagerly and under a target, each on fresh arguments, and what the judge says.

What runs is the text that `fuzz.source.render` prints. Eager and the target start from the same seed; the
float64 reference and the second eager run that tells noise from a difference are only run when the judge asks
for them. A program of several calls compiles once and calls again; what only a later call gets wrong breaks
the clause `repeat`. Where a target differs from eager, and has controls, the case is run once more with each
in the place of eager: where a target does what one of them does too, it has done its part. Nothing of a
case is left behind for the next one: `observe` puts modes, defaults and random state back, and the target
drops what it compiled. A target that breaks its process is said to.

A call that is made in two threads at once (`Scenario.threads`) is seen from both, and each must be what eager
sees that calls once. The whole case is run in one thread before; what is wrong only then breaks the clause
`threads`.

    result = execute(program, find("torch-aot-eager"))
    result.outcome          # "agree", "poisoned", "finding" or "refused"
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Barrier, Lock, Thread
from typing import Any, Literal

import torch

import oracles
from fuzz import buckets, corpus
from fuzz.ir import Program, Scenario, calls, where_names_are
from fuzz.source import Make, load, upcast
from fuzz.targets import Function, Target, find
from oracles import Arguments, Backward, Finding, Observation, Outcome, Refusal, Step, judge, observe
from oracles.ambient import record_ambient
from oracles.draws import Drawing, Drawn
from oracles.layouts import Densely
from oracles.under import Mode


class Escape(Exception):
    """A target raised SystemExit, KeyboardInterrupt or the like, which is no way to end a call."""


Word = Literal["agree", "poisoned", "finding", "refused"]
SEED = 0
# How long one of two threads runs before the other has its turn: a thousand turns in a short compilation,
# which would else be over before the second thread begins.
_SWITCH_SECONDS = 1e-5


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one case: plain data, the same on every run save for `seconds`.

    `reason` is the refusal's name for "refused", why the case proves nothing for "poisoned", the first
    finding's message for "finding". `seconds` is the wall time of the case. `intact` is whether another case
    may run in this process.
    """

    outcome: Word
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    intact: bool = True

    def to_json(self) -> dict[str, Any]:
        """As plain data, for a worker's pipe; without `intact`, which concerns the worker alone."""
        return {
            "outcome": self.outcome,
            "findings": [corpus.finding_to_json(finding) for finding in self.findings],
            "reason": self.reason,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """The result that `to_json` gave."""
        findings = tuple(corpus.finding_from_json(finding) for finding in data["findings"])
        return cls(data["outcome"], findings, data["reason"], data["seconds"])


@dataclass(frozen=True, slots=True)
class Trial:
    """One call of a function: what makes its arguments, how it is made, and what is done after it.

    `exact` gives the same function and arguments in double precision; it is None where there is no such twin.
    """

    make: Make
    scenario: Scenario = field(default_factory=Scenario)
    steps: tuple[Step, ...] = ()
    exact: Callable[[], tuple[Function, Make]] | None = None


def execute(program: Program, target: Target) -> Result:
    """Run one case. Whatever the target raises is a finding or a refusal, never an exception from here."""
    lacking = target.lacking(program)
    if lacking is not None:
        return Result("refused", reason=f"lacks {lacking}")
    loaded = load(program)
    trials = [_trial(one, make) for one, make in zip(calls(program), loaded.makes, strict=True)]
    return execute_trials(loaded.f, trials, target)


def execute_trials(function: Function, trials: Sequence[Trial], target: Target) -> Result:
    """As `execute`, for any function and the calls of it that are to be tried, in their order.

    result = execute_trials(torch.sin, [Trial(lambda: ((torch.ones(2),), {}, {}))], find("aot"))
    """
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = _held(function, trials, target, _eager)
            for control in map(find, target.controls):
                if result.outcome == "finding" and result.intact:
                    result = _controlled(function, trials, target, control, result)
    finally:
        target.reset()
    return replace(result, seconds=time.perf_counter() - start)


def _trial(program: Program, make: Make) -> Trial:
    """The call of a program that has one."""
    twin = upcast(program)

    def exact() -> tuple[Function, Make]:
        assert twin is not None
        loaded = load(twin)
        return loaded.f, loaded.make

    return Trial(make, program.scenario, _steps(program), exact if twin else None)


Standard = Callable[[Function], Function]


def _eager(function: Function) -> Function:
    return function


def _controlled(
    function: Function, trials: Sequence[Trial], target: Target, control: Target, found: Result
) -> Result:
    """What is left of a finding when the target is held against one of its controls."""
    target.reset()
    result: Result | None
    try:
        result = _held(function, trials, target, partial(_Compiled, control))
        target.reset()
        alike = _is_of_later_backwards(result) and _told(found) == _told(
            _held(function, trials, control, _eager)
        )
    except Exception:
        result = None
    finally:
        control.reset()
    if result is None:
        # Eager and the target could be observed: the control has broken torch, and speaks for nobody. (That
        # torch may work again proves nothing: what breaks it can be garbage that is still to be collected.)
        return replace(found, intact=False)
    own = found.findings
    if alike or result.outcome == "agree":
        own = ()
    elif result.outcome == "finding" and not any(one.clause == "errors" for one in own + result.findings):
        # (Where one of the three raises, not all is compared.)
        places = {(one.clause, one.path) for one in result.findings}
        own = tuple(one for one in own if (one.clause, one.path) in places)
    if not own:
        reason = likewise(control.name, buckets.signature(found.findings))
        return Result("poisoned", reason=reason, intact=result.intact)
    return replace(found, findings=own, reason=str(own[0]), intact=result.intact)


def _is_of_later_backwards(result: Result) -> bool:
    """Whether all that differs is what backwards raise: where one has raised already, the next ones have
    several reasons, and which of them is met first says nothing."""
    return all(finding.path.startswith("backward") for finding in result.findings)


def _told(result: Result) -> set[tuple[str, str, str]]:
    """What differs from eager, and what there is instead."""
    return {(finding.clause, finding.path, finding.target) for finding in result.findings}


def likewise(other: str, what: str) -> str:
    """Why a case proves nothing about a target: another one, its control or eager, does the same.

    >>> likewise("eager", "timeout")
    'eager does it too: timeout'
    """
    return f"{other} does it too: {what}"


def _held(function: Function, trials: Sequence[Trial], target: Target, standard: Standard) -> Result:
    """What becomes of a case that is held against what `standard` makes of its function."""
    threads = any(trial.scenario.threads for trial in trials)
    if threads:
        one_thread = _held(function, [_in_one_thread(trial) for trial in trials], target, standard)
        if one_thread.outcome == "finding" or not one_thread.intact:
            return one_thread
        target.reset()
    told, compiled = standard(function), _Compiled(target, function)
    results = []
    for number, trial in enumerate(trials):
        result = _call(trial, standard, told, compiled)
        if result.outcome == "finding" and threads:
            # Whatever they left half done stays so: no other case may run here.
            return replace(_of("threads", result, number), intact=False)
        if not result.intact:
            # Nothing else can be said here, not even whether this call fails alone.
            return result
        if result.outcome == "finding" and number:
            target.reset()
            alone = _call(trial, standard, standard(function), _Compiled(target, function))
            if alone.outcome == "finding":
                return alone
            return replace(_of("repeat", result, number), intact=alone.intact)
        if result.outcome == "finding":
            return result
        results.append(result)
    return min(results, key=lambda result: _TELLING.index(result.outcome))


def _in_one_thread(trial: Trial) -> Trial:
    return replace(trial, scenario=replace(trial.scenario, threads=False))


def _of(clause: Literal["repeat", "threads"], result: Result, number: int) -> Result:
    """The findings of a call that goes well by itself: as the first one, or where one thread makes all."""
    what = f"call {number + 1}{' of some in threads' if clause == 'threads' else ''}"
    findings = tuple(
        Finding(
            clause,
            f"call {number + 1}: {finding.clause}: {finding.path}",
            finding.eager,
            finding.target,
            f"in {what}, {finding.message}",
        )
        for finding in result.findings
    )
    return Result("finding", findings, str(findings[0]))


_TELLING: tuple[Word, ...] = ("refused", "poisoned", "agree")


def _broken(error: Exception) -> Result:
    """The observer, which runs torch itself, could not go on: the target has broken that."""
    said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    message = f"after the call: torch works in eager, {said} in the target"
    finding = Finding("errors", "after the call", "torch works", said, message)
    return Result("finding", (finding,), str(finding), intact=False)


def _call(trial: Trial, standard: Standard, function: Function, compiled: _Compiled) -> Result:
    """What becomes of one call: `function` is what the standard made."""
    eager = _observe(trial, function)
    before = compiled.runs
    try:
        with _garbage_kept():
            sights = _sights(trial, compiled)
    except Exception as error:
        if _intact():
            raise
        return _broken(error)
    runs = compiled.runs - before

    def reference() -> Observation:
        assert trial.exact is not None
        exact, make = trial.exact()
        double = replace(trial, make=make)
        if not eager.drew:
            return _observe(double, standard(exact))
        noted = Drawing()
        _observe(trial, function, under=noted)
        return _observe(double, standard(exact), under=Drawn(noted.draws))

    def control() -> Observation:
        return _observe(trial, function, terms=True)

    def densely() -> Observation:
        return _observe(trial, function, under=Densely())

    compilers = sights if standard is _eager else (eager, *sights)
    intact = not any(map(_raised, compilers)) or _intact()
    further = (reference if trial.exact else None, control, densely) if intact else ()
    verdicts = [judge(eager, seen, *further) for seen in sights]
    for seen, verdict in zip(sights, verdicts, strict=True):
        if verdict.outcome is Outcome.FINDING and not (seen.refused and compiled.target.in_pieces):
            return Result("finding", verdict.findings, verdict.reason, intact=intact)
    once = len(sights)
    if compiled.target.once and runs > once:
        what = "one call" if once == 1 else "two calls at once"
        message = f"runs of the function in {what}: {once} in eager, {runs} in the target"
        finding = Finding("once", "call", str(once), str(runs), message)
        return Result("finding", (finding,), str(finding), intact=intact)
    for seen in sights:
        if seen.refused is not None:
            return Result("refused", reason=seen.refused, intact=intact)
    poisoned = next((verdict for verdict in verdicts if verdict.outcome is Outcome.POISONED), None)
    word: Word = "agree" if poisoned is None else "poisoned"
    return Result(word, reason=(poisoned or verdicts[0]).reason, intact=intact)


def _sights(trial: Trial, compiled: _Compiled) -> Sequence[Observation]:
    """What is seen of a target's call: of each thread that makes it."""
    if trial.scenario.threads:
        return _in_two_threads(trial, compiled)
    seen = _observe(trial, compiled, compiled.target.refusal)
    # Kernels' workspaces and the like are taken once; what leaks is more at every call.
    for _ in range(2):
        if seen.grown > 0:
            again = _observe(trial, compiled, compiled.target.refusal)
            seen = replace(seen, grown=min(seen.grown, again.grown))
    return [seen]


def _in_two_threads(trial: Trial, compiled: _Compiled) -> Sequence[Observation]:
    """What each of two threads sees that make a call at once.

    The second one observes all it will within the call of the first, so that only the calls run together:
    what comes after them, and what comes before, is done by one thread at a time.
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
            sights.append(_observe(trial, at_once, compiled.target.refusal))
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
        sights.append(_observe(trial, first, compiled.target.refusal))
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    return sights


def _raised(seen: Observation) -> bool:
    """Whether anything of the target's has ended in an exception."""
    last = () if seen.later_gradient is None else (seen.later_gradient,)
    return any(run.raised is not None for run in (seen, *seen.gradients, *seen.steps, *last))


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """No cycle is collected meanwhile, so that what a target left in one does its harm at one known point.

    A compiler that fails may leave guards of torch's dispatcher in cycles of garbage, and whenever they are
    collected they put back what was there when they were made. `_intact` collects them, and looks for it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _intact() -> bool:
    """Whether torch still works here, once what a failure has left behind is collected (`_garbage_kept`)."""
    gc.collect()
    try:
        record_ambient()
    except Exception:
        return False
    return True


def _observe(
    trial: Trial,
    function: Function,
    refusal: Refusal | None = None,
    *,
    terms: bool = False,
    under: Mode | None = None,
) -> Observation:
    def arguments() -> Arguments:
        args, leaves, tensors = trial.make()
        return Arguments(args, leaves, tensors)

    return observe(
        function,
        arguments,
        seed=SEED,
        grad=trial.scenario.grad,
        inference=trial.scenario.inference,
        differentiate=trial.scenario.differentiate,
        steps=trial.steps,
        refusal=refusal,
        terms=terms,
        under=under,
    )


def _steps(program: Program) -> tuple[Step, ...]:
    """The steps with paths for names."""
    if not program.scenario.steps:
        return ()
    where = where_names_are(program)
    return tuple(
        step if isinstance(step, Backward) else oracles.Write(where[step.name])
        for step in program.scenario.steps
    )


class _Compiled:
    """A function that is compiled at its first call, so that an exception of the compiler is observed like
    one of the call. `runs` counts how often the function itself was run by a target that promises to run it
    once."""

    def __init__(self, target: Target, function: Function) -> None:
        self.target = target
        self._runs: list[None] = []
        self._function = _noted(function, self._runs) if target.once else function
        self._compiled: Function | None = None
        self._lock = Lock()  # threads call one compiled function

    @property
    def runs(self) -> int:
        return len(self._runs)

    def __call__(self, *args: Any) -> Any:
        try:
            with self._lock:
                if self._compiled is None:
                    self._compiled = self.target.compile(self._function)
            return self._compiled(*args)
        except Exception:
            raise
        except BaseException as error:
            raise Escape(f"{type(error).__name__}: {error}") from error


class _NotedModule(torch.nn.Module):
    """A module, of which each run is noted."""

    def __init__(self, module: torch.nn.Module, note: Callable[[None], None]) -> None:
        super().__init__()
        self.module = module
        self.note = note

    def forward(self, *args: Any) -> Any:
        self.note(None)
        return self.module(*args)


def _noted(function: Function, runs: list[None]) -> Function:
    """The function, of which each run is noted. (It refers to nothing else: a compiler may look at all that
    a function refers to, as our own does.)"""
    note = runs.append
    if isinstance(function, torch.nn.Module):
        return _NotedModule(function, note)

    def noted(*args: Any) -> Any:
        note(None)
        return function(*args)

    return noted
