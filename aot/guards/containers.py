"""Containers: read the entries of a container without calling methods that its class overrides.

A subclass of `dict` may load its entries on demand, and would load all of them when a guard looks. Another
may raise. So guards read such a container with the methods of the builtin class.
Invariant: nothing here calls a method of a user's container class.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

SEQUENCES = (list, set, deque)
# An OrderedDict has an order of its own, so it comes before dict.
_OWN = (OrderedDict, dict, tuple, frozenset, *SEQUENCES)
_READ = ("__iter__", "__len__", "__bool__", "keys", "values", "items")


class _Raw:
    """A view of a container that uses the methods of its builtin class."""

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
    """A container whose reading methods are those of the builtin class.

    This is the container itself if its class overrides none of them, and a view of it otherwise. An object
    that is no container is returned unchanged.

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
