"""Motifs of gradients: results that meet again, or have one node; what gradients of gradients go by."""

from __future__ import annotations

from fuzz.generate.motifs.helpers import (
    CURVED,
    REAL,
    append_motif_region,
    append_motif_statement,
    draw_differentiable,
    is_followed,
    same_dtype_and_size,
    write,
)
from fuzz.generate.program_builder import ProgramBuilder

_UNARY = ("sin", "cos", "exp", "tanh", "mul_number", "neg", "square", "function_square", "function_scale")
_SEVERAL = ("foreach_sin", "foreach_exp", "foreach_neg")  # whose results have one node for autograd


def fork_and_meet(builder: ProgramBuilder) -> None:
    """Two results of one tensor, or of two, that meet twice: where autograd has one node for both, and not
    each of the gradients comes; and where both do."""
    choices = builder.choices
    names = draw_differentiable(builder)
    if not names:
        return
    first = choices.pick(names)
    second = first if choices.chance(0.5) else choices.pick(same_dtype_and_size(builder, first, names))
    made = [append_motif_statement(builder, choices.pick(_UNARY), (one,)) for one in (first, second)]
    if not all(made):
        return
    pair = tuple(map(str, made))
    append_motif_statement(builder, choices.pick(_SEVERAL), pair)
    append_motif_statement(builder, choices.pick(("mul", "add", "sub")), pair)


def sum_gradients(builder: ProgramBuilder) -> None:
    """The gradients of two tensors are one tensor, and have derivatives themselves."""
    choices, names = builder.choices, draw_differentiable(builder)
    if not names:
        return
    first = choices.pick(names)
    others = [name for name in same_dtype_and_size(builder, first, names) if name != first]
    total = append_motif_statement(builder, "add", (first, choices.pick(others))) if others else None
    if total:
        append_motif_statement(builder, choices.pick(CURVED), (total,))


def multiply_view(builder: ProgramBuilder) -> None:
    """A view is multiplied in place by what requires grad and lies elsewhere."""
    choices, state = builder.choices, builder.state
    names = [n for n, t in builder.pool if n[0] == "a" and is_followed(t) and t.base is not None]
    if not names:
        return
    name = choices.pick(names)
    followed = [n for n, t in builder.pool if t.requires_grad and t.memory != state.tensor(name).memory]
    others = same_dtype_and_size(builder, name, followed)
    if others and append_motif_statement(builder, "mul_", (name, choices.pick(others))) is not None:
        append_motif_statement(builder, choices.pick(CURVED), (name,))


def detach_beside_write(builder: ProgramBuilder) -> None:
    """An argument is detached in place, and a value was computed from it and from one that was written to."""
    choices, state, pool = builder.choices, builder.state, builder.pool
    needed = {memory for memory, *_ in state.kept.saved}
    gone = [
        (n, t)
        for n, t in pool
        if n[0] == "a" and is_followed(t) and t.base is None and not t.clock.viewed and t.memory not in needed
    ]
    if not gone:
        return
    name, lost = choices.pick(gone)
    pairs = [
        (one, factor)
        for one, s in pool
        for factor, t in pool
        if one[0] == "a"
        and not s.requires_grad
        and t.requires_grad
        and t.memory != lost.memory
        and s.meta.dtype == t.meta.dtype == lost.meta.dtype
        and t.meta.size in ((), s.meta.size)
    ]
    if not pairs:
        return
    other, factor = choices.pick(pairs)
    append_motif_statement(builder, "mul_", (other, factor))
    made = (
        append_motif_statement(builder, "mul_number", (other,)),
        append_motif_statement(builder, "sum", (name,)),
    )
    if all(made) and append_motif_statement(builder, "add", tuple(map(str, made))):
        append_motif_statement(builder, "detach_", (name,))


def join_view_to_history(builder: ProgramBuilder) -> None:
    """A view of an argument's gets a history from elsewhere, and others of that memory are read."""
    choices, pool = builder.choices, builder.pool
    views = [
        (n, t)
        for n, t in pool
        if n[0] == "a" and t.base is not None and not t.requires_grad and t.meta.dtype in REAL
    ]
    if not views:
        return
    name, view = choices.pick(views)
    sources = [
        n
        for n, t in pool
        if t.requires_grad
        and t.memory != view.memory
        and t.meta.dtype == view.meta.dtype
        and t.meta.size in ((), view.meta.size)
    ]
    if not sources or append_motif_statement(builder, "mul_", (name, choices.pick(sources))) is None:
        return
    for other in [n for n, t in pool if t.memory == view.memory and n != name][:2]:
        append_motif_statement(builder, "mul_number", (other,))


def write_after_view(builder: ProgramBuilder) -> None:
    """A view is taken of an argument, which is then written to without grad mode."""
    names = [
        n for n, t in builder.pool if n[0] == "a" and t.base is not None and t.requires_grad and t.meta.size
    ]
    if names:
        name = builder.choices.pick(names)
        if append_motif_statement(builder, "unsqueeze", (name,), dim=0):
            append_motif_region(
                builder, "no_grad", lambda: write(builder, name, ("mul_number_", "add_number_"))
            )
