"""Operators that used to have another name, so that a corpus file which was written before is still read.

Whoever renames a row of the operator table adds a line here; nothing else has to know. A row that is
*removed*, or takes other attributes, makes files that use it unreadable, and they say so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

RENAMED: Mapping[str, str] = MappingProxyType({})
"""Old name to today's name."""

# An operator in a bucket's third part: "2 expand@no_grad".
_WORD = re.compile(r"(\d+ )?([^@]+)(@.*)?")


def operators(program: object) -> object:
    """A program's JSON with today's names; anything that is no such document comes back as it is.

    >>> operators({"statements": [{"operator": "expand"}]})
    {'statements': [{'operator': 'expand'}]}
    """
    if not isinstance(program, dict) or not isinstance(program.get("statements"), list):
        return program
    return {**program, "statements": [_statement(statement) for statement in program["statements"]]}


def bucket(text: str) -> str:
    """A bucket with today's names of operators."""
    parts = text.split("/")
    if len(parts) != 4 or not RENAMED:
        return text
    words = sorted(_word(word) for word in parts[2].split(" + "))
    return "/".join((*parts[:2], " + ".join(words), parts[3]))


def _statement(statement: Any) -> Any:
    if not isinstance(statement, dict) or not isinstance(statement.get("operator"), str):
        return statement
    return {**statement, "operator": RENAMED.get(statement["operator"], statement["operator"])}


def _word(word: str) -> str:
    found = _WORD.fullmatch(word)
    if found is None:
        return word
    count, name, mode = found.groups(default="")
    return f"{count}{RENAMED.get(name, name)}{mode}"
