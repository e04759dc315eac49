"""Tensor bytes: the node in whose memory a value lies, and how many bytes the value takes."""

from __future__ import annotations

import math
import operator

from torch import Tensor, fx

from aot.tensors.geometry import Geometry, geometry
from aot.tensors.symbolic_sizes import with_hints
from aot.tensors.views import may_alias
from aot.torch_internals import op_queries


def memory_roots(graph: fx.Graph, *, counted: bool = False) -> dict[fx.Node, fx.Node]:
    """For each node, the node in whose memory its result may lie: the base of a chain of views.

    If `counted`, only views count that certainly share a version counter with their base.
    """
    roots: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        roots[node] = node
        if first is None or node.op != "call_function":
            continue
        if node.target is operator.getitem:
            # One of several views has their base; one of several new results is its own base.
            roots[node] = roots[first] if roots[first] is not first else node
        elif isinstance(node.target, op_queries.OpOverload) and (
            node.target.is_view if counted else may_alias(node.target)
        ):
            roots[node] = roots[first]
    return roots


def span_bytes(node: fx.Node) -> int:
    """The bytes from the first to the last element of a tensor value, with gaps.

    A copy with the same strides takes as many.
    """
    where: Geometry = with_hints(geometry(node.meta["val"]))
    return int(where.stop - where.offset) * where.dtype.itemsize


def element_bytes(node: fx.Node) -> int:
    """The bytes of all elements of a value; for a tuple, of all its tensors."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return sum(
        math.prod(with_hints(tuple(p.shape))) * p.dtype.itemsize for p in parts if isinstance(p, Tensor)
    )
