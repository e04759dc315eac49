"""The wrapper subclass that arguments of a program may be: how one is made, and what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuzz.ir.nodes import Argument, Storage, View
from fuzz.operators import OPERATORS, Kind
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.subclasses import SUBCLASS_SOURCE, WRAP_SOURCE

VIAS = ("view", "detach", "parameter")
"""How a tensor may be taken from a root that is then wrapped: otherwise hidden ones would be the same."""

PARTS = ("view", "no_grad", "multi")
"""How a view may be taken of a root that has been wrapped."""


def is_whole(view: View, root: Storage) -> bool:
    """Whether an argument is the wrapper of a root itself, and not a view of that."""
    lies = view.size == root.size and view.stride == contiguous_strides(root.size) and view.offset == 0
    return view.base == "wrapper" and view.via == "view" and lies


def definitions(arguments: Sequence[Argument], operators: Iterable[str] = ()) -> list[str]:
    """The classes that it takes to make these arguments, and for rows of these names besides their own.

    >>> definitions([View(0, (2,), (1,), 0)])
    []
    """
    wrapped = [a for a in arguments if isinstance(a, View) and a.wrapped is not None]
    if any(view.via == "view" or view.base == "wrapper" for view in wrapped):
        return [SUBCLASS_SOURCE, WRAP_SOURCE]
    inside = any(OPERATORS[name].kind is Kind.WRAPPER for name in operators)
    return [SUBCLASS_SOURCE] if wrapped or inside else []
