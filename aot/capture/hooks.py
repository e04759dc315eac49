"""Hooks that the function registers on tensors: which can be part of a trace, and which are refused.

A hook on a tensor of the function's own is a part of the backward, and what it does to the gradient is
recorded. One on a tensor of the caller's would have to run in the caller's backwards, in turn with the hooks
that the caller has there; one that returns nothing is there for its side effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from aot.errors import UnsupportedHook

Hook = Callable[[Tensor], Tensor | None]


class Hooks:
    """The hooks registered in one trace.

    Args:
        in_backward: whether the backward of the function is being recorded now.

    Attributes:
        functions: the hooks themselves.
    """

    def __init__(self, in_backward: Callable[[], bool]) -> None:
        self._in_backward = in_backward
        self._edges: list[GradientEdge] = []
        self.functions: list[Hook] = []

    @property
    def any(self) -> bool:
        """Whether the function has registered any."""
        return bool(self._edges)

    def watch(self, method: str, tensor: Tensor, hook: Hook) -> Hook:
        """What to register instead of `hook`; called for every ``tensor.method(hook)`` in the trace."""
        if method != "register_hook":
            raise UnsupportedHook(
                f"{method} inside of the function: it would have to be registered anew at every call; "
                f"register it outside"
            )
        if tensor.requires_grad:
            self._edges.append(get_gradient_edge(tensor))

        self.functions.append(hook)

        def recorded(gradient: Tensor) -> Tensor | None:
            result = hook(gradient)
            if result is None and self._in_backward():
                raise UnsupportedHook(
                    "a hook that the function registered returns nothing: what else it does would be done "
                    "once, when compiling, and not in every backward; register it outside, on a result"
                )
            return result

        return recorded

    def check(self, what: str, tensors: Iterable[tuple[int, GradientEdge]]) -> None:
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
