"""Result structure: every node of a tree of containers, with its path and a description.

In: arguments or a result. Out: `Node`s, parents first. Containers are tuples, lists, dicts and wrapper
subclasses; every other object is a leaf.
Invariant: the walk ends for any object that a target may return. It is bounded in nodes, depth and length of
text, and whatever an object raises becomes `Unobservable`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from oracles.object_names import class_name, encodable, message_of

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

# No generated program comes near these limits. They keep other results from filling memory or taking for
# ever.
MAX_NODES, MAX_DEPTH, _LONGEST = 10_000, 100, 1000


class Unobservable(Exception):
    """A part of a result raises when it is looked at, as an object with its own `__len__` may."""

    @classmethod
    def of(cls, path: str, value: object, error: Exception) -> Unobservable:
        """The exception for the value at `path`, which raised `error`."""
        said = f"{class_name(type(error))}: {message_of(error)}"
        return cls(f"{path}, a {class_of(value)}, cannot be looked at: {said}")


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its path, its description, and the tensor if it is one."""

    path: str
    description: str
    tensor: torch.Tensor | None = None


def result_tree_nodes(tree: Any, path: str) -> Iterator[Node]:
    """Every node of a tree of tuples, lists and dicts, parents first, in order.

    A description has the type and value of numbers, strings and None, the type and length or keys of
    containers, the class of tensors, and the class alone of other objects. A wrapper subclass is described
    with its context, and its inner tensors follow it.

    The description says if a container holds itself, or lies deeper than `MAX_DEPTH`. After `MAX_NODES` nodes
    a last node says so.

    Raises:
        Unobservable: a part raises when it is looked at.

        [node.path for node in result_tree_nodes({"k": (x, 2)}, "out")]
        # ["out", "out['k']", "out['k'][0]", "out['k'][1]"]
    """
    found = itertools.islice(_result_nodes_below(tree, path, ()), MAX_NODES + 1)
    for count, node in enumerate(found):
        yield node if count < MAX_NODES else Node(path, f"more than {MAX_NODES} nodes")


def _result_nodes_below(tree: Any, path: str, around: tuple[int, ...]) -> Iterator[Node]:
    """The nodes of a part of a tree, in containers of these ids."""
    try:
        yield from _nodes_of_part(tree, path, around)
    except Unobservable:
        raise
    except Exception as error:
        raise Unobservable.of(path, tree, error) from error


def _nodes_of_part(tree: Any, path: str, around: tuple[int, ...]) -> Iterator[Node]:
    # The type decides: `isinstance` would ask an object that may claim another class, or raise.
    kind = type(tree)
    if issubclass(kind, torch.Tensor):
        parts = wrapper_subclass_parts(tree)
        context = "" if parts is None else f" with context {parts.context}"
        yield Node(path, class_of(tree) + context, tree)
        for name, part in () if parts is None else parts.tensors:
            yield from _result_nodes_below(part, f"{path}.{name}", around)
    elif issubclass(kind, (tuple, list, dict)) and (id(tree) in around or len(around) == MAX_DEPTH):
        yield Node(
            path, f"{class_of(tree)} {'that holds itself' if id(tree) in around else 'too deep inside'}"
        )
    elif issubclass(kind, (tuple, list)):
        yield Node(path, f"{class_of(tree)} of {len(tree)}")
        for index, item in enumerate(tree):
            yield from _result_nodes_below(item, f"{path}[{index}]", (*around, id(tree)))
    elif issubclass(kind, dict):
        keys = ", ".join(map(key_name, itertools.islice(tree, MAX_NODES)))
        yield Node(path, f"{class_of(tree)} with keys [{keys}]")
        for key, item in tree.items():
            yield from _result_nodes_below(item, f"{path}[{key_name(key)}]", (*around, id(tree)))
    elif issubclass(kind, PLAIN):
        yield Node(path, value_in_words(tree))
    else:
        yield Node(path, class_of(tree))


@dataclass(frozen=True, slots=True)
class Parts:
    """What `__tensor_flatten__` gives: the inner tensors by attribute name, and the context in words."""

    tensors: tuple[tuple[str, torch.Tensor], ...]
    context: str


def wrapper_subclass_parts(tensor: torch.Tensor) -> Parts | None:
    """The inner tensors and the context of a wrapper subclass; None for any other tensor.

    wrapper_subclass_parts(torch.ones(2))    # None
    """
    flatten = None if type(tensor) is torch.Tensor else getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return None
    names, context = flatten()
    return Parts(tuple((name, getattr(tensor, name)) for name in names), repr(context))


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a storage: wrapper subclasses have none, nor do layouts other than strided."""
    return tensor.layout is torch.strided and wrapper_subclass_parts(tensor) is None


def class_of(value: object) -> str:
    """The name of an object's class."""
    return class_name(type(value))


def value_in_words(value: object) -> str:
    """A value of one of the types `PLAIN`: its class and its `repr`."""
    return f"{class_of(value)} {_said(value)}"


def key_name(key: object) -> str:
    """A key of a dict in words: its `repr`, or its class where that may show an address."""
    return _said(key) if issubclass(type(key), PLAIN) else class_of(key)


def _said(value: Any) -> str:
    """The `repr` of a plain value; of a long text its beginning and its length."""
    if isinstance(value, (str, bytes)) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]!r}... of {len(value)}"
    return encodable(repr(value))
