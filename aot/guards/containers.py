"""Containers as they are, past what classes derived from Python's own say of them.

A class that loads its entries when they are asked for would load all of them for a look at it, and one that
fails would fail.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

SEQUENCES = (list, set, deque)
# (An OrderedDict keeps an order of its own.)
_OWN = (OrderedDict, dict, tuple, frozenset, *SEQUENCES)
_READ = ("__iter__", "__len__", "__bool__", "keys", "values", "items")


class _Raw:
    """What a container holds, as its builtin class has it."""

    __slots__ = ("_class", "_container")

    def __init__(self, own: type, container: Any) -> None:
        self._class: Any = own
        self._container = container

    def __len__(self) -> int:
        length: int = self._class.__len__(self._container)
        return length

    def __iter__(self) -> Iterator[Any]:
        iterator: Iterator[Any] = self._class.__iter__(self._container)
        return iterator

    def values(self) -> Any:
        return self._class.values(self._container)

    def items(self) -> Any:
        return self._class.items(self._container)


def builtin_view(value: Any) -> Any:
    """A container that is read as Python's own are: itself if it is read so anyway, or else what shows the
    same entries. What is none of Python's containers is itself, too.

    >>> class Nine(list):
    ...     def __iter__(self):
    ...         return iter([9])
    >>> tuple(Nine([1, 2])), tuple(builtin_view(Nine([1, 2])))
    ((9,), (1, 2))
    """
    kind = type(value)
    for own in _OWN:
        if kind is own:
            return value
        if isinstance(value, own):
            same = all(getattr(kind, name, None) is getattr(own, name, None) for name in _READ)
            return value if same else _Raw(own, value)
    return value
