"""Views: operators whose result lies in the memory of their operand."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuzz.choices import Choices
from fuzz.operators.builders import ANY, DIM, draw_factor_size, integer, ints_attribute, lengths
from fuzz.operators.dtypes import DTYPES
from fuzz.operators.layout import contiguous_strides, dimension, expandable, extent, view_stride
from fuzz.operators.row import (
    Aliasing,
    Attribute,
    Attributes,
    Constant,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
    Rule,
    Size,
)
from fuzz.operators.view_rules import (
    permute,
    restride_anywhere_rule,
    slice_rule,
    squeeze,
    transpose_matrix,
    transpose_rule,
    unsqueeze_rule,
)


def view_row(
    name: str,
    source: str,
    rule: Rule,
    attributes: tuple[Attribute, ...] = (),
    *,
    operands: tuple[Operand, ...] = (ANY,),
    kind: Kind = Kind.VIEW,
    differentiable: bool = True,
    defines: str = "",
) -> Operator:
    """A row whose results lie in operand 0's memory."""
    return Operator(
        name=name,
        kind=kind,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        differentiable=differentiable,
        defines=defines,
    )


def _view(meta: Meta, size: Size, stride: Size | None, offset: int | None = None) -> tuple[Result, ...]:
    moved = meta.offset if offset is None else offset
    return (Result(meta._replace(size=size, stride=stride, offset=moved), Aliasing.VIEW),)


# ---------------------------------------------------------------------------------------------------------
# rules


def _view_size_rule(metas: Sequence[Meta], size: Size) -> tuple[Result, ...]:
    meta = metas[0]
    if prod(size) != prod(meta.size):
        raise Mismatch(f"a view of size {size} on a tensor of size {meta.size}")
    if meta.stride is None:
        raise Mismatch("a view of a tensor whose strides are not modelled")
    stride = view_stride(meta.size, meta.stride, size)
    if stride is None:
        raise Mismatch(f"no view of size {size} with these strides")
    return _view(meta, size, stride)


def _reshape_view_rule(metas: Sequence[Meta], size: Size) -> tuple[Result, ...]:
    meta = metas[0]
    if prod(size) != prod(meta.size):
        raise Mismatch(f"a tensor of size {meta.size} as {size}")
    if meta.stride is None:
        return (Result(Meta(meta.dtype, size, None), Aliasing.MAYBE),)
    stride = view_stride(meta.size, meta.stride, size)
    if stride is None:
        return (Result(Meta(meta.dtype, size, contiguous_strides(size))),)
    return _view(meta, size, stride)


def _flatten_view_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = metas[0]
    rank = len(meta.size)
    first, last = dimension(attributes["start"], rank), dimension(attributes["end"], rank)
    if first > last:
        raise Mismatch("flatten ends before it starts")
    if rank and first == last:
        return (Result(meta, Aliasing.SELF),)
    size = (*meta.size[:first], prod(meta.size[first : last + 1]), *meta.size[last + 1 :])
    return _reshape_view_rule(metas, size)


def _unflatten_view_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """A dimension becomes two, of which the first has length 1."""
    meta = metas[0]
    if not meta.size or 0 in meta.size or meta.stride is None:
        raise Mismatch("no dimension with elements, or strides that are not modelled")
    dim = dimension(attributes["dim"], len(meta.size))
    n, step = meta.size[dim], meta.stride[dim]
    return _view(
        meta,
        (*meta.size[:dim], 1, n, *meta.size[dim + 1 :]),
        (*meta.stride[:dim], n * step, *meta.stride[dim:]),
    )


def _permute(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    rank = len(metas[0].size)
    dims = [dimension(dim, rank) for dim in ints_attribute(attributes, "dims")]
    if sorted(dims) != list(range(rank)):
        raise Mismatch(f"{dims} is no order of {rank} dimensions")
    return (Result(permute(metas[0], dims), Aliasing.VIEW),)


def _movedim_view_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    rank = len(metas[0].size)
    source, target = dimension(attributes["source"], rank), dimension(attributes["target"], rank)
    dims = list(range(rank))
    if rank:
        dims.remove(source)
        dims.insert(target, source)
    return (Result(permute(metas[0], dims), Aliasing.VIEW),)


def select_view_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = metas[0]
    if not meta.size:
        raise Mismatch("select of a 0-d tensor")
    dim, index = dimension(attributes["dim"], len(meta.size)), integer(attributes, "index")
    n = meta.size[dim]
    if not -n <= index < n:
        raise Mismatch(f"index {index} of a dimension of size {n}")
    size = meta.size[:dim] + meta.size[dim + 1 :]
    if meta.stride is None:
        return _view(meta, size, None)
    offset = meta.offset + index % n * meta.stride[dim]
    return _view(meta, size, meta.stride[:dim] + meta.stride[dim + 1 :], offset)


def _first(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return select_view_rule(metas, {"dim": 0, "index": attributes["index"]})


def _slice(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(slice_rule(metas[0], attributes), Aliasing.VIEW),)


def _narrow(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    start, length = integer(attributes, "start"), integer(attributes, "length")
    if length < 0:
        raise Mismatch("a negative length")
    whole = {"dim": attributes["dim"], "start": start, "end": start + length, "step": 1}
    return (Result(slice_rule(metas[0], whole), Aliasing.VIEW),)


def _expand_view_rule(meta: Meta, size: Size) -> tuple[Result, ...]:
    if not expandable(meta.size, size):
        raise Mismatch(f"{meta.size} does not expand to {size}")
    lead = len(size) - len(meta.size)
    if meta.stride is None:
        return _view(meta, size, None)
    # A new leading dimension of size 1 gets the stride that it would have in front of what follows it.
    stride: list[int] = []
    for i in range(len(size) - 1, -1, -1):
        if i >= lead:
            n, step = meta.size[i - lead], meta.stride[i - lead]
        else:
            n, step = 1, size[i + 1] * stride[-1] if i + 1 < len(size) else 1
        stride.append(0 if n == 1 and size[i] != 1 else step)
    return _view(meta, size, tuple(reversed(stride)))


def _diagonal_view_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = metas[0]
    rank = len(meta.size)
    a, b = dimension(attributes["dim0"], rank), dimension(attributes["dim1"], rank)
    offset = integer(attributes, "offset")
    if rank < 2 or a == b:
        raise Mismatch("a diagonal needs two dimensions")
    n = max(min(meta.size[a] + min(offset, 0), meta.size[b] - max(offset, 0)), 0)
    rest = [dim for dim in range(rank) if dim not in (a, b)]
    size = (*(meta.size[dim] for dim in rest), n)
    if meta.stride is None:
        return _view(meta, size, None)
    stride = (*(meta.stride[dim] for dim in rest), meta.stride[a] + meta.stride[b])
    shift = (-offset * meta.stride[a] if offset < 0 else offset * meta.stride[b]) if n else 0
    return _view(meta, size, stride, meta.offset + shift)


def _unfold_view_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = metas[0]
    if not meta.size:
        raise Mismatch("unfold of a 0-d tensor")
    dim = dimension(attributes["dim"], len(meta.size))
    window, step = integer(attributes, "window"), integer(attributes, "step")
    if not 0 < window <= meta.size[dim] or step < 1:
        raise Mismatch(f"windows of {window} every {step} in a dimension of {meta.size[dim]}")
    size = (*meta.size[:dim], (meta.size[dim] - window) // step + 1, *meta.size[dim + 1 :], window)
    if meta.stride is None:
        return _view(meta, size, None)
    stride = (*meta.stride[:dim], meta.stride[dim] * step, *meta.stride[dim + 1 :], meta.stride[dim])
    return _view(meta, size, stride)


def _detached(link: Aliasing) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        return (Result(metas[0], link),)

    return rule


# ---------------------------------------------------------------------------------------------------------
# draws


def draw_slice_end(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    n = _length(metas, chosen)
    start = chosen["start"]
    assert isinstance(start, int)
    return n - choices.integer(0, max(n - start - 1, 0)) if n else 0


def draw_start(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    return choices.integer(0, max(_length(metas, chosen) - 1, 0))


def _length(metas: Sequence[Meta], chosen: Attributes) -> int:
    size = metas[0].size
    if not size:
        raise Mismatch("a 0-d tensor")
    return size[dimension(chosen["dim"], len(size))]


def _draw_index(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    n = _length(metas, chosen if "dim" in chosen else {"dim": 0})
    if n == 0:
        raise Mismatch("an empty dimension")
    return choices.integer(0, n - 1) - (n if choices.chance(0.2) else 0)


def _draw_narrow_length(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    start = chosen["start"]
    assert isinstance(start, int)
    rest = _length(metas, chosen) - start
    return choices.integer(min(rest, 1), rest)


def draw_piece(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    return choices.integer(1, max(_length(metas, chosen), 1))


def _draw_view_size(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    return draw_factor_size(choices, prod(metas[0].size))


def _draw_order(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    rest = list(range(len(metas[0].size)))
    order = []
    while rest:
        order.append(rest.pop(choices.integer(0, len(rest) - 1) - 1))
    return tuple(order)


def _draw_expansion(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    size = tuple(choices.integer(2, 3) if n == 1 and choices.chance(0.8) else n for n in metas[0].size)
    return (choices.integer(2, 3), *size) if choices.chance(0.4) else size


def draw_restrided_view(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    """A size of rank 1 or 2 that fits into the extent of operand 0 with small strides."""
    meta = metas[0]
    if meta.stride is None:
        raise Mismatch("strides not modelled")
    room = extent(meta.size, meta.stride)
    if room == 0:
        return (0,)
    size = [choices.integer(1, min(room, 4))]
    if choices.chance(0.6):
        size.append(choices.integer(1, max(min(room // size[0], 4), 1)))
    return tuple(size)


def draw_view_strides(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    size = chosen["size"]
    assert isinstance(size, tuple)
    shape = lengths(chosen)
    if len(shape) == 2 and choices.chance(0.4):
        return (1, shape[0])
    if choices.chance(0.2):
        return tuple(choices.integer(1, 2) for _ in size)
    return contiguous_strides(shape)


def draw_view_offset(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    meta = metas[0]
    if meta.stride is None:
        raise Mismatch("strides not modelled")
    spare = extent(meta.size, meta.stride) - extent(lengths(chosen), lengths(chosen, "stride"))
    if spare < 0:
        raise Mismatch("it does not fit")
    return meta.offset + choices.integer(0, spare)


def draw_new_dim(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    return choices.integer(0, len(metas[0].size))


DIM0 = Attribute("dim0", "int", DIM.draw)
DIM1 = Attribute("dim1", "int", DIM.draw)
NEW_DIM = Attribute("dim", "int", draw_new_dim)
START = Attribute("start", "int", draw_start)
END = Attribute("end", "int", draw_slice_end)
STEP = Attribute("step", "int", lambda choices, metas, chosen: 2 if choices.chance(0.25) else 1)
RESTRIDED = (
    Attribute("size", "ints", draw_restrided_view),
    Attribute("stride", "ints", draw_view_strides),
    Attribute("offset", "int", draw_view_offset),
)
_INDEX = Attribute("index", "int", _draw_index)
_ORDER = Attribute("dims", "ints", _draw_order)
_VIEW_SIZE = Attribute("size", "ints", _draw_view_size)
_DIAGONAL = (
    Attribute("offset", "int", lambda choices, metas, chosen: choices.pick((0, 0, 1, -1))),
    Attribute("dim0", "int", lambda choices, metas, chosen: 0),
    Attribute("dim1", "int", lambda choices, metas, chosen: 1),
)
_MATRIX = Operand(DTYPES, lambda meta, earlier: len(meta.size) <= 2)
_MODELLED = Operand(DTYPES, lambda meta, earlier: meta.stride is not None)
RANKED = Operand(DTYPES, lambda meta, earlier: len(meta.size) > 0)
_DEEP = Operand(DTYPES, lambda meta, earlier: len(meta.size) > 1)
_SAME_COUNT = Operand(DTYPES, lambda meta, earlier: prod(meta.size) == prod(earlier[0].size))
_EXPANDED = Operand(DTYPES, lambda meta, earlier: expandable(earlier[0].size, meta.size))

ROWS = (
    view_row(
        "view",
        "{0}.view({size})",
        lambda m, a: _view_size_rule(m, lengths(a)),
        (_VIEW_SIZE,),
        operands=(_MODELLED,),
    ),
    view_row("reshape", "{0}.reshape({size})", lambda m, a: _reshape_view_rule(m, lengths(a)), (_VIEW_SIZE,)),
    view_row(
        "view_as",
        "{0}.view_as({1})",
        lambda m, a: _view_size_rule(m, m[1].size),
        operands=(_MODELLED, _SAME_COUNT),
    ),
    view_row(
        "flatten",
        "{0}.flatten({start}, {end})",
        _flatten_view_rule,
        (
            Attribute("start", "int", lambda choices, metas, chosen: 0),
            Attribute("end", "int", lambda choices, metas, chosen: choices.pick((-1, 0))),
        ),
    ),
    view_row("alias", "{0}[...]", lambda m, a: (Result(m[0], Aliasing.VIEW),)),
    view_row("permute", "{0}.permute({dims})", _permute, (_ORDER,)),
    view_row(
        "transpose",
        "{0}.transpose({dim0}, {dim1})",
        lambda m, a: (Result(transpose_rule(m[0], a), Aliasing.VIEW),),
        (DIM0, DIM1),
    ),
    view_row(
        "swapaxes",
        "{0}.swapaxes({dim0}, {dim1})",
        lambda m, a: (Result(transpose_rule(m[0], a), Aliasing.VIEW),),
        (DIM0, DIM1),
    ),
    view_row(
        "unflatten",
        "{0}.unflatten({dim}, (1, -1))",
        _unflatten_view_rule,
        (DIM,),
        operands=(Operand(DTYPES, lambda meta, earlier: len(meta.size) > 0 and 0 not in meta.size),),
    ),
    view_row(
        "t", "{0}.t()", lambda m, a: (Result(transpose_matrix(m[0]), Aliasing.VIEW),), operands=(_MATRIX,)
    ),
    view_row(
        "movedim",
        "{0}.movedim({source}, {target})",
        _movedim_view_rule,
        (Attribute("source", "int", DIM.draw), Attribute("target", "int", DIM.draw)),
    ),
    view_row(
        "squeeze",
        "{0}.squeeze()",
        lambda m, a: (Result(squeeze(m[0], range(len(m[0].size))), Aliasing.VIEW),),
    ),
    view_row(
        "squeeze_dim",
        "{0}.squeeze({dim})",
        lambda m, a: (Result(squeeze(m[0], [dimension(a["dim"], len(m[0].size))]), Aliasing.VIEW),),
        (DIM,),
    ),
    view_row(
        "unsqueeze",
        "{0}.unsqueeze({dim})",
        lambda m, a: (Result(unsqueeze_rule(m[0], a), Aliasing.VIEW),),
        (NEW_DIM,),
    ),
    view_row("select", "{0}.select({dim}, {index})", select_view_rule, (DIM, _INDEX), operands=(RANKED,)),
    view_row("index_number", "{0}[{index}]", _first, (_INDEX,), operands=(RANKED,)),
    view_row("slice", "{0}[{slice}]", _slice, (DIM, START, END, STEP), operands=(RANKED,)),
    view_row(
        "narrow",
        "{0}.narrow({dim}, {start}, {length})",
        _narrow,
        (DIM, START, Attribute("length", "int", _draw_narrow_length)),
        operands=(RANKED,),
    ),
    view_row(
        "expand",
        "{0}.expand({size})",
        lambda m, a: _expand_view_rule(m[0], lengths(a)),
        (Attribute("size", "ints", _draw_expansion),),
    ),
    view_row(
        "expand_as",
        "{0}.expand_as({1})",
        lambda m, a: _expand_view_rule(m[0], m[1].size),
        operands=(ANY, _EXPANDED),
    ),
    view_row(
        "diagonal",
        "{0}.diagonal({offset}, {dim0}, {dim1})",
        _diagonal_view_rule,
        _DIAGONAL,
        operands=(_DEEP,),
    ),
    view_row(
        "unfold",
        "{0}.unfold({dim}, {window}, {step})",
        _unfold_view_rule,
        (DIM, Attribute("window", "int", draw_piece), STEP),
        operands=(RANKED,),
    ),
    view_row(
        "as_strided",
        "{0}.as_strided({size}, {stride}, {offset})",
        lambda m, a: (Result(restride_anywhere_rule(m[0], a), Aliasing.VIEW),),
        RESTRIDED,
        operands=(_MODELLED,),
    ),
    view_row("detach", "{0}.detach()", _detached(Aliasing.DETACHED), differentiable=False),
    view_row("data", "{0}.data", _detached(Aliasing.DATA), differentiable=False),
)
