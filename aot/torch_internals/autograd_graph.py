"""Nodes of the autograd graph, and what the engine does with them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

__all__ = [
    "NO_MATERIALIZED_GRADS",
    "SAVE_FOR_BACKWARD",
    "all_grad_input_metadata",
    "current_node",
    "fast_apply",
    "function_of",
    "functions_skipped",
    "grad_fn_shape",
    "grad_input_metadata",
    "has_hidden_saved_tensors",
    "is_copy_slices",
    "is_function_node",
    "is_graph_retained",
    "next_sequence_number",
    "recording_unpacked",
    "run_node",
    "sequence_number",
    "will_execute",
]


def current_node() -> Node | None:
    """Inside a backward: the node that runs, if one does."""
    return torch._C._current_autograd_node()


def will_execute(node: Node) -> bool:
    """Inside a backward: whether it runs a node. One that is asked for the gradients of some tensors runs
    what leads to these."""
    return bool(torch._C._will_engine_execute_node(node))


# Inside a backward: whether it was called with ``retain_graph=True``.
is_graph_retained: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph


def fast_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without what it asks of `torch.func`: outside of its transforms, and of tensors that
    none has made. It takes two thirds of the time."""
    apply: Any = super(torch.autograd.Function, function)
    return apply.apply  # type: ignore[no-any-return]


# Statements in the forward of an `autograd.Function`: what its methods `set_materialize_grads` and
# `save_for_backward` do.
NO_MATERIALIZED_GRADS = "ctx.materialize_grads = False"
SAVE_FOR_BACKWARD = "ctx.to_save = {}"


def is_function_node(node: Node | None) -> bool:
    """Whether a node of the autograd graph is one of a custom `autograd.Function`."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def function_of(node: Any) -> type[torch.autograd.Function]:
    """The `autograd.Function` whose node it is."""
    function: type[torch.autograd.Function] = node._forward_cls
    return function


def has_hidden_saved_tensors(node: Node) -> bool:
    """Whether a node of the autograd graph does not show what it checks of what it has saved: those of
    operators on lists unpack all of it, and most have no class of their own; a write to a view has the node
    of what was written inside of its own."""
    name = type(node).__name__
    return name == "CppFunction" or name.startswith("Foreach") or is_copy_slices(node)


def is_copy_slices(node: Node) -> bool:
    """Whether a node of the autograd graph is that of an operation in place on a view, in its base's
    history."""
    return type(node).__name__ == "CopySlices"


def run_node(node: Any, gradients: Sequence[Tensor]) -> None:
    """Run a node of the autograd graph by itself, and keep what it has saved."""
    run = node.apply if is_function_node(node) else node
    run(*gradients)


def all_grad_input_metadata(node: Any) -> tuple[tuple[tuple[int, ...], torch.dtype, torch.device], ...]:
    """The size, dtype and device of each gradient that comes to a node of the autograd graph."""
    return tuple(grad_input_metadata(node, number) for number in range(len(node._input_metadata)))


def grad_input_metadata(node: Any, number: int) -> tuple[tuple[int, ...], torch.dtype, torch.device]:
    """The size, dtype and device that a gradient has which comes to a node of the autograd graph."""
    known = node._input_metadata[number]
    return tuple(known.shape), known.dtype, known.device


@contextlib.contextmanager
def functions_skipped(nodes: Sequence[Any]) -> Iterator[None]:
    """While this lasts, backwards do not call the custom functions of these nodes; they give no gradients.

    It may be entered again for the same nodes, as for a conditional within another one.
    """
    with contextlib.ExitStack() as stack:
        for node in nodes:
            if "apply" not in vars(node):
                node.apply = functools.partial(_return_no_gradients, len(node.needs_input_grad))
                stack.callback(delattr, node, "apply")
        yield


def _return_no_gradients(count: int, *gradients: Tensor | None) -> tuple[None, ...]:
    return (None,) * count


@contextlib.contextmanager
def recording_unpacked(nodes: Collection[Any], unpacked: set[Node]) -> Iterator[None]:
    """While this lasts, the custom functions among `nodes` whose backward asks for `ctx.saved_tensors` are
    added to `unpacked`: autograd then checks all of these, whichever are used."""
    original: Any = vars(torch._C._FunctionBase)["saved_tensors"]

    def saved_tensors(node: Any) -> Any:
        unpacked.add(node)
        return original.__get__(node)

    with contextlib.ExitStack() as stack:
        for kind in {type(node) for node in nodes if is_function_node(node)}:  # one for each function's class
            before = vars(kind).get("saved_tensors")  # of a backward that is recorded around this one
            if before is None:
                stack.callback(delattr, kind, "saved_tensors")
            else:
                stack.callback(setattr, kind, "saved_tensors", before)
            kind.saved_tensors = property(saved_tensors)
        yield


def grad_fn_shape(tensor: Tensor) -> torch.Size:
    """The shape of what a tensor's history has computed."""
    node: Any = tensor.grad_fn
    return torch.Size(node._input_metadata[tensor.output_nr].shape)


def sequence_number(node: Node) -> int:
    """When a node was made: the engine runs the youngest of those that can run."""
    return int(node._sequence_nr())


def next_sequence_number() -> int:
    """That of the node that this thread makes next."""
    return int(torch._C._autograd._get_sequence_nr())
