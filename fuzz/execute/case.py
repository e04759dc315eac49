"""Case: run a program in eager and on a target, each on fresh arguments, and judge the target.

In: a program and a target. Out: a `Result`. What runs is the text that `fuzz.program.printer.render` prints.

A program with several calls is compiled once and called several times. A finding that only a later call shows
breaks the clause `repeat`. If calls are made in two threads at once, the program first runs in one thread; a
finding that only the threads show breaks the clause `threads`. A program on both devices (`nodes.BOTH`) is a
case on each of them. Then the target on the GPU is compared with eager on the CPU, except for what eager on
the GPU does differently too.

If the target differs from eager and has controls, the case runs again with each control in place of eager.
Where the target does what a control does too, it is not to blame.

    result = execute(program, find_target("torch-aot-eager"))
    result.outcome          # "agree", "poisoned", "finding" or "refused"

Invariant: a case leaves nothing for the next one. `observe` restores modes, defaults and random state, and
the target drops its compiled functions. If a target breaks its process, the result says so.
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
"""The text between the name of a control and the common difference, in the reason of a case that proves
nothing.
"""


def execute(program: Program, target: Target, *, first: bool = False) -> Result:
    """Run one case. Whatever the target raises becomes a finding or a refusal.

    With `first`, the program does not run in one thread before two threads compile it at once
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
    """The program with only what a target promises.

    If it promises nothing of gradients, calls run without grad mode, nothing is differentiated, and only the
    usual steps follow. Without the clause `repeat` there is one call, and without `threads` each call is made
    in one thread.

    Raises:
        ProgramError: there is no such program, because a statement needs a gradient.
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
    """Run a case of any function, with the calls that are to be tried, in order.

    result = execute_trials(torch.sin, [CallSpec(lambda: ((torch.ones(2),), {}, {}))], find_target("aot"))
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
    """The result after the target was reset. A target that cannot be reset has broken its process."""
    raised = reset_target(target)
    if raised is None:
        return result
    if result.outcome == "finding":
        return replace(result, intact=False)
    message = f"reset: no exception in eager, {raised} in the target"
    finding = Finding("errors", "reset", "no exception", raised, message)
    return Result("finding", (finding,), str(finding), intact=False)


def load_calls(program: Program) -> tuple[Function, list[CallSpec]]:
    """A program's function and its calls, in order."""
    loaded = load(program)
    return loaded.f, [_trial_of_call(program, loaded, number) for number in range(len(loaded.makes))]


def _case_on_both_devices(program: Program, target: Target) -> Result:
    """The result of a program on each device, and then of the target on one against eager on the other."""
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
    """The part of a difference between devices that eager does not have too."""
    places = {(one.clause, one.path) for one in eager.findings}
    own = tuple(one for one in found.findings if (one.clause, one.path) not in places)
    if eager.outcome == "finding" and (not own or any(clause == "errors" for clause, _ in places)):
        reason = shared_difference("eager", buckets.signature(found.findings))
        return Result("poisoned", reason=reason, intact=found.intact and eager.intact)
    return replace(found, findings=own, reason=str(own[0]), intact=found.intact and eager.intact)


def _trial_of_call(program: Program, loaded: Loaded, number: int) -> CallSpec:
    """One call of a program."""
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
    """A call in double precision, after the calls before it.

    None if the state that these leave does not show eager's rounding, because each precision draws other
    numbers.
    """
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
    """The part of a finding that remains against one of the target's controls."""
    reset_target(target)
    result: Result | None
    try:
        result = _compare_case_with(function, trials, target, partial(LazyCompiled, control))
        reset_target(target)
        of_its_own: set[tuple[str, str, str]] = set()
        # A control that draws other numbers each time cannot be compared with the target. It is compared
        # with eager instead.
        if result.outcome != "agree" and _is_of_later_backwards(result):
            alike_judged = replace(control, clauses=target.clauses)
            of_its_own = _difference_set(_compare_case_with(function, trials, alike_judged, eager_itself))
        alike = _is_of_later_backwards(result) and _difference_set(found) == of_its_own
    except Exception:
        result = None
    finally:
        reset_target(control)
    if result is None:
        # Eager and the target could be observed, so the control has broken torch, and proves nothing. (If
        # torch works again, garbage that is not collected yet may still break it.)
        return replace(found, intact=False)
    own = found.findings
    if alike or result.outcome == "agree":
        own = ()
    elif result.outcome == "poisoned":
        own = tuple(one for one in own if (one.clause, one.path, one.target) not in of_its_own)
    elif result.outcome == "finding" and not any(one.clause == "errors" for one in own + result.findings):
        # If one of the three raises, not everything is compared.
        places = {(one.clause, one.path) for one in result.findings}
        own = tuple(one for one in own if (one.clause, one.path) in places)
    if not own:
        reason = shared_difference(control.name, buckets.signature(found.findings))
        return Result("poisoned", reason=reason, intact=result.intact)
    return replace(found, findings=own, reason=str(own[0]), intact=result.intact)


def _is_of_later_backwards(result: Result) -> bool:
    """Whether all differences are exceptions of backwards after another backward has raised.

    Such a backward may raise for several reasons, and which one comes first proves nothing.
    """
    return all(finding.path.startswith("backward") for finding in result.findings)


def _difference_set(result: Result) -> set[tuple[str, str, str]]:
    """The differences from eager, each with the target's side."""
    return {(finding.clause, finding.path, finding.target) for finding in result.findings}


def shared_difference(other: str, what: str) -> str:
    """The reason of a case that proves nothing, because a control or eager does the same.

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
    """The result of a case against what the baseline `standard` makes of its function.

    `there` has the function and calls of the target, if it runs on another device.
    """
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
        # Dynamo would find what a control compiled when the target compiles the same code, and compile
        # it differently. So all calls of the control come first, and their code is dropped.
        known = [run_and_observe(trial, told) for trial in trials]
        reset_target(target)
    results = []
    for number, (trial, own) in enumerate(zip(trials, others, strict=True)):
        result = judge_call(trial, standard, told, compiled, own, elsewhere=elsewhere, known=known[number])
        if result.outcome == "finding" and threads:
            # The threads may have left work half done, so no other case may run here.
            return replace(_findings_of_later_call("threads", result, number), intact=False)
        if not result.intact:
            # Nothing else can be determined here, not even if this call fails alone.
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
    """The functions and calls of eager and of the target: the same, unless the function has a state."""
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
    """The result of a later call if the target has compiled nothing before it."""
    (trial, function), (same, other) = eager, own
    if trial.anew is not None:
        function, trial = replay_earlier_calls(trial)
        other, same = replay_earlier_calls(same)
    return judge_call(
        trial, standard, standard(function), LazyCompiled(target, other), same, elsewhere=elsewhere
    )


def _goes_on(result: Result) -> bool:
    """Whether the target's function has the same state as eager's, so that a later call can be compared.

    After a refused call the retry in eager has made the state, unless pieces of the function may have run
    before it.
    """
    return result.outcome in ("refused", "agree") and result.comparable


def _findings_of_later_call(clause: Literal["repeat", "threads"], result: Result, number: int) -> Result:
    """The findings of a call that is right as a first call, or in one thread, as findings of `clause`."""
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
    """The steps with paths in place of names."""
    if not program.scenario.steps:
        return ()
    where = where_names_are(program)
    return tuple(
        step if isinstance(step, Backward) else _ON_TENSORS[type(step)](where[step.name])
        for step in program.scenario.steps
    )
