"""Computations with sizes, which are symbols where a compiler has dynamic shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuzz.operators.dtypes import FLOATS, INEXACT
from fuzz.operators.kernel_rows import ALL_NUMBERS, REAL_NUMBERS, kernel_row, operand, unknown_layout
from fuzz.operators.row import Attributes, Meta, Mismatch, Operator, Result, Rule, Size

Sized = tuple[str, Size]


def _rule(shape: str) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        return unknown_layout(*_result(shape, metas[0]))

    return rule


def _result(shape: str, meta: Meta) -> Sized:
    """The dtype and size of a result, by the name of how it comes from operand 0."""
    dtype, size = meta.dtype, meta.size
    if not size:
        raise Mismatch("a dimension is needed")
    match shape:
        case "same":
            return dtype, size
        case "flat":
            return dtype, (prod(size),)
        case "rows":
            if 0 in size[:1]:
                raise Mismatch("no row")
            return dtype, (size[0], prod(size[1:]))
        case "half":
            return dtype, (size[0] // 2, *size[1:])
        case "twice":
            return dtype, (2 * size[0], *size[1:])
        case "padded":
            return dtype, (*size[:-1], -(-size[-1] // 8) * 8)
        case "scaled":
            return dtype, size
        case "numbered":
            return ("int64" if dtype not in INEXACT else dtype), size
        case "pooled":
            return dtype, (*size[:-1], 1)
    raise ValueError(f"{shape} is no way from a size to another")


def _sized(name: str, source: str, shape: str, dtypes: frozenset[str], *, grad: bool = True) -> Operator:
    return kernel_row(name, source, (operand(dtypes),), _rule(shape), differentiable=grad)


ROWS = (
    _sized("scaled_by_size", "{0} * {0}.shape[-1] ** -0.5", "scaled", FLOATS),
    _sized("mean_by_numel", "{0} / max({0}.numel(), 1)", "scaled", FLOATS),
    _sized("numbered", "{0} + torch.arange({0}.shape[-1]{device})", "numbered", REAL_NUMBERS - {"float16"}),
    _sized(
        "beyond_half",
        "torch.where(torch.arange({0}.shape[-1]{device}) < {0}.shape[-1] // 2, {0}, 0)",
        "same",
        REAL_NUMBERS,
    ),
    _sized("flat_copy", "{0}.reshape(-1).clone()", "flat", ALL_NUMBERS),
    _sized("rows_copy", "{0}.reshape({0}.shape[0], -1).clone()", "rows", ALL_NUMBERS),
    _sized("first_half", "{0}[: {0}.shape[0] // 2].clone()", "half", ALL_NUMBERS),
    _sized("doubled_rows", "torch.cat([{0}, {0} + {0}.shape[0]])", "twice", REAL_NUMBERS - {"uint8", "int8"}),
    _sized(
        "padded_to_eights", "torch.nn.functional.pad({0}, (0, -{0}.shape[-1] % 8))", "padded", ALL_NUMBERS
    ),
    _sized("rolled_by_half", "torch.roll({0}, {0}.shape[-1] // 2, -1)", "same", ALL_NUMBERS),
    _sized("ones_of_size", "{0} + torch.ones({0}.shape, dtype={0}.dtype{device})", "same", REAL_NUMBERS),
)
