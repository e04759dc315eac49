"""More pointwise operators: activations, comparisons of magnitudes, and tests of special values."""

from __future__ import annotations

from fuzz.operators.builders import ANY, NOTHING, NUMBERS, REAL, SELF, VALUE, fits_anywhere, new_tensor
from fuzz.operators.dtypes import BOOL, FLOATS, INTEGERS
from fuzz.operators.pointwise import (
    REAL_LIKE,
    binary,
    comparison,
    keeps_dtype,
    pointwise_row,
    test_row,
    unary,
)
from fuzz.operators.row import Operand, Operator, Saves

_FUNCTION = "torch.nn.functional.{}({{0}})"
_PRECISE = Operand(frozenset({"float32", "float64"}), fits_anywhere)
_BOTH: Saves = ((0, (0, 1)), (1, (0, 1)))


def _activation(name: str, saves: Saves = SELF) -> Operator:
    return unary(name, saves, source=_FUNCTION.format(name))


ROWS = (
    unary("erfc", SELF),
    unary("sinh", SELF),
    unary("cosh", SELF),
    unary("asinh", SELF),
    unary("sgn", ((0, (0,)), ("result", (0,))), operand=NUMBERS),
    unary("deg2rad", NOTHING),
    unary("sinc", SELF),
    _activation("elu"),
    _activation("selu"),
    _activation("celu"),
    _activation("mish"),
    _activation("hardsigmoid"),
    _activation("hardswish"),
    _activation("hardshrink"),
    _activation("softshrink"),
    _activation("softsign"),
    _activation("tanhshrink", NOTHING),
    _activation("relu6"),
    pointwise_row(
        "logsigmoid",
        _FUNCTION.format("logsigmoid"),
        (_PRECISE,),
        lambda metas, attributes: new_tensor(metas[0].dtype, metas[0].size),
        SELF,
    ),
    test_row("isnan", "{0}.isnan()", ANY),
    test_row("isinf", "{0}.isinf()", ANY),
    test_row("signbit", "{0}.signbit()", NUMBERS),
    binary("hypot", "torch.hypot({0}, {1})", ((0, (0,)), (1, (1,)), ("result", (0, 1))), FLOATS),
    binary("logaddexp", "torch.logaddexp({0}, {1})", _BOTH, FLOATS),
    binary("fmax", "torch.fmax({0}, {1})", _BOTH, FLOATS),
    binary("fmin", "torch.fmin({0}, {1})", _BOTH, FLOATS),
    binary("copysign", "torch.copysign({0}, {1})", ((0, (0,)), ("result", (0, 1))), FLOATS),
    comparison("logical_or", "torch.logical_or({0}, {1})", INTEGERS | BOOL | FLOATS),
    pointwise_row(
        "addcdiv",
        "torch.addcdiv({0}, {1}, {2}, value={value})",
        (REAL, REAL_LIKE, REAL_LIKE),
        keeps_dtype,
        ((1, (2,)), (2, (0, 1, 2))),
        attributes=(VALUE,),
    ),
    pointwise_row(
        "threshold",
        "torch.nn.functional.threshold({0}, 0.5, {value})",
        (REAL,),
        keeps_dtype,
        SELF,
        attributes=(VALUE,),
    ),
)
