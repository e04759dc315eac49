"""Scenarios: reduction passes that make calls and the steps after each call fewer and plainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

from fuzz.program.decode import Call, Program, TensorStep, split_calls
from fuzz.reduce.search import Edit, Pass


def _later_call_edits(program: Program) -> Sequence[Edit]:
    """The edits of later calls: one replaces all, is dropped, or becomes the first, unless it adds steps."""
    edits: list[Edit] = []
    for i, call in enumerate(program.later):
        edits += [("only", i), ("drop", i)]
        if (call.storages, call.arguments) != (program.storages, program.arguments):
            edits.append(("inputs", i))
        fewer = len(program.scenario.steps) <= len(call.scenario.steps)
        if fewer and call.scenario != program.scenario:
            edits.append(("scenario", i))
    return edits


def _reduce_later_calls(program: Program, edits: frozenset[Edit]) -> Program:
    for i in reversed(range(len(program.later))):
        if ("only", i) in edits:
            return split_calls(program)[i + 1]
    later = tuple(
        dataclasses.replace(
            call,
            storages=program.storages if ("inputs", i) in edits else call.storages,
            arguments=program.arguments if ("inputs", i) in edits else call.arguments,
            scenario=program.scenario if ("scenario", i) in edits else call.scenario,
        )
        for i, call in enumerate(program.later)
        if ("drop", i) not in edits
    )
    return dataclasses.replace(program, later=later)


def _step_edits(program: Program) -> Sequence[Edit]:
    edits: list[Edit] = []
    for i, step in enumerate(program.scenario.steps):
        edits.append((i, "drop"))
        if not isinstance(step, TensorStep):
            edits += [(i, "roots")] if step.roots is not None else []
            edits += [(i, "how")] if step.how != "plain" else []
            edits += [(i, "retain")] if step.retain else []
    return edits


def _simplify_steps(program: Program, edits: frozenset[Edit]) -> Program:
    steps = []
    for i, step in enumerate(program.scenario.steps):
        if (i, "drop") in edits:
            continue
        if not isinstance(step, TensorStep):
            step = dataclasses.replace(
                step,
                roots=None if (i, "roots") in edits else step.roots,
                how="plain" if (i, "how") in edits else step.how,
                retain=step.retain and (i, "retain") not in edits,
            )
        steps.append(step)
    return dataclasses.replace(program, scenario=dataclasses.replace(program.scenario, steps=tuple(steps)))


def _inputs(call: Program) -> Hashable:
    return call.storages, call.arguments


def _scenario(call: Program) -> Hashable:
    return call.scenario


def of_inputs(one: Pass[Program]) -> Pass[Program]:
    """The pass applied to the storages and arguments of each call. Calls with equal ones stay equal."""
    return _edit_each_call(one, _inputs)


def of_scenarios(one: Pass[Program]) -> Pass[Program]:
    """The pass applied to the scenario of each call. Calls with equal ones stay equal."""
    return _edit_each_call(one, _scenario)


def _edit_each_call(one: Pass[Program], part: Callable[[Program], Hashable]) -> Pass[Program]:
    def edits(program: Program) -> Sequence[Edit]:
        different = {part(call): call for call in reversed(split_calls(program))}
        return [(i, edit) for i, call in enumerate(different.values()) for edit in one.edits(call)]

    def apply(program: Program, chosen: frozenset[Edit]) -> Program | None:
        different = {part(call): call for call in reversed(split_calls(program))}
        numbers = {key: i for i, key in enumerate(different)}
        changed = []
        for call in split_calls(program):
            number = numbers[part(call)]
            own = frozenset(edit[1] for edit in chosen if isinstance(edit, tuple) and edit[0] == number)
            new = one.apply(call, own)
            if new is None:
                return None
            changed.append(new)
        later = tuple(Call(call.storages, call.arguments, call.scenario) for call in changed[1:])
        return dataclasses.replace(changed[0], later=later)

    return Pass(one.name, edits, apply)


CALLS = Pass("calls", _later_call_edits, _reduce_later_calls)
STEPS = of_scenarios(Pass("steps", _step_edits, _simplify_steps))
