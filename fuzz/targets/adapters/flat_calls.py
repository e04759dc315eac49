"""Flat calls: for exporters, a function of a flat list of tensors.

Containers, and values that are no tensors, stay in Python.

    flat = FlatFunction(lambda x, number: {"y": x * number})
    flat.compile_for(trace, (torch.ones(2), 3))(torch.ones(2), 3)      # trace sees a function of one tensor
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fuzz.targets.clause_sets import clauses_of
from fuzz.targets.target import Function

if TYPE_CHECKING:
    import torch

Exporter = Callable[["torch.nn.Module", "tuple[torch.Tensor, ...]"], Function]
"""A function that exports a module for arguments, which are all tensors, and gives a function with
flat results.
"""

GRAPH_CLAUSES = clauses_of(("results",), without=("repeat", "threads", "randomness", "lifetime", "refusals"))
"""The clauses of a graph in another format, which is exported for each call anew."""

GRAPH_LACKS = (
    *("complex", "cuda", "metadata", "python", "random", "subclass", "argument: parameter"),
    *("data: argument", "data: view of an argument", "data: of a module"),
)
"""Capabilities that such a graph lacks."""


class _Place:
    """The place of a tensor in a tree."""


_PLACE = _Place()


def compile_flat(export: Exporter) -> Callable[[Function], Function]:
    """A function that compiles a function with an exporter, for the arguments of each call anew.

    The exporter gets a module whose `forward` takes tensors and returns a tuple of tensors.
    """

    def compile_function(function: Function) -> Function:
        def call(*args: Any) -> Any:
            import torch

            class Flat(torch.nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.function = function  # the assignment registers it if it is a module

                def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
                    results: list[torch.Tensor] = []
                    trees[:] = [take_tensors(self.function(*put_tensors(given, list(tensors))), results)]
                    return tuple(results)

            arguments: list[torch.Tensor] = []
            given = take_tensors(args, arguments)
            trees: list[Any] = []
            exported = export(Flat(), tuple(arguments))
            results = exported(*arguments)
            return put_tensors(trees[0], list(results))

        return call

    return compile_function


def take_tensors(tree: Any, found: list[torch.Tensor]) -> Any:
    """A tree of tuples, lists and dicts without its tensors, which are added to `found`.

    >>> take_tensors({"a": (1, None)}, [])
    {'a': (1, None)}
    """
    import torch

    if isinstance(tree, torch.Tensor):
        found.append(tree)
        return _PLACE
    if isinstance(tree, dict):
        return {key: take_tensors(part, found) for key, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        return _like(tree, [take_tensors(part, found) for part in tree])
    return tree


def put_tensors(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of `take_tensors`, with these tensors, which are removed from the list."""
    if tree is _PLACE:
        return tensors.pop(0)
    if isinstance(tree, dict):
        return {key: put_tensors(part, tensors) for key, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        return _like(tree, [put_tensors(part, tensors) for part in tree])
    return tree


def _like(tree: Any, parts: Sequence[Any]) -> Any:
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
