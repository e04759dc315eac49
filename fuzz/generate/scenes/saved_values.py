"""Scenes of what a backward keeps, and of what is written to meanwhile."""

from __future__ import annotations

from fuzz.abstract.state import AbstractState
from fuzz.choices import Choices
from fuzz.generate.arguments import draw_column_arguments
from fuzz.generate.motifs import saved_tensors
from fuzz.generate.motifs.helpers import append_motif_product, append_motif_statement, write
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
from fuzz.ir.nodes import Argument, Require, Root, Step, Storage, Tree, View
from oracles.observation.steps import Backward


def _scene_of_complex_slices(choices: Choices) -> Given:
    """Slices of a complex buffer, and real numbers that require grad."""
    dtype, parts = choices.pick((("complex64", "float32"), ("complex128", "float64")))
    length, count = choices.integer(1, 3), choices.integer(2, 3)
    storage = Storage(dtype, (count * length,), choices.integer(0, 12))
    followed = Storage(parts, choices.pick(((), (2,), (length, 2))), choices.integer(0, 12), True)
    via = choices.pick(("view", "detach"))
    return [storage, followed], [*disjoint_slices(0, count, length, via), Root(1)]


def _counted_apart(choices: Choices) -> Given:
    """A tensor, an alias that has a version counter of its own, and something that requires grad."""
    storage = real_storage(choices, size_of(choices))
    given: list[Argument] = [Root(0), whole_view(0, storage, "data")]
    if choices.chance(0.5):
        given.reverse()
    return [storage, like_storage(storage, choices)], [*given, Root(1)]


def _inferred(choices: Choices) -> Given:
    """A tensor that was made in inference mode, and something that requires grad."""
    storage = real_storage(choices, size_of(choices), inference=True)
    shown = Root(0) if choices.chance(0.5) else whole_view(0, storage)
    return [storage, like_storage(storage, choices)], [shown, Root(1)]


def _scene_of_saved_neighbours(choices: Choices) -> Given:
    """Pieces of a buffer of which none begins where it does, often what has them all, and something that
    requires grad."""
    length = choices.integer(1, 3)
    storage = real_storage(choices, (2 * length + choices.integer(1, 2),))
    start = storage.size[0] - 2 * length
    ends = [View(0, (length,), (1,), start, "view"), View(0, (length,), (1,), start + length, "view")]
    if choices.chance(0.5):
        ends.reverse()
    if choices.chance(0.7):
        ends.append(View(0, (2 * length,), (1,), start, "view"))
    return [storage, like_storage(storage, choices, (length,))], [*ends, Root(1)]


def _plain(choices: Choices) -> Given:
    """A tensor, and something that requires grad."""
    storage = real_storage(choices, (choices.integer(4, 6),) if choices.chance(0.5) else size_of(choices))
    return [storage, like_storage(storage, choices, choices.pick(((), storage.size)))], [Root(0), Root(1)]


def _alone(choices: Choices) -> Given:
    """A tensor, all of it or a view of that."""
    storage = real_storage(choices, size_of(choices))
    return [storage], [Root(0) if choices.chance(0.7) else whole_view(0, storage)]


def _hidden(builder: ProgramBuilder) -> None:
    """What is kept has a version counter of its own, or is a part of what is written to."""
    choices = builder.choices
    name = append_motif_statement(builder, choices.pick(("data", "data", "detach")), ("a0",))
    if name:
        append_motif_product(builder, name)


def _two(choices: Choices) -> Given:
    """Something with a history, and two tensors that have none."""
    storage = real_storage(choices, size_of(choices), requires_grad=True, leaf=False)
    plain = Storage(storage.dtype, storage.size[1:], choices.integer(0, 12))
    return [storage, plain], [Root(0), Root(1)]


def _part_by_another(builder: ProgramBuilder) -> None:
    """A part is written to by what reads another tensor."""
    choices = builder.choices
    part = append_motif_statement(builder, "select", ("a0",), dim=0, index=choices.integer(0, 1))
    if part:
        append_motif_statement(builder, choices.pick(("mul_", "mul_", "div_", "add_")), (part, "a1"))


def _within(choices: Choices) -> Given:
    """A piece of a buffer that has something before it and after it."""
    length = choices.integer(1, 3)
    storage = real_storage(choices, (length + 4,), choices.chance(0.4), leaf=False)
    return [storage], [View(0, (length,), (1,), 2, choices.pick(("view", "detach")))]


def _scene_of_saved_surroundings(builder: ProgramBuilder) -> None:
    """What lies around a piece is shown after that was written to."""
    choices, meta = builder.choices, builder.state.meta("a0")
    write(builder, "a0", ("mul_number_", "add_number_", "sin_"))
    start = choices.integer(0, 2)
    length = choices.integer(3 - start, meta.size[0] + 4 - start)
    shown = append_motif_statement(builder, "as_strided", ("a0",), size=(length,), stride=(1,), offset=start)
    if shown and choices.chance(0.5):
        write(builder, shown, ("mul_number_", "add_number_"))
    elif shown:
        append_motif_statement(builder, choices.pick(("mul_number", "clone", "sin")), (shown,))


def _in_columns(choices: Choices) -> Given:
    """Columns of one matrix, of which one is the lower end of another."""
    storage, given = draw_column_arguments(choices, 0)
    return [storage], given


def _one_by_one(builder: ProgramBuilder) -> None:
    """One is written to, and all are read."""
    choices = builder.choices
    names = [name for name, _ in builder.pool]
    write(builder, choices.pick(names), ("mul_number_", "add_number_", "sin_"))
    for name in names:
        append_motif_statement(builder, choices.pick(("mul_number", "sin", "neg")), (name,))


def _scene_of_written_saved_view(builder: ProgramBuilder) -> None:
    """A tensor is written to after a view of it was taken, or before."""
    choices = builder.choices
    views = ("view", "alias", "unsqueeze", "slice", "select", "transpose")
    if choices.chance(0.8):
        append_motif_statement(builder, choices.pick(views), ("a0",))
    write(builder, "a0", ("mul_number_", "add_number_", "sin_"))
    if choices.chance(0.3):
        append_motif_statement(builder, choices.pick(views), ("a0",))


def _required(choices: Choices, state: AbstractState, returns: Tree) -> tuple[Step, ...]:
    """What was written to is made to require grad, and a backward starts from what is a view of it."""
    return Require("a0"), *(Backward((i,), "plain", True) for i in range(2))


def _factors(choices: Choices) -> Given:
    """Two matrices that require grad."""
    m, n = choices.integer(2, 4), choices.integer(2, 4)
    first = real_storage(choices, (m, n), requires_grad=True, leaf=choices.chance(0.5))
    return [first, like_storage(first, choices, (n, m))], [Root(0), Root(1)]


def _scene_of_value_saved_by_several(builder: ProgramBuilder) -> None:
    """A value that is costly to compute is kept by what made it, and for each of two results."""
    choices = builder.choices
    product = append_motif_statement(builder, "mm", ("a0", "a1"))
    kept = (
        append_motif_statement(builder, choices.pick(("tanh", "sigmoid", "exp")), (product,))
        if product
        else None
    )
    if kept:
        for _ in range(2):
            append_motif_statement(builder, choices.pick(("sin", "cos", "square", "mul_number")), (kept,))


def _by_one(choices: Choices, state: AbstractState, returns: Tree) -> tuple[Step, ...]:
    """A backward from one result that frees what it can, and perhaps one from another."""
    first = choices.integer(0, 1)
    steps = (Backward((first,), "plain", False), Backward((1 - first,), "plain", False))
    return steps[: choices.integer(1, 2)]


SCENES = (
    Scene(_factors, _scene_of_value_saved_by_several, _by_one),
    Scene(_alone, _scene_of_written_saved_view, _required),
    Scene(_plain, _hidden, write_and_differentiate(("a0",))),
    Scene(_two, _part_by_another, write_and_differentiate(("a1",))),
    Scene(_within, _scene_of_saved_surroundings),
    Scene(_in_columns, _one_by_one),
    Scene(_scene_of_complex_slices, saved_tensors.save_beside_write),
    Scene(_counted_apart, saved_tensors.save_two_aliases, write_and_differentiate(("a0", "a1"))),
    Scene(_inferred, saved_tensors.recompute_of_written, write_and_differentiate(("a0",))),
    Scene(_scene_of_saved_neighbours, saved_tensors.read_first_in_backward),
    Scene(_plain, saved_tensors.recompute_of_written, write_and_differentiate(("a0",))),
)
