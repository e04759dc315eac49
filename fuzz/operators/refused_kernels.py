"""Calls that eager refuses: an index out of range, sizes that do not fit, a number outside of a domain.

A compiled function has to refuse them as well. Each row has one such fault, whatever its operands hold; what
its rule gives is never there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from fuzz.operators.builders import FILLED_DIM, broadcasts
from fuzz.operators.dtypes import FLOATS, INTEGERS
from fuzz.operators.kernel_rows import (
    ALL_NUMBERS,
    REAL_NUMBERS,
    SINGLE,
    filled,
    kernel_row,
    operand,
    unknown_layout,
)
from fuzz.operators.row import Attribute, Attributes, Kind, Meta, Mismatch, Operand, Operator, Result

_INT = frozenset({"int64"})
_LINE = Operand(_INT, lambda meta, earlier: len(meta.size) == 1)
_LIKE = Operand(_INT, lambda meta, earlier: meta.size == earlier[0].size)
_APART = Operand(ALL_NUMBERS, lambda meta, earlier: not broadcasts(meta, earlier))


def _as_first(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    if not metas[0].size:
        raise Mismatch("a dimension is needed")
    return unknown_layout(metas[0].dtype, metas[0].size)


def _apart(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Of two tensors that do not broadcast."""
    if broadcasts(metas[1], metas[:1]):
        raise Mismatch("they broadcast")
    return _as_first(metas, attributes)


def _mismatched_product(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    one, other = metas
    if len(one.size) != 2 or len(other.size) != 2 or one.size[1] == other.size[0] or one.dtype != other.dtype:
        raise Mismatch("matrices that do not fit are needed")
    return _as_first(metas, attributes)


def _mismatched_rows(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    one, other = metas
    if len(one.size) != 2 or len(other.size) != 2 or one.size[1] == other.size[1]:
        raise Mismatch("matrices of different width are needed")
    return _as_first(metas, attributes)


def _matrix(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if len(size) != 2 or prod(size) == 0 or max(size) > 16:
        raise Mismatch("a small matrix is needed")
    return _as_first(metas, attributes)


def _refused(
    name: str,
    source: str,
    *operands: Operand,
    rule: object = _as_first,
    attributes: tuple[Attribute, ...] = (),
) -> Operator:
    row = kernel_row(f"{name}_refused", source, operands, rule, attributes, differentiable=False)  # type: ignore[arg-type]
    return replace(row, kind=Kind.REFUSED)


_ANY = operand(ALL_NUMBERS)
_FLOAT = operand(FLOATS)
_BEYOND = "{1}.abs() % 7 + {0}.shape[{dim}]"

ROWS = (
    _refused(
        "index_select",
        "torch.index_select({0}, {dim}, " + _BEYOND + ")",
        _ANY,
        _LINE,
        attributes=(FILLED_DIM,),
    ),
    _refused("gather", "torch.gather({0}, {dim}, " + _BEYOND + ")", _ANY, _LIKE, attributes=(FILLED_DIM,)),
    _refused("scatter", "{0}.scatter({dim}, " + _BEYOND + ", 1)", _ANY, _LIKE, attributes=(FILLED_DIM,)),
    _refused(
        "index_fill", "{0}.index_fill({dim}, " + _BEYOND + ", 1)", _ANY, _LINE, attributes=(FILLED_DIM,)
    ),
    _refused("take", "torch.take({0}, {1}.abs() % 7 + {0}.numel())", _ANY, operand(_INT)),
    _refused("index", "{0}[{1}.abs() % 7 + {0}.shape[0]]", _ANY, _LINE),
    _refused("index_put", "{0}.index_put(({1}.abs() % 7 + {0}.shape[0],), {0}.sum())", _FLOAT, _LINE),
    _refused(
        "embedding",
        "torch.nn.functional.embedding({1}.abs() % 7 + {0}.shape[0], {0})",
        _FLOAT,
        _LINE,
        rule=_matrix,
    ),
    _refused("one_hot", "torch.nn.functional.one_hot({0}.abs() % 7 + 3, 3)", operand(_INT)),
    _refused(
        "cross_entropy",
        "torch.nn.functional.cross_entropy({0}, torch.full_like({0}[:, 0], {0}.shape[1], dtype=torch.int64))",
        operand(SINGLE),
        rule=_matrix,
    ),
    _refused(
        "binary_cross_entropy",
        "torch.nn.functional.binary_cross_entropy({0}.sigmoid(), {0}.sigmoid() + 1.5)",
        operand(SINGLE),
    ),
    _refused(
        "binary_cross_entropy_input",
        "torch.nn.functional.binary_cross_entropy({0}.sigmoid() + 1.5, {0}.sigmoid())",
        operand(SINGLE),
    ),
    _refused("bernoulli", "torch.bernoulli({0}.sigmoid() + 1.5)", operand(SINGLE)),
    _refused("normal", "torch.normal({0}, -1 - {0}.abs())", operand(SINGLE)),
    _refused("add", "torch.add({0}, {1})", _ANY, _APART, rule=_apart),
    _refused("where", "torch.where({0} == {0}, {0}, {1})", _ANY, _APART, rule=_apart),
    _refused("maximum", "torch.maximum({0}, {1})", operand(REAL_NUMBERS), _APART, rule=_apart),
    _refused("mm", "torch.mm({0}, {1})", _FLOAT, operand(FLOATS), rule=_mismatched_product),
    _refused("cat", "torch.cat([{0}, {1}])", _ANY, operand(ALL_NUMBERS), rule=_mismatched_rows),
    _refused(
        "cholesky",
        "torch.linalg.cholesky({0} @ {0}.mT * 0 - torch.eye({0}.shape[0], dtype={0}.dtype{device}))",
        operand(SINGLE),
        rule=_matrix,
    ),
    _refused("inverse", "torch.linalg.inv(torch.zeros_like({0} @ {0}.mT))", operand(SINGLE), rule=_matrix),
    _refused("view", "{0}.reshape({0}.numel() + 1)", _ANY),
    _refused("narrow", "torch.narrow({0}, 0, 1, {0}.shape[0]) + 1", _FLOAT),
    _refused("topk", "torch.topk({0}, {0}.shape[-1] + 1)[0]", operand(REAL_NUMBERS)),
    _refused("kthvalue", "torch.kthvalue({0}, {0}.shape[-1] + 1)[0]", operand(REAL_NUMBERS)),
    _refused("sum_dim", "torch.sum({0}, {0}.dim())", _ANY),
    _refused("empty_maximum", "torch.amax({0}[..., :0], -1)", operand(REAL_NUMBERS)),
    _refused("empty_argmax", "torch.argmax({0}[..., :0], -1)", operand(REAL_NUMBERS)),
    _refused(
        "reflect", "torch.nn.functional.pad({0}, ({0}.shape[-1], 0), mode='reflect')", _FLOAT, rule=_matrix
    ),
    _refused("layer_norm", "torch.nn.functional.layer_norm({0}, ({0}.shape[-1] + 1,))", _FLOAT),
    _refused("integer_power", "torch.pow({0}, -1)", operand(INTEGERS)),
    _refused("integer_float_store", "{0}.clone().mul_(0.5)", operand(INTEGERS)),
    _refused("quantile", "torch.quantile({0}, {0}.abs().sum() * 0 + 1.5)", operand(SINGLE)),
    _refused(
        "repeat_interleave",
        "torch.repeat_interleave({0}, -1 - torch.arange({0}.shape[0]{device}), dim=0)",
        _ANY,
    ),
)
