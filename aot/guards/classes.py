"""Class summaries: what a class says about the attributes of its instances.

There are many instances of few classes, so each class is looked at once. A summary has three parts: the
attributes that methods of library base classes read, the slots, and the attributes that methods read under
computed names.
"""

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
    """Summaries of classes for one set of attributes and functions that count.

    Args:
        read: the attributes that the code on the way reads.
        counts: whether a function's code is looked through.
    """

    def __init__(self, read: frozenset[str], counts: Callable[[types.FunctionType], bool]) -> None:
        self._called = read | CALLED
        self._counts = counts
        self._libraries: dict[type, frozenset[str]] = {}
        self._slots: dict[type, tuple[str, ...]] = {}
        self._computed: dict[type, tuple[ComputedAccess, ...]] = {}

    def read_by_libraries(self, cls: type) -> frozenset[str]:
        """The attributes of an instance that methods of libraries may read, called by a name that counts."""
        if cls not in self._libraries:
            classes = tuple(base for base in cls.__mro__[:-1] if is_library(base.__module__))
            self._libraries[cls] = _library_names(classes, self._called)
        return self._libraries[cls]

    def slots(self, cls: Any) -> tuple[str, ...]:
        """The slots of an instance: attributes that are in no `__dict__`."""
        if cls not in self._slots:
            self._slots[cls] = tuple(
                name
                for base in cls.__mro__
                for name, slot in vars(base).items()
                if isinstance(slot, types.MemberDescriptorType)
            )
        return self._slots[cls]

    def computed_accesses(self, cls: type) -> tuple[ComputedAccess, ...]:
        """The accesses to an instance in its methods under names that these compute."""
        if cls not in self._computed:
            functions = [
                function
                for base in cls.__mro__
                if not is_library(base.__module__)
                for function in vars(base).values()
                if isinstance(function, types.FunctionType) and self._counts(function)
            ]
            accesses = (one for function in functions for one in analyze_code(function.__code__).computed)
            self._computed[cls] = tuple(one for one in accesses if one.start == "first")
        return self._computed[cls]


@functools.lru_cache(maxsize=1024)
def _library_names(classes: tuple[type, ...], called: frozenset[str]) -> frozenset[str]:
    """The attributes that the methods `called` of these classes may read, and methods that these call.

    `classes` are libraries' classes only, so that this cache keeps no class of the user's alive.
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
