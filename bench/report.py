"""Tables: as text for people, as JSON for programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from tabulate import tabulate


@dataclass(frozen=True, slots=True)
class Table:
    """One table; a cell that is None could not be measured, and a note says why.

    Attributes:
        title: what is measured, and in which unit.
        columns: their names; the first one names the rows.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]
    notes: tuple[str, ...] = ()


def emit(command: str, tables: Sequence[Table], as_json: bool) -> None:
    """Print the tables."""
    if as_json:
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        print(json.dumps({"command": command, **versions, "tables": [asdict(t) for t in tables]}))
        return
    for table in tables:
        print(f"{table.title}\n")
        print(tabulate(table.rows, table.columns, floatfmt=".2f", missingval="-"))
        print("".join(f"\n{note}" for note in table.notes))
