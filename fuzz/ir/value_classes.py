"""Value classes: the numbers that a root's elements are drawn from, as data by names.

A program names a class, and the table of that class and a dtype has the numbers: the elements of a root
take them in turn. Kernels go wrong where numbers are of another size than expected: at the limits of a
dtype, where rounding shows, at the edge of a function's domain, or in a matrix that has no inverse.
"""

from __future__ import annotations

import math

from fuzz.operators.dtypes import COMPLEX, FLOATS, INTEGERS

VALUES = {
    "plain": FLOATS | COMPLEX | INTEGERS | {"bool"},
    "special": FLOATS,
    "limits": FLOATS | INTEGERS,
    "large": frozenset({"bfloat16", "float32", "float64", "int32", "int64"}),
    "inexact": FLOATS | COMPLEX,
    "halves": FLOATS,
    "domain": FLOATS,
    "singular": FLOATS | COMPLEX,
    "ill-conditioned": FLOATS,
}
"""The classes, each with the dtypes that it has numbers for.

`plain` are small, exact in every dtype, without zeros among fractions; `special` has NaN, infinities, zeros
of either sign and denormals; `limits` are around the limits of the dtype, `large` around 2**31 and 2**53 if
the dtype goes so far; `inexact` are not exact in half precision; `halves` are ties of rounding; `domain` are
where functions begin, end or overflow. `singular` and `ill-conditioned` are matrices: of rank 1, Hilbert's.
"""

FORMULAS = ("singular", "ill-conditioned")
"""The classes whose elements follow from their place in the last two dimensions."""

# Exact in float64. The last two are denormal: in float16, and in float32 and bfloat16.
SPECIAL = (math.nan, 1.5, -0.0, math.inf, -2.0, -math.inf, 0.5, 0.0, -0.75, 2.0**-24, 2.0**-130)

_BITS = {"uint8": 8, "int8": 7, "int16": 15, "int32": 31, "int64": 63}
# Largest, smallest normal and smallest subnormal number.
_LIMITS = {
    "float16": (65504.0, 2.0**-14, 2.0**-24),
    "bfloat16": ((2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133),
    "float32": ((2 - 2.0**-23) * 2.0**127, 2.0**-126, 2.0**-149),
    "float64": ((2 - 2.0**-52) * 2.0**1023, 2.0**-1022, 2.0**-1074),
}
_INEXACT = (0.1, 1.7, -0.3, 2.3, -1.1, 0.7, -2.9, 0.9, 3.3, -0.05, 1.3)
_HALVES = (0.5, -0.5, 1.5, 2.5, -1.5, 0.0, -2.5, 3.5, -3.5, 4.5, 1.0)
_DOMAIN = (
    *(1.0, 0.0, -1.0, 0.5, 89.0, -0.0, -89.0, 0.99, 2.0, -0.5, 88.5, -104.0, 1.5, 710.0, 3.0, -2.0, 0.001),
)
_LARGE = (
    *(
        2**31,
        2**53 + 2,
        -(2**31) - 2,
        2**24 + 1,
        5,
        2**32 + 3,
        -(2**53) - 4,
        2**62 + 1,
        -(2**24) - 1,
        3,
        70000,
    ),
)


def number_table(values: str, dtype: str) -> tuple[int | float | complex, ...]:
    """The numbers of a class that is no formula, as a dtype has them; a seed says with which one begins.

    >>> number_table("limits", "int8")
    (127, -128, 0, 126, -127, -1, 1, 64, -64, 63, 2)
    """
    match values:
        case "special":
            return SPECIAL
        case "limits":
            return _limits(dtype)
        case "large":
            return _large(dtype)
        case "inexact" if dtype in COMPLEX:
            return tuple(complex(a, b) for a, b in zip(_INEXACT, _INEXACT[3:] + _INEXACT[:3], strict=True))
        case "inexact":
            return _INEXACT
        case "halves":
            return _HALVES
        case "domain":
            return tuple(number for number in _DOMAIN if abs(number) <= _LIMITS[dtype][0])
    raise ValueError(f"{values} is no class of numbers in a table")


def _limits(dtype: str) -> tuple[int | float, ...]:
    if dtype in FLOATS:
        largest, normal, subnormal = _LIMITS[dtype]
        low = (0.0, -0.0, normal, -normal, subnormal, -subnormal, normal / 2)
        return (1.0, largest, low[0], -largest, *low[1:], largest / 2, -2.0)
    bits = _BITS[dtype]
    top, bottom = 2**bits - 1, 0 if dtype == "uint8" else -(2**bits)
    half = (top + 1) // 2
    if dtype == "uint8":
        return (top, bottom, 1, top - 1, half, half - 1, half + 1, 2, 200, 17, 3)
    return (top, bottom, 0, top - 1, bottom + 1, -1, 1, half, -half, half - 1, 2)


def _large(dtype: str) -> tuple[int | float, ...]:
    if dtype in INTEGERS:
        bound = 2 ** _BITS[dtype]
        return tuple(number for number in _LARGE if -bound <= number < bound)
    return tuple(map(float, _LARGE))
