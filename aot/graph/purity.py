"""Purity: which nodes of a graph must not be dropped, repeated or moved, because running them is seen.

These are random draws, checks that may raise, writes to graph inputs, and external effects.
"""

from __future__ import annotations

import torch
from torch import fx

from aot.ops.classify import drops_nothing, has_external_effect, operation_of
from aot.torch_internals import op_queries

BACKWARD_TAGS = ("is_backward", "must_be_in_backward")
"""The partitioner tags of nodes that were recorded in a backward. With the second, a node must run there."""


def eliminate_dead_code(graph: fx.Graph, *, forward: bool = True) -> None:
    """Remove nodes without users or effects. A `forward` or joint graph also keeps nodes that may raise."""
    for node in reversed(graph.nodes):
        dead = not node.users and node.op in ("call_function", "get_attr")
        if dead and not is_impure(node) and not (forward and "may_raise" in node.meta):
            graph.erase_node(node)


def node_has_external_effect(node: fx.Node) -> bool:
    """Whether a node has an external effect (`classify.has_external_effect`).

    A node that was recorded in a backward and has no segment does not count: that backward was only a test.
    """
    op = operation_of(node)
    tried = is_recorded_in_backward(node) and "segment" not in node.meta
    return op is not None and has_external_effect(op) and not tried


def is_recorded_in_backward(node: fx.Node) -> bool:
    """Whether a node was recorded in a backward."""
    return node.meta.get("partitioner_tag") in BACKWARD_TAGS


def is_backward_write(node: fx.Node) -> bool:
    """Whether a node is the copy by which a backward writes to memory of the forward."""
    return node.target is torch.ops.aten.copy_.default and "segment" in node.meta


def is_impure(node: fx.Node) -> bool:
    """Whether a node must run although nobody reads its result.

    It draws random numbers, writes to a graph input, is a check that may raise, or has an external effect.
    """
    op = operation_of(node)
    if op is None or node_has_external_effect(node):
        return op is not None
    if node.target is torch.ops.aten.copy_.default or is_random_node(node):
        return True
    return not op._schema.returns and not has_external_effect(op)


def is_random_node(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    op = operation_of(node)
    if op is None or not op_queries.may_be_random(op):
        return False
    return node.target is not op or not drops_nothing(op, node.args, node.kwargs)
