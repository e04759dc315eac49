"""The shape of a result: every node of a tree of containers, with its path and a description."""

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

# No program of a fuzzer comes near these: what does is not to fill the memory, or to take for ever.
MAX_NODES, MAX_DEPTH, _LONGEST = 10_000, 100, 1000


class Unobservable(Exception):
    """A part of a result does not let itself be looked at, as what answers for itself may."""

    @classmethod
    def of(cls, path: str, value: object, error: Exception) -> Unobservable:
        """What is said of a value at a path that has raised when it was looked at."""
        said = f"{class_name(type(error))}: {message_of(error)}"
        return cls(f"{path}, a {class_of(value)}, cannot be looked at: {said}")


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its path, what it is, and the tensor if it is one."""

    path: str
    description: str
    tensor: torch.Tensor | None = None


def result_tree_nodes(tree: Any, path: str) -> Iterator[Node]:
    """Every node of a tree of tuples, lists and dicts, parents first, in order.

    Numbers, strings and None are described with their type and value, containers with their type and
    length or keys, tensors with their class, anything else with its class alone. What a tensor subclass says
    that it is made of comes after it, and its class is described with its context.

    A container that holds itself is said to, and so it is said of a tree that has no end.

    Raises Unobservable for a part that raises when it is looked at.

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
    # (What its type says: an object may claim to be of another class, or raise when it is asked.)
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
    """What a tensor subclass says of itself: the tensors that it is made of by their names, and what else is
    needed to make it again, in words."""

    tensors: tuple[tuple[str, torch.Tensor], ...]
    context: str


def wrapper_subclass_parts(tensor: torch.Tensor) -> Parts | None:
    """What a wrapper subclass (`__tensor_flatten__`) is made of; None for any other tensor.

    wrapper_subclass_parts(torch.ones(2))    # None
    """
    flatten = None if type(tensor) is torch.Tensor else getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return None
    names, context = flatten()
    return Parts(tuple((name, getattr(tensor, name)) for name in names), repr(context))


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in a storage: a wrapper subclass does not, nor one of another layout."""
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
    """A plain value; of a long text its beginning and its length."""
    if isinstance(value, (str, bytes)) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]!r}... of {len(value)}"
    return encodable(repr(value))
