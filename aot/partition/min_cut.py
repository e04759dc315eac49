"""The minimum-cut partitioner: save the fewest bytes from which the backward can recompute the rest.

In: a joint graph. Out: a forward and a backward module.

To save less and compute again is an old trade (Griewank and Walther, "Evaluating Derivatives", chapter 12;
Chen et al., "Training deep nets with sublinear memory cost", arXiv:1604.06174). PyTorch observed that the
best choice is a minimum cut if recomputation is cheap (H. He, "Min-cut optimal recomputation with
AOTAutograd", dev-discuss.pytorch.org/t/467).

In the network, each value that needs no tangent is an arc. Its capacity is the cost to save it. A value that
must not be recomputed is joined to the source. A value that the backward reads is joined to the sink.

Recomputation also costs time. So an arc leads from the source to each value that may be recomputed. It is cut
if the value is recomputed, and its capacity is `TIME_FOR_MEMORY` times the value's time. Among equal cuts the
one nearest to the backward is taken, because it recomputes least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import fx

from aot.errors import PartitionError
from aot.partition.costs import Recompute, cost, recompute_class
from aot.partition.joint_graph import (
    JointGraph,
    ancestors_among,
    extract_forward_and_backward,
    is_tensor,
    parse_joint_graph,
)
from aot.partition.knapsack import knapsack_within
from aot.partition.max_flow import Arc, minimum_cut
from aot.partition.tensor_bytes import memory_roots, span_bytes

# The bytes of memory that a byte moved by recomputation must spare. A pointwise operation moves two to three
# times the size of its result, so a value is recomputed through at most about twenty of them.
TIME_FOR_MEMORY = 1 / 64
_UNIT = 1024  # capacities are integers, in units of 1/1024 byte


def min_cut_rematerialization_partition(
    joint_module: fx.GraphModule,
    joint_inputs: Sequence[Any],
    compiler: str = "inductor",
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    memory_budget: float = 1.0,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Save the fewest bytes from which the backward can recompute what it reads.

    Random draws, effects and nodes that checkpointing pins are never repeated in another place. Operations
    outside ATen are never repeated. `costs` says which operations are cheap enough.

    Args:
        joint_module: as for `default_partition`; every node carries ``meta["val"]``.
        joint_inputs: unused, because nodes have their metadata.
        compiler: accepted for compatibility; nothing depends on it.
        num_fwd_outputs: how many of the joint outputs belong to the forward.
        static_lifetime_input_indices: positions of inputs that are alive until the backward anyway, such as
            parameters. To save them costs nothing. `aot_function` passes them.
        memory_budget: from 0 to 1, how many bytes may be saved. With 1 only cheap operations are repeated.
            With 0 all that may be repeated are, for the fewest bytes. A budget in between allows this share
            of the difference in bytes, and a knapsack chooses the values that spare the most time. It is
            exact up to the rounding of bytes.

    Raises:
        PartitionError: the joint graph does not have this form, or `memory_budget` is not between 0 and 1.

    Example:
        >>> frugal = functools.partial(aot.min_cut_rematerialization_partition, memory_budget=0.3)
        >>> compiled = aot.aot_function(f, aot.nop, partition_fn=frugal)
    """
    if not 0 <= memory_budget <= 1:
        raise PartitionError(f"memory_budget is {memory_budget}; it is a number between 0 and 1")
    parts = parse_joint_graph(joint_module, num_fwd_outputs)
    problem = _FlowNetwork(parts, static_lifetime_input_indices or ())
    saved = problem.cheapest_cut(Recompute.CHEAP, TIME_FOR_MEMORY)
    if memory_budget < 1:
        saved = problem.cut_within_budget(saved, memory_budget)
    recomputed = ancestors_among(problem.demanded(), set(problem.values).difference(saved))
    backward = _schedule_recomputation_late(problem.required, recomputed)
    forward, backward_module = extract_forward_and_backward(parts, problem.values, saved, backward)
    if parts.pinned:
        _merge_repeated_computations(backward_module)
    return forward, backward_module


def _merge_repeated_computations(backward: fx.GraphModule) -> None:
    """Merge pairs of equal computations in the backward of which exactly one is pinned by a checkpoint.

    The other one is recomputed because the partitioner chose so. Two pinned computations stay apart, because
    each checkpoint computes when it runs again. Two computations that are not pinned stay as they were
    recorded, because two equal gradients are two tensors.
    """
    first: dict[object, fx.Node] = {}
    repeated: list[fx.Node] = []
    for node in backward.graph.nodes:
        if not node.all_input_nodes or recompute_class(node) is Recompute.NEVER:
            continue
        arguments = fx.node.map_arg((node.args, node.kwargs), lambda n: (_NODE, n.name))
        known = first.setdefault((node.target, repr(arguments)), node)
        if known is not node and _is_pinned_copy(known) != _is_pinned_copy(node):
            node.replace_all_uses_with(known)
            repeated.append(node)
    for node in reversed(repeated):
        backward.graph.erase_node(node)
    if repeated:
        backward.recompile()


_NODE = "the value of"


def _is_pinned_copy(node: fx.Node) -> bool:
    return bool(node.meta.get("partitioner_tag") == "must_be_in_backward")


class _FlowNetwork:
    """The choices about a joint graph, as a flow network.

    Attributes:
        required: the nodes that run in the backward with any choice, in order.
        values: the nodes that need no tangent, in order. They run in the forward, in the backward, or in
            both.
    """

    def __init__(self, parts: JointGraph, static: Iterable[int]) -> None:
        nodes = [n for n in parts.module.graph.nodes if n.op not in ("get_attr", "output")]
        late = _backward_only_nodes(parts, nodes)
        needed = ancestors_among(parts.demanded, late)
        self.required = [n for n in nodes if n in needed and n.op != "placeholder"]
        self.values = [n for n in nodes if n not in late]
        self._parts = parts
        self._needed = needed
        self._gradients = {g for g in parts.gradients if isinstance(g, fx.Node)}
        self._static = {parts.primals[i] for i in static}
        self._roots = memory_roots(parts.module.graph)
        self._preferred = self._recompute_preferences()

    def demanded(self) -> list[fx.Node]:
        """The values that the backward reads or returns."""
        return [v for v in self.values if v in self._gradients or any(u in self._needed for u in v.users)]

    def bytes(self, node: fx.Node) -> int:
        """The bytes that it costs to save a value; 0 for an input that is alive anyway."""
        return 0 if node in self._static else span_bytes(node)

    def cheapest_cut(self, allowed: Recompute, time_for_memory: float) -> list[fx.Node]:
        """The values to save, in order, if only operations up to the class `allowed` are recomputed."""
        demanded = set(self.demanded())
        relevant = ancestors_among(demanded, set(self.values))
        number = {node: i for i, node in enumerate(n for n in self.values if n in relevant)}
        source, sink = 2 * len(number), 2 * len(number) + 1
        arcs: list[Arc] = []
        for node, i in number.items():
            enters, leaves = 2 * i, 2 * i + 1
            arcs.append((enters, leaves, self._capacity(node) if is_tensor(node) else None))
            if recompute_class(node) > allowed or self._is_pinned(node):
                arcs.append((source, enters, None))
            elif time_for_memory:
                arcs.append((source, enters, round(cost(node) * time_for_memory * _UNIT)))
            arcs.extend((leaves, 2 * number[u], None) for u in node.users if u in number)
            if node in demanded:
                arcs.append((leaves, sink, None))
        _, side = minimum_cut(2 * len(number) + 2, arcs, source, sink)
        return [n for n, i in number.items() if 2 * i not in side and 2 * i + 1 in side]

    def _capacity(self, node: fx.Node) -> int:
        """The capacity of a value's arc: its bytes, and a little more for two kinds of values.

        A view costs a little more than its base, so the base is saved. A value that the recorded backward
        computes costs more than its own time, so the values that eager saves are saved instead: further
        derivatives are computed from these.
        """
        return self.bytes(node) * _UNIT + (self._roots[node] is not node) + self._preferred.get(node, 0)

    def _recompute_preferences(self) -> dict[fx.Node, int]:
        """For each value that the recorded backward computes, a bit more than it costs to do that there."""
        found: dict[fx.Node, int] = {}
        for node in self.values:
            if node in self._parts.recorded_backward:
                before = sum(found.get(n, 0) for n in node.all_input_nodes)
                found[node] = before + round(cost(node) * TIME_FOR_MEMORY * _UNIT) + 1
        return found

    def _is_pinned(self, node: fx.Node) -> bool:
        """Whether a checkpointed region starts from this value, or the checkpoint's policy saves it."""
        return any(u in self._parts.pinned for u in node.users)

    def cut_within_budget(self, comfortable: list[fx.Node], budget: float) -> list[fx.Node]:
        """The values to save for a budget below 1. `comfortable` has those for a budget of 1."""
        smallest = self.cheapest_cut(Recompute.EXPENSIVE, 0)
        lower, upper = (sum(map(self.bytes, saved)) for saved in (smallest, comfortable))
        optional = [n for n in comfortable if n not in set(smallest)]
        stops = {*smallest, *comfortable}
        times = [sum(map(cost, self._computed_between(n, stops))) for n in optional]
        chosen = knapsack_within(
            [self.bytes(n) for n in optional], times, int(budget * max(0, upper - lower))
        )
        kept = {*smallest, *(optional[i] for i in chosen)}
        return self._reached(kept)

    def _computed_between(self, node: fx.Node, stops: Collection[fx.Node]) -> set[fx.Node]:
        """The node, and the nodes that it is computed from, back to those of `stops`."""
        return {node} | ancestors_among(node.all_input_nodes, set(self.values).difference(stops))

    def _reached(self, kept: set[fx.Node]) -> list[fx.Node]:
        """The values of `kept` that the backward or a recomputation reads."""
        demanded = self.demanded()
        recomputed = ancestors_among(demanded, set(self.values) - kept)
        read = {i for n in recomputed for i in n.all_input_nodes}.union(demanded)
        return [n for n in self.values if n in kept and n in read]


def _backward_only_nodes(parts: JointGraph, nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes that run in the backward only.

    These need a tangent, or are pinned, or are not cheap. A node that may raise or draw is among the last, so
    that the forward does not do that in its place.
    """
    late: set[fx.Node] = set(parts.tangents)
    for node in nodes:
        if node in parts.recorded_backward and (
            node in parts.pinned
            or recompute_class(node) is not Recompute.CHEAP
            or any(n in late for n in node.all_input_nodes)
        ):
            late.add(node)
    return late


def _schedule_recomputation_late(required: Sequence[fx.Node], recomputed: set[fx.Node]) -> list[fx.Node]:
    """The backward's nodes in order. A recomputed value comes just before its first user, to save memory."""
    order: dict[fx.Node, None] = {}

    def place(node: fx.Node) -> None:
        stack = [node]
        while stack:
            top = stack[-1]
            missing = [n for n in top.all_input_nodes if n in recomputed and n not in order]
            if missing:
                stack.extend(missing)
                continue
            order.setdefault(stack.pop())
            if isinstance(top.meta["val"], tuple):
                # A tuple keeps all its results alive, so all are taken out of it at once.
                order.update(dict.fromkeys(u for u in top.users if u in recomputed))

    for node in required:
        place(node)
    for node in sorted(recomputed):
        place(node)
    return list(order)
