"""The generator draws what is done after a call, and which call is made in two threads at once."""

from __future__ import annotations

from dataclasses import replace

from fuzz.abstract.state import AbstractState, AbstractTensor
from fuzz.choices import Choices
from fuzz.generate.profiles import Profile
from fuzz.ir.nodes import Autocast, Call, Program, Require, Step, Tree, Write, split_calls, tree_references
from fuzz.operators import OPERATORS, Kind
from fuzz.operators.dtypes import INEXACT
from oracles.observation.steps import Backward, How

_WATCHED = 0.4  # the steps are a write, and backwards that may notice it
_TWICE = 0.15  # they are two backwards, of which the first frees what it can
_REQUIRED = 0.1  # they are a tensor that is made to require grad, and backwards
_HOW: tuple[How, ...] = ("plain", "plain", "accumulate", "double", "double")


def draw_marked(choices: Choices, profile: Profile, state: AbstractState, count: int) -> tuple[str, ...]:
    """Which of a call's so many arguments have an attribute."""
    names = (f"a{i}" for i in range(count))
    return tuple(
        n for n in names if isinstance(state.names[n], AbstractTensor) and choices.chance(profile.marked)
    )


def draw_equal_later_calls(
    choices: Choices, profile: Profile, program: Program, state: AbstractState
) -> tuple[Call, ...]:
    """Later calls with the same arguments, but for their values, their attributes and the mode around."""
    later: list[Call] = []
    for _ in range(choices.integer(1, 3)):
        scenario = program.scenario
        if choices.chance(0.3):
            marked = draw_marked(choices, profile, state, len(program.arguments))
            scenario = replace(scenario, marked=marked)
        if choices.chance(profile.swapped):
            scenario = replace(scenario, swapped=not scenario.swapped)
        storages = program.storages
        if choices.chance(0.7):
            storages = tuple(replace(s, seed=(s.seed + choices.integer(1, 5)) % 13) for s in storages)
        later.append(Call(storages, program.arguments, scenario))
    return tuple(later)


def draw_call_in_two_threads(choices: Choices, profile: Profile, program: Program) -> Program:
    """The program, of which one call may be made in two threads at once.

    Not where the two would disturb each other in eager: they share the generators, the tensors of a module,
    what autocast has converted, what is noted outside, and Python state.
    """
    rows = [OPERATORS[statement.operator] for statement in program.statements]
    shared = (
        program.module is not None
        or any(row.random or row.has_side_effect or row.kind is Kind.PYTHON for row in rows)
        or any(isinstance(block, Autocast) for block in program.blocks)
        or any(call.scenario.autocast for call in split_calls(program))
    )
    if shared or not choices.chance(profile.threads):
        return program
    number = choices.integer(0, len(program.later))
    if number == 0:
        return replace(program, scenario=replace(program.scenario, threads=True))
    call = program.later[number - 1]
    call = replace(call, scenario=replace(call.scenario, threads=True))
    return replace(program, later=(*program.later[: number - 1], call, *program.later[number:]))


def results_of(state: AbstractState, returns: Tree) -> frozenset[str]:
    """The names of the tensors that a function returns."""
    return frozenset(n for n in tree_references(returns) if isinstance(state.names.get(n), AbstractTensor))


def is_writable(state: AbstractState, returned: frozenset[str], name: str) -> bool:
    """Whether a step may write to what has a name at the function's end."""
    return (
        isinstance(state.names.get(name), AbstractTensor)
        and (name[0] == "a" or name in returned)
        and not state.is_stale(name)
        and (state.is_kept(name) or not state.is_unwatched(name))  # (Of what is kept, eager raises.)
    )


def may_require(state: AbstractState, name: str) -> bool:
    """Whether what has a name at the function's end requires no grad and can be made to."""
    tensor = state.tensor(name)
    return not tensor.requires_grad and tensor.meta.dtype in INEXACT


def draw_steps(choices: Choices, profile: Profile, state: AbstractState, returns: Tree) -> tuple[Step, ...]:
    """What is done after a call, if anything else than usual; `state` is the one at the function's end."""
    if not choices.chance(profile.steps):
        return ()
    returned = results_of(state, returns)
    # (Of what is kept under two counters, only a backward through both does.)
    writable = (name for name in state.names if is_writable(state, returned, name))
    tensors = [name for name in writable if not state.is_kept_apart(name)]
    steps: list[Step] = []
    if tensors and choices.chance(_WATCHED):
        # Whether a backward notices a write shows where nothing else is done before, from each result alone.
        kept = [name for name in tensors if state.is_kept(name)]
        # Or what eager does not keep, and a compiler may.
        used = [name for name in tensors if name[0] == "a" and name not in kept and name not in returned]
        rather = choices.pick((kept, kept, kept, kept, used, used, tensors))
        chosen = choices.pick(rather or tensors)
        count = sum(state.tensor(name).requires_grad for name in tensors if name in returned)
        return Write(chosen), *(Backward((i,), "plain", True) for i in range(min(max(count, 1), 3)))
    if choices.chance(_TWICE):
        return (Backward(), Backward())
    # (A compiler may refuse to differentiate what hooks have done.)
    once = bool(state.kept.hooked) or state.kept.once
    if not once and choices.chance(_TWICE):
        return (Backward(None if choices.chance(0.5) else (choices.integer(0, 3),), "double", True),)
    if tensors and choices.chance(_TWICE):
        return Backward(), Write(choices.pick(tensors))  # which shows what a backward wrote to
    plain = [name for name in tensors if may_require(state, name)]
    if plain and choices.chance(_REQUIRED):
        # What is a view of it shows then whether it was taken before a write or after one.
        return Require(choices.pick(plain)), *(Backward((i,), "plain", True) for i in range(2))
    for _ in range(choices.integer(1, 4)):
        if tensors and choices.chance(0.3):
            steps.append(Write(choices.pick(tensors)))
        else:
            roots = None if choices.chance(0.5) else (choices.integer(0, 5),)
            how = choices.pick(_HOW[:-2] if once else _HOW)
            steps.append(Backward(roots, how, choices.chance(0.6)))
    return tuple(steps)
