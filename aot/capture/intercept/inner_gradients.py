"""What a function that takes gradients with respect to its arguments cannot see in a trace: what the caller
has to do with these outside.

In a trace, history begins at the arguments. In eager, hooks on an argument see such a gradient, and another
argument that was computed from it leads to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from aot.errors import UnsupportedHook, UnsupportedOperation
from aot.torch_internals import dynamo_api, mode_stacks


def with_outer_graph_check(call: Callable[..., Any], grad_targets: Collection[int]) -> Callable[..., Any]:
    """A `call` of a known kind, which takes the tensors of the call and some of its numbers, with the check
    before it."""

    def checked(*given: Any) -> Any:
        check_outer_graph([one for one in given if isinstance(one, Tensor)], grad_targets)
        return call(*given)

    dynamo_api.skip(checked)
    return checked


def check_outer_graph(tensors: Sequence[Tensor], grad_targets: Collection[int]) -> None:
    """Refuse a gradient with respect to some of the tensors of a call that would be another one in eager.

    Raises:
        UnsupportedHook: one of them has hooks.
        UnsupportedOperation: another tensor was computed from one of them.
    """
    edges: dict[tuple[Node | None, int], int] = {}
    for number, tensor in enumerate(tensors):
        if number in grad_targets and tensor.requires_grad:
            if tensor._backward_hooks or tensor.retains_grad:
                raise UnsupportedHook(
                    f"the function takes a gradient with respect to tensor {number}, which has hooks "
                    f"(register_hook, retain_grad) that would see it; register them after the call"
                )
            with mode_stacks.dispatch_modes_off():
                edge = get_gradient_edge(tensor)
            edges[edge.node, edge.output_nr] = number
    stack: list[Node] = [t.grad_fn for t in tensors if t.grad_fn is not None] if edges else []
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for child, number in node.next_functions:
            if (child, number) in edges:
                raise UnsupportedOperation(
                    f"the function takes a gradient with respect to tensor {edges[child, number]}, from "
                    f"which another argument was computed outside; compute that one inside of the function, "
                    f"or detach it"
                )
            if child is not None:
                stack.append(child)
