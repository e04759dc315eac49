"""Statements, constants and tensors as Python text: what `fuzz.program.printer` makes a module of."""

from __future__ import annotations

import json
from math import isfinite, prod

from fuzz.abstract.state import AbstractState
from fuzz.ir.nodes import Statement
from fuzz.operators import OPERATORS
from fuzz.operators.layout import dimension
from fuzz.operators.row import Attributes, Constant, Kind, Size


def statement_text(statement: Statement, state: AbstractState, device: str = "") -> str:
    """One statement as a line of Python, without a comment; `state` is what is known before it."""
    row = OPERATORS[statement.operator]
    attributes = dict(statement.attributes)
    fields = {
        attribute.name: f"torch.{value}" if attribute.type == "dtype" else constant_text(value)
        for attribute, value in zip(row.attributes, attributes.values(), strict=True)
    }
    if row.operands:
        size = state.tensor(statement.operands[0]).meta.size
        dim = dimension(attributes.get("dim", 0), len(size)) if "{n}" in row.source else 0
        fields["n"] = str(size[dim] if size else 1)
        fields["elements"] = str(prod(size))
        if "{slice}" in row.source:
            fields["slice"] = _slice(attributes, size)
    text = row.source.format(*statement.operands, device=device, **fields)
    match statement.results:
        case ():
            return text
        case (name,) if row.kind is not Kind.MULTI_VIEW:
            return f"{name} = {text}"
        case names:
            return f"[{', '.join(names)}] = {text}"


def _slice(attributes: Attributes, size: Size) -> str:
    dim = dimension(attributes["dim"], len(size))
    start, end, step = attributes["start"], attributes["end"], attributes["step"]
    return ":, " * dim + f"{start}:{end}" + (f":{step}" if step != 1 else "")


def describe(dtype: str, size: Size) -> str:
    """A tensor in a few characters.

    >>> describe("float32", (2, 3))
    'float32[2, 3]'
    """
    return f"{dtype}[{', '.join(map(str, size))}]"


def constant_text(value: Constant) -> str:
    """A constant as Python source."""
    if isinstance(value, tuple):
        return f"({', '.join(map(constant_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value!r}")'
    if isinstance(value, str):
        return json.dumps(value) if value.isascii() else ascii(value)
    return repr(value)
