"""What is seen of a graph that runs, besides its results: what is not to be dropped, repeated or moved."""

from __future__ import annotations

import torch
from torch import fx

from aot.ops.classify import drops_nothing, has_external_effect, operation_of
from aot.torch_internals import op_queries

BACKWARD_TAGS = ("is_backward", "must_be_in_backward")
"""What partitioners read: that a node was recorded in a backward; and that it is to run there alone."""


def eliminate_dead_code(graph: fx.Graph, *, forward: bool = True) -> None:
    """Drop every node without users or effects; of a `forward`, or a joint graph, not what may raise."""
    for node in reversed(graph.nodes):
        dead = not node.users and node.op in ("call_function", "get_attr")
        if dead and not is_impure(node) and not (forward and "may_raise" in node.meta):
            graph.erase_node(node)


def node_has_external_effect(node: fx.Node) -> bool:
    """Whether somebody outside sees that the node runs (`classify.has_external_effect`). What was recorded in
    a backward, and is of no segment, belongs to a backward that was only tried."""
    op = operation_of(node)
    tried = is_recorded_in_backward(node) and "segment" not in node.meta
    return op is not None and has_external_effect(op) and not tried


def is_recorded_in_backward(node: fx.Node) -> bool:
    """Whether a node was recorded in a backward."""
    return node.meta.get("partitioner_tag") in BACKWARD_TAGS


def is_backward_write(node: fx.Node) -> bool:
    """Whether it is the copy by which a backward leaves a value in memory of the forward."""
    return node.target is torch.ops.aten.copy_.default and "segment" in node.meta


def is_impure(node: fx.Node) -> bool:
    """Whether running the node is seen even if nobody reads its result: it moves a random generator, writes
    to a graph input, is a check that may raise, or acts outside."""
    op = operation_of(node)
    if op is None or node_has_external_effect(node):
        return op is not None
    if node.target is torch.ops.aten.copy_.default or is_random_node(node):
        return True
    return not op._schema.returns and not has_external_effect(op)


def is_random_node(node: fx.Node) -> bool:
    """Whether running the node draws random numbers."""
    op = operation_of(node)
    if op is None or not op_queries.may_be_random(op):
        return False
    return node.target is not op or not drops_nothing(op, node.args, node.kwargs)
