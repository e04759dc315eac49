"""Hooks that the function registers on tensors and on nodes of the autograd graph: which can be part of a
trace, and which are refused.

A hook on a tensor of the function's own is a part of the backward, and what it does to the gradient is
recorded. One on a tensor of the caller's, or on what is made at every call outside of the compiled backward
(views of arguments and of results), would have to be registered there, in turn with the hooks that the
caller has there; one that returns nothing is there for its side effects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from aot.capture.intercept.patches import patched_node_hooks
from aot.errors import UnsupportedHook
from aot.torch_internals import autograd_state

Hook = Callable[..., Any]


class HookRegistrations:
    """The hooks registered in one trace.

    Args:
        in_backward: whether the backward of the function is being recorded now.

    Attributes:
        functions: the hooks themselves.
        nothing: what stands for the gradients of nodes that run although none comes to them.
    """

    def __init__(self, in_backward: Callable[[], bool]) -> None:
        self._in_backward = in_backward
        self._edges: list[GradientEdge] = []
        self.functions: list[Hook] = []
        self.nothing: Sequence[Tensor] = ()
        self._on_nodes: list[Hook] = []

    @property
    def any(self) -> bool:
        """Whether the function has registered any."""
        return bool(self._edges or self._on_nodes)

    def wrap_hook(self, method: str, tensor: Tensor, hook: Hook) -> Hook:
        """What to register instead of `hook`; called for every ``tensor.method(hook)`` in the trace."""
        if method != "register_hook":
            raise UnsupportedHook(
                f"{method} inside of the function: it would have to be registered anew at every call; "
                f"register it outside"
            )
        if tensor.requires_grad:
            try:
                with autograd_state.outside_inference_mode(), torch.enable_grad():  # it may take a view
                    self._edges.append(get_gradient_edge(tensor))
            except AssertionError:
                raise UnsupportedHook(
                    "a hook on a view that was taken without grad mode, or before its base began to require "
                    "grad: no gradient comes to it; leave it out"
                ) from None
        return self._recorded_hook(hook)

    def watch_node(self, hook: Hook) -> Hook:
        """What to register instead of `hook`; called for every hook on a node of the autograd graph, and for
        those of a module, which are called by such."""
        recorded = self._recorded_hook(hook)
        self._on_nodes.append(recorded)
        return recorded

    def _recorded_hook(self, hook: Hook) -> Hook:
        self.functions.append(hook)

        def recorded(*gradients: Any) -> Any:
            given = any(gradient is not None for gradient in gradients)
            gradients = self._hook_arguments(gradients)
            result = hook(*gradients)
            # (A tensor that no gradient comes to has None, and that is what it gives back.)
            if given and not any(gradient is not None for gradient in gradients):
                if result is not None:  # what autograd says
                    raise RuntimeError("can't replace a None gradient with a non-None value")
                return None
            if result is None and given and self._in_backward():
                raise UnsupportedHook(
                    "a hook that the function or one of its modules has registered returns nothing: what "
                    "else it does would be done once, when compiling, and not in every backward; register it "
                    "outside, on a result"
                )
            return result

        return recorded

    def _hook_arguments(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        """What eager calls a hook with, of a tensor or of a node."""
        return tuple(
            self._hook_arguments(one)
            if isinstance(one, tuple)
            else None
            if any(one is nothing for nothing in self.nothing)
            else one
            for one in gradients
        )

    def refuse_hooks_on_arguments(self, what: str, tensors: Iterable[tuple[int, GradientEdge]]) -> None:
        """Refuse hooks on tensors of the caller's.

        Raises:
            UnsupportedHook: there is one on the edge of one of `tensors`, which are numbered `what`s.
        """
        for number, edge in tensors:
            if any(edge.node is e.node and edge.output_nr == e.output_nr for e in self._edges):
                raise UnsupportedHook(
                    f"the function registers a hook on {what} {number}, which the caller can register hooks "
                    f"on and differentiate as well; register it outside, or on a copy (x * 1)"
                )

    def refuse_hooks_outside_backward(
        self, edges: Collection[tuple[Node, int]], ends: Iterable[Node]
    ) -> None:
        """Refuse hooks that the compiled backward would not run.

        Args:
            edges: the edges of what the caller's own history consists of.
            ends: the nodes at which the arguments entered.

        Raises:
            UnsupportedHook: there is one on one of them.
        """
        on_edge = any((e.node, e.output_nr) in edges for e in self._edges)
        nodes = {node for node, _ in edges}.union(ends) if self._on_nodes else ()
        if on_edge or any(h in self._on_nodes for node in nodes for h in patched_node_hooks(node)):
            raise UnsupportedHook(
                "the function registers a hook on an argument, on a view of one or of a result, or on the "
                "node of one (grad_fn.register_hook), which is made anew at every call; register it outside, "
                "or on a copy (x * 1)"
            )
