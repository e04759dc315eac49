"""Fuzz: generate programs that mutate and alias, run them under a compiler and under eager, and compare.

In: a compiler. Out: reduced programs on which it differs from eager. Packages in reading order:

- `ir`, `program`: a program as data, and as Python source.
- `operators`, `abstract`: what each operator does, and what eager does with a program, without running it.
- `generate`, `features`: random programs, and the names of what is hard about them.
- `targets`, `execute`: compilers under test, and one case on one of them.
- `campaign`, `reduce`, `minify`: many cases; a smaller program; a smaller function of a user's.
- `corpus`, `repro`, `report`: recorded cases, scripts that show them, and reports.
- `bisection`, `probe`, `diagnosis`: since when, what a target supports, and whether the installation works.
- `cli`, `commands`: the command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.generate.strategies import programs
    from fuzz.program.decode import Program, ProgramError, from_json, to_json
    from fuzz.program.printer import load, render
    from fuzz.targets.target import Target

__all__ = [
    "Program",
    "ProgramError",
    "Target",
    "from_json",
    "load",
    "programs",
    "render",
    "to_json",
]

_MODULES = {
    "Program": "program.decode",
    "ProgramError": "program.decode",
    "Target": "targets.target",
    "from_json": "program.decode",
    "load": "program.printer",
    "programs": "generate.strategies",
    "render": "program.printer",
    "to_json": "program.decode",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, because `aotfuzz --help` needs none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
