"""Operators on lists of tensors, with `out=`, and draws whose parameters are tensors."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import elementwise
from fuzz.operators.dtypes import FLOATS
from fuzz.operators.kernel_rows import (
    SINGLE,
    choice,
    equal,
    filled,
    kernel_row,
    operand,
    unknown_layout,
)
from fuzz.operators.row import Attributes, Meta, Mismatch, Operand, Operator, Result

_PAIR = "[{0}, {1}]"
_NUMBER = choice("value", "number", (0.1, 2.0, -1.7, 0.5))
_ANY_FLOAT = Operand(FLOATS, lambda meta, earlier: True)


def _each(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """One result for each of the first two operands, which go with those after them in order."""
    found: tuple[Result, ...] = ()
    for first in metas[:2]:
        found += elementwise(first.dtype, [first])
    if any(meta[:2] != metas[0][:2] for meta in metas[2:]) or (
        len(metas) > 2 and metas[1][:2] != metas[0][:2]
    ):
        raise Mismatch("lists of tensors of one dtype and size are needed")
    return tuple(Result(result.meta._replace(stride=None, offset=0)) for result in found)


def _norms(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    return tuple(result for meta in metas for result in unknown_layout(meta.dtype, ()))


def _unary(name: str) -> Operator:
    return kernel_row(
        f"foreach_{name}_kernel", f"torch._foreach_{name}({_PAIR})", (operand(FLOATS), _ANY_FLOAT), _each
    )


def _with_number(name: str) -> Operator:
    source = f"torch._foreach_{name}({_PAIR}, {{value}})"
    return kernel_row(f"foreach_{name}_number", source, (operand(FLOATS), _ANY_FLOAT), _each, (_NUMBER,))


def _binary(name: str, more: str = "") -> Operator:
    source = f"torch._foreach_{name}({_PAIR}, [{{2}}, {{3}}]{more})"
    return kernel_row(f"foreach_{name}_lists", source, (operand(FLOATS), *(equal(FLOATS),) * 3), _each)


def _ternary(name: str) -> Operator:
    source = f"torch._foreach_{name}({_PAIR}, [{{2}}, {{3}}], [{{3}}, {{2}}], {{value}})"
    operands = (operand(FLOATS), *(equal(FLOATS),) * 3)
    return kernel_row(f"foreach_{name}_number", source, operands, _each, (_NUMBER,))


_UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac"),
    *(
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "neg",
        "reciprocal",
        "round",
        "rsqrt",
        "sigmoid",
        "sign",
        "sin",
    ),
    *("sinh", "sqrt", "tan", "tanh", "trunc"),
)


def _drawn(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    if any(meta[:2] != metas[0][:2] for meta in metas[1:]):
        raise Mismatch("parameters of one dtype and size are needed")
    return unknown_layout(metas[0].dtype, metas[0].size)


def _written_views(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    if not metas[0].size or metas[0].size[0] < 2:
        raise Mismatch("rows are needed")
    return unknown_layout(metas[0].dtype, metas[0].size)


def _list_written(name: str, written: str) -> Operator:
    """A list operator that writes to views of one new tensor, which is the result."""
    source = "(lambda x: (" + written + ", x)[1])({0}.clone())"
    attributes = (_NUMBER,) if "{value}" in written else ()
    return kernel_row(name, source, (operand(FLOATS),), _written_views, attributes)


ROWS = (
    *(_unary(name) for name in _UNARY),
    *(
        _with_number(name)
        for name in ("add", "mul", "div", "sub", "pow", "clamp_min", "clamp_max", "maximum", "minimum")
    ),
    *(_binary(name) for name in ("add", "mul", "div", "sub", "maximum", "minimum", "pow")),
    _binary("lerp", ", 0.3"),
    *(_ternary(name) for name in ("addcmul", "addcdiv")),
    kernel_row("foreach_norm", f"torch._foreach_norm({_PAIR})", (operand(SINGLE), _ANY_FLOAT), _norms),
    _list_written("foreach_mul_of_views", "torch._foreach_mul_([x[::2], x[1::2]], {value})"),
    _list_written(
        "foreach_copy_of_views", "torch._foreach_copy_([x[:1], x[1:2]], [x[1:2].exp(), x[:1].neg()])"
    ),
    kernel_row(
        "normal_tensors",
        "torch.normal({0}, {1}.abs())",
        (operand(SINGLE), equal(SINGLE)),
        _drawn,
        random=True,
    ),
    kernel_row("normal_mean", "torch.normal({0}, 1.7)", (operand(SINGLE),), _drawn, random=True),
    kernel_row(
        "bernoulli_of", "torch.bernoulli({0}.sigmoid().nan_to_num())", (operand(SINGLE),), _drawn, random=True
    ),
    kernel_row("poisson", "torch.poisson({0}.abs())", (operand(SINGLE),), _drawn, random=True),
)
