"""Where a module keeps its tensors, and tests of whether it still keeps them there.

Its parameters and buffers, and the tensors that other attributes are, or lists and dicts there hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aot.guards.guard import MISSING
from aot.guards.module_attributes import attributes_read_by_forward
from aot.specialize.inline_cache import ImplicitLeaves
from aot.tensors.subclasses import is_wrapper
from aot.torch_internals import tensor_impl

Place = tuple[Any, Any]
"""The dict or list that holds a tensor, and the name or number."""


def owners_of(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """What holds a module's own parameters and buffers."""
    return module._parameters, module._buffers


def state_slots(module: nn.Module) -> list[Place]:
    """Those of a module and of its submodules: parameters and buffers first."""
    return [*registered_state_slots(module), *(place for _, _, place in _attributes(module))]


def registered_state_slots(module: nn.Module) -> list[Place]:
    """Those of parameters and buffers."""
    return [
        (owner, name)
        for one in module.modules()
        for owner in owners_of(one)
        for name, value in owner.items()
        if value is not None
    ]


def _attributes(module: nn.Module) -> Iterator[tuple[int, str, Place]]:
    """Those of attributes: the number of the module, and the attribute's name."""
    for number, space, name in attributes_read_by_forward(module):
        for place in _slots_within(space, name):
            yield number, name, place


def _slots_within(space: dict[str, Any], name: str) -> Iterator[Place]:
    value: Any = space.get(name)  # (another thread may take it away)
    if _may_be_argument(value):
        yield space, name
    elif type(value) in (list, dict):
        for key, one in enumerate(value) if type(value) is list else value.items():
            if _may_be_argument(one) and isinstance(key, (int, str)):
                yield value, key


def _may_be_argument(value: Any) -> bool:
    """Whether it is a tensor that can be an argument. (What cannot be one may not even be used.)"""
    return isinstance(value, Tensor) and (is_wrapper(value) or tensor_impl.layout_of(value) is torch.strided)


def module_state_restorer(module: nn.Module, places: Sequence[Place] = ()) -> Callable[[], None]:
    """What gives a module everything back that is in its places now, and in some that it had before, and
    takes away what has become a place since. (What else is in lists and dicts that hold some is left alone.)
    """
    owners: list[Any] = [owner for one in module.modules() for owner in owners_of(one)]
    spaces = {id(vars(one)): dict(vars(one)) for one in module.modules()}
    before = [owner.copy() for owner in owners]
    own = spaces.keys() | set(map(id, owners))
    every = [*places, *state_slots(module)]
    held = [(owner, name, owner[name]) for owner, name in every if id(owner) not in own and _has(owner, name)]
    named = [place for place in every if id(place[0]) in spaces]

    def put_back() -> None:
        for owner, values in zip(owners, before, strict=True):
            owner.clear()
            owner.update(values)
        for owner, name, value in held:
            if isinstance(owner, dict) or _has(owner, name):
                owner[name] = value
        for space, name in (*named, *(place for place in state_slots(module) if id(place[0]) in spaces)):
            value = spaces[id(space)].get(name, MISSING)
            if value is MISSING:
                space.pop(name, None)
            else:
                space[name] = value

    return put_back


def _has(owner: Any, name: Any) -> bool:
    """Whether there is such an entry."""
    return name in owner if isinstance(owner, dict) else name < len(owner)


def store_results(places: Sequence[Place], returned: tuple[Any, dict[int, Any]]) -> Any:
    """What a module returns; given with what it has put into its places, which is put there."""
    result, values = returned
    for number, value in values.items():
        owner, name = places[number]
        owner[name] = value
    return result


def module_state_leaves(module: nn.Module) -> ImplicitLeaves | None:
    """What is in the `state_slots` of a module, for calls that are known again; None where it may have others
    without saying so.

    Example:
        >>> module_state_leaves(nn.Linear(1, 1)).leaves
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
    lists: dict[int, str] = {}
    for number, name, (owner, key) in _attributes(module):
        space = names[f"v{number}"] = vars(names[f"m{number}"])
        if owner is not space and id(owner) not in lists:
            lists[id(owner)] = held = f"h{len(lists)}"
            names[held] = owner
            tests.append(f"v{number}.get({name!r}) is {held} and len({held}) == {len(owner)}")
        leaves.append(f"{lists.get(id(owner), f'v{number}')}[{key!r}]")
    return ImplicitLeaves(tuple(tests), tuple(leaves), names)


_LISTS = ("modules", "named_modules")  # what tells the submodules
