"""Python state: describe the objects that a function can read and write besides its arguments.

In: objects by name. Out: `PythonState`.

A walk over attributes, items, caches and generators describes each object once, under the path that leads to
it first. Attributes that `torch.nn.Module` itself sets are left out. Elements of tensors are recorded apart
from the descriptions, because they are compared within a tolerance.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections import deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from oracles.observation.records import PythonState, Value
from oracles.observation.result_structure import (
    MAX_DEPTH,
    MAX_NODES,
    PLAIN,
    class_of,
    key_name,
    value_in_words,
)
from oracles.observation.tensor_state import tensor_attributes_of, value_of

_OPAQUE = (type, ModuleType, BuiltinFunctionType, torch.SymInt, torch.SymFloat, torch.SymBool)
_HOOKS = tuple(name for name in vars(torch.nn.Module()) if name.endswith("_hooks"))
_MEMBERS = ("_parameters", "_buffers", "_modules")


def record_python_state(objects: Mapping[str, object]) -> PythonState:
    """Describe objects and all that they lead to: `MAX_NODES` of them, `MAX_DEPTH` deep.

    >>> record_python_state({"counts": {"calls": 2}}).nodes
    (('counts', "dict with keys ['calls']"), ("counts['calls']", 'int 2'))
    """
    if not objects:
        return _NOTHING
    walk = _Walk()
    for name, value in objects.items():
        walk.visit_object(name, value)
    return PythonState(tuple(walk.nodes), tuple(walk.tensors))


_NOTHING = PythonState()


class _Walk:
    """The walk, and what it has described so far."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, str]] = []
        self.tensors: list[tuple[str, Value | None]] = []
        self._paths: dict[int, str] = {}
        self._alive: list[object] = []  # so that no id stands for two objects

    def visit_object(self, path: str, value: object, depth: int = 0) -> None:
        """Describe an object and all that it leads to. It is `depth` steps from where the walk began."""
        if len(self.nodes) >= MAX_NODES:
            return
        if issubclass(type(value), PLAIN):
            self.nodes.append((path, value_in_words(value)))
            return
        known = self._paths.setdefault(id(value), path)
        if known != path:
            self.nodes.append((path, f"the same object as {known}"))
            return
        self._alive.append(value)
        if isinstance(value, torch.Tensor):
            self._visit_tensor(path, value, depth)
            return
        self.nodes.append((path, _object_in_words(value)))
        if depth < MAX_DEPTH and not isinstance(value, _OPAQUE):
            for place, part in _object_parts(value):
                self.visit_object(f"{path}{place}", part, depth + 1)

    def _visit_tensor(self, path: str, tensor: torch.Tensor, depth: int) -> None:
        try:
            element: Value | None = value_of(tensor)
            grad = tensor.grad if tensor.is_leaf else None
            history = ", requires grad" if tensor.requires_grad else ""
        except Exception as error:  # of whoever made the tensor
            self.nodes.append((path, f"a tensor that cannot be read: {type(error).__name__}"))
            self.tensors.append((path, None))
            return
        self.nodes.append((path, f"{class_of(tensor)}{history}"))
        self.tensors.append((path, element))
        if grad is not None and depth < MAX_DEPTH:
            self.visit_object(f"{path}.grad", grad, depth + 1)
        for name, words in tensor_attributes_of(tensor):
            self.nodes.append((f"{path}.{name}", words))


def _object_in_words(value: object) -> str:
    """An object in words, without the objects that it leads to."""
    if isinstance(value, (tuple, list, set, frozenset, deque)):
        return f"{class_of(value)} of {len(value)}"
    if isinstance(value, dict):
        return f"{class_of(value)} with keys [{', '.join(map(key_name, value))}]"
    if isinstance(value, random.Random):
        return f"{class_of(value)} in state {_digest(repr(value.getstate()).encode())}"
    if isinstance(value, torch.Generator):
        return f"{class_of(value)} in state {_digest(value.get_state().numpy().tobytes())}"
    if isinstance(value, torch.nn.Module):
        hooks = sum(len(vars(value).get(name) or ()) for name in _HOOKS)
        return f"{class_of(value)}, {'training' if value.training else 'not training'}, {hooks} hooks"
    if isinstance(value, functools._lru_cache_wrapper):
        return f"{class_of(value)} with {value.cache_info().currsize} entries"
    return class_of(value)


def _object_parts(value: object) -> Iterator[tuple[str, object]]:
    """The objects that an object leads to, each with its place, such as `[0]` or `.name`."""
    if isinstance(value, dict):
        for key, item in list(value.items()):
            yield f"[{key_name(key)}]", item
    elif isinstance(value, (tuple, list, deque)):
        for index, item in enumerate(list(value)):
            yield f"[{index}]", item
    elif isinstance(value, (set, frozenset)):
        for index, item in enumerate(sorted(value, key=repr)):
            yield f"[{index}]", item
    elif isinstance(value, (random.Random, torch.Generator)):
        return
    elif isinstance(value, FunctionType):
        yield from _attributes(vars(value))
        for index, cell in enumerate(value.__closure__ or ()):
            yield f".__closure__[{index}]", _content(cell)
    elif isinstance(value, torch.nn.Module):
        for members in _MEMBERS:
            yield from _attributes(vars(value)[members])
        yield from _attributes({k: v for k, v in vars(value).items() if not _is_of_torch(k)})
    elif isinstance(value, torch.optim.Optimizer):
        yield ".param_groups", value.param_groups
        for index, parameter in enumerate(p for group in value.param_groups for p in group["params"]):
            yield f".state[{index}]", value.state.get(parameter)
    else:
        for kind in type(value).__mro__:
            names = vars(kind).get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                    yield f".{name}", getattr(value, name)
        yield from _attributes(getattr(value, "__dict__", {}))


_OF_MODULES = frozenset(vars(torch.nn.Module()))


def _is_of_torch(name: str) -> bool:
    """Whether torch sets a module's attribute of this name, or Dynamo does when it captures the module."""
    return name in _OF_MODULES or name.startswith("_is_torch_compile")


def _attributes(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in list(values.items()):
        if name != "__wrapped__":
            yield f".{name}", value


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]
