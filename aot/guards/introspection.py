"""Introspection: look into an object without calling the attribute methods of its class.

Invariant: nothing here calls `__getattr__` or `__getattribute__` of a user's class, except for slots.
"""

from __future__ import annotations

import itertools
import threading
import types
from collections.abc import Iterable, Iterator, Set
from contextvars import ContextVar
from typing import Any

from aot.guards.bytecode import is_library
from aot.guards.containers import SEQUENCES, builtin_view
from aot.guards.guard import MISSING


def referents(value: Any, among: Set[int] | None = None) -> list[tuple[str, Any]]:
    """The objects that an object holds directly, each with the text that leads to it, as `.name` or `[0]`.

    Args:
        among: the ids of the objects that are wanted; None for all.
    """
    return [
        (_path(how, key), one)
        for how, keys, values in _referents_held_by(value)
        for key, one in zip(keys, values, strict=True)
        if among is None or id(one) in among
    ]


def _path(how: str, key: Any) -> str:
    if how == _ENTRY:
        key = repr(key) if isinstance(key, (str, int)) else "..."
    return how.format(key)


def referent_values(value: Any) -> Iterator[Any]:
    """The objects of `referents` without the texts, in a fraction of the time."""
    return itertools.chain.from_iterable([values for _, _, values in _referents_held_by(value)])


def _referents_held_by(value: Any) -> list[tuple[str, Iterable[Any], Iterable[Any]]]:
    """The objects that an object holds directly, in groups: a template for the text, its keys, the values."""
    kind = type(value)
    if kind is dict:
        return [(_ENTRY, value, value.values())]
    if kind is list or kind is tuple:
        return [(_ENTRY, range(len(value)), value)]
    if isinstance(value, types.FunctionType):
        cells = map(content_of, value.__closure__ or ())
        return [(_NAME, value.__code__.co_freevars, cells), (_NAME, value.__dict__, value.__dict__.values())]
    if isinstance(value, type):
        return [(_NAME, vars(value), vars(value).values())]
    if isinstance(value, ContextVar):
        return [(".get()", (None,), (value.get(None),))]
    if isinstance(value, threading.local):
        return [(_NAME, value.__dict__, value.__dict__.values())]
    found: list[tuple[str, Iterable[Any], Iterable[Any]]] = []
    if isinstance(value, dict):
        entries = builtin_view(value)
        found.append((_ENTRY, entries, entries.values()))
    elif isinstance(value, (tuple, frozenset, *SEQUENCES)):
        entries = builtin_view(value)
        found.append((_ENTRY, range(len(entries)), entries))
    space = namespace_of(value)
    if space:
        found.append((_NAME, space, space.values()))
    slots = [
        name
        for base in kind.__mro__[:-1]
        if not is_library(base.__module__)
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType)
    ]
    if slots:
        found.append((_NAME, slots, [getattr(value, name, None) for name in slots]))
    return found


_NAME, _ENTRY = ".{}", "[{}]"


def content_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def namespace_of(value: Any) -> dict[str, Any] | None:
    """The `__dict__` of an object, read without its class's `__getattribute__`; None if it has none."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def has_introspectable_memory(value: Any) -> bool:
    if isinstance(value, bytes):
        return False
    try:
        memoryview(value)
    except (TypeError, ValueError, BufferError):
        return False
    return True
