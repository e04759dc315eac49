"""What the gradients of a segment come of: which tangents, what else, and whose memory.

In: what was recorded of a backward, segment by segment, and its graph. Out: what an incomplete set of
tangents leaves of the gradients, and which of them show the memory of another tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

import torch
from torch import fx
from torch.autograd.graph import Node

from aot.capture.autograd.engine import RecordedSegment
from aot.capture.autograd.segments import NodeGroup, SegmentedGraph
from aot.ops.classify import is_sum
from aot.tensors.subclasses import inner_tensors, is_nested, is_wrapper
from aot.tensors.views import alias_root
from aot.torch_internals import autograd_graph


def tangent_dependencies(
    graph: fx.Graph, segments: Iterable[RecordedSegment]
) -> dict[fx.Node, frozenset[fx.Node]]:
    """For what comes to custom functions and to writes to views, the tangents that it is computed from."""
    coming = (
        nodes for one in segments for nodes in (*one.custom_function_grads.values(), *one.written.values())
    )
    asked = {node for nodes in coming for node in nodes}
    if not asked:
        return {}
    tangents = [t for recorded in segments for one in recorded.tangents.values() for t in one.nodes]
    bits = {node: 1 << i for i, node in enumerate(tangents)}
    masks: dict[fx.Node, int] = {}
    for node in graph.nodes:
        mask = bits.get(node, 0)
        for one in node.all_input_nodes:
            mask |= masks[one]
        masks[node] = mask
    return {node: frozenset(t for t in tangents if masks[node] & bits[t]) for node in asked}


def aliased_gradients(recorded: RecordedSegment, results: Sequence[fx.Node]) -> set[Hashable]:
    """Which of the gradients, whose nodes are `results`, are views that show all of what their nodes are."""
    nodes = iter(results)
    known = {node: t.fake for t in recorded.tangents.values() if not is_wrapper(t.fake) for node in t.nodes}
    found: set[Hashable] = set()
    for target, gradient in recorded.gradients.items():
        for part, node in zip(inner_tensors(gradient), nodes, strict=False):
            computed = part._is_view() and alias_root(node) is node
            if computed or known.setdefault(node, part) is not part:
                found.add(target)
    return found


def segments_with_constant_gradients(
    graph: fx.Graph, segments: Sequence[RecordedSegment], results: Sequence[Sequence[fx.Node]]
) -> set[int]:
    """Which segments with several tangents have a gradient that is computed from none of them, or is a sum
    with such a term: the formula of a tensor without elements makes zeros, and so does that of `sgn`, which
    no sum shows. The graph does not tell for which tangents that is."""
    several = [k for k, one in enumerate(segments) if sum(len(t.nodes) for t in one.tangents.values()) > 1]
    if not several or any(node.target is torch.ops.aten._efficientzerotensor.default for node in graph.nodes):
        return set(several)
    dependent = {node for k in several for t in segments[k].tangents.values() for node in t.nodes}
    constant: set[fx.Node] = set()
    for node in graph.nodes:
        if node in dependent or not dependent.isdisjoint(node.all_input_nodes):
            dependent.add(node)
            terms = node.all_input_nodes if is_sum(node) else ()
            if not dependent.issuperset(terms) or not constant.isdisjoint(node.all_input_nodes):
                constant.add(node)
    return {k for k in several if any(n not in dependent or n in constant for n in results[k])}


def custom_function_needs(
    graph: SegmentedGraph,
    nodes: NodeGroup,
    recorded: RecordedSegment,
    behind: Mapping[fx.Node, Collection[fx.Node]],
) -> tuple[bool, tuple[int, ...]]:
    """A segment's `runs_custom_function` and `needed`.

    A custom function to which no gradient comes says what that gives. So does a wrapper subclass's own code
    where it adds gradients up, or joins them: in the graph that looks like anything else.
    """
    tangents = [tangent for _, tangent in sorted(recorded.tangents.items())]
    nested = any(is_wrapper(one.fake) and is_nested(one.fake) for one in tangents)
    whole = bool(recorded.custom_function_grads) and not nested  # (which is not recorded again)
    wrapped = any(is_wrapper(one.fake) for one in tangents)
    if _joins_custom_function_results(graph, nodes) or (wrapped and not nested and len(tangents) > 1):
        return whole, (0,)
    if not whole:
        return False, ()
    return True, tuple(
        sorted({recorded.behind(given, behind) for given in recorded.custom_function_grads.values()})
    )


def _joins_custom_function_results(graph: SegmentedGraph, nodes: NodeGroup) -> bool:
    """Whether gradients come to several results of one custom function."""
    within = (edge for node in nodes.nodes for _, edge in graph.below(node))
    known: dict[Node, int] = {}
    for node, number in (*nodes.cotangent_inputs, *within):
        if known.setdefault(node, number) != number and autograd_graph.is_function_node(node):
            return True
    return False
