"""Reductions, scans, normalizations and losses: operators that look along dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from fuzz.choices import Choices
from fuzz.operators.builders import (
    ANY,
    ARITHMETIC,
    DIM,
    FILLED_DIM,
    INDICES,
    KEEPDIM,
    NOTHING,
    NUMBERS,
    REAL,
    RESULT,
    SELF,
    SMOOTH,
    empty_like,
    ints_attribute,
    new_tensor,
    reduce_size,
    sized_dim,
)
from fuzz.operators.dtypes import FLOATS, INEXACT
from fuzz.operators.layout import contiguous_strides, dimension
from fuzz.operators.row import (
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
)


def _reduction_row(
    name: str,
    source: str,
    operand: Operand,
    rule: Rule,
    saves: Saves,
    attributes: tuple[Attribute, ...] = (),
    *,
    more: tuple[Operand, ...] = (),
    differentiable: bool = True,
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.REDUCTION,
        operands=(operand, *more),
        attributes=attributes,
        rule=rule,
        source=source,
        differentiable=differentiable,
        saves=saves,
    )


Dtype = Callable[[str], str]


def _same(dtype: str) -> str:
    return dtype


def _summed(dtype: str) -> str:
    """Sums of integers are int64."""
    return dtype if dtype in INEXACT else "int64"


def _truth(dtype: str) -> str:
    """`any` and `all` of uint8 are uint8: it was torch's bool once."""
    return "uint8" if dtype == "uint8" else "bool"


def _whole(dtype: Dtype, filled: bool = False) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        if filled and prod(metas[0].size) == 0:
            raise Mismatch("there are no elements")
        return new_tensor(dtype(metas[0].dtype), ())

    return rule


def _along(dtype: Dtype, filled: bool = False) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        size = metas[0].size
        dim = sized_dim(metas, attributes) if filled else dimension(attributes["dim"], len(size))
        return new_tensor(dtype(metas[0].dtype), reduce_size(size, [dim], attributes["keepdim"]))

    return rule


def _sum_dims(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    dims = [dimension(dim, len(size)) for dim in ints_attribute(attributes, "dims")]
    if not dims or len(set(dims)) < len(dims):
        raise Mismatch("no dimensions, or one of them twice")
    return new_tensor(_summed(metas[0].dtype), reduce_size(size, dims, attributes["keepdim"]))


def _spread(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """A variance: with fewer than two elements eager warns and gives NaN."""
    size = metas[0].size
    dim = dimension(attributes["dim"], len(size))
    if not size or size[dim] < 2 or 0 in size:
        raise Mismatch("a variance of fewer than two elements")
    return new_tensor(metas[0].dtype, reduce_size(size, [dim], attributes["keepdim"]))


def _twice(rule: Rule) -> Rule:
    def both(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        return rule(metas, attributes) * 2

    return both


def _and_indices(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    [values] = _along(_same, filled=True)(metas, attributes)
    return (values, Result(values.meta._replace(dtype="int64")))


def _sorted(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dimension(attributes["dim"], len(metas[0].size))
    values = empty_like(metas[0])
    return (Result(values), Result(values._replace(dtype="int64")))


def _scanned_with_indices(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    sized_dim(metas, attributes)
    values = metas[0]._replace(stride=None, offset=0)
    return (Result(values), Result(values._replace(dtype="int64")))


def _scanned(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dimension(attributes["dim"], len(metas[0].size))
    meta = metas[0]
    return new_tensor(_summed(meta.dtype), meta.size)


def _softened(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dimension(attributes["dim"], len(metas[0].size))
    return (Result(metas[0]._replace(stride=contiguous_strides(metas[0].size), offset=0)),)


def _normalization_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = metas[0]
    if not meta.size or prod(meta.size) == 0:
        raise Mismatch("nothing to normalize")
    for other in metas[1:]:
        if other.size != meta.size[-1:] or other.dtype != meta.dtype:
            raise Mismatch("a weight that is not of the last dimension's size")
    return new_tensor(meta.dtype, meta.size)


def _loss(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0].size != metas[1].size or metas[0].dtype != metas[1].dtype:
        raise Mismatch("a loss of tensors of different size or dtype")
    return new_tensor(metas[0].dtype, ())


def _draw_dims(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    rank = len(metas[0].size)
    dims = tuple(dim for dim in range(rank) if choices.chance(0.6))
    return dims or (-1,)


def _weight(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[0].size[-1:] and len(meta.size) == 1 and meta.dtype == earlier[0].dtype


def _twin(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[0].size and meta.dtype == earlier[0].dtype


_DIMS = Attribute("dims", "ints", _draw_dims)
_ALONG = (DIM, KEEPDIM)
_FILLED = (FILLED_DIM, KEEPDIM)
_DIMMED = "({dim}, keepdim={keepdim})"
_BOTH: Saves = ((0, (0,)), ("result", (0,)))
_PAIR: Saves = ((0, (0, 1)), (1, (0, 1)))

ROWS = (
    _reduction_row("sum", "{0}.sum()", ANY, _whole(_summed), NOTHING),
    _reduction_row("sum_dim", "{0}.sum" + _DIMMED, ANY, _along(_summed), NOTHING, _ALONG),
    _reduction_row(
        "sum_dims", "{0}.sum({dims}, keepdim={keepdim})", ANY, _sum_dims, NOTHING, (_DIMS, KEEPDIM)
    ),
    _reduction_row("mean", "{0}.mean()", SMOOTH, _whole(_same), NOTHING),
    _reduction_row("mean_dim", "{0}.mean" + _DIMMED, SMOOTH, _along(_same), NOTHING, _ALONG),
    _reduction_row("prod", "{0}.prod()", NUMBERS, _whole(_summed), _BOTH),
    _reduction_row("prod_dim", "{0}.prod" + _DIMMED, NUMBERS, _along(_summed), _BOTH, _ALONG),
    _reduction_row("amax", "{0}.amax" + _DIMMED, NUMBERS, _along(_same, filled=True), _BOTH, _FILLED),
    _reduction_row("amin", "{0}.amin" + _DIMMED, NUMBERS, _along(_same, filled=True), _BOTH, _FILLED),
    _reduction_row("max", "{0}.max()", NUMBERS, _whole(_same, filled=True), _BOTH),
    _reduction_row("max_dim", "{0}.max" + _DIMMED, NUMBERS, _and_indices, INDICES, _FILLED),
    _reduction_row(
        "argmax",
        "{0}.argmax" + _DIMMED,
        NUMBERS,
        _along(lambda dtype: "int64", filled=True),
        NOTHING,
        _FILLED,
        differentiable=False,
    ),
    _reduction_row("any", "{0}.any()", ANY, _whole(_truth), NOTHING, differentiable=False),
    _reduction_row(
        "all_dim",
        "{0}.all" + _DIMMED,
        ANY,
        _along(_truth),
        NOTHING,
        _ALONG,
        differentiable=False,
    ),
    _reduction_row("var", "{0}.var" + _DIMMED, REAL, _spread, SELF, _ALONG),
    _reduction_row(
        "var_mean", "torch.var_mean({0}, {dim}, keepdim={keepdim})", REAL, _twice(_spread), SELF, _ALONG
    ),
    _reduction_row("logsumexp", "{0}.logsumexp" + _DIMMED, REAL, _along(_same), _BOTH, _ALONG),
    _reduction_row("vector_norm", "torch.linalg.vector_norm({0})", REAL, _whole(_same), _BOTH),
    _reduction_row("cumsum", "{0}.cumsum({dim})", ARITHMETIC, _scanned, NOTHING, (DIM,)),
    _reduction_row("cumprod", "{0}.cumprod({dim})", NUMBERS, _scanned, _BOTH, (DIM,)),
    _reduction_row("cummax", "{0}.cummax({dim})", NUMBERS, _scanned_with_indices, INDICES, (FILLED_DIM,)),
    _reduction_row("sort", "{0}.sort(dim={dim}, stable=True)", NUMBERS, _sorted, INDICES, (DIM,)),
    _reduction_row("softmax", "{0}.softmax({dim})", REAL, _softened, RESULT, (DIM,)),
    _reduction_row("log_softmax", "{0}.log_softmax({dim})", REAL, _softened, RESULT, (DIM,)),
    _reduction_row(
        "layer_norm", "torch.nn.functional.layer_norm({0}, {0}.shape[-1:])", REAL, _normalization_rule, SELF
    ),
    _reduction_row(
        "layer_norm_affine",
        "torch.nn.functional.layer_norm({0}, {0}.shape[-1:], {1}, {2})",
        REAL,
        _normalization_rule,
        ((0, (0, 1, 2)), (1, (0, 1, 2)), (2, (0, 1, 2))),
        more=(Operand(FLOATS, _weight), Operand(FLOATS, _weight)),
    ),
    _reduction_row(
        "mse_loss",
        "torch.nn.functional.mse_loss({0}, {1})",
        REAL,
        _loss,
        _PAIR,
        more=(Operand(FLOATS, _twin),),
    ),
    _reduction_row(
        "l1_loss",
        "torch.nn.functional.l1_loss({0}, {1})",
        REAL,
        _loss,
        NOTHING,
        more=(Operand(FLOATS, _twin),),
    ),
)
