"""What classes say of their instances: what libraries read of them, slots, and names that are computed."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from aot.guards.bytecode import all_names, analyze_code, is_library
from aot.guards.computed_attributes import ComputedAccess

CALLED = frozenset(
    ("__call__", "__getattr__", "__getitem__", "__iter__", "__len__", "__contains__", "forward")
)


class ClassSummaries:
    """What is known of classes while the same attributes and the same code count.

    Args:
        read: the attributes.
        counts: whether a function's code does.
    """

    def __init__(self, read: frozenset[str], counts: Callable[[types.FunctionType], bool]) -> None:
        self._called = read | CALLED
        self._counts = counts
        self._libraries: dict[type, frozenset[str]] = {}
        self._slots: dict[type, tuple[str, ...]] = {}
        self._computed: dict[type, tuple[ComputedAccess, ...]] = {}

    def read_by_libraries(self, cls: type) -> frozenset[str]:
        """What code of libraries may read of an instance, if it is called by the names that count."""
        if cls not in self._libraries:
            classes = tuple(base for base in cls.__mro__[:-1] if is_library(base.__module__))
            self._libraries[cls] = _library_names(classes, self._called)
        return self._libraries[cls]

    def slots(self, cls: Any) -> tuple[str, ...]:
        """The attributes of an instance that are in no namespace."""
        if cls not in self._slots:
            self._slots[cls] = tuple(
                name
                for base in cls.__mro__
                for name, slot in vars(base).items()
                if isinstance(slot, types.MemberDescriptorType)
            )
        return self._slots[cls]

    def computed_accesses(self, cls: type) -> tuple[ComputedAccess, ...]:
        """What methods ask of an instance under names that they compute."""
        if cls not in self._computed:
            functions = [
                function
                for base in cls.__mro__
                if not is_library(base.__module__)
                for function in vars(base).values()
                if isinstance(function, types.FunctionType) and self._counts(function)
            ]
            asked = (one for function in functions for one in analyze_code(function.__code__).computed)
            self._computed[cls] = tuple(one for one in asked if one.start == "first")
        return self._computed[cls]


@functools.lru_cache(maxsize=1024)
def _library_names(classes: tuple[type, ...], called: frozenset[str]) -> frozenset[str]:
    """What the methods `called` of libraries' classes, and those that they call, may read of an instance.

    (Of these classes alone, so that what is remembered keeps no class of a user's alive.)
    """
    functions = {
        name: value
        for base in reversed(classes)
        for name, value in vars(base).items()
        if isinstance(value, types.FunctionType)
    }
    names: set[str] = set()
    ahead = [name for name in called if name in functions]
    while ahead:
        found = frozenset(all_names(functions[ahead.pop()].__code__)) - names
        names |= found
        ahead += [name for name in found if name in functions]
    return frozenset(names)
