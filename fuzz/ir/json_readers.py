"""Reading a stranger's JSON: small readers that check one thing each and name the place.

Each takes the value and its place in the document ("statements[3].mode"), returns the value with its type
known, and raises `ProgramError` otherwise. Each looks at a length before it looks at the items, so that a
hostile document costs no more than a large honest one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from fuzz.operators.dtypes import DTYPES
from fuzz.operators.row import MAX_ELEMENTS, MAX_RANK, Constant, Size

MAX_ITEMS = 256  # in any list of names or constants
MAX_DEPTH = 12  # of trees and nested constants
MAX_TEXT = 64  # characters in a string
MAX_INTEGER = 2**31

_NAME = re.compile(r"[av](0|[1-9][0-9]{0,3})")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class ProgramError(ValueError):
    """A document or a program that is not a valid case: where, what is wrong, and what to do."""

    def __init__(self, place: str, what: str, hint: str) -> None:
        super().__init__(f"{place or 'program'}: {what}; {hint}")
        self.place = place
        self.what = what
        self.hint = hint


def shorten(value: object) -> str:
    """A value as it appears in a message: its repr, cut short, and never a deep or long one."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        text = repr(value[:MAX_TEXT] if isinstance(value, str) else value)
        return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."
    return f"a {type(value).__name__}"


def read_fields(data: object, place: str, names: Iterable[str]) -> dict[str, Any]:
    """An object with exactly these fields."""
    if not isinstance(data, dict):
        raise ProgramError(place, f"expected an object, found {shorten(data)}", "write an object here")
    expected = set(names)
    for name in data:
        if name not in expected:
            raise ProgramError(
                place, f"unknown field {shorten(name)}", "remove it, or use the version that wrote it"
            )
    for name in sorted(expected):
        if name not in data:
            raise ProgramError(place, f"the field {name!r} is missing", "the file may be truncated")
    return data


def items(data: object, place: str, most: int = MAX_ITEMS) -> list[Any]:
    """A list of at most `most` items."""
    if not isinstance(data, list):
        raise ProgramError(place, f"expected a list, found {shorten(data)}", "write a list here")
    if len(data) > most:
        raise ProgramError(place, f"{len(data)} items, at most {most} are allowed", "use a smaller program")
    return data


def integer(data: object, place: str, lo: int, hi: int) -> int:
    """An integer in [lo, hi]; a bool is none."""
    if type(data) is not int:
        raise ProgramError(place, f"expected an integer, found {shorten(data)}", "write an integer here")
    if not lo <= data <= hi:
        raise ProgramError(place, f"{shorten(data)} is out of range", f"stay within {lo}..{hi}")
    return data


def boolean(data: object, place: str) -> bool:
    """True or false."""
    if type(data) is not bool:
        raise ProgramError(place, f"expected true or false, found {shorten(data)}", "write a boolean here")
    return data


def choice(data: object, place: str, allowed: Iterable[str]) -> str:
    """One of a few words."""
    words = tuple(allowed)
    if not isinstance(data, str) or data not in words:
        raise ProgramError(place, f"{shorten(data)} is not known here", f"use one of {', '.join(words)}")
    return data


def dtype(data: object, place: str) -> str:
    """The name of a dtype that programs use."""
    return choice(data, place, sorted(DTYPES))


def read_size(data: object, place: str) -> Size:
    """A tensor's size: its rank and its number of elements are bounded."""
    numbers = tuple(
        integer(item, f"{place}[{i}]", 0, MAX_INTEGER) for i, item in enumerate(items(data, place, MAX_RANK))
    )
    if math.prod(numbers) > MAX_ELEMENTS:
        raise ProgramError(
            place,
            f"{math.prod(numbers)} elements, at most {MAX_ELEMENTS} are allowed",
            "use a smaller tensor",
        )
    return numbers


def read_names(data: object, place: str) -> tuple[str, ...]:
    """Names of values: "a0", "v12"."""
    found = items(data, place)
    for i, name in enumerate(found):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ProgramError(
                f"{place}[{i}]", f"{shorten(name)} is not a name", "names are a0, a1.. and v0, v1.."
            )
    return tuple(found)


def read_constant(data: object, place: str, depth: int = 0) -> Constant:
    """A number, a string, null, or a list of such (which becomes a tuple).

    What JSON has no word for is an object: `{"float": "nan"}`, `{"complex": [1.5, -2.0]}`.
    """
    if isinstance(data, list):
        if depth >= MAX_DEPTH:
            raise ProgramError(place, "nested too deeply", f"stay within {MAX_DEPTH} levels")
        return tuple(
            read_constant(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(items(data, place))
        )
    if isinstance(data, dict):
        if "complex" in data:
            return _complex(read_fields(data, place, ("complex",))["complex"], f"{place}.complex")
        word = read_fields(data, place, ("float",))["float"]
        return _NON_FINITE[choice(word, f"{place}.float", _NON_FINITE)]
    if isinstance(data, str) and len(data) > MAX_TEXT:
        raise ProgramError(place, f"a text of {len(data)} characters", f"stay within {MAX_TEXT}")
    if type(data) is int:
        return integer(data, place, -MAX_INTEGER, MAX_INTEGER)
    if data is None or isinstance(data, (str, float, bool)):
        return data
    raise ProgramError(place, f"{shorten(data)} is not a constant", "use a number, a string, null or a list")


def _complex(data: object, place: str) -> complex:
    """A finite complex number: its two parts."""
    parts = items(data, place, 2)
    if len(parts) != 2 or not all(type(part) is float and math.isfinite(part) for part in parts):
        raise ProgramError(place, "expected two fractions", "write the real and the imaginary part here")
    return complex(*parts)


def constant_to_json(value: Constant) -> Any:
    """The JSON form of a constant, which `read_constant` reads back."""
    if isinstance(value, tuple):
        return [constant_to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return value
