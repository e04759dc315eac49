"""How to look into an object past whatever its class says about attributes."""

from __future__ import annotations

import threading
import types
from collections import deque
from contextvars import ContextVar
from typing import Any

from aot.guards import MISSING
from aot.reads import is_library

SEQUENCES = (list, set, deque)


def parts_in(value: Any) -> list[tuple[str, Any]]:
    """What is directly in an object, and how one gets there from it."""
    if isinstance(value, types.FunctionType):
        names = value.__code__.co_freevars
        cells = [(f".{n}", content_of(c)) for n, c in zip(names, value.__closure__ or (), strict=True)]
        return cells + [(f".{name}", one) for name, one in value.__dict__.items()]
    if isinstance(value, type):
        return [(f".{name}", one) for name, one in vars(value).items()]
    if isinstance(value, ContextVar):
        return [(".get()", value.get(None))]
    if isinstance(value, threading.local):
        return [(f".{name}", one) for name, one in value.__dict__.items()]
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts += [
            (f"[{key!r}]" if isinstance(key, (str, int)) else "[...]", one) for key, one in value.items()
        ]
    elif isinstance(value, (tuple, frozenset, *SEQUENCES)):
        parts += [(f"[{i}]", one) for i, one in enumerate(value)]
    space = namespace_of(value)
    if space is not None:
        parts += [(f".{name}", one) for name, one in space.items()]
    for base in type(value).__mro__[:-1]:
        if is_library(base.__module__):
            continue
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType):
                parts.append((f".{name}", getattr(value, name, None)))
    return parts


def content_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def namespace_of(value: Any) -> dict[str, Any] | None:
    """The attributes that an object has itself, past whatever its class says about attributes."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def has_memory(value: Any) -> bool:
    if isinstance(value, bytes):
        return False
    try:
        memoryview(value)
    except (TypeError, ValueError, BufferError):
        return False
    return True
