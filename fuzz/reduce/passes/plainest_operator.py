"""Plainest operator: for each family of operators, the one that a reduction prefers."""

from __future__ import annotations

import dataclasses

from fuzz.operators import OPERATORS, Kind
from fuzz.program.decode import Statement

_PLAINEST = {
    (Kind.POINTWISE, 1): ("mul_number", (("value", 2.0),)),
    (Kind.POINTWISE, 2): ("mul", ()),
    (Kind.IN_PLACE, 1): ("mul_number_", (("value", 2.0),)),
    (Kind.IN_PLACE, 2): ("mul_", ()),
    (Kind.SCATTER, 1): ("mul_number_", (("value", 2.0),)),
    (Kind.REDUCTION, 1): ("sum", ()),
    (Kind.VIEW, 1): ("alias", ()),
    (Kind.INDEXING, 1): ("clone", ()),
    (Kind.CONVERT, 1): ("clone", ()),
}


def with_plainest_operator(statement: Statement) -> Statement | None:
    """The statement with the plainest operator of its family and operand count; None if it has it."""
    row = OPERATORS[statement.operator]
    plain = _PLAINEST.get((row.kind, len(row.operands)))
    if plain is None or plain[0] == row.name or any(operand.number for operand in row.operands):
        return None
    name, attributes = plain
    return dataclasses.replace(statement, operator=name, attributes=attributes)
