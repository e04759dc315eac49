"""Max flow: a minimum cut between a source and a sink, by igraph if it is installed, else by networkx.

In: a number of vertices, arcs with capacities, source and sink. Out: the capacity and the sink's side of the
cut.

Both solvers are exact. igraph is a C library and 35 to 210 times as fast. It is under the GPL, so it is an
extra of this project, not a requirement. networkx comes with torch. If several cuts are equally small, both
give the one that is nearest to the sink.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from aot.errors import PartitionError

Arc = tuple[int, int, int | None]


def minimum_cut(vertices: int, arcs: list[Arc], source: int, sink: int) -> tuple[int, set[int]]:
    """Find arcs of least total capacity without which the sink cannot be reached from the source.

    Args:
        vertices: the number of vertices, which are named 0 to ``vertices - 1``.
        arcs: ``(from, to, capacity)`` with an integer capacity, or None for an arc that must not be cut.
        source, sink: two vertices.

    Returns:
        The total capacity of the cut, and the vertices on the sink's side. The cut is the arcs that enter it.

    Raises:
        PartitionError: every cut contains an arc that must not be cut, or the solver gives no cut.

    Example:
        >>> minimum_cut(3, [(0, 1, 2), (1, 2, 5)], 0, 2)
        (2, {1, 2})
    """
    # igraph accepts infinite capacities and returns wrong cuts, as any solver with finite numbers may.
    uncuttable = 1 + sum(c for _, _, c in arcs if c is not None)
    finite = [(a, b, uncuttable if c is None else c) for a, b, c in arcs]
    side = _solver()(vertices, finite, source, sink)
    value = 0
    for start, end, capacity in arcs:
        if start not in side and end in side:
            if capacity is None:
                raise PartitionError(
                    "no valid partition: the backward needs a value that can neither be saved nor recomputed"
                )
            value += capacity
    if source in side or sink not in side:
        raise PartitionError("the minimum cut solver returned something that is no cut")
    return value, side


def _solver() -> Callable[[int, list[tuple[int, int, int]], int, int], set[int]]:
    return with_igraph if importlib.util.find_spec("igraph") is not None else minimum_cut_with_networkx


def with_igraph(vertices: int, arcs: list[tuple[int, int, int]], source: int, sink: int) -> set[int]:
    """The sink's side of a minimum cut, by igraph."""
    import igraph

    graph = igraph.Graph(vertices, [(a, b) for a, b, _ in arcs], directed=True)
    flow: Any = graph.maxflow(source, sink, [c for _, _, c in arcs])
    return set(flow.partition[1])


def minimum_cut_with_networkx(
    vertices: int, arcs: list[tuple[int, int, int]], source: int, sink: int
) -> set[int]:
    """The sink's side of a minimum cut, by networkx."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(vertices))
    for start, end, capacity in arcs:
        if graph.has_edge(start, end):
            capacity += graph[start][end]["capacity"]
        graph.add_edge(start, end, capacity=capacity)
    _, (_, side) = networkx.minimum_cut(graph, source, sink)
    return set(side)
