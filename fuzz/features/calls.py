"""Calls: features of how a program is called: the steps after a call, and differences of later calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fuzz.abstract.state import AbstractState, AbstractTensor
from fuzz.ir.control_flow import is_arm_taken
from fuzz.ir.nodes import (
    Argument,
    Branch,
    Duplicate,
    Program,
    Require,
    Scalar,
    Scenario,
    View,
    Write,
    split_calls,
)
from fuzz.program.decode import initial_state


def scenario_features(program: Program) -> Iterator[str]:
    """The names of `program_features.FEATURES` in the groups "gradient" and "repeat" that a program has."""
    first, *later = split_calls(program)
    for call in (first, *later):
        yield from _step_features(call.scenario)
    for call in later:
        found = set(_later_call_features(first, call))
        yield from found or {"repeat: same kind"}


def _step_features(scenario: Scenario) -> Iterator[str]:
    written: str | None = None
    backwards = 0
    for step in scenario.steps:
        if isinstance(step, Write):
            written = "an argument" if step.name[0] == "a" else "a result"
            continue
        if isinstance(step, Require):
            yield "gradient: required since"
            continue
        backwards += 1
        if step.how == "double":
            yield "gradient: double"
        elif step.how == "accumulate":
            yield "gradient: accumulated"
        if not step.retain and step.how != "double":
            yield "gradient: freed"
        if backwards > 1:
            yield "gradient: again"
        if written is not None:
            yield f"gradient: after a write to {written}"


def _later_call_features(first: Program, call: Program) -> Iterator[str]:
    here, there = initial_state(first), initial_state(call)
    for i, (one, other) in enumerate(zip(first.arguments, call.arguments, strict=True)):
        left, right = here.names[f"a{i}"], there.names[f"a{i}"]
        if _wrapped(first, one) != _wrapped(call, other):
            yield "repeat: other class"
        if isinstance(left, AbstractTensor) and isinstance(right, AbstractTensor):
            yield from _scenario_kinds(left, right)
        elif isinstance(one, Scalar) and isinstance(other, Scalar) and repr(left) != repr(right):
            yield "repeat: other number"
    if _groups(here, _memory) != _groups(there, _memory):
        yield "repeat: other aliases"
    elif _groups(here, _base) != _groups(there, _base) and _groups(here, id) == _groups(there, id):
        yield "repeat: other bases"
    if _groups(here, id) != _groups(there, id):
        yield "repeat: other duplicates"
    if [is_arm_taken(first, b) for b in _branches(first)] != [is_arm_taken(call, b) for b in _branches(call)]:
        yield "repeat: other branch"
    if (first.scenario.grad, first.scenario.inference) != (call.scenario.grad, call.scenario.inference):
        yield "repeat: other mode"
    if first.scenario.marked != call.scenario.marked:
        yield "repeat: other attribute"
    if first.scenario.swapped != call.scenario.swapped:
        yield "repeat: other function mode"
    if first.scenario.autocast != call.scenario.autocast:
        yield "repeat: other autocast"


def _wrapped(call: Program, argument: Argument) -> str | None:
    while isinstance(argument, Duplicate):
        argument = call.arguments[argument.argument]
    return argument.wrapped if isinstance(argument, View) else None


def _branches(call: Program) -> list[Branch]:
    return [block for block in call.blocks if isinstance(block, Branch)]


def _scenario_kinds(one: AbstractTensor, other: AbstractTensor) -> Iterator[str]:
    if one.meta.size != other.meta.size:
        yield "repeat: other size"
    elif one.meta.stride != other.meta.stride:
        yield "repeat: other strides"
    if (one.meta.conj, one.meta.neg) != (other.meta.conj, other.meta.neg):
        yield "repeat: other bits"
    if one.inference != other.inference:
        yield "repeat: other inference"
    if one.meta.dtype != other.meta.dtype:
        yield "repeat: other dtype"
    if (one.requires_grad, one.grad_fn) != (other.requires_grad, other.grad_fn):
        yield "repeat: other gradient"


def _memory(tensor: AbstractTensor) -> int:
    return tensor.memory


def _base(tensor: AbstractTensor) -> int:
    return id(tensor.base or tensor)


def _groups(state: AbstractState, key: Callable[[AbstractTensor], int]) -> list[int]:
    """For each argument the position of the first one with the same key."""
    keys = [key(value) if isinstance(value, AbstractTensor) else None for value in state.names.values()]
    return [i if one is None else keys.index(one) for i, one in enumerate(keys)]
