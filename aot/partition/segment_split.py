"""Segment split: backward graphs for some of the results.

In: the backward graph of a partition. Out: one graph for each segment, and graphs for fewer tangents. A user
may run a backward from some results only; then only their segments run, with only the tangents that are
given.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from aot.graph.purity import eliminate_dead_code, is_backward_write, node_has_external_effect
from aot.joint.joint import Segment
from aot.ops.classify import is_sum
from aot.partition.joint_graph import extract, is_tangent
from aot.tensors.geometry import known_equal
from aot.tensors.symbolic_sizes import as_arguments
from aot.torch_internals import fx_graphs


def split_by_segment(
    backward: fx.GraphModule, segments: Sequence[Segment]
) -> list[tuple[fx.GraphModule | None, tuple[int, ...]]]:
    """Split a backward graph into the graphs of its segments.

    Args:
        backward: takes saved values and then tangents, and returns gradients. Tangents and gradients are
            ordered by segment.
        segments: the segments, with the number of their tangents and gradients.

    Returns:
        For each segment its graph, or None if it has no results, and the positions of the saved values that
        the graph takes.
    """
    if len(segments) == 1:
        count = sum(n.op == "placeholder" and not is_tangent(n) for n in backward.graph.nodes)
        return [(backward, tuple(range(count)))]
    nodes = list(backward.graph.nodes)
    saved = [n for n in nodes if n.op == "placeholder" and not is_tangent(n)]
    tangents = [n for n in nodes if n.op == "placeholder" and is_tangent(n)]
    outputs = list(nodes[-1].args[0])
    acts = [n for n in nodes if node_has_external_effect(n) or is_backward_write(n)]
    parts: list[tuple[fx.GraphModule | None, tuple[int, ...]]] = []
    for number, segment in enumerate(segments):
        ours, tangents = tangents[: len(segment.tangents)], tangents[len(segment.tangents) :]
        results, outputs = outputs[: segment.results], outputs[segment.results :]
        if not results:
            parts.append((None, ()))
            continue
        needed = _segment_ancestors([*results, *(n for n in acts if n.meta["segment"] == number)])
        taken = tuple(i for i, node in enumerate(saved) if node in needed)
        inputs = [*(saved[i] for i in taken), *ours]
        body = [n for n in nodes if n in needed]
        parts.append((extract(backward, inputs, body, results, "Backward"), taken))
    return parts


def _segment_ancestors(results: Sequence[fx.Node | None]) -> set[fx.Node]:
    """The nodes that results are computed from, and the results."""
    found: set[fx.Node] = set()
    stack = [result for result in results if result is not None]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def specialize_to_tangents(backward: fx.GraphModule, missing: Sequence[bool]) -> fx.GraphModule:
    """The backward graph for fewer tangents.

    The graph follows autograd's engine, where an undefined gradient is not a gradient of zeros. A value that
    depends on missing tangents only is missing itself. A sum takes the terms that exist. Only an operation
    that joins several gradients into one result gets zeros for the missing ones.

    Args:
        backward: takes saved values and then tangents, and returns gradients.
        missing: for each input, whether it is a tangent that is not given.

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
            if lacking and is_sum(node):
                terms = ((n, copy) for n in node.args if (copy := copies[n]) is not None)
                left = next(terms, None)
                copies[node] = None if left is None else _sum_remainder_laid_as(graph, node, *left)
            elif gradients and len(lacking) == len(gradients):
                copies[node] = None
            else:
                for name in lacking:
                    copies[name] = _zeros(graph, name)
                copies[node] = fx_graphs.copy_node(graph, node, copies)
    eliminate_dead_code(graph, forward=False)
    return fx_graphs.LazyGraphModule(backward, graph, "BackwardPart")


def _sum_remainder_laid_as(graph: fx.Graph, total: fx.Node, left: fx.Node, copy: fx.Node) -> fx.Node:
    """The term that is left of a sum, with the strides of the sum.

    The nodes that read the sum were recorded for its strides. Some of autograd's formulas call
    `contiguous()`, as `native_group_norm_backward` does. It did nothing on the sum, and so is not in the
    graph.
    """
    val = total.meta["val"]
    read = any(user.op != "output" for user in total.users)
    if not read or known_equal(tuple(val.stride()), tuple(left.meta["val"].stride())):
        return copy
    layout = as_arguments(list(val.shape)), as_arguments(list(val.stride()))
    kwargs = {"dtype": val.dtype, "device": val.device}
    blank = graph.call_function(torch.ops.aten.empty_strided.default, layout, kwargs)
    node = graph.call_function(torch.ops.aten.copy.default, (blank, copy))
    blank.meta["val"] = node.meta["val"] = val
    return node


def _zeros(graph: fx.Graph, like: fx.Node) -> fx.Node:
    val = like.meta["val"]
    size = as_arguments(list(val.shape))
    kwargs = {"dtype": val.dtype, "device": val.device}
    node = graph.call_function(torch.ops.aten.zeros.default, (size,), kwargs)
    node.meta["val"] = val
    return node
