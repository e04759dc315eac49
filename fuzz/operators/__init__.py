"""The operator table: one row says everything that generator, printer and reader know of an operator."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fuzz.operators import (
    activations,
    algebra,
    creation,
    indexing,
    inplace,
    matmul,
    metadata,
    multi_views,
    neural,
    pointwise,
    reductions,
    scatters,
    special_views,
    views,
)
from fuzz.operators.row import (
    Attribute,
    Change,
    Expanded,
    Kind,
    Link,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
)

__all__ = [
    "INVERSES",
    "OPERATORS",
    "Attribute",
    "Change",
    "Expanded",
    "Kind",
    "Link",
    "Meta",
    "Mismatch",
    "Operand",
    "Operator",
    "Result",
]


def _table() -> Mapping[str, Operator]:
    table: dict[str, Operator] = {}
    for family in (
        pointwise,
        reductions,
        matmul,
        views,
        multi_views,
        special_views,
        inplace,
        metadata,
        creation,
        indexing,
        scatters,
        activations,
        neural,
        algebra,
    ):
        for row in family.ROWS:
            if row.name in table:
                raise ValueError(f"two rows are named {row.name}")
            table[row.name] = row
    return MappingProxyType(table)


OPERATORS: Mapping[str, Operator] = _table()

# The row that takes back what another has done to its first operand, given the same operands and attributes.
INVERSES: Mapping[str, str] = MappingProxyType(
    {
        "add_number_": "sub_number_",
        "sub_number_": "add_number_",
        "neg_": "neg_",
        "t_": "t_",
        "transpose_": "transpose_",
        "swapdims_": "swapdims_",
        "unsqueeze_": "squeeze_dim_",
    }
)
