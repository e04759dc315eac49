"""Motifs of what a backward keeps: parts and aliases of arguments, values that may be made again, draws."""

from __future__ import annotations

from fuzz.generate.motifs.helpers import (
    CURVED,
    REAL,
    append_motif_product,
    append_motif_region,
    append_motif_statement,
    draw_differentiable,
    same_dtype_and_size,
    write,
)
from fuzz.generate.program_builder import ProgramBuilder
from fuzz.operators.dtypes import COMPLEX
from fuzz.operators.layout import shares_elements


def read_piece_twice(builder: ProgramBuilder) -> None:
    """One of several views of an argument is read more than once, and not kept."""
    choices = builder.choices
    names = [
        n
        for n in draw_differentiable(builder)
        if n[0] == "a" and max(builder.state.meta(n).size[:1], default=0) > 1
    ]
    if not names:
        return
    name = choices.pick(names)
    piece = append_motif_statement(
        builder, "split", (name,), dim=0, length=builder.state.meta(name).size[0] // 2
    )
    parts = [
        append_motif_statement(builder, "mul_number", (piece,), value=value) for value in (2.0, 3.0) if piece
    ]
    made = [
        part and append_motif_statement(builder, choices.pick(("sin", "cos", "tanh")), (part,))
        for part in parts
    ]
    if made and all(made):
        append_motif_statement(builder, "add", tuple(map(str, made)))


def draw_in_backward(builder: ProgramBuilder) -> None:
    """A backward repeats a draw, and there is another one after that."""
    choices, names = builder.choices, draw_differentiable(builder)
    if not names:
        return
    name = choices.pick(names)

    def part() -> None:
        drawn = append_motif_statement(builder, choices.pick(("rand_like", "randn_like")), (name,))
        product = drawn and append_motif_statement(builder, "mul", (name, drawn))
        if product:
            append_motif_statement(builder, choices.pick(CURVED), (product,))

    append_motif_region(builder, "checkpoint", part)
    append_motif_statement(builder, choices.pick(("rand_like", "randn_like")), (name,))


def save_beside_write(builder: ProgramBuilder) -> None:
    """Of two arguments that share storage and no element one is written to, and the other is kept, seen as
    other numbers."""
    entries = [
        (n, t)
        for n, t in builder.pool
        if n[0] == "a" and not t.requires_grad and t.meta.dtype in COMPLEX and not t.meta.conj
    ]
    pairs = [
        (one, other)
        for one, s in entries
        for other, t in entries
        if s.clock is t.clock and s.memory == t.memory and not shares_elements(s.meta, t.meta)
    ]
    if not pairs:
        return
    written, kept = builder.choices.pick(pairs)
    write(builder, written, ("mul_number_", "add_number_"))
    real = append_motif_statement(builder, "view_as_real", (kept,))
    if real:
        append_motif_product(builder, real)


def save_two_aliases(builder: ProgramBuilder) -> None:
    """A backward keeps two aliases that have version counters of their own."""
    entries = [(n, t) for n, t in builder.pool if n[0] == "a"]
    pairs = [
        (one, other)
        for one, s in entries
        for other, t in entries
        if s.memory == t.memory and s.meta == t.meta and s.clock is not t.clock and not t.requires_grad
    ]
    if not pairs:
        return
    one, other = builder.choices.pick(pairs)
    if builder.state.tensor(one).requires_grad:
        first = append_motif_statement(builder, "square", (one,))
    else:
        first = append_motif_product(builder, one)
    if first:
        append_motif_statement(builder, "mul", (first, other))


def recompute_of_written(builder: ProgramBuilder) -> None:
    """Values that a backward keeps, and that a partitioner may compute again, of an argument that it does not
    keep; perhaps by a view that shows its elements more than once, and so is larger."""
    choices = builder.choices
    names = [n for n, t in builder.pool if n[0] == "a" and not t.requires_grad and t.meta.dtype in REAL]
    if not names:
        return
    name = source = choices.pick(names)
    meta = builder.state.meta(name)
    if choices.chance(0.5):
        write(builder, name, ("mul_number_", "add_number_"))
    if len(meta.size) == 1 and meta.size[0] > 3 and meta.stride == (1,) and choices.chance(0.5):
        count = (meta.size[0] + 1) // 2
        size, stride = (count, count), (1, 1)
        source = (
            append_motif_statement(
                builder, "as_strided", (name,), size=size, stride=stride, offset=meta.offset
            )
            or name
        )
    made = [append_motif_statement(builder, operator, (source,)) for operator in ("sin", "cos")]
    product = append_motif_product(builder, str(made[0])) if all(made) else None
    product = product and append_motif_statement(builder, "mul", (product, str(made[1])))
    if product and choices.chance(0.4):  # what is there now is kept as well
        write(builder, name, ("mul_number_",))
        if source == name:
            append_motif_statement(builder, "mul", (product, name))


def read_first_in_backward(builder: ProgramBuilder) -> None:
    """What a backward is the first to read lies in memory that was written to beside it."""
    choices = builder.choices
    entries = [
        (n, t)
        for n, t in builder.pool
        if n[0] == "a" and not t.requires_grad and t.meta.dtype in REAL and t.meta.offset
    ]
    pairs = [
        (one, other)
        for one, s in entries
        for other, t in entries
        if one != other and s.clock is t.clock and s.memory == t.memory and s.meta != t.meta
    ]
    if not pairs:
        return
    written, kept = choices.pick(pairs)
    followed = same_dtype_and_size(builder, kept, [n for n, t in builder.pool if t.requires_grad])
    if followed:
        write(builder, written, ("mul_number_", "add_number_"))
        append_motif_statement(builder, "function_later", (choices.pick(followed), kept))
