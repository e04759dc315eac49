"""One case: a program run eagerly and under a target, each on fresh arguments, and what the judge says.

What runs is the text that `fuzz.program.printer.render` prints. A program of several calls compiles once and
calls again; what only a later call gets wrong breaks the clause `repeat`. Where a target differs from eager,
and has controls, the case is run once more with each in the place of eager: where a target does what one of
them does too, it has done its part. Nothing of a case is left behind for the next one: `observe` puts modes,
defaults and random state back, and the target drops what it compiled. A target that breaks its process is
said to.

A program whose calls are made in two threads at once is run whole in one thread before; what is wrong only
then breaks the clause `threads`. One on both devices (`nodes.BOTH`) is a case on each of them, and then one
of both: what the target does on the GPU is held against what eager does on the CPU. Where eager does
otherwise on the GPU as well, nothing is said of the target.

    result = execute(program, find_target("torch-aot-eager"))
    result.outcome          # "agree", "poisoned", "finding" or "refused"
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import oracles
from fuzz.corpus import buckets
from fuzz.execute.call import (
    LACKS,
    Baseline,
    CallSpec,
    LazyCompiled,
    OutcomeName,
    Result,
    Twin,
    eager_itself,
    in_one_thread,
    judge_call,
    replay_earlier_calls,
    reset_target,
    run_and_observe,
)
from fuzz.ir.nodes import (
    BOTH,
    DEVICES,
    Call,
    Program,
    Require,
    Scenario,
    TensorStep,
    Write,
    on_device,
    split_calls,
    where_names_are,
)
from fuzz.operators import OPERATORS
from fuzz.program.decode import ProgramError, check
from fuzz.program.printer import Loaded, load, upcast
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Function, Target
from oracles import (
    Backward,
    Finding,
    Observation,
    Step,
)

DOES_IT_TOO = " does it too: "
"""Stands between the name of a control and what both do, in the reason of a case that proves nothing."""


def execute(program: Program, target: Target, *, first: bool = False) -> Result:
    """Run one case. Whatever the target raises is a finding or a refusal, never an exception from here.

    With `first` nothing is compiled in one thread before two threads do it at once
    (`fuzz.execute.first_compile`).
    """
    lacking = target.lacking(program)
    if lacking is not None:
        return Result("refused", reason=f"{LACKS}{lacking}")
    try:
        program = as_promised(program, target)
    except ProgramError:
        return Result("refused", reason=f"{LACKS}gradients")
    if program.scenario.device == BOTH:
        result = _case_on_both_devices(program, target)
    else:
        result = execute_trials(*load_calls(program), target, first=first)
    declined = target.declining(program) if result.outcome == "refused" else None
    return result if declined is None else replace(result, reason=f"{LACKS}{declined}: {result.reason}")


def as_promised(program: Program, target: Target) -> Program:
    """The program as it is judged on a target: of one that promises nothing of gradients without grad mode.

    Nothing is differentiated then, and nothing else is done after the calls than usual. Where the target does
    not promise `repeat`, there is one call, and without `threads` each is made in one.

    Raises:
        ProgramError: there is no such program, because a statement of it needs a gradient.
    """

    def judged(scenario: Scenario) -> Scenario:
        if "threads" not in promised:
            scenario = replace(scenario, threads=False)
        if "gradients" in promised:
            return scenario
        return replace(scenario, grad=False, differentiate=None, steps=())

    promised = target.promised
    later = program.later if "repeat" in promised else ()
    changed = replace(
        program,
        scenario=judged(program.scenario),
        later=tuple(replace(call, scenario=judged(call.scenario)) for call in later),
    )
    if changed != program:
        check(changed)
    return changed


def execute_trials(
    function: Function, trials: Sequence[CallSpec], target: Target, *, first: bool = False
) -> Result:
    """As `execute`, for any function and the calls of it that are to be tried, in their order.

    result = execute_trials(torch.sin, [Trial(lambda: ((torch.ones(2),), {}, {}))], find_target("aot"))
    """
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = _compare_case_with(function, trials, target, eager_itself, first=first)
            for control in map(find_target, target.controls):
                if result.outcome == "finding" and result.intact:
                    result = _discount_control(function, trials, target, control, result)
    except BaseException:
        reset_target(target)
        raise
    result = _case_after_reset(result, target)
    return replace(result, seconds=time.perf_counter() - start)


def _case_after_reset(result: Result, target: Target) -> Result:
    """A result, once the target has dropped what it compiled; one that cannot has broken its process."""
    raised = reset_target(target)
    if raised is None:
        return result
    if result.outcome == "finding":
        return replace(result, intact=False)
    message = f"reset: no exception in eager, {raised} in the target"
    finding = Finding("errors", "reset", "no exception", raised, message)
    return Result("finding", (finding,), str(finding), intact=False)


def load_calls(program: Program) -> tuple[Function, list[CallSpec]]:
    """A program's function, and the calls that it makes of it, in their order."""
    loaded = load(program)
    return loaded.f, [_trial_of_call(program, loaded, number) for number in range(len(loaded.makes))]


def _case_on_both_devices(program: Program, target: Target) -> Result:
    """What becomes of a program on each device, and then of one held against the other."""
    sides = [load_calls(on_device(program, device)) for device in DEVICES]
    seconds = 0.0
    for function, trials in sides:
        result = execute_trials(function, trials, target)
        seconds += result.seconds
        if result.outcome != "agree" or not result.intact:
            return replace(result, seconds=seconds)
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sides = [(function, [in_one_thread(trial) for trial in trials]) for function, trials in sides]
            (function, trials), there = sides
            result = _compare_case_with(function, trials, target, eager_itself, there)
            if result.outcome == "finding" and result.intact and target.name != "eager":
                result = _difference_of_the_target(
                    result, _compare_case_with(function, trials, find_target("eager"), eager_itself, there)
                )
    except BaseException:
        reset_target(target)
        raise
    result = _case_after_reset(result, target)
    return replace(result, seconds=seconds + time.perf_counter() - start)


def _difference_of_the_target(found: Result, eager: Result) -> Result:
    """What is left of a difference between devices, where there is one in eager as well."""
    places = {(one.clause, one.path) for one in eager.findings}
    own = tuple(one for one in found.findings if (one.clause, one.path) not in places)
    if eager.outcome == "finding" and (not own or any(clause == "errors" for clause, _ in places)):
        reason = shared_difference("eager", buckets.signature(found.findings))
        return Result("poisoned", reason=reason, intact=found.intact and eager.intact)
    return replace(found, findings=own, reason=str(own[0]), intact=found.intact and eager.intact)


def _trial_of_call(program: Program, loaded: Loaded, number: int) -> CallSpec:
    """A call of a program."""
    one = split_calls(program)[number]

    def exact() -> Twin | None:
        if loaded.state is not None:
            return _twin_with_state(program, number)
        twin = upcast(one)
        if twin is None:
            return None
        double = load(twin)
        return double.f, double.make, None

    trial = CallSpec(loaded.makes[number], one.scenario, _steps_with_paths(one), exact, loaded.mode)
    if loaded.state is None:
        return trial
    return replace(trial, state=loaded.state, anew=lambda: load_calls(program), number=number)


def _twin_with_state(program: Program, number: int) -> Twin | None:
    """A call in double precision, after the calls before it; None where what these leave says nothing of
    eager's rounding: each precision draws other numbers."""
    draws = any(OPERATORS[statement.operator].random for statement in program.statements)
    twins = [twin for call in split_calls(program)[: number + 1] if (twin := upcast(call)) is not None]
    alike = all(twin.statements == twins[0].statements for twin in twins)
    if len(twins) <= number or not alike or (draws and number):
        return None
    later = tuple(Call(twin.storages, twin.arguments, twin.scenario) for twin in twins[1:])
    function, trials = load_calls(replace(twins[0], later=later))
    for earlier in trials[:number]:
        run_and_observe(earlier, function)
    return function, trials[number].make, trials[number].state


def _discount_control(
    function: Function, trials: Sequence[CallSpec], target: Target, control: Target, found: Result
) -> Result:
    """What is left of a finding when the target is held against one of its controls."""
    reset_target(target)
    result: Result | None
    try:
        result = _compare_case_with(function, trials, target, partial(LazyCompiled, control))
        reset_target(target)
        of_its_own: set[tuple[str, str, str]] = set()
        # (What draws otherwise each time cannot be held against, and finds nothing: it is asked what it does
        # to eager instead.)
        if result.outcome != "agree" and _is_of_later_backwards(result):
            alike_judged = replace(control, clauses=target.clauses)
            of_its_own = _difference_set(_compare_case_with(function, trials, alike_judged, eager_itself))
        alike = _is_of_later_backwards(result) and _difference_set(found) == of_its_own
    except Exception:
        result = None
    finally:
        reset_target(control)
    if result is None:
        # Eager and the target could be observed: the control has broken torch, and speaks for nobody. (That
        # torch may work again proves nothing: what breaks it can be garbage that is still to be collected.)
        return replace(found, intact=False)
    own = found.findings
    if alike or result.outcome == "agree":
        own = ()
    elif result.outcome == "poisoned":
        own = tuple(one for one in own if (one.clause, one.path, one.target) not in of_its_own)
    elif result.outcome == "finding" and not any(one.clause == "errors" for one in own + result.findings):
        # (Where one of the three raises, not all is compared.)
        places = {(one.clause, one.path) for one in result.findings}
        own = tuple(one for one in own if (one.clause, one.path) in places)
    if not own:
        reason = shared_difference(control.name, buckets.signature(found.findings))
        return Result("poisoned", reason=reason, intact=result.intact)
    return replace(found, findings=own, reason=str(own[0]), intact=result.intact)


def _is_of_later_backwards(result: Result) -> bool:
    """Whether all that differs is what backwards raise: where one has raised already, the next ones have
    several reasons, and which of them is met first says nothing."""
    return all(finding.path.startswith("backward") for finding in result.findings)


def _difference_set(result: Result) -> set[tuple[str, str, str]]:
    """What differs from eager, and what there is instead."""
    return {(finding.clause, finding.path, finding.target) for finding in result.findings}


def shared_difference(other: str, what: str) -> str:
    """Why a case proves nothing about a target: another one, its control or eager, does the same.

    >>> shared_difference("eager", "timeout")
    'eager does it too: timeout'
    """
    return f"{other}{DOES_IT_TOO}{what}"


def _compare_case_with(
    function: Function,
    trials: Sequence[CallSpec],
    target: Target,
    standard: Baseline,
    there: tuple[Function, Sequence[CallSpec]] | None = None,
    *,
    first: bool = False,
) -> Result:
    """What becomes of a case that is held against what `standard` makes of its function. The target is given
    what the case is on another device, if it is to run `there`."""
    threads = any(trial.scenario.threads for trial in trials)
    if threads and not first:
        one_thread = _compare_case_with(
            function, [in_one_thread(trial) for trial in trials], target, standard
        )
        if one_thread.outcome == "finding" or not one_thread.intact:
            return one_thread
        reset_target(target)
    (function, trials), (other, others) = _case_sides((function, trials), there)
    told, compiled = standard(function), LazyCompiled(target, other)
    elsewhere = there is not None
    known: Sequence[Observation | None] = [None] * len(trials)
    if standard is not eager_itself:
        # What a control compiles lies where Dynamo looks when the target compiles the same code, which then
        # is compiled otherwise. So all of its calls come first, and are forgotten.
        known = [run_and_observe(trial, told) for trial in trials]
        reset_target(target)
    results = []
    for number, (trial, own) in enumerate(zip(trials, others, strict=True)):
        result = judge_call(trial, standard, told, compiled, own, elsewhere=elsewhere, known=known[number])
        if result.outcome == "finding" and threads:
            # Whatever they left half done stays so: no other case may run here.
            return replace(_findings_of_later_call("threads", result, number), intact=False)
        if not result.intact:
            # Nothing else can be said here, not even whether this call fails alone.
            return result
        if result.outcome == "finding" and number:
            reset_target(target)
            alone = _later_call_alone((trial, function), (own, other), target, standard, elsewhere)
            if alone.outcome == "finding":
                return alone
            return replace(_findings_of_later_call("repeat", result, number), intact=alone.intact)
        if result.outcome == "finding":
            return result
        results.append(result)
        if trial.anew is not None and not _goes_on(result):
            break
    return min(results, key=lambda result: _TELLING.index(result.outcome))


Side = tuple[Function, Sequence[CallSpec]]


def _case_sides(side: Side, there: Side | None) -> tuple[Side, Side]:
    """What eager calls and what the target does: the same, unless the function keeps something."""
    anew = side[1][0].anew if side[1] else None
    if anew is None:
        return side, there or side
    other = anew if there is None else there[1][0].anew
    assert other is not None
    return anew(), other()


def _later_call_alone(
    eager: tuple[CallSpec, Function],
    own: tuple[CallSpec, Function],
    target: Target,
    standard: Baseline,
    elsewhere: bool,
) -> Result:
    """What becomes of a later call if the target has compiled nothing before it."""
    (trial, function), (same, other) = eager, own
    if trial.anew is not None:
        function, trial = replay_earlier_calls(trial)
        other, same = replay_earlier_calls(same)
    return judge_call(
        trial, standard, standard(function), LazyCompiled(target, other), same, elsewhere=elsewhere
    )


def _goes_on(result: Result) -> bool:
    """Whether the target's function has what eager's has, so that a later call can be compared.

    After a refused call eager has made it; not where pieces of it may have run, and been run once more.
    """
    return result.outcome in ("refused", "agree") and result.comparable


def _findings_of_later_call(clause: Literal["repeat", "threads"], result: Result, number: int) -> Result:
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
    return Result("finding", findings, str(findings[0]), origin=result.origin)


_TELLING: tuple[OutcomeName, ...] = ("refused", "poisoned", "agree")


_ON_TENSORS: dict[type[TensorStep], type[oracles.Write | oracles.Require]] = {
    Write: oracles.Write,
    Require: oracles.Require,
}


def _steps_with_paths(program: Program) -> tuple[Step, ...]:
    """The steps with paths for names."""
    if not program.scenario.steps:
        return ()
    where = where_names_are(program)
    return tuple(
        step if isinstance(step, Backward) else _ON_TENSORS[type(step)](where[step.name])
        for step in program.scenario.steps
    )
