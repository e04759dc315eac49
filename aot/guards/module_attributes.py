"""Module attributes: the attributes of modules that code names which runs when a module is called.

That code is `forward`, the forward hooks, special methods, and methods that these call by name. An attribute
that only a constructor or a report names is left out, because it may be no more than somebody's notes.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import fx, nn

from aot.guards.bytecode import all_names, is_library

Attribute = tuple[int, dict[str, Any], str]
"""The number of a module among its root's `modules`, its namespace, and the attribute's name."""
_NEVER = frozenset(
    ("__init__", "__repr__", "__str__", "__getstate__", "__setstate__", "__reduce__", "__del__")
)
# Attributes that `nn.Module` itself sets in every module.
_OWN = frozenset(vars(nn.Module()))


def attributes_read_by_forward(module: nn.Module) -> Iterator[Attribute]:
    """The attributes of a module and its submodules that are read when it is called.

    An `fx.GraphModule` gives none: its tensors are registered, and all else in it is constant.
    """
    if isinstance(module, fx.GraphModule):
        return
    modules = [*module.modules()]
    names = _attributes_named_by_methods(modules)
    if not names:
        return
    for number, one in enumerate(modules):
        space, library = vars(one), is_library(type(one).__module__)
        for name in [*space]:
            # Private attributes of torch's own classes are left out.
            if name in names and name not in _OWN and not (library and name.startswith("_")):
                yield number, space, name


def _attributes_named_by_methods(modules: Sequence[nn.Module]) -> set[str]:
    """The names in methods of these modules that a call reaches."""
    tables = [_attributes_of_methods(cls) for cls in {type(one): None for one in modules}]
    if not any(tables):
        return set()
    ahead = [name for table in tables for name in table if name == "forward" or name.startswith("__")]
    found = set[str]()
    for one in modules:
        own = (vars(one).get("forward"), *one._forward_pre_hooks.values(), *one._forward_hooks.values())
        found.update(_names_in(own))
    ahead += found
    seen = set[str]()
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            for table in tables:
                found |= table.get(name, frozenset())
                ahead += table.get(name, ())
    return found


def _attributes_of_methods(cls: type) -> Mapping[str, frozenset[str]]:
    """The names that each method of a class uses. Library classes have none: they register their tensors."""
    known = _METHODS.get(cls)
    if known is None:
        table: dict[str, frozenset[str]] = {}
        for base in cls.__mro__:
            if not is_library(base.__module__):
                for name, value in vars(base).items():
                    used = frozenset(_names_in((value,))) if name not in _NEVER else frozenset[str]()
                    if used:
                        table[name] = table.get(name, frozenset()) | used
        known = _METHODS[cls] = table
    return known


_METHODS = WeakKeyDictionary[type, Mapping[str, frozenset[str]]]()


def _names_in(functions: Iterable[Any]) -> Iterator[str]:
    for function in functions:
        parts = (function.fget, function.fset) if isinstance(function, property) else (function,)
        for part in parts:
            inner = getattr(part, "__func__", getattr(part, "func", part))
            if callable(inner) and isinstance(inner := inspect.unwrap(inner), types.FunctionType):
                yield from all_names(inner.__code__)
