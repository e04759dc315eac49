"""Cut a joint graph into a forward and a backward graph.

A partitioner takes ``(joint_module, joint_inputs, *, num_fwd_outputs)`` and returns two modules, as
`functorch.compile`'s do: the forward returns its outputs and then the saved values, the backward takes the
saved values and then the tangents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from aot.capture.joint import eliminate_dead_code


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
        _extract(joint_module, primals, forward_nodes, [*outputs[:num_fwd_outputs], *saved], "Forward"),
        _extract(joint_module, [*saved, *tangents], backward_nodes, gradients, "Backward"),
    )


def is_tangent(node: fx.Node) -> bool:
    """Whether a placeholder is a tangent."""
    return node.name.startswith("tangents_")


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


def _extract(
    module: fx.GraphModule,
    inputs: Sequence[fx.Node],
    nodes: Sequence[fx.Node],
    outputs: Sequence[Any],
    name: str,
) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        if node not in copies and node.op not in ("placeholder", "output"):
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[o] if isinstance(o, fx.Node) else o for o in outputs))
    eliminate_dead_code(graph)
    return fx.GraphModule(module, graph, name)


def without_tangents(backward: fx.GraphModule, missing: Sequence[bool]) -> fx.GraphModule:
    """The backward graph for fewer tangents.

    Follows autograd's engine, where an undefined gradient is not a gradient of zeros: what depends on
    missing tangents alone is missing itself, a sum takes the terms that it has, and only an operation that
    joins several gradients into one result gets zeros for those that it lacks.

    Args:
        backward: saved values and then tangents in, gradients out.
        missing: per input, whether it is a tangent that is not given.

    Returns:
        A graph of the inputs that remain, with None for gradients that are missing.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node | None] = {}
    dependent: set[fx.Node] = set()
    inputs = iter(missing)
    for node in backward.graph.nodes:
        if node.op == "placeholder":
            if is_tangent(node):
                dependent.add(node)
            copies[node] = None if next(inputs) else graph.node_copy(node)
        elif node.op == "output":
            graph.output(tuple(copies[o] if isinstance(o, fx.Node) else o for o in node.args[0]))
        else:
            gradients = [n for n in node.all_input_nodes if n in dependent]
            dependent.update([node] if gradients else [])
            lacking = [n for n in gradients if copies[n] is None]
            if lacking and _is_sum(node):
                copies[node] = next((copies[n] for n in node.args if copies[n] is not None), None)
            elif gradients and len(lacking) == len(gradients):
                copies[node] = None
            else:
                for name in lacking:
                    copies[name] = _zeros(graph, name)
                copies[node] = graph.node_copy(node, lambda n: copies[n])
    eliminate_dead_code(graph)
    return fx.GraphModule(backward, graph, "BackwardPart")


def _is_sum(node: fx.Node) -> bool:
    return (
        node.target is torch.ops.aten.add.Tensor
        and not node.kwargs
        and len(node.args) == 2
        and all(isinstance(a, fx.Node) for a in node.args)
    )


def _zeros(graph: fx.Graph, like: fx.Node) -> fx.Node:
    val = like.meta["val"]
    node = graph.call_function(
        torch.ops.aten.zeros.default, (list(val.shape),), {"dtype": val.dtype, "device": val.device}
    )
    node.meta["val"] = val
    return node
