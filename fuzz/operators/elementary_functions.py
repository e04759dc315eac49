"""Elementary and special functions of one tensor, on every dtype that each takes."""

from __future__ import annotations

from fuzz.operators.dtypes import BOOL, COMPLEX, FLOATS, INTEGERS
from fuzz.operators.kernel_rows import (
    ALL_NUMBERS,
    REAL_AND_BOOL,
    REAL_NUMBERS,
    SINGLE,
    choice,
    fractional,
    kernel_row,
    operand,
    pointwise,
    pointwise_copy,
    real,
    same,
    truth,
    unary,
)
from fuzz.operators.row import Operator

_SPECIAL = "torch.special.{}({{0}})"
_NN = "torch.nn.functional.{}({{0}}{})"
_BYTES_AND_FLOATS = REAL_AND_BOOL - {"float16", "bfloat16"}


def _method(name: str, dtypes: frozenset[str] = ALL_NUMBERS) -> Operator:
    return unary(f"{name}_kernel", f"{{0}}.{name}()", dtypes)


def _exact(name: str, dtypes: frozenset[str] = REAL_NUMBERS) -> Operator:
    """A function that rounds, or tests: its result is exact."""
    return unary(f"{name}_kernel", f"{{0}}.{name}()", dtypes, same)


def _test(name: str, dtypes: frozenset[str] = REAL_AND_BOOL) -> Operator:
    return unary(f"{name}_kernel", f"torch.{name}({{0}})", dtypes, truth, grad=False)


def _special(name: str, dtypes: frozenset[str] = _BYTES_AND_FLOATS, *, grad: bool = True) -> Operator:
    source = _SPECIAL.format(name) if grad else _SPECIAL.format(name).replace("{0}", "{0}.detach()")
    return unary(f"special_{name}", source, dtypes, grad=grad)


def _activation(name: str, more: str = "", suffix: str = "", dtypes: frozenset[str] = FLOATS) -> Operator:
    return unary(f"{name}{suffix}_kernel", _NN.format(name, more), dtypes, same)


def _int32(dtype: str) -> str:
    return "int32"


_MATH = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log10"),
    *("log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "log1p"),
)
_REAL_MATH = ("deg2rad", "digamma", "erf", "erfc", "erfinv", "lgamma", "logit", "rad2deg", "i0")
_SPECIALS = (
    *("entr", "erfcx", "i0e", "i1", "i1e", "log_ndtr", "ndtri", "bessel_j0", "bessel_j1"),
    *("bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0"),
    *("modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"),
    *("spherical_bessel_j0", "airy_ai"),
)


# Before torch 2.15 none of these has a derivative. Programs are the same with every torch: they ask for none.
_NO_DERIVATIVE = frozenset(_SPECIALS[7:])

ROWS = (
    *(_method(name) for name in _MATH),
    *(_method(name, REAL_AND_BOOL) for name in _REAL_MATH),
    *(_special(name, grad=name not in _NO_DERIVATIVE) for name in _SPECIALS),
    unary("exp2_kernel", "torch.exp2({0})", ALL_NUMBERS),
    unary("ndtr_kernel", "torch.special.ndtr({0})", _BYTES_AND_FLOATS),
    unary("sinc_kernel", "torch.sinc({0})", ALL_NUMBERS - {"float16", "bfloat16"}),
    *(_exact(name) for name in ("ceil", "floor", "round", "trunc", "sign", "abs")),
    _exact("frac", FLOATS),
    _exact("neg", REAL_NUMBERS | COMPLEX),
    _exact("sgn", REAL_AND_BOOL),
    _exact("square", REAL_NUMBERS | COMPLEX),
    _exact("relu"),
    _exact("bitwise_not", INTEGERS | BOOL),
    unary("frexp_mantissa", "torch.frexp({0})[0]", SINGLE),
    unary("frexp_exponent", "torch.frexp({0})[1]", SINGLE, _int32, grad=False),
    *(
        unary(name, f"torch.special.{name}({{0}}, 3)", SINGLE, grad=False)
        for name in ("legendre_polynomial_p", *(f"shifted_chebyshev_polynomial_{kind}" for kind in "tuvw"))
    ),
    kernel_row(
        "round_decimals",
        "torch.round({0}, decimals={decimals})",
        (operand(FLOATS),),
        pointwise(),
        (choice("decimals", "int", (0, 1, 2, -1, 3)),),
    ),
    kernel_row(
        "nan_to_num_kernel",
        "torch.nan_to_num({0}, nan={nan}, posinf={posinf})",
        (operand(FLOATS),),
        pointwise(),
        (choice("nan", "number", (0.0, 1.7, -3.0)), choice("posinf", "number", (5.0, 1e4, -1.0))),
    ),
    unary("nan_to_num_default", "torch.nan_to_num({0})", REAL_NUMBERS, same),
    unary("angle_kernel", "torch.angle({0})", REAL_AND_BOOL, fractional),
    unary("angle_complex", "torch.angle({0})", COMPLEX, real),
    unary("abs_complex_kernel", "torch.abs({0})", COMPLEX, real),
    unary("logical_not_kernel", "torch.logical_not({0})", ALL_NUMBERS, truth, grad=False),
    *(_test(name) for name in ("isnan", "isfinite", "isinf", "isneginf", "isposinf", "signbit", "isreal")),
    kernel_row(
        "polygamma",
        "torch.polygamma({n_th}, {0})",
        (operand(SINGLE | INTEGERS),),
        pointwise(fractional),
        (choice("n_th", "int", (0, 1, 2, 3)),),
    ),
    kernel_row(
        "mvlgamma",
        "torch.mvlgamma({0}.abs() + 2, {p})",
        (operand(SINGLE),),
        pointwise_copy(),
        (choice("p", "int", (1, 2, 3)),),
    ),
    kernel_row(
        "logit_eps",
        "torch.logit({0}, {eps})",
        (operand(FLOATS),),
        pointwise(),
        (choice("eps", "number", (1e-3, 0.1, 0.25)),),
    ),
    *(_activation(name) for name in ("celu", "elu", "selu", "hardsigmoid", "hardswish", "hardshrink")),
    *(_activation(name) for name in ("softshrink", "mish", "silu", "softplus", "gelu", "leaky_relu")),
    *(_activation(name) for name in ("relu6", "hardtanh", "tanhshrink", "softsign")),
    _activation("gelu", ", approximate='tanh'", "_tanh"),
    _activation("elu", ", alpha=1.7", "_alpha"),
    _activation("celu", ", alpha=0.3", "_alpha"),
    _activation("softplus", ", beta=2.5, threshold=4.0", "_beta"),
    _activation("leaky_relu", ", -0.3", "_negative"),
    _activation("hardtanh", ", -0.1, 1.7", "_bounds"),
    _activation("threshold", ", 0.1, 1.7"),
    _activation("rrelu", ", 0.1, 0.3, training=False"),
    _activation("hardshrink", ", 1.7", "_lambda"),
    _activation("softshrink", ", 0.1", "_lambda"),
    kernel_row("logsigmoid_kernel", _NN.format("logsigmoid", ""), (operand(FLOATS),), pointwise_copy()),
)
