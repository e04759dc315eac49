"""Reading by index, joining, rearranging and converting: new tensors out of picked elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuzz.choices import Choices
from fuzz.operators.builders import (
    ANY,
    ARITHMETIC,
    DIM,
    DTYPE,
    FILLED_DIM,
    INDEX,
    NOTHING,
    SELF,
    SMOOTH,
    empty_like,
    integer,
    ints_attribute,
    lengths,
    new_tensor,
    same_dtype,
    sized_dim,
    text,
)
from fuzz.operators.dtypes import BOOL, CATEGORY, DTYPES, FLOATS, INEXACT, INTEGERS, promote_dtypes
from fuzz.operators.layout import broadcast_sizes, contiguous_strides, dimension, expandable, is_contiguous
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
    Saves,
    Size,
)


def _indexing_row(
    name: str,
    source: str,
    operands: tuple[Operand, ...],
    rule: Rule,
    attributes: tuple[Attribute, ...] = (),
    *,
    kind: Kind = Kind.INDEXING,
    saves: Saves = NOTHING,
) -> Operator:
    return Operator(
        name=name,
        kind=kind,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        saves=saves,
    )


_TWIN = Operand(INEXACT, lambda meta, earlier: meta[:2] == earlier[0][:2])


def _side_by_side(name: str, source: str, saves: Saves) -> Operator:
    """One operation on each of two tensors. Autograd has one node for both, which gives each operand a
    gradient if its own result gets one."""
    return _indexing_row(name, source, (SMOOTH, _TWIN), _each, kind=Kind.JOIN, saves=saves)


# ---------------------------------------------------------------------------------------------------------
# rules


def _each(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return tuple(Result(empty_like(meta)) for meta in metas)


def _index_selected(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta, index = metas
    dim = sized_dim(metas, attributes)
    if not meta.size or len(index.size) != 1:
        raise Mismatch("index_select takes a vector of indices")
    return new_tensor(meta.dtype, (*meta.size[:dim], *index.size, *meta.size[dim + 1 :]))


def _gather_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta, index = metas
    dim = sized_dim(metas, attributes)
    if not meta.size or len(index.size) != len(meta.size):
        raise Mismatch("the index is of another rank")
    if any(i > n and d != dim for d, (i, n) in enumerate(zip(index.size, meta.size, strict=True))):
        raise Mismatch("the index is larger than the tensor")
    return new_tensor(meta.dtype, index.size)


def _indexed(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta, index = metas
    sized_dim(metas, {"dim": 0})
    if not meta.size or not index.size:
        raise Mismatch("an index into a 0-d tensor, or a 0-d index: eager reads its value")
    return (Result(Meta(meta.dtype, index.size + meta.size[1:], None)),)


def _taken(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if prod(metas[0].size) == 0:
        raise Mismatch("nothing to take from")
    return new_tensor(metas[0].dtype, metas[1].size)


def _masked(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0].dtype not in INEXACT and type(attributes["value"]) is float:
        raise Mismatch("a fraction in a tensor of integers")
    size = broadcast_sizes(metas[0].size, metas[1].size)
    return (Result(Meta(metas[0].dtype, size, None)),)


def _rolled(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dim = dimension(attributes["dim"], len(metas[0].size))
    integer(attributes, "shift")
    if not metas[0].size or dim < 0:
        raise Mismatch("a roll of a 0-d tensor")
    return (Result(metas[0]._replace(stride=None, offset=0)),)


def _flipped(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    rank = len(metas[0].size)
    dims = [dimension(dim, rank) for dim in ints_attribute(attributes, "dims")]
    if len(set(dims)) < len(dims) or not rank:
        raise Mismatch("a dimension twice")
    return (Result(empty_like(metas[0])),)


def _triangle(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if len(metas[0].size) < 2:
        raise Mismatch("a triangle of less than a matrix")
    integer(attributes, "diagonal")
    return (Result(metas[0]._replace(stride=None, offset=0)),)


def _repeated(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    times = lengths(attributes, "times")
    lead = len(times) - len(metas[0].size)
    if lead < 0:
        raise Mismatch("fewer repeats than dimensions")
    size = tuple(n * t for n, t in zip((1,) * lead + metas[0].size, times, strict=True))
    return new_tensor(metas[0].dtype, size)


def _embedded(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    weight, index = metas
    if len(weight.size) != 2 or weight.size[0] == 0:
        raise Mismatch("an embedding needs a matrix with rows")
    return new_tensor(weight.dtype, index.size + weight.size[1:])


def _searched(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if len(metas[0].size) != 1 or metas[0].dtype != metas[1].dtype:
        raise Mismatch("a vector, and values of its dtype, are needed")
    return new_tensor("int64", metas[1].size)


def _joined(metas: Sequence[Meta], size: Size) -> tuple[Result, ...]:
    """Channels-last operands give a channels-last result under conditions that are left open."""
    plain = all(meta.stride is not None and is_contiguous(meta.size, meta.stride) for meta in metas)
    stride = contiguous_strides(size) if plain or len(size) < 4 else None
    return (Result(Meta(promote_dtypes(metas), size, stride)),)


def _concatenate_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    a, b = metas
    if not a.size or len(a.size) != len(b.size):
        raise Mismatch("cat takes tensors of one rank")
    dim = dimension(attributes["dim"], len(a.size))
    if a.size[:dim] + a.size[dim + 1 :] != b.size[:dim] + b.size[dim + 1 :]:
        raise Mismatch("the sizes differ")
    return _joined(metas, (*a.size[:dim], a.size[dim] + b.size[dim], *a.size[dim + 1 :]))


def _stacked(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    a, b = metas
    if a.size != b.size:
        raise Mismatch("stack takes tensors of one size")
    dim = dimension(attributes["dim"], len(a.size) + 1)
    return _joined(metas, (*a.size[:dim], 2, *a.size[dim:]))


def _cloned(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(empty_like(metas[0])),)


def _contiguous(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = metas[0]
    if meta.stride is None:
        raise Mismatch("contiguous of a tensor whose strides are not modelled")
    if is_contiguous(meta.size, meta.stride):
        return (Result(meta, Aliasing.SELF),)
    return new_tensor(meta.dtype, meta.size)


def _convert_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = metas[0]
    dtype = text(attributes)
    if dtype == meta.dtype:
        return (Result(meta, Aliasing.SELF),)
    if CATEGORY[meta.dtype] > max(CATEGORY[dtype], 1) and dtype != "bool":
        raise Mismatch("to a lower category: undefined beyond its range, or a warning")
    return (Result(empty_like(meta, dtype)),)


def _copied(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    [result] = _convert_rule(metas, attributes)
    return (Result(empty_like(metas[0], result.meta.dtype)),)


# ---------------------------------------------------------------------------------------------------------
# operands and attributes


def _slots(meta: Meta, earlier: Sequence[Meta]) -> bool:
    size = earlier[0].size
    return len(meta.size) == len(size) > 0 and all(a <= b for a, b in zip(meta.size, size, strict=True))


def _joinable(meta: Meta, earlier: Sequence[Meta]) -> bool:
    size = earlier[0].size
    return len(meta.size) == len(size) > 0 and sum(a != b for a, b in zip(meta.size, size, strict=True)) <= 1


def _draw_joint(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    for dim, (a, b) in enumerate(zip(metas[0].size, metas[1].size, strict=True)):
        if a != b:
            return dim
    return choices.integer(0, len(metas[0].size) - 1)


def _draw_dims(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    rank = len(metas[0].size)
    return tuple(dim for dim in range(rank) if choices.chance(0.6)) or (rank - 1,)


def _draw_times(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    times = tuple(choices.integer(1, 2) for _ in metas[0].size)
    return (2, *times) if choices.chance(0.3) else times


def _draw_fill(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    return choices.pick((0.75, -2.5)) if metas[0].dtype in INEXACT else choices.pick((1, 3))


def _of_rank(*ranks: int, dtypes: frozenset[str] = DTYPES) -> Operand:
    return Operand(dtypes, lambda meta, earlier: len(meta.size) in ranks)


_RANKED = Operand(DTYPES, lambda meta, earlier: len(meta.size) > 0)
_FILLED = Operand(DTYPES, lambda meta, earlier: len(meta.size) > 0 and 0 not in meta.size)
_VECTOR = _of_rank(1, dtypes=INDEX.dtypes)
_MASK_INTO = Operand(BOOL, lambda meta, earlier: expandable(meta.size, earlier[0].size))
_SHIFT = Attribute("shift", "int", lambda choices, metas, chosen: choices.pick((1, -1, 2)))
_DIAGONAL = Attribute("diagonal", "int", lambda choices, metas, chosen: choices.pick((0, 1, -1)))
_MATRICES = Operand(DTYPES, lambda meta, earlier: len(meta.size) > 1)
_MODELLED = Operand(DTYPES, lambda meta, earlier: meta.stride is not None)
_SAME_SIZE = Operand(DTYPES, lambda meta, earlier: meta.size == earlier[0].size)
_FILL = Attribute("value", "number", _draw_fill)
_NEW_DIM = Attribute("dim", "int", lambda choices, metas, chosen: choices.integer(0, len(metas[0].size)))

ROWS = (
    _indexing_row(
        "index_select",
        "{0}.index_select({dim}, {1} % {n})",
        (_FILLED, _VECTOR),
        _index_selected,
        (FILLED_DIM,),
    ),
    _indexing_row(
        "searchsorted",
        "torch.searchsorted({0}.sort().values, {1}.contiguous())",
        (_of_rank(1, dtypes=INTEGERS), Operand(INTEGERS, same_dtype)),
        _searched,
    ),
    _indexing_row(
        "gather",
        "{0}.gather({dim}, {1} % {n})",
        (_FILLED, Operand(INDEX.dtypes, _slots)),
        _gather_rule,
        (FILLED_DIM,),
        saves=SELF,
    ),
    _indexing_row("index", "{0}[{1} % {n}]", (_FILLED, Operand(INDEX.dtypes, _RANKED.fits)), _indexed),
    _indexing_row("take", "{0}.take({1} % {elements})", (_FILLED, INDEX), _taken, saves=SELF),
    _indexing_row(
        "masked_fill",
        "{0}.masked_fill({1}, {value})",
        (ARITHMETIC, _MASK_INTO),
        _masked,
        (_FILL,),
        saves=((1, (0,)),),
    ),
    _indexing_row("flip", "{0}.flip({dims})", (_RANKED,), _flipped, (Attribute("dims", "ints", _draw_dims),)),
    _indexing_row("roll", "{0}.roll({shift}, {dim})", (_RANKED,), _rolled, (_SHIFT, DIM)),
    _indexing_row("tril", "{0}.tril({diagonal})", (_MATRICES,), _triangle, (_DIAGONAL,)),
    _indexing_row("triu", "{0}.triu({diagonal})", (_MATRICES,), _triangle, (_DIAGONAL,)),
    _indexing_row(
        "repeat", "{0}.repeat({times})", (ANY,), _repeated, (Attribute("times", "ints", _draw_times),)
    ),
    _indexing_row(
        "embedding",
        "torch.nn.functional.embedding({1} % {n}, {0})",
        (_of_rank(2, dtypes=FLOATS), INDEX),
        _embedded,
    ),
    _indexing_row(
        "cat",
        "torch.cat(({0}, {1}), {dim})",
        (_RANKED, Operand(DTYPES, _joinable)),
        _concatenate_rule,
        (Attribute("dim", "int", _draw_joint),),
        kind=Kind.JOIN,
    ),
    _indexing_row(
        "stack", "torch.stack(({0}, {1}), {dim})", (ANY, _SAME_SIZE), _stacked, (_NEW_DIM,), kind=Kind.JOIN
    ),
    _side_by_side("foreach_sin", "torch._foreach_sin([{0}, {1}])", ((0, (0, 1)), (1, (0, 1)))),
    _side_by_side("foreach_exp", "torch._foreach_exp([{0}, {1}])", (("result", (0, 1)), ("second", (0, 1)))),
    _side_by_side("foreach_neg", "torch._foreach_neg([{0}, {1}])", NOTHING),
    _indexing_row("clone", "{0}.clone()", (ANY,), _cloned, kind=Kind.CONVERT),
    _indexing_row("contiguous", "{0}.contiguous()", (_MODELLED,), _contiguous, kind=Kind.CONVERT),
    _indexing_row("to", "{0}.to({dtype})", (ANY,), _convert_rule, (DTYPE,), kind=Kind.CONVERT),
    _indexing_row("to_copy", "{0}.to({dtype}, copy=True)", (ANY,), _copied, (DTYPE,), kind=Kind.CONVERT),
)
