"""Reduction passes: each makes a program smaller in one way. They are in the order of their gain.

- `measure`: the size of a program.
- `deletion`: statements, arguments and outputs; `scenarios`: calls, and what is done after them.
- `simplify`, `shapes`, `plainest_operator`: make what is left plainer.
"""

from __future__ import annotations

from fuzz.program.decode import Program
from fuzz.reduce.passes.deletion import ARGUMENTS, OUTPUTS, STATEMENTS
from fuzz.reduce.passes.measure import measure
from fuzz.reduce.passes.scenarios import CALLS, STEPS
from fuzz.reduce.passes.shapes import SHAPES
from fuzz.reduce.passes.simplify import (
    BLOCKS,
    DEVICE,
    KINDS,
    MODULE,
    OPERATORS,
    SCENARIO,
    STORAGES,
    TREES,
)
from fuzz.reduce.search import Pass

__all__ = ["PASSES", "measure"]

PASSES: tuple[Pass[Program], ...] = (
    CALLS,
    STATEMENTS,
    OUTPUTS,
    ARGUMENTS,
    STEPS,
    MODULE,
    BLOCKS,
    SCENARIO,
    DEVICE,
    TREES,
    STORAGES,
    KINDS,
    OPERATORS,
    SHAPES,
)
