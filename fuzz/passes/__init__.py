"""What the reducer tries: passes, each a way to make a program smaller, in the order of their gain."""

from __future__ import annotations

from fuzz.passes.base import measure
from fuzz.passes.deletion import ARGUMENTS, OUTPUTS, STATEMENTS
from fuzz.passes.scenarios import CALLS, STEPS
from fuzz.passes.shapes import SHAPES
from fuzz.passes.simplify import BLOCKS, DEVICE, KINDS, MODULE, OPERATORS, SCENARIO, STORAGES, TREES
from fuzz.program.decode import Program
from fuzz.search import Pass

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
