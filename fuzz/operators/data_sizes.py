"""Operators inside of which a size or a number depends on values: masks, `repeat_interleave`, `item`.

What each gives has a size that is known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuzz.operators.builders import alike, fits_anywhere, python_row
from fuzz.operators.row import (
    Attributes,
    Meta,
    Mismatch,
    Operand,
    Result,
)

_WRITE_SELECTED = """
def write_selected(x, y):
    z = x.clone()
    z[x > 0] = y.sum()
    return z
""".strip()

_SCALE_SELECTED = """
def scale_selected(x):
    z = x.clone()
    z[x > 0] = (x * 2)[x > 0]
    return z
""".strip()

_REPEAT_ROWS = """
def repeat_rows(x):
    counts = (x.reshape(x.shape[0], -1) > 0).sum(1) + 1
    return x.repeat_interleave(counts, dim=0).sum(0)
""".strip()


def _scalar(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(Meta(metas[0].dtype, (), ())),)


def _row(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if not size or not prod(size):
        raise Mismatch(f"a tensor of size {size} has no rows with elements")
    return (Result(Meta(metas[0].dtype, size[1:], None)),)


_EXACT = Operand(frozenset({"float32", "float64"}), fits_anywhere)
_LIKE = Operand(_EXACT.dtypes, lambda meta, earlier: meta.dtype == earlier[0].dtype)

ROWS = (
    python_row("sum_selected", "{0}[{0} > 0].sum()", _scalar, (_EXACT,)),
    python_row("write_selected", "write_selected({0}, {1})", alike, (_EXACT, _LIKE), _WRITE_SELECTED),
    python_row("scale_selected", "scale_selected({0})", alike, (_EXACT,), _SCALE_SELECTED),
    python_row("scale_by_count", "{0} * ({0} > 0).sum().item()", alike, (_EXACT,)),
    python_row("repeat_rows", "repeat_rows({0})", _row, (_EXACT,), _REPEAT_ROWS),
)
