"""The shape of a result: every node of a tree of containers, with its path and a description."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    slice,
    range,
)
"""The types whose values are described with their `repr`."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its path, what it is, and the tensor if it is one."""

    path: str
    description: str
    tensor: torch.Tensor | None = None


def nodes(tree: Any, path: str) -> Iterator[Node]:
    """Every node of a tree of tuples, lists and dicts, parents first, in order.

    Numbers, strings and None are described with their type and value, containers with their type and
    length or keys, tensors with their class, anything else with its class alone. What a tensor subclass says
    that it is made of comes after it, and its class is described with its context.

        [node.path for node in nodes({"k": (x, 2)}, "out")]    # out, out['k'], out['k'][0], out['k'][1]
    """
    if isinstance(tree, torch.Tensor):
        parts = parts_of(tree)
        context = "" if parts is None else f" with context {parts.context}"
        yield Node(path, class_name(tree) + context, tree)
        for name, part in () if parts is None else parts.tensors:
            yield from nodes(part, f"{path}.{name}")
    elif isinstance(tree, (tuple, list)):
        yield Node(path, f"{class_name(tree)} of {len(tree)}")
        for index, item in enumerate(tree):
            yield from nodes(item, f"{path}[{index}]")
    elif isinstance(tree, dict):
        yield Node(path, f"{class_name(tree)} with keys [{', '.join(map(key_name, tree))}]")
        for key, item in tree.items():
            yield from nodes(item, f"{path}[{key_name(key)}]")
    elif isinstance(tree, PLAIN):
        yield Node(path, f"{class_name(tree)} {tree!r}")
    else:
        yield Node(path, class_name(tree))


@dataclass(frozen=True, slots=True)
class Parts:
    """What a tensor subclass says of itself: the tensors that it is made of by their names, and what else is
    needed to make it again, in words."""

    tensors: tuple[tuple[str, torch.Tensor], ...]
    context: str


def parts_of(tensor: torch.Tensor) -> Parts | None:
    """What a wrapper subclass (`__tensor_flatten__`) is made of; None for any other tensor.

    parts_of(torch.ones(2))    # None
    """
    flatten = None if type(tensor) is torch.Tensor else getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return None
    names, context = flatten()
    return Parts(tuple((name, getattr(tensor, name)) for name in names), repr(context))


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in a storage: a wrapper subclass does not, nor one of another layout."""
    return tensor.layout is torch.strided and parts_of(tensor) is None


def class_name(value: object) -> str:
    """An object's class, with the module that defines it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def key_name(key: object) -> str:
    """A key of a dict in words: its `repr`, or its class where that may show an address."""
    return repr(key) if isinstance(key, PLAIN) else class_name(key)
