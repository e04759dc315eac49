"""Row features: features that each statement of a row of the operator table has, for any operands."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.features.table import PYTHON_FEATURES
from fuzz.operators.row import Kind, Operator


def row_features(row: Operator) -> Iterator[str]:
    """The features that each statement of a row has.

    >>> from fuzz.operators import OPERATORS
    >>> list(row_features(OPERATORS["randn"]))
    ['random: drawn']
    """
    if row.random:
        yield "random: drawn"
    if row.given:
        yield "data: given as out"
    match row.kind:
        case Kind.FUNCTION if row.name.startswith("custom_"):
            yield "operator: custom"
            if row.writes:
                yield "data: custom operator"
        case Kind.FUNCTION if row.has_side_effect:
            yield "operator: acts outside"
        case Kind.HIGHER_ORDER:
            yield "operator: higher order"
        case Kind.FUNCTION:
            yield "gradient: custom function"
        case Kind.HOOK:
            yield "gradient: hook"
        case Kind.RETAIN:
            yield "gradient: retained"
        case Kind.MODE:
            yield "mode: left changed"
        case Kind.PYTHON:
            yield PYTHON_FEATURES[row.name]


def view_kind(row: Operator) -> str | None:
    """The special way in which a row makes views, or None."""
    if row.name.startswith("unsafe_"):
        return "unsafe"
    if row.kind is Kind.MULTI_VIEW:
        return "several results"
    if row.defines:
        return "custom function"
    if row.name == "view_dtype":
        return "other dtype"
    if row.name in ("view_as_real", "view_as_complex", "real", "imag", "conj_imag"):
        return "complex parts"
    return "detached" if row.name in ("detach", "data") else None
