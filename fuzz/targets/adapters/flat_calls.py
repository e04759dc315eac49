"""Functions of flat lists of tensors, for exporters: what is nested, and what is no tensor, stays in Python.

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
"""What gives, for a module and its arguments, all of them tensors, a function that returns its flat
results."""

GRAPH_CLAUSES = clauses_of(("results",), without=("repeat", "threads", "randomness", "lifetime", "refusals"))
"""What is promised of a graph in another format, which is exported anew for each call."""

GRAPH_LACKS = (
    *("complex", "cuda", "metadata", "python", "random", "subclass", "argument: parameter"),
    *("data: argument", "data: view of an argument", "data: of a module"),
)
"""What such a graph has no words for."""


class _Place:
    """Where a tensor stood in a tree."""


_PLACE = _Place()


def compile_flat(export: Exporter) -> Callable[[Function], Function]:
    """What compiles a function by an exporter, anew for the arguments of each call.

    The exporter sees a module, whose `forward` takes tensors and returns a tuple of tensors.
    """

    def compile_function(function: Function) -> Function:
        def call(*args: Any) -> Any:
            import torch

            class Flat(torch.nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.function = function  # which registers a module

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
    """The tree that `take_tensors` was given, with these tensors, which are removed from the list."""
    if tree is _PLACE:
        return tensors.pop(0)
    if isinstance(tree, dict):
        return {key: put_tensors(part, tensors) for key, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        return _like(tree, [put_tensors(part, tensors) for part in tree])
    return tree


def _like(tree: Any, parts: Sequence[Any]) -> Any:
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
