"""Pointwise operators: one element of the result for one of each operand."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import (
    ANY,
    ARITHMETIC,
    BITS,
    COMPLEX_VALUE,
    CROSS,
    NOTHING,
    NUMBERS,
    PYTHON,
    REAL,
    RESULT,
    SELF,
    SMOOTH,
    VALUE,
    as_number,
    broadcasts,
    elementwise,
    fits_anywhere,
    same_dtype,
)
from fuzz.operators.dtypes import (
    BOOL,
    COMPLEX,
    COMPLEX_OF,
    DTYPES,
    FLOATS,
    INEXACT,
    INTEGERS,
    NUMERIC,
    REAL_OF,
    promote_dtypes,
)
from fuzz.operators.row import (
    Aliasing,
    Attribute,
    Attributes,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
    Rule,
    Saves,
)


def pointwise_row(
    name: str,
    source: str,
    operands: tuple[Operand, ...],
    rule: Rule,
    saves: Saves,
    *,
    attributes: tuple[Attribute, ...] = (),
    differentiable: bool = True,
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.POINTWISE,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        differentiable=differentiable,
        saves=saves,
    )


def keeps_dtype(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return elementwise(metas[0].dtype, metas)


def _promotes(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return elementwise(promote_dtypes(metas), metas)


def _divides(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dtype = promote_dtypes(metas)
    return elementwise(dtype if dtype in INEXACT else "float32", metas)


def _compares(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return elementwise("bool", metas)


def _with_number(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return elementwise(promote_dtypes([*metas, as_number(attributes["value"])]), metas)


def _with_complex_number(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0].dtype == "float16":
        raise Mismatch("there are no complex numbers of half precision")
    return _with_number(metas, attributes)


def _divides_by_number(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if attributes["value"] == 0:
        raise Mismatch("division by zero")
    return _divides([*metas, as_number(attributes["value"])], attributes)


def _power(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if type(attributes["value"]) is not int or not 1 <= attributes["value"] <= 4:
        raise Mismatch("exponents are the integers 1 to 4")
    return keeps_dtype(metas, attributes)


def _scaled_sum(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dtype = promote_dtypes(metas)
    if isinstance(attributes["value"], float) and dtype not in INEXACT:
        raise Mismatch("a fraction times integers")
    return elementwise(dtype, metas)


def _chooses(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return elementwise(promote_dtypes(metas[1:]), metas)


def _clamps(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    bounds = [as_number(attributes["min"]), as_number(attributes["max"])]
    return elementwise(promote_dtypes([*metas, *bounds]), metas)


def _absolute(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return elementwise(REAL_OF[metas[0].dtype], metas)


def _combines(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0].dtype != metas[1].dtype:
        raise Mismatch("the dtypes differ")
    return elementwise(COMPLEX_OF[metas[0].dtype], metas)


def _same(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(metas[0], Aliasing.SELF),)


def unary(name: str, saves: Saves, *, operand: Operand = REAL, source: str | None = None) -> Operator:
    """A method of one tensor that keeps its dtype."""
    return pointwise_row(name, source or f"{{0}}.{name}()", (operand,), keeps_dtype, saves)


def test_row(name: str, source: str, operand: Operand) -> Operator:
    """A bool for each element of one tensor."""
    return pointwise_row(name, source, (operand,), _compares, NOTHING, differentiable=False)


def binary(name: str, source: str, saves: Saves, dtypes: frozenset[str], rule: Rule = _promotes) -> Operator:
    operands = (Operand(dtypes, fits_anywhere), Operand(dtypes, broadcasts))
    return pointwise_row(name, source, operands, rule, saves)


def comparison(name: str, source: str, dtypes: frozenset[str], rule: Rule = _compares) -> Operator:
    operands = (Operand(dtypes, fits_anywhere), Operand(dtypes, broadcasts))
    return pointwise_row(name, source, operands, rule, NOTHING, differentiable=False)


def _number(
    name: str, source: str, saves: Saves, rule: Rule = _with_number, *, value: Attribute = VALUE
) -> Operator:
    return pointwise_row(name, source, (ARITHMETIC,), rule, saves, attributes=(value,))


_EXPONENT = Attribute("value", "int", lambda choices, metas, chosen: choices.pick((2, 3)))
_MIN = Attribute("min", "number", lambda choices, metas, chosen: choices.pick((-1, 0)))
_MAX = Attribute("max", "number", lambda choices, metas, chosen: choices.pick((1, 2)))
REAL_LIKE = Operand(FLOATS, lambda meta, earlier: same_dtype(meta, earlier) and broadcasts(meta, earlier))
_COMPLEX = Operand(COMPLEX, fits_anywhere)
_SINGLE = Operand(frozenset({"float32", "float64"}), fits_anywhere)
_ALL = DTYPES
_BITWISE = INTEGERS | BOOL
_CLAMP = "{0}.clamp({min}, {max})"
_QUOTIENT: Saves = ((0, (1,)), (1, (0, 1)))

ROWS = (
    unary("neg", NOTHING, operand=ARITHMETIC, source="-{0}"),
    unary("abs", SELF, operand=NUMBERS),
    unary("sign", NOTHING, operand=NUMBERS),
    unary("square", SELF, operand=ARITHMETIC),
    unary("relu", RESULT, operand=NUMBERS),
    unary("sin", SELF, operand=SMOOTH),
    unary("cos", SELF, operand=SMOOTH),
    unary("atan", SELF),
    unary("erf", SELF),
    unary("exp", RESULT, operand=SMOOTH),
    unary("expm1", RESULT),
    unary("tanh", RESULT, operand=SMOOTH),
    unary("sigmoid", RESULT, operand=SMOOTH),
    unary("reciprocal", RESULT, operand=SMOOTH),
    unary("softplus", SELF, source="torch.nn.functional.softplus({0})"),
    unary("gelu", SELF, source="torch.nn.functional.gelu({0})"),
    unary("silu", SELF, source="torch.nn.functional.silu({0})"),
    unary("leaky_relu", SELF, source="torch.nn.functional.leaky_relu({0})"),
    unary("hardtanh", SELF, source="torch.nn.functional.hardtanh({0})"),
    unary("nan_to_num", SELF),
    unary("bitwise_not", NOTHING, operand=BITS, source="~{0}"),
    pointwise_row("positive", "+{0}", (ARITHMETIC,), _same, NOTHING),
    pointwise_row("abs_complex", "{0}.abs()", (_COMPLEX,), _absolute, ((0, (0,)), ("result", (0,)))),
    pointwise_row(
        "complex", "torch.complex({0}, {1})", (_SINGLE, REAL_LIKE), _combines, ((0, (0,)), (1, (1,)))
    ),
    test_row("logical_not", "{0}.logical_not()", ANY),
    test_row("isfinite", "{0}.isfinite()", REAL),
    binary("add", "{0} + {1}", NOTHING, _ALL),
    binary("sub", "{0} - {1}", NOTHING, NUMERIC | COMPLEX),
    binary("mul", "{0} * {1}", CROSS, _ALL),
    binary("div", "{0} / {1}", _QUOTIENT, NUMERIC | COMPLEX, _divides),
    binary("maximum", "torch.maximum({0}, {1})", ((0, (0, 1)), (1, (0, 1))), NUMERIC),
    binary("minimum", "torch.minimum({0}, {1})", ((0, (0, 1)), (1, (0, 1))), NUMERIC),
    binary("atan2", "torch.atan2({0}, {1})", ((0, (0, 1)), (1, (0, 1))), FLOATS),
    comparison("eq", "{0} == {1}", _ALL),
    comparison("ne", "{0} != {1}", _ALL),
    comparison("lt", "{0} < {1}", NUMERIC),
    comparison("le", "{0} <= {1}", NUMERIC),
    comparison("gt", "{0} > {1}", NUMERIC),
    comparison("ge", "{0} >= {1}", NUMERIC),
    comparison("logical_and", "torch.logical_and({0}, {1})", _ALL),
    comparison("logical_xor", "torch.logical_xor({0}, {1})", _ALL),
    comparison("bitwise_and", "{0} & {1}", _BITWISE, _promotes),
    comparison("bitwise_or", "{0} | {1}", _BITWISE, _promotes),
    _number("add_number", "{0} + {value}", NOTHING),
    _number("sub_number", "{0} - {value}", NOTHING),
    _number("rsub_number", "{value} - {0}", NOTHING),
    _number("mul_number", "{0} * {value}", NOTHING),
    _number("div_number", "{0} / {value}", NOTHING, _divides_by_number),
    _number("pow_number", "{0} ** {value}", SELF, _power, value=_EXPONENT),
    pointwise_row(
        "gt_number",
        "{0} > {value}",
        (NUMBERS,),
        _compares,
        NOTHING,
        attributes=(VALUE,),
        differentiable=False,
    ),
    _number("add_complex_number", "{0} + {value}", NOTHING, _with_complex_number, value=COMPLEX_VALUE),
    _number("mul_complex_number", "{0} * {value}", NOTHING, _with_complex_number, value=COMPLEX_VALUE),
    pointwise_row("add_argument", "{0} + {1}", (ARITHMETIC, PYTHON), _promotes, NOTHING),
    pointwise_row("mul_argument", "{0} * {1}", (ARITHMETIC, PYTHON), _promotes, NOTHING),
    pointwise_row(
        "add_scaled",
        "torch.add({0}, {1}, alpha={value})",
        (NUMBERS, Operand(NUMERIC, broadcasts)),
        _scaled_sum,
        NOTHING,
        attributes=(VALUE,),
    ),
    pointwise_row(
        "where",
        "torch.where({0}, {1}, {2})",
        (Operand(BOOL, fits_anywhere), Operand(DTYPES, broadcasts), Operand(DTYPES, broadcasts)),
        _chooses,
        ((0, (1, 2)),),
    ),
    pointwise_row("clamp", _CLAMP, (NUMBERS,), _clamps, SELF, attributes=(_MIN, _MAX)),
    pointwise_row(
        "lerp",
        "torch.lerp({0}, {1}, {value})",
        (REAL, REAL_LIKE),
        keeps_dtype,
        NOTHING,
        attributes=(VALUE,),
    ),
    pointwise_row(
        "addcmul",
        "torch.addcmul({0}, {1}, {2}, value={value})",
        (REAL, REAL_LIKE, REAL_LIKE),
        keeps_dtype,
        ((1, (2,)), (2, (1,))),
        attributes=(VALUE,),
    ),
)
