"""The dtypes that programs use, by name, and how eager promotes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

HALF = frozenset({"float16", "bfloat16"})
FLOATS = frozenset({"float32", "float64"}) | HALF
COMPLEX = frozenset({"complex64", "complex128"})
INTEGERS = frozenset({"uint8", "int8", "int16", "int32", "int64"})
BOOL = frozenset({"bool"})
LESS_THAN_DOUBLE = HALF | {"float32"}  # what autocast converts
INEXACT = FLOATS | COMPLEX  # those that can require grad
NUMERIC = FLOATS | INTEGERS
DTYPES = NUMERIC | COMPLEX | BOOL

ITEM_SIZE = {
    **{"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8},
    **{"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16},
}  # bytes
REAL_OF = {"complex64": "float32", "complex128": "float64"}
# Of half precision there are no complex numbers that programs could use; "complex32" says so in messages.
COMPLEX_OF = {
    "float16": "complex32",
    "bfloat16": "complex64",
    "float32": "complex64",
    "float64": "complex128",
}

# A value of a lower category never raises a higher one's precision.
CATEGORY = {
    "bool": 0,
    **dict.fromkeys(INTEGERS, 1),
    **dict.fromkeys(FLOATS, 2),
    **dict.fromkeys((*COMPLEX, "complex32"), 3),
}
_ORDER = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
_RANK = {dtype: rank for rank, dtype in enumerate((*_ORDER, "complex64", "complex128"))}


def reads_bytes(root: str, view: str) -> bool:
    """Whether a view of this dtype reads its root's bytes: neither its numbers nor its complex parts."""
    return root != view and REAL_OF.get(root) != view and REAL_OF.get(view) != root


class _Typed(Protocol):
    @property
    def dtype(self) -> str: ...
    @property
    def size(self) -> tuple[int, ...]: ...
    @property
    def number(self) -> bool: ...


def wider_dtype(a: str, b: str) -> str:
    """The dtype that holds both, of two tensors of the same standing."""
    if a == b:
        return a
    if {a, b} == HALF:
        return "float32"
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    if {a, b} == {"complex64", "float64"}:
        return "complex128"
    return a if _RANK[a] >= _RANK[b] else b


def _joined(higher: str, lower: str) -> str:
    """The dtype of a tensor with dimensions and one without, or of a tensor and a Python number."""
    if CATEGORY[lower] <= CATEGORY[higher]:
        return higher
    if CATEGORY[higher] == 2:
        return COMPLEX_OF[higher]
    return wider_dtype(higher, lower)


def promote_dtypes(operands: Iterable[_Typed]) -> str:
    """The common dtype of operands, as `torch.result_type` has it.

    Tensors with dimensions come before 0-d tensors, and these before Python numbers: a later group counts
    only where its category is higher. float16 with a complex number gives complex32, which no program has.
    """
    groups: list[str | None] = [None, None, None]
    for operand in operands:
        group = 2 if operand.number else 0 if operand.size else 1
        known = groups[group]
        groups[group] = operand.dtype if known is None else wider_dtype(known, operand.dtype)
    result: str | None = None
    for found in groups:
        if found is not None:
            result = found if result is None else _joined(result, found)
    assert result is not None
    return result
