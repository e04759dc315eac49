"""The Python that eager runs in a backward, where a compiled call runs none: what it reads is read then.

In: the autograd graph of a trace, and the hooks that the function registered. Out: where to look for what it
reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.autograd.graph import Node

from aot.guards.bytecode import is_library
from aot.torch_internals import activation_checkpoint, autograd_graph, plain_fakes

_RAW: dict[type, tuple[str, ...]] = {}


def python_callbacks(nodes: Iterable[Node], hooks: Iterable[Callable[..., Any]]) -> tuple[Any, ...] | None:
    """The backwards of custom functions, each with its context, and the hooks; None if the function itself
    runs again, to recompute or to unpack what is saved."""
    found: list[Any] = list(hooks)
    for node in nodes:
        if any(activation_checkpoint.is_packed(node, name) for name in _saved(node)):
            return None
        if autograd_graph.is_function_node(node):
            found += _backward(node)
    return tuple(found)


def _backward(node: Any) -> Iterator[Any]:
    function = autograd_graph.function_of(node)
    if not is_library(function.__module__):
        kept = {name: value for name, value in vars(node).items() if not plain_fakes.is_fake(value)}
        yield from (function.backward, function.vjp, kept)  # (behind a tensor of the trace nothing is read)


def _saved(node: Node) -> tuple[str, ...]:
    names = _RAW.get(type(node))
    if names is None:
        found = (name for name in dir(node) if name.startswith("_raw_saved_"))
        names = _RAW[type(node)] = tuple(name.removeprefix("_raw") for name in found)
    return names
