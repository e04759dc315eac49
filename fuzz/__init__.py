"""Programs that mutate and alias, generated, run under a compiler and under eager, compared and reduced."""

from fuzz.program import Program, ProgramError, from_json, to_json
from fuzz.source import load, render
from fuzz.strategies import programs

__all__ = ["Program", "ProgramError", "from_json", "load", "programs", "render", "to_json"]
