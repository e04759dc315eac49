"""Programs that mutate and alias, generated, run under a compiler and under eager, compared and reduced."""

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
    """Import a public name when it is first asked for: `aotfuzz --help` needs none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
