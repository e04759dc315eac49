"""The generator: choices to a program that is valid by construction.

It draws arguments (`arguments`), builds statements (`program_builder`) in blocks (`blocks`) on an
`AbstractState`, which knows every tensor's metadata, memory and standing with autograd, and keeps only
statements that eager accepts; torch never runs. Now and then (`Profile.reckless`) a program may do what eager
refuses, because a compiler must refuse it, too. Last come results, what is done after the call (`steps`), and
later calls (`later_calls`).

>>> from fuzz.choices import Random
>>> generate(Random(seed=0, index=1)) == generate(Random(seed=0, index=1))
True
"""

from __future__ import annotations

from dataclasses import replace

from fuzz.abstract.interpret import defined_names, sizes_if_taken
from fuzz.abstract.state import AbstractState
from fuzz.choices import Choices
from fuzz.generate.arguments import Inputs, bind_arguments, draw_inputs
from fuzz.generate.blocks import build
from fuzz.generate.chains import Chain, build_chains, draw_chain_inputs
from fuzz.generate.later_calls import draw_changed, draw_later
from fuzz.generate.profiles import MAX_ELEMENTS, PROFILES, Profile, narrow
from fuzz.generate.program_builder import MAX_RANK, ProgramBuilder
from fuzz.generate.resized_calls import draw_resized
from fuzz.generate.scenes import SCENES
from fuzz.generate.steps import draw_call_in_two_threads, draw_equal_later_calls, draw_marked, draw_steps
from fuzz.program.decode import Branch, Dict, Literal, Program, ProgramError, Ref, Scenario, Seq, Tree

__all__ = ["MAX_ELEMENTS", "MAX_RANK", "MAX_RETURNS", "generate"]

MAX_RETURNS = 16
TRIES = 40  # for a program within limits


def generate(choices: Choices, profile: str | Profile = "mixed") -> Program:
    """One program of a profile (or of the profile of that name).

    A program has at most `MAX_RETURNS` results and tensors of at most `MAX_ELEMENTS` elements; eager runs it
    in a fraction of a millisecond. Where the profile has limits, the program is within them; it may be beyond
    them where hardly any program is. Raises KeyError for a profile that does not exist.
    """
    if isinstance(profile, str):
        profile = PROFILES[profile]
    limits = profile.limits
    if limits is None:
        return _draw_program(choices, profile)
    for _ in range(TRIES):
        program = _draw_program(choices, profile)
        if program.statements and limits.allow(program):
            break
    return program


def _draw_program(choices: Choices, profile: Profile) -> Program:
    """One program, which may have what is beyond the profile's limits."""
    operators, limits = profile.operators, profile.limits
    if profile.mixture:
        profile = PROFILES[choices.pick(profile.mixture)]
    if operators is not None:
        # Motifs and scenes are made of operators of their own.
        profile = replace(profile, operators=operators, motif=0.0, scene=0.0)
    if limits is not None:
        profile = narrow(profile, limits)
    grad = not choices.chance(profile.grad_off)
    inference = choices.chance(profile.inference)
    cast = choices.chance(profile.autocast)
    autocast = choices.pick(("bfloat16", "bfloat16", "float16")) if cast else None
    state = AbstractState(grad, inference, autocast)
    scene = choices.pick(SCENES) if profile.scene and choices.chance(profile.scene) else None
    chains: list[Chain] = []
    if profile.chains is not None:
        inputs, chains = draw_chain_inputs(choices, profile, state)
    elif scene is None:
        inputs = draw_inputs(choices, profile, state)
    else:
        inputs = bind_arguments(state, *scene.arguments(choices))
    builder = ProgramBuilder(choices, profile, state, inputs)
    if scene is not None:
        scene.motif(builder)
    if chains:
        build_chains(builder, chains)
    else:
        build(builder)
    state = builder.state
    parameters = _draw_parameters(choices, profile, inputs)
    returns = _draw_returns(choices, profile, inputs, builder)
    differentiate = _differentiate(choices, profile)
    if scene is not None and scene.steps is not None:
        steps = scene.steps(choices, state, returns)
    else:
        steps = draw_steps(choices, profile, state, returns)
    swapped = profile.swapped > 0 and choices.chance(profile.swapped)
    count = len(inputs.arguments)
    marked = draw_marked(choices, profile, builder.state, count) if profile.marked else ()
    program = Program(
        inputs.storages,
        inputs.arguments,
        parameters,
        tuple(builder.statements),
        returns,
        Scenario(
            grad=grad,
            differentiate=differentiate,
            inference=inference,
            steps=steps,
            autocast=autocast,
            swapped=swapped,
            marked=marked,
        ),
        blocks=tuple(builder.blocks),
        module=inputs.module,
    )
    if any(isinstance(block, Branch) for block in program.blocks):
        try:
            sizes_if_taken(program)
        except ProgramError:  # what follows a branch does not fit what its other arm leaves
            return _draw_program(choices, profile)
    if scene is not None and scene.change is not None:
        later = draw_changed(choices, profile, program, scene.change)
    elif profile.alike and choices.chance(profile.alike):
        later = draw_equal_later_calls(choices, profile, program, state)
    elif profile.resized and choices.chance(profile.resized):
        later = draw_resized(choices, program)
    else:
        later = draw_later(choices, profile, program)
    if later:
        program = replace(program, later=later)
    return draw_call_in_two_threads(choices, profile, program)


# ---------------------------------------------------------------------------------------------------------
# trees and scenario


def _draw_parameters(choices: Choices, profile: Profile, inputs: Inputs) -> tuple[Tree, ...]:
    held = inputs.module.names if inputs.module else ()
    names = (f"a{i}" for i in range(len(inputs.arguments)))
    leaves: list[Tree] = [Ref(name) for name in names if name not in held]
    if not leaves or not choices.chance(profile.nested):
        return tuple(leaves)
    count = len(leaves)
    first = choices.integer(0, count - 1)
    last = choices.integer(first + 1, count)
    return (*leaves[:first], _draw_result_tree(choices, leaves[first:last]), *leaves[last:])


def _draw_returns(choices: Choices, profile: Profile, inputs: Inputs, builder: ProgramBuilder) -> Tree:
    """What is not used by another statement, so that nothing goes unseen, and some more."""
    made = [name for statement in builder.statements for name in statement.results]
    if builder.blocks:
        bound = defined_names(builder.program())
        made = [name for name in dict.fromkeys(made) if name in bound]
    unused = [name for name in made if name not in builder.used]
    extra = [name for name in made if name in builder.used and choices.chance(0.25)]
    extra += [f"a{i}" for i in range(len(inputs.arguments)) if choices.chance(profile.passed)]
    if extra and choices.chance(profile.same):
        extra.append(choices.pick([*unused, *extra]))
    state = builder.state
    # A compiler may refuse hooks on what a function returns, or on what that is a view of.
    names = [
        name
        for name in (*unused, *extra)
        if not (state.is_stale(name) or state.is_unwatched(name) or state.is_hooked(name))
        and not state.is_outdated(name)
    ][:MAX_RETURNS]
    leaves: list[Tree] = [Ref(name) for name in names]
    if choices.chance(0.12):
        leaves.insert(choices.integer(0, len(leaves)), Literal(choices.pick((None, 3, 0.5, "text", True))))
    if not leaves:
        return Literal(None)
    if len(leaves) == 1 and choices.chance(0.5):
        return leaves[0]
    if choices.chance(profile.nested):
        return _draw_result_tree(choices, leaves)
    return Seq("tuple", tuple(leaves))


def _draw_result_tree(choices: Choices, leaves: list[Tree]) -> Tree:
    """A container of these leaves; some of them may lie deeper."""
    items = list(leaves)
    if len(items) > 1 and choices.chance(0.5):
        split = choices.integer(1, len(items) - 1)
        items = [*items[:split], _draw_result_tree(choices, items[split:])]
    kind = choices.pick(("tuple", "list", "dict"))
    if kind == "dict":
        return Dict(tuple((f"k{i}", item) for i, item in enumerate(items)))
    return Seq(kind, tuple(items))


def _differentiate(choices: Choices, profile: Profile) -> tuple[int, ...] | None:
    if not choices.chance(profile.partial):
        return None
    return tuple(sorted({choices.integer(0, 7) for _ in range(choices.integer(0, 2))}))
