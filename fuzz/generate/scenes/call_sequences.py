"""Scenes of two calls that differ in one thing, which only some programs show."""

from __future__ import annotations

from dataclasses import replace

from fuzz.choices import Choices
from fuzz.generate.later_calls import equal_python_numbers, move_argument, regroup_views
from fuzz.generate.motifs import gradients
from fuzz.generate.motifs.helpers import CURVED, append_motif_region, append_motif_statement, write
from fuzz.generate.profiles import Profile
from fuzz.generate.program_builder import ProgramBuilder
from fuzz.generate.scenes.scene import (
    Given,
    Scene,
    disjoint_slices,
    like_storage,
    real_storage,
    size_of,
    whole_view,
    write_and_differentiate,
)
from fuzz.ir.nodes import Call, Root, Scalar, Storage, View


def _scene_of_two_aliases(choices: Choices) -> Given:
    """Three views of two aliases of a root, and something that requires grad."""
    length = choices.integer(1, 3)
    storage = real_storage(choices, (3 * length,))
    one, other = choices.pick((("detach", "root"), ("root", "detach"), ("detach", "data"), ("root", "data")))
    bases = choices.pick(((one, one, other), (one, other, other), (one, other, one)))
    views = [replace(v, base=base) for v, base in zip(disjoint_slices(0, 3, length), bases, strict=True)]
    return [storage, like_storage(storage, choices, choices.pick(((), (length,))))], [*views, Root(1)]


def _behind(choices: Choices) -> Given:
    """A view of a leaf, or of what was detached since."""
    storage = real_storage(choices, size_of(choices), requires_grad=True)
    if choices.chance(0.5):
        storage = replace(storage, leaf=False, detached=True)
    return [storage], [whole_view(0, storage, choices.pick(("view", "view", "no_grad")))]


def _scene_of_unseen_write(builder: ProgramBuilder) -> None:
    """A write, or a view, that autograd is not told of, and perhaps a view that it is told of before."""
    choices = builder.choices
    name = choices.pick([n for n, _ in builder.pool])
    if choices.chance(0.7):
        append_motif_statement(builder, choices.pick(("unsqueeze", "alias", "slice", "select")), (name,))
    if choices.chance(0.7):
        append_motif_region(
            builder, "no_grad", lambda: write(builder, name, ("mul_number_", "add_number_", "sin_"))
        )
    else:
        append_motif_region(builder, "no_grad", lambda: append_motif_statement(builder, "unsqueeze", (name,)))
    builder.budget = 0  # (What is used after it a compiler may refuse.)


def _let_go(choices: Choices, _profile: Profile, call: Call) -> Call:
    """What was a leaf has been detached, and the reverse."""
    first = call.storages[0]
    other = replace(first, leaf=not first.leaf, detached=first.leaf)
    return replace(call, storages=(other, *call.storages[1:]))


def _beside_two(choices: Choices) -> Given:
    """Two tensors, and an alias of one of them."""
    storage = real_storage(choices, size_of(choices))
    other = replace(storage, seed=choices.integer(0, 12))
    alias = whole_view(choices.integer(0, 1), storage, choices.pick(("detach", "data", "view")))
    return [storage, other], [Root(0), Root(1), alias]


def _read_after(builder: ProgramBuilder) -> None:
    choices = builder.choices
    first, *others = choices.pick((("a0", "a2"), ("a1", "a2"), ("a2", "a0", "a1")))
    write(builder, first, ("mul_number_", "add_number_", "sin_"))
    for name in others:
        append_motif_statement(builder, choices.pick(("mul_number", "sin", "neg", "square")), (name,))


def _numbered(choices: Choices) -> Given:
    """A tensor and a Python number."""
    storage = Storage(choices.pick(("bool", "int64", "int64", "float32")), size_of(choices), 3)
    return [storage], [Root(0), Scalar(choices.pick((0, 1, 1.0, 2, 2.0, 0.0)))]


def _with_number(builder: ProgramBuilder) -> None:
    append_motif_statement(builder, builder.choices.pick(("mul_argument", "add_argument")), ("a0", "a1"))


def _other_number(choices: Choices, _profile: Profile, call: Call) -> Call:
    """A number that is equal, and of another type or sign."""
    first, given = call.arguments
    assert isinstance(given, Scalar)
    alike = equal_python_numbers(given.value)
    return replace(call, arguments=(first, Scalar(choices.pick(alike)))) if alike else call


def _annealed(choices: Choices) -> Given:
    """Something that requires grad, and a Python number."""
    storage = real_storage(choices, size_of(choices), requires_grad=True, leaf=choices.chance(0.5))
    return [storage], [Root(0), Scalar(choices.pick(_TEMPERATURES))]


def _with_temperature(builder: ProgramBuilder) -> None:
    """The number goes into a block that a backward repeats, or into a custom function."""
    choices = builder.choices

    def block() -> None:
        product = append_motif_statement(
            builder, choices.pick(("mul_argument", "add_argument")), ("a0", "a1")
        )
        if product:
            append_motif_statement(builder, choices.pick(CURVED), (product,))

    if choices.chance(0.7):
        append_motif_region(builder, "checkpoint", block)
    else:
        append_motif_statement(builder, "function_scale_argument", ("a0", "a1"))


def _other_temperature(choices: Choices, _profile: Profile, call: Call) -> Call:
    """The number is another one."""
    first, given = call.arguments
    assert isinstance(given, Scalar)
    others = [value for value in _TEMPERATURES if value != given.value]
    return replace(call, arguments=(first, Scalar(choices.pick(others))))


def _matrices(choices: Choices) -> Given:
    """What can be multiplied."""
    m, n = choices.integer(2, 4), choices.integer(2, 4)
    grad = choices.chance(0.5)
    return [real_storage(choices, (m, n), grad), real_storage(choices, (n, m), grad)], [Root(0), Root(1)]


def _multiplied(builder: ProgramBuilder) -> None:
    append_motif_statement(builder, builder.choices.pick(("mm", "matmul")), ("a0", "a1"))


def _cast(choices: Choices, _profile: Profile, call: Call) -> Call:
    """The other call is made under autocast."""
    kinds = [kind for kind in (None, "bfloat16", "float16") if kind != call.scenario.autocast]
    return replace(call, scenario=replace(call.scenario, autocast=choices.pick(kinds)))


def _aliases(choices: Choices) -> Given:
    """A tensor, an alias that autograd does not follow, and something that requires grad."""
    storage = real_storage(choices, size_of(choices))
    alias = whole_view(0, storage, choices.pick(("detach", "data")))
    return [storage, like_storage(storage, choices)], [Root(0), alias, Root(1)]


def _keeping_one(builder: ProgramBuilder) -> None:
    """One of two aliases is kept, or written to."""
    choices = builder.choices
    if choices.chance(0.4):
        write(builder, choices.pick(("a0", "a1")), ("mul_number_", "add_number_"))
    append_motif_statement(builder, "mul", ("a2", choices.pick(("a0", "a1"))))


def _hidden_otherwise(choices: Choices, _profile: Profile, call: Call) -> Call:
    """The alias has a version counter of its own, or has none any more."""
    root, alias, other = call.arguments
    assert isinstance(alias, View)
    via = "data" if alias.via == "detach" else "detach"
    return replace(call, arguments=(root, replace(alias, via=via), other))


_TEMPERATURES = (0.25, 0.5, 2.0, 3)

SCENES = (
    Scene(_annealed, _with_temperature, change=_other_temperature),
    Scene(_numbered, _with_number, change=_other_number),
    Scene(_matrices, _multiplied, change=_cast),
    Scene(_aliases, _keeping_one, write_and_differentiate(("a0", "a1")), change=_hidden_otherwise),
    Scene(_scene_of_two_aliases, gradients.join_view_to_history, change=regroup_views),
    Scene(_behind, _scene_of_unseen_write, change=_let_go),
    Scene(_beside_two, _read_after, change=move_argument),
)
