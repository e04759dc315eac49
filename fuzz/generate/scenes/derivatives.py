"""Scenes of histories that are moved or cut off, and of what derivatives go by then."""

from __future__ import annotations

from dataclasses import replace

from fuzz.choices import Choices
from fuzz.generate.motifs import aliasing, gradients
from fuzz.generate.motifs.helpers import CURVED, append_motif_statement, write
from fuzz.generate.program_builder import ProgramBuilder
from fuzz.generate.scenes.scene import (
    Given,
    Scene,
    backward_twice,
    disjoint_slices,
    like_storage,
    real_storage,
    second_derivatives,
    size_of,
    whole_view,
)
from fuzz.ir.nodes import Argument, Root, View


def _three(choices: Choices) -> Given:
    """A tensor with a history, one without, and one more that requires grad."""
    storage = real_storage(choices, size_of(choices), requires_grad=True, leaf=False)
    plain = replace(storage, requires_grad=False, leaf=True, seed=choices.integer(0, 12))
    other = like_storage(storage, choices, choices.pick(((), storage.size)))
    return [storage, plain, other], [Root(0), Root(1), Root(2)]


def _row(choices: Choices) -> Given:
    """A tensor with a history that has several rows."""
    storage = real_storage(choices, size_of(choices, 3), requires_grad=True, leaf=False)
    return [storage], [Root(0)]


def _scene_of_two_written_parts(builder: ProgramBuilder) -> None:
    """Two parts of a tensor are written to, the latter perhaps by what its own derivative reads."""
    choices = builder.choices
    length = builder.state.meta("a0").size[0]
    middle = choices.integer(1, length - 1)
    parts = ((0, middle, ("mul_number_", "sin_")), (middle, length, (*_READ, "mul_number_")))
    for start, end, operators in parts if choices.chance(0.7) else parts[1:]:
        part = append_motif_statement(builder, "slice", ("a0",), dim=0, start=start, end=end, step=1)
        if part:
            write(builder, part, operators)


_READ = ("exp_", "tanh_", "sigmoid_")  # whose derivatives read what they have written


def _cube(choices: Choices) -> Given:
    """A tensor with a history, dimensions of which have one length."""
    n = choices.integer(2, 3)
    storage = real_storage(
        choices, choices.pick(((n, n), (n, n, n), (2, n, n))), requires_grad=True, leaf=False
    )
    return [storage], [Root(0)]


def _pair(choices: Choices) -> Given:
    """Two that require grad."""
    storage = real_storage(choices, size_of(choices), requires_grad=True, leaf=choices.chance(0.5))
    return [storage, like_storage(storage, choices)], [Root(0), Root(1)]


def _scene_of_linear_backward(builder: ProgramBuilder) -> None:
    """What keeps nothing that a backward needs, and frees something all the same: a factor, a size."""
    choices, value = builder.choices, "a0"
    for _ in range(choices.integer(1, 2)):
        value = append_motif_statement(builder, choices.pick(_LINEAR), (value,)) or value
    if choices.chance(0.5):
        append_motif_statement(builder, choices.pick(("add", "sub")), (value, "a1"))
    builder.budget = 0


_LINEAR = (*("mul_number",) * 3, "neg", "sum", "clone", "unsqueeze")


def _straight_and_curved(builder: ProgramBuilder) -> None:
    """One gradient has a derivative, and one has none."""
    choices = builder.choices
    one = append_motif_statement(builder, choices.pick(("mul_number", "neg", "sum")), ("a0",))
    other = append_motif_statement(builder, choices.pick(CURVED), ("a1",))
    if one and other and choices.chance(0.5):
        append_motif_statement(builder, choices.pick(("add", "sub")), (other, one))


def _view(choices: Choices) -> Given:
    """A view of a leaf or of what has a history."""
    storage = real_storage(choices, size_of(choices), requires_grad=True, leaf=choices.chance(0.5))
    return [storage], [whole_view(0, storage, choices.pick(("view", "no_grad", "multi")))]


def _scene_of_gapped_history(choices: Choices) -> Given:
    """Every other element of something with a history, and perhaps what lies in between."""
    storage = real_storage(choices, (choices.integer(5, 8),), requires_grad=True, leaf=False)
    count = (storage.size[0] + 1) // 2
    given: list[Argument] = [View(0, (count,), (2,), 0)]
    if choices.chance(0.6):
        given.append(View(0, (storage.size[0] // 2,), (2,), 1, choices.pick(("view", "detach"))))
    return [storage], given


def _beside(choices: Choices) -> Given:
    """Two pieces of something with a history, of which one is hidden from autograd."""
    length = choices.integer(1, 3)
    storage = real_storage(choices, (2 * length,), requires_grad=True, leaf=False)
    followed, hidden = disjoint_slices(0, 2, length)
    return [storage], [followed, replace(hidden, via=choices.pick(("detach", "data")))]


def _both(builder: ProgramBuilder) -> None:
    """Each is written to."""
    names = ["a0", "a1"] if builder.choices.chance(0.5) else ["a1", "a0"]
    for name in names:
        write(builder, name, ("mul_number_", "add_number_", "sin_"))


SCENES = (
    Scene(_three, gradients.detach_beside_write),
    Scene(_row, _scene_of_two_written_parts, second_derivatives),
    Scene(_cube, aliasing.write_and_lay_out_anew),
    Scene(_cube, aliasing.write_and_lay_out_anew, second_derivatives),
    Scene(_pair, gradients.fork_and_meet, second_derivatives),
    Scene(_pair, _scene_of_linear_backward, backward_twice),
    Scene(_pair, _scene_of_linear_backward, backward_twice),
    Scene(_pair, gradients.sum_gradients, second_derivatives),
    Scene(_view, gradients.write_after_view),
    Scene(_scene_of_gapped_history, aliasing.write_between_elements),
    Scene(_beside, _both),
    Scene(_pair, _straight_and_curved, second_derivatives),
)
