"""Cut a joint graph into a forward and a backward graph.

A partitioner takes ``(joint_module, joint_inputs, *, num_fwd_outputs)`` and returns two modules, as
`functorch.compile`'s do: the forward returns its outputs and then the saved values, the backward takes the
saved values and then the tangents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import fx

from aot.partition.common import extract, is_tangent


def default_partition(
    joint_module: fx.GraphModule, joint_inputs: Sequence[Any], *, num_fwd_outputs: int
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Save what eager saves: every forward value that the recorded backward reads.

    Args:
        joint_module: placeholders named ``tangents_*`` come last; backward nodes carry
            ``meta["partitioner_tag"] == "is_backward"``.
        joint_inputs: fake tensors, one per placeholder; unused, as the nodes know their metadata.
        num_fwd_outputs: how many of the joint outputs belong to the forward.

    Example:
        >>> forward, backward = default_partition(joint, inputs, num_fwd_outputs=1)  # doctest: +SKIP
    """
    nodes = list(joint_module.graph.nodes)
    outputs: Sequence[Any] = nodes[-1].args[0]
    primals = [n for n in nodes if n.op == "placeholder" and not is_tangent(n)]
    tangents = [n for n in nodes if n.op == "placeholder" and is_tangent(n)]
    backward = {n for n in nodes if n.meta.get("partitioner_tag") == "is_backward"}.union(tangents)
    gradients = list(outputs[num_fwd_outputs:])
    needed = _needed(gradients, backward)
    saved: dict[fx.Node, None] = {}
    for node in nodes:
        if node in backward or node.op == "get_attr":
            continue
        if node in gradients or any(user in needed for user in node.users):
            saved[node] = None
    forward_nodes = [n for n in nodes if n not in backward]
    constants = [n for n in nodes if n.op == "get_attr"]
    backward_nodes = constants + [n for n in nodes if n in needed]
    return (
        extract(joint_module, primals, forward_nodes, [*outputs[:num_fwd_outputs], *saved], "Forward"),
        extract(joint_module, [*saved, *tangents], backward_nodes, gradients, "Backward"),
    )


def _needed(gradients: Iterable[Any], backward: set[fx.Node]) -> set[fx.Node]:
    """The backward nodes that the gradients are computed from."""
    needed: set[fx.Node] = set()
    stack = [g for g in gradients if isinstance(g, fx.Node)]
    while stack:
        node = stack.pop()
        if node in backward and node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    return needed
