"""The dtypes that programs use, by name, and how eager promotes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

HALF = frozenset({"float16", "bfloat16"})
FLOATS = frozenset({"float32", "float64"}) | HALF
INTEGERS = frozenset({"int32", "int64"})
BOOL = frozenset({"bool"})
NUMERIC = FLOATS | INTEGERS
DTYPES = NUMERIC | BOOL

# bool < integers < floating point: a value of a lower category never raises a higher one's precision.
CATEGORY = {"bool": 0, "int32": 1, "int64": 1, "float16": 2, "bfloat16": 2, "float32": 2, "float64": 2}
ITEM_SIZE = {
    "bool": 1,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}  # bytes
_RANK = {"bool": 0, "int32": 1, "int64": 2, "float16": 3, "bfloat16": 3, "float32": 4, "float64": 5}


class _Typed(Protocol):
    @property
    def dtype(self) -> str: ...
    @property
    def size(self) -> tuple[int, ...]: ...
    @property
    def number(self) -> bool: ...


def wider(a: str | None, b: str | None) -> str | None:
    """The dtype that holds both, of two tensors of the same standing."""
    if a is None or b is None or a == b:
        return a or b
    if {a, b} == HALF:
        return "float32"
    return a if _RANK[a] >= _RANK[b] else b


def promote(operands: Iterable[_Typed]) -> str:
    """The common dtype of operands, as `torch.result_type` has it.

    Tensors with dimensions come before 0-d tensors, and these before Python numbers: a later group counts
    only where its category is higher.
    """
    dimensioned: str | None = None
    scalar: str | None = None
    number: str | None = None
    for operand in operands:
        if operand.number:
            number = wider(number, operand.dtype)
        elif operand.size:
            dimensioned = wider(dimensioned, operand.dtype)
        else:
            scalar = wider(scalar, operand.dtype)
    result = dimensioned
    for later in (scalar, number):
        if later is not None and (result is None or CATEGORY[later] > CATEGORY[result]):
            result = later
    assert result is not None
    return result
