"""Pointwise functions of two tensors, of a tensor and a number, and of three tensors, on every dtype."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import as_number, elementwise
from fuzz.operators.dtypes import BOOL, COMPLEX, FLOATS, INEXACT, INTEGERS, promote_dtypes
from fuzz.operators.kernel_rows import (
    ALL_NUMBERS,
    REAL_AND_BOOL,
    REAL_NUMBERS,
    SINGLE,
    DtypeRule,
    binary,
    broadcast,
    choice,
    fractional,
    kernel_row,
    operand,
    pointwise,
    pointwise_copy,
    same,
    truth,
    twin,
)
from fuzz.operators.row import Attributes, Meta, Mismatch, Operator, Result

_BITS = INTEGERS | BOOL
_FRACTIONS = (0.1, 1.7, -2.5, 3.0, 0.5)
_WHOLE = (2, 3, -2, 5, 7)
_NUMBERS = (*_FRACTIONS, *_WHOLE)


def _function(
    name: str, dtypes: frozenset[str] = REAL_NUMBERS, dtype: DtypeRule = same, *, grad: bool = True
) -> Operator:
    return binary(f"{name}_kernel", f"torch.{name}({{0}}, {{1}})", dtypes, dtype, grad=grad)


def _detached(name: str, source: str, dtypes: frozenset[str], dtype: DtypeRule = same) -> Operator:
    """A function whose derivative torch has not."""
    source = source.format("{0}.detach()", "{1}.detach()")
    return binary(name, source, dtypes, dtype, grad=False)


def _polynomial(name: str) -> Operator:
    source = f"torch.special.{name}({{0}}, {{1}} % 6)"
    return kernel_row(
        name, source, (operand(SINGLE), broadcast(frozenset({"int64"}))), pointwise(), differentiable=False
    )


def _with_number(name: str, source: str, dtypes: frozenset[str], values: Sequence[float]) -> Operator:
    return kernel_row(name, source, (operand(dtypes),), _number_rule, (choice("value", "number", values),))


def _number_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    value = attributes["value"]
    if value == 0:
        raise Mismatch("a number that is zero")
    return elementwise(promote_dtypes([*metas, as_number(value)]), metas)


def _unlaid_number_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    [result] = _number_rule(metas, attributes)
    return (Result(result.meta._replace(stride=None, offset=0)),)


def _power_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    value = attributes["value"]
    if isinstance(value, int) and value < 0 and metas[0].dtype not in INEXACT:
        raise Mismatch("integers to negative powers")
    return elementwise(promote_dtypes([*metas, as_number(value)]), metas)


def _tensor_power_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dtype = promote_dtypes(metas)
    if dtype not in INEXACT:
        raise Mismatch("integers to powers that may be negative")
    return elementwise(dtype, metas)


def _fractional_number(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    [result] = _number_rule(metas, attributes)
    return elementwise(fractional(result.meta.dtype), metas)


def _scaled(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dtype = promote_dtypes(metas)
    if isinstance(attributes["alpha"], float) and dtype not in INEXACT:
        raise Mismatch("a fraction times integers")
    [result] = elementwise(dtype, metas)
    return (Result(result.meta._replace(stride=None, offset=0)),)


def _double(dtype: str) -> str:
    return "float64"


def _ldexp(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """`ldexp` multiplies by a float32 power of two."""
    power = metas[1]._replace(dtype=fractional(metas[1].dtype))
    dtype = promote_dtypes([metas[0], power])
    [result] = elementwise(dtype, metas)
    return (Result(result.meta._replace(stride=None, offset=0)),)


def _bounds(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    bounds = [as_number(attributes[name]) for name in ("min", "max")]
    return elementwise(promote_dtypes([*metas, *bounds]), metas)


def _bound(name: str, source: str) -> Operator:
    return _with_number(name, source, REAL_NUMBERS, (0.1, -1.7, 1, 2, -1))


_POLYNOMIALS = tuple(f"chebyshev_polynomial_{kind}" for kind in "tuvw") + tuple(
    f"{name}_polynomial_{kind}" for name, kind in (("hermite", "h"), ("hermite", "he"), ("laguerre", "l"))
)

ROWS = (
    *(_function(name, ALL_NUMBERS) for name in ("add", "mul")),
    _function("sub", REAL_NUMBERS | COMPLEX),
    _function("true_divide", ALL_NUMBERS, fractional),
    *(_function(name, REAL_AND_BOOL) for name in ("maximum", "minimum", "fmax", "fmin")),
    *(_function(name, FLOATS) for name in ("fmod", "remainder", "floor_divide")),
    _detached("nextafter", "torch.nextafter({0}, {1})", FLOATS),
    binary("div_floor", "torch.div({0}, {1}, rounding_mode='floor')", FLOATS),
    binary("div_trunc", "torch.div({0}, {1}, rounding_mode='trunc')", FLOATS),
    *(
        # The last two bits are 01: no zero, and no -1, by which the least integer ends the process.
        binary(f"{name}_nonzero", f"torch.{name}({{0}}, {{1}}.bitwise_or(3).bitwise_xor(2){more})", INTEGERS)
        for name, more in (
            ("fmod", ""),
            ("remainder", ""),
            ("floor_divide", ""),
            ("div", ", rounding_mode='trunc'"),
        )
    ),
    *(_function(name, REAL_AND_BOOL, fractional) for name in ("atan2", "copysign", "xlogy")),
    *(_function(name, FLOATS) for name in ("hypot", "logaddexp", "logaddexp2")),
    kernel_row(
        "heaviside",
        "torch.heaviside({0}.detach(), {1}.detach())",
        (operand(REAL_NUMBERS), twin(REAL_NUMBERS)),
        pointwise(),
        differentiable=False,
    ),
    _function("float_power", REAL_AND_BOOL, _double),
    *(_function(name, _BITS) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    *(_function(name, INTEGERS) for name in ("gcd", "lcm")),
    binary("left_shift", "torch.bitwise_left_shift({0}, {1} % 8)", INTEGERS),
    binary("right_shift", "torch.bitwise_right_shift({0}, {1} % 8)", INTEGERS),
    *(
        _function(name, ALL_NUMBERS, truth, grad=False)
        for name in ("logical_and", "logical_or", "logical_xor")
    ),
    *(_function(name, ALL_NUMBERS, truth, grad=False) for name in ("eq", "ne")),
    *(_function(name, REAL_AND_BOOL, truth, grad=False) for name in ("lt", "le", "gt", "ge")),
    binary("xlog1py", "torch.special.xlog1py({0}, {1})", REAL_AND_BOOL, fractional),
    _detached("zeta", "torch.special.zeta({0}, {1})", SINGLE | INTEGERS, fractional),
    _detached("igamma", "torch.igamma({0}.abs(), {1}.abs())", FLOATS),
    _detached("igammac", "torch.igammac({0}.abs(), {1}.abs())", FLOATS),
    *(_polynomial(name) for name in _POLYNOMIALS),
    kernel_row("ldexp", "torch.ldexp({0}, {1})", (operand(REAL_NUMBERS), broadcast(REAL_NUMBERS)), _ldexp),
    kernel_row(
        "pow_tensors",
        "torch.pow({0}, {1})",
        (operand(REAL_NUMBERS), broadcast(REAL_NUMBERS)),
        _tensor_power_rule,
    ),
    kernel_row(
        "isclose",
        "torch.isclose({0}, {1}, equal_nan={equal_nan})",
        (operand(REAL_NUMBERS), twin(REAL_NUMBERS)),
        pointwise_copy(truth),
        (choice("equal_nan", "bool", (False, True)),),
        differentiable=False,
    ),
    kernel_row(
        "polar",
        "torch.polar({0}, {1})",
        (operand(SINGLE), twin(SINGLE)),
        pointwise(lambda d: {"float32": "complex64"}.get(d, "complex128")),
    ),
    kernel_row(
        "pow_exponent",
        "torch.pow({0}, {value})",
        (operand(REAL_NUMBERS),),
        _power_rule,
        (choice("value", "number", (0.5, -0.5, 2.5, -1, -2, 3, 4, 5, 0, 2, 1.7)),),
    ),
    kernel_row(
        "pow_base",
        "torch.pow({value}, {0})",
        (operand(FLOATS),),
        _unlaid_number_rule,
        (choice("value", "number", (0.5, 2, 2.5, 10)),),
    ),
    _with_number("fmod_number", "torch.fmod({0}, {value})", REAL_NUMBERS, _NUMBERS),
    _with_number("remainder_number", "torch.remainder({0}, {value})", REAL_NUMBERS, _NUMBERS),
    _with_number("floor_divide_number", "torch.floor_divide({0}, {value})", REAL_NUMBERS, _NUMBERS),
    _with_number(
        "div_floor_number", "torch.div({0}, {value}, rounding_mode='floor')", REAL_NUMBERS, _NUMBERS
    ),
    _with_number(
        "div_trunc_number", "torch.div({0}, {value}, rounding_mode='trunc')", REAL_NUMBERS, _NUMBERS
    ),
    kernel_row(
        "div_kernel_number",
        "{0} / {value}",
        (operand(ALL_NUMBERS - {"float16"}),),
        _fractional_number,
        (choice("value", "number", _NUMBERS),),
    ),
    _with_number("rsub_kernel_number", "torch.rsub({0}, {value})", REAL_NUMBERS, _NUMBERS),
    _with_number("add_kernel_number", "{0} + {value}", REAL_NUMBERS, _NUMBERS),
    _with_number("mul_kernel_number", "{0} * {value}", REAL_NUMBERS, _NUMBERS),
    _bound("clamp_min", "torch.clamp_min({0}, {value})"),
    _bound("clamp_max", "torch.clamp_max({0}, {value})"),
    kernel_row(
        "clamp_numbers",
        "torch.clamp({0}, {min}, {max})",
        (operand(REAL_NUMBERS),),
        _bounds,
        (choice("min", "number", (0.1, -1.7, 0, -2, 3)), choice("max", "number", (1.7, 2, 1, 0.7))),
    ),
    kernel_row(
        "clamp_tensors",
        "torch.clamp({0}, {1}, {2})",
        (operand(REAL_NUMBERS), twin(REAL_NUMBERS), twin(REAL_NUMBERS)),
        pointwise(),
    ),
    *(
        kernel_row(
            f"{name}_alpha",
            f"torch.{name}({{0}}, {{1}}, alpha={{alpha}})",
            (operand(REAL_NUMBERS), broadcast(REAL_NUMBERS)),
            _scaled,
            (choice("alpha", "number", _NUMBERS),),
        )
        for name in ("add", "sub", "rsub")
    ),
    *(
        kernel_row(
            f"{name}_kernel",
            f"torch.{name}({{0}}, {{1}}, {{2}}, value={{alpha}})",
            (operand(FLOATS), twin(FLOATS), twin(FLOATS)),
            pointwise(),
            (choice("alpha", "number", _NUMBERS),),
        )
        for name in ("addcmul", "addcdiv")
    ),
    kernel_row(
        "lerp_tensors",
        "torch.lerp({0}, {1}, {2})",
        (operand(FLOATS), twin(FLOATS), twin(FLOATS)),
        pointwise(),
    ),
    kernel_row(
        "lerp_kernel",
        "torch.lerp({0}, {1}, {weight})",
        (operand(FLOATS), twin(FLOATS)),
        pointwise(),
        (choice("weight", "number", (0.1, 0.5, 0.7, 1.7, -0.3)),),
    ),
    kernel_row(
        "where_kernel",
        "torch.where({0}, {1}, {2})",
        (operand(BOOL), broadcast(ALL_NUMBERS), broadcast(ALL_NUMBERS)),
        lambda metas, attributes: elementwise(promote_dtypes(metas[1:]), metas),
    ),
    kernel_row(
        "where_number",
        "torch.where({0}, {1}, {value})",
        (operand(BOOL), broadcast(FLOATS)),
        lambda metas, attributes: elementwise(metas[1].dtype, metas),
        (choice("value", "number", _FRACTIONS),),
    ),
)
