"""Motifs of memory: writes through chains of views, beside what a tensor shows, and turned tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.generate.motifs.helpers import (
    WRITES,
    append_motif_region,
    append_motif_statement,
    in_argument_memory,
    is_followed,
    same_dtype_and_size,
    write,
)
from fuzz.generate.program_builder import ProgramBuilder, repeats
from fuzz.operators.dtypes import COMPLEX
from fuzz.operators.layout import is_dense
from fuzz.operators.row import Constant, Meta

_TURNS = ("t_", "transpose_", "unsqueeze_")
_ANEW = ("cumsum_", "tril_", "triu_", "renorm_")  # whose results do not lie as what they are written to
_SMALLER = {"float64": "int32", "int64": "int32", "float32": "int16", "int32": "int16"}
_ONTO = ("mul_number_", "sin_", "add_number_")


def write_and_lay_out_anew(builder: ProgramBuilder) -> None:
    """A tensor with a history is written to and laid out otherwise, so that autograd notices it and so that
    it does not, in any order."""
    choices = builder.choices
    names = [n for n, t in builder.pool if is_followed(t) and has_equal_lengths(t.meta)]
    names = in_argument_memory(builder, names) or names
    if not names:
        return
    name = choices.pick(names)
    for what in choices.pick(_ORDERS):
        if what == "write":
            write(builder, name, _ONTO)
        elif what == "noticed":
            _turn_view_dimensions(builder, name, choices.pick(_TURNS))
        else:
            append_motif_region(builder, "no_grad", lambda: _swap(builder, name))


_ORDERS = (
    ("hidden",),
    ("hidden", "write"),
    ("write", "hidden"),
    ("write", "noticed", "hidden"),
    ("write", "noticed", "noticed", "hidden"),
    ("write", "hidden", "noticed"),
    ("noticed", "write", "hidden"),
)


def _turn_view_dimensions(builder: ProgramBuilder, name: str, operator: str) -> None:
    rank = len(builder.state.meta(name).size)
    if operator == "t_":
        append_motif_statement(builder, operator, (name,))
    elif operator == "unsqueeze_":
        append_motif_statement(builder, operator, (name,), dim=builder.choices.integer(0, rank))
    elif rank > 1:
        first = builder.choices.integer(0, rank - 2)
        append_motif_statement(builder, operator, (name,), dim0=first, dim1=first + 1)


def _swap(builder: ProgramBuilder, name: str) -> None:
    """Exchange two dimensions of one length: the shape stays."""
    size = builder.state.meta(name).size
    pairs = [(i, j) for j in range(len(size)) for i in range(j) if size[i] == size[j] > 1]
    if pairs:
        dim0, dim1 = builder.choices.pick(pairs)
        append_motif_statement(builder, "transpose_", (name,), dim0=dim0, dim1=dim1)


def write_through_views(builder: ProgramBuilder) -> None:
    """A tensor is written to through a chain of views."""
    choices = builder.choices
    names = [n for n, t in builder.pool if t.meta.size]
    names = in_argument_memory(builder, names) or names
    if not names:
        return
    name: str | None = choices.pick(names)
    for _ in range(choices.integer(1, 3)):
        assert name is not None
        rank = len(builder.state.meta(name).size)
        order = [*range(1, rank), 0]
        name = choices.pick(_VIEWS)(builder, name, rank, order) or name
    assert name is not None
    write(builder, name, WRITES)


_View = Callable[[ProgramBuilder, str, int, Sequence[int]], "str | None"]
_VIEWS: tuple[_View, ...] = (
    lambda b, n, rank, order: append_motif_statement(b, "permute", (n,), dims=tuple(order)),
    lambda b, n, rank, order: append_motif_statement(b, "transpose", (n,), dim0=0, dim1=rank - 1),
    lambda b, n, rank, order: append_motif_statement(b, "slice", (n,), dim=0, start=0, end=4, step=2),
    lambda b, n, rank, order: append_motif_statement(b, "unsqueeze", (n,), dim=0),
    lambda b, n, rank, order: append_motif_statement(b, "select", (n,), dim=rank - 1, index=0),
)


def write_between_elements(builder: ProgramBuilder) -> None:
    """A view shows what lies between the elements of a tensor, which is written to then."""
    names = [n for n, t in builder.pool if n[0] == "a" and is_followed(t) and has_gaps(t.meta)]
    if not names:
        return
    name = builder.choices.pick(names)
    meta = builder.state.meta(name)
    assert meta.stride is not None
    span = 1 + sum((n - 1) * step for n, step in zip(meta.size, meta.stride, strict=True))
    if builder.choices.chance(0.5):
        if append_motif_statement(
            builder, "as_strided", (name,), size=(span,), stride=(1,), offset=meta.offset
        ):
            write(builder, name, _ONTO)
        return
    write(builder, name, ("mul_number_", "add_number_"))
    view = append_motif_statement(
        builder, "as_strided", (name,), size=(span,), stride=(1,), offset=meta.offset
    )
    if view:
        write(builder, view, ("mul_number_", "sin_", "add_number_", "exp_", "tanh_", "sigmoid_"))
        builder.used.discard(view)  # so that it is a result


def grow_over_neighbour(builder: ProgramBuilder) -> None:
    """Of two arguments that lie apart on one storage one is written to, and grows over the other."""
    flat = [
        (n, t.memory, t.meta)
        for n, t in builder.pool
        if n[0] == "a" and t.meta.stride == (1,) and 0 not in t.meta.size
    ]
    pairs = [
        (name, last.offset + last.size[0] - first.offset)
        for name, memory, first in flat
        for _, other, last in flat
        if memory == other and first.dtype == last.dtype and first.offset + first.size[0] <= last.offset
    ]
    if not pairs:
        return
    name, length = builder.choices.pick(pairs)
    write(builder, name, ("mul_number_", "add_number_"))
    if append_motif_statement(builder, "resize_", (name,), size=(length,)) is not None:
        append_motif_statement(builder, "mul_number", (name,))


def write_cycled_cube(builder: ProgramBuilder) -> None:
    """A cube whose dimensions were turned in a cycle, twice, is written by what lays its result out anew."""
    choices, state = builder.choices, builder.state
    names = [n for n, t in builder.pool if t.meta.size and 0 not in t.meta.size]
    names = in_argument_memory(builder, names) or names
    cubes = [n for n in names if len(state.meta(n).size) == 3 and len(set(state.meta(n).size)) == 1]
    rows = [n for n in names if len(state.meta(n).size) == 1 and state.meta(n).size[0] >= 8]
    if not (cubes or rows):
        return
    name: str | None = choices.pick(cubes or rows)
    if not cubes:
        name = append_motif_statement(builder, "slice", (str(name),), dim=0, start=0, end=8, step=1)
        name = name and append_motif_statement(builder, "view", (name,), size=(2, 2, 2))
    for _ in range(2):
        name = name and append_motif_statement(builder, "permute", (name,), dims=(1, 2, 0))
    if name:
        write(builder, name, _ANEW)


def write_reread_numbers(builder: ProgramBuilder) -> None:
    """Numbers are seen as others, turned, and written by what lays its result out anew."""
    ways: list[tuple[str, str, dict[str, Constant]]] = []
    for name, tensor in builder.pool:
        size, dtype = tensor.meta.size, tensor.meta.dtype
        if dtype in COMPLEX and size:
            ways.append((name, "view_as_real", {}))
        elif dtype in _SMALLER and len(size) > 1:
            ways.append((name, "view_dtype", {"dtype": _SMALLER[dtype]}))
    if not ways:
        return
    name, way, attributes = builder.choices.pick(ways)
    view = append_motif_statement(builder, way, (name,), **attributes)
    if view:
        last = len(builder.state.meta(view).size) - 1
        view = append_motif_statement(builder, "transpose", (view,), dim0=0, dim1=last)
    if view:
        write(builder, view, _ANEW)


def write_empty_view(builder: ProgramBuilder) -> None:
    """A view that shows no element is written to."""
    choices = builder.choices
    names = [n for n, t in builder.pool if t.meta.size]
    names = in_argument_memory(builder, names) or names
    names = [n for n in names if repeats(builder.state.meta(n))] or names
    if not names:
        return
    name = choices.pick(names)
    size = builder.state.meta(name).size
    dim = choices.integer(0, len(size) - 1)
    start = choices.integer(0, size[dim])
    view = append_motif_statement(builder, "slice", (name,), dim=dim, start=start, end=start, step=1)
    if view:
        write(builder, view, WRITES)


def fill_empty_argument(builder: ProgramBuilder) -> None:
    """An argument without elements is given for a result, whose size it takes."""
    names = [n for n, t in builder.pool if 0 in t.meta.size]
    names = in_argument_memory(builder, names) or names
    if not names:
        return
    name = builder.choices.pick(names)
    dtype = builder.state.meta(name).dtype
    others = [n for n, t in builder.pool if t.meta.dtype == dtype and 0 not in t.meta.size]
    if others:
        first = builder.choices.pick(others)
        second = builder.choices.pick(same_dtype_and_size(builder, first, others))
        append_motif_region(
            builder,
            "no_grad",
            lambda: append_motif_statement(builder, "mul_resized_out", (name, first, second)),
        )


def multiply_conjugates(builder: ProgramBuilder) -> None:
    """A product of two lazily conjugated vectors, which is lazily conjugated itself."""
    names = [n for n, t in builder.pool if t.meta.dtype in COMPLEX and len(t.meta.size) == 1]
    if not names:
        return
    first = builder.choices.pick(names)
    second = builder.choices.pick(same_dtype_and_size(builder, first, names))
    made = [append_motif_statement(builder, "conj", (one,)) for one in (first, second)]
    if all(made):
        append_motif_statement(builder, "dot", tuple(map(str, made)))


def has_equal_lengths(meta: Meta) -> bool:
    """Whether two dimensions have one length."""
    long = [n for n in meta.size if n > 1]
    return len(long) > len(set(long))


def has_gaps(meta: Meta) -> bool:
    return meta.stride is not None and 0 not in meta.size and not is_dense(meta.size, meta.stride)
