"""The default partitioner: save what eager saves.

In: ``(joint_module, joint_inputs, *, num_fwd_outputs)``, as torch's partitioners take. Out: two modules. The
forward returns its outputs and then the saved values. The backward takes the saved values and then the
tangents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from aot.partition.costs import is_free
from aot.partition.joint_graph import (
    ancestors_among,
    extract_forward_and_backward,
    is_tensor,
    parse_joint_graph,
)


def default_partition(
    joint_module: fx.GraphModule,
    joint_inputs: Sequence[Any],
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Save what eager saves: every forward value that the recorded backward reads.

    A view of a whole graph input is not saved. The input is saved instead, and the backward takes the view.

    Args:
        joint_module: placeholders named ``tangents_*`` come last; backward nodes carry
            ``meta["partitioner_tag"]``, ``"is_backward"`` or ``"must_be_in_backward"``.
        joint_inputs: fake tensors, one for each placeholder; unused, because nodes have their metadata.
        num_fwd_outputs: how many of the joint outputs belong to the forward.
        static_lifetime_input_indices: inputs that are alive until the backward anyway; unused, because this
            partitioner chooses nothing.

    Raises:
        PartitionError: the joint graph does not have this form.

    Example:
        >>> forward, backward = default_partition(joint, inputs, num_fwd_outputs=1)  # doctest: +SKIP
    """
    parts = parse_joint_graph(joint_module, num_fwd_outputs)
    nodes = list(joint_module.graph.nodes)
    again = _views_of_inputs(nodes, parts.primals)
    needed = ancestors_among(parts.demanded, parts.recorded_backward | again)
    forward = [n for n in nodes if n not in parts.recorded_backward and n.op != "get_attr"]
    gradients = {g for g in parts.gradients if isinstance(g, fx.Node)}
    saved = [
        n
        for n in forward
        if n not in needed and n.op != "output" and (n in gradients or any(u in needed for u in n.users))
    ]
    return extract_forward_and_backward(parts, forward, saved, [n for n in nodes if n in needed])


def _views_of_inputs(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> frozenset[fx.Node]:
    """The forward's views that show each element of a graph input exactly once.

    The input is in memory anyway, and a further derivative may read it in another way. `as_strided` does not
    count, because it depends on the layout of its argument.
    """
    whole = {n for n in inputs if is_tensor(n)}
    views = set()
    for node in nodes:
        if node.op != "call_function" or not is_free(node) or not is_tensor(node):
            continue
        (source,) = node.all_input_nodes
        strided = node.target is torch.ops.aten.as_strided.default
        if not strided and source in whole and node.meta["val"].numel() == source.meta["val"].numel():
            whole.add(node)
            views.add(node)
    return frozenset(views)
