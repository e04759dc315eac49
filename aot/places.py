"""Where a module keeps its parameters and buffers, and tests of whether it still keeps them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from aot.recognition import Found

Place = tuple[dict[str, Any], str]
"""The dict that holds a tensor, and the name."""


def owners_of(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """What holds a module's own parameters and buffers."""
    return module._parameters, module._buffers


def places_of(module: nn.Module) -> list[Place]:
    """Those of a module and of its submodules."""
    return [
        (owner, name)
        for one in module.modules()
        for owner in owners_of(one)
        for name, value in owner.items()
        if value is not None
    ]


def put(places: Sequence[Place], returned: tuple[Any, dict[int, Any]]) -> Any:
    """What a module returns; given with what it has put into its places, which is put there."""
    result, values = returned
    for number, value in values.items():
        owner, name = places[number]
        owner[name] = value
    return result


def found(module: nn.Module) -> Found | None:
    """What is in the `places_of` of a module, for calls that are known again; None where it may have others
    without saying so.

    Example:
        >>> found(nn.Linear(1, 1)).leaves
        ("p0['weight']", "p0['bias']")
    """
    tests: list[str] = []
    leaves: list[str] = []
    names: dict[str, Any] = {}
    for number, one in enumerate(module.modules()):
        if any(getattr(type(one), name) is not getattr(nn.Module, name) for name in _LISTS):
            return None
        children = one._modules
        names |= {f"m{number}": one, f"c{number}": children}
        tests.append(f"m{number}._modules is c{number}")
        if children:
            names[f"i{number}"] = [*map(id, children.values())]
            tests.append(f"[*map(id, c{number}.values())] == i{number}")
        else:
            tests.append(f"not c{number}")
        for letter, attribute, owner in zip("pb", ("_parameters", "_buffers"), owners_of(one), strict=True):
            held = f"{letter}{number}"
            names[held] = owner
            tests.append(f"m{number}.{attribute} is {held}")
            tests.append(f"[*{held}] == {[*owner]}" if owner else f"not {held}")
            tests += [f"{held}[{name!r}] is None" for name, value in owner.items() if value is None]
            leaves += [f"{held}[{name!r}]" for name, value in owner.items() if value is not None]
    return Found(tuple(tests), tuple(leaves), names)


_LISTS = ("modules", "named_modules")  # what tells the submodules
