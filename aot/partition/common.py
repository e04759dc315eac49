"""What every partitioner needs: a joint graph's parts, and the two graphs extracted from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from aot.capture.joint import eliminate_dead_code


def is_tangent(node: fx.Node) -> bool:
    """Whether a placeholder is a tangent."""
    return node.name.startswith("tangents_")


def extract(
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
