"""The backward from some of the results: the graphs of single segments, and those for fewer tangents."""

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
    """The backward graph of each segment, and which saved values it takes; None for one without results.

    Args:
        backward: saved values and then tangents in, gradients out; the latter two segment by segment.
        segments: what the tangents and the gradients belong to.
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
    """What results are computed from, they included."""
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
    """What is left of a sum, lying as that does: what reads it was recorded for that, without the
    `contiguous()` that some of autograd's formulas have (`native_group_norm_backward`), as it did nothing."""
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
