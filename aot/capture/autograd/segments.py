"""Which parts of the autograd graph run together, so that a compiled backward can be cut where eager's can.

In: the autograd graph that the trace has built, the tensors that the caller gets from it, and the edges where
the arguments entered. Out: *segments*, sets of nodes that every backward of the caller's runs together or not
at all: those that are reached from the same tensors of the caller's. Each becomes one node of the caller's
autograd graph. So a backward from some results runs, frees and checks what eager's does, and does not walk
through arguments that those results do not depend on; and the gradient of one result that is computed from
another goes through that other one's edge, where hooks and `torch.autograd.grad` find it.

A tensor that is made again at every call (a view of an argument, a written argument) has a history that the
caller makes too. It is *native*: what lies below its edge in the trace is not entered from above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch.autograd.graph import GradientEdge, Node

from aot.capture.autograd.edge_targets import RebuiltEdge
from aot.torch_internals import autograd_graph

Key = tuple[Node, int]


def key_of(edge: GradientEdge) -> Key:
    """An edge as a comparable value."""
    return (edge.node, edge.output_nr)


@dataclass(frozen=True, slots=True, eq=False)
class UserTensor:
    """A tensor that the caller can differentiate after the call.

    Attributes:
        edge: its edge in the trace.
        rebuilt: what it is in the caller's graph, if its history is made there.
        value: the value of the graph that has this history, if one has.
        leads_to: the values that its native history leads to.
    """

    edge: GradientEdge
    rebuilt: RebuiltEdge | None
    value: int | None
    leads_to: tuple[int, ...] = ()


@dataclass(slots=True)
class NodeGroup:
    """Nodes that run together.

    Attributes:
        nodes: parents before children.
        cotangent_inputs: the edges at which gradients come in, with the value that each belongs to, if any.
        reach: for every node, from which entrances (bit j for the j-th) it is reached within the segment.
    """

    nodes: list[Node] = field(default_factory=list)
    cotangent_inputs: dict[Key, int | None] = field(default_factory=dict)
    reach: dict[Node, int] = field(default_factory=dict)


class SegmentedGraph:
    """The autograd graph of a trace, cut into segments.

    Args:
        user_tensors: what the caller can differentiate, each edge once.
        sinks: the edges where the arguments entered.
        whole: make one segment of everything.

    Attributes:
        segments: the segments.
        segment_of: for each node that a backward runs, the number of its segment.
        reaches_input: the nodes that lead to an argument, or to what has a native history. Others lead at
            most to results that lead nowhere.
    """

    def __init__(self, user_tensors: Sequence[UserTensor], sinks: Iterable[Key], whole: bool = False) -> None:
        self._sinks = set(sinks)
        self._user_tensors = user_tensors
        self._rebuilt = {key_of(one.edge): one for one in user_tensors if one.rebuilt is not None}
        self._edge_of = {one.value: one.edge for one in user_tensors if one.value is not None}
        self._within = {key: self._own_history(one) for key, one in self._rebuilt.items()}
        order = self._topological_order()
        masks = self._reachability_masks(order)
        needed = self._needed_nodes(order, masks)
        self.reaches_input = self._nodes_leading_to_ends(order)
        numbers: dict[int, int] = {}
        self.segments: list[NodeGroup] = []
        self.segment_of: dict[Node, int] = {}
        for item in reversed(order):
            if item in needed and not isinstance(item, UserTensor):
                number = numbers.setdefault(0 if whole else masks[item], len(numbers))
                if number == len(self.segments):
                    self.segments.append(NodeGroup())
                self.segments[number].nodes.append(item)
                self.segment_of[item] = number
        self._enter_segment()
        while not whole and self._divide_segments():
            pass  # (what was cut may be entered where it was not)

    @property
    def rebuilt_edges(self) -> dict[Key, RebuiltEdge]:
        """The edges of what has a native history, and what that is."""
        return {key: one.rebuilt for key, one in self._rebuilt.items() if one.rebuilt is not None}

    def below(self, node: Node) -> Iterator[tuple[int, Key]]:
        """The edges below a node that a backward follows, by their position."""
        for i, (child, number) in enumerate(node.next_functions):
            if child is not None:
                yield i, (child, number)

    def is_sink(self, edge: Key) -> bool:
        """Whether an argument entered there."""
        return edge in self._sinks

    def rebuilt_edge(self, node: Node, edge: Key) -> RebuiltEdge | None:
        """What of the caller's has this edge below a node, and a native history."""
        known = self._rebuilt_below(node, edge)
        return None if known is None else known.rebuilt

    def leaves_segment(self, node: Node, edge: Key) -> bool:
        """Whether a gradient leaves the node's segment at this edge below it."""
        if edge in self._sinks or self._rebuilt_below(node, edge) is not None:
            return True
        there = self.segment_of.get(edge[0])
        return there is not None and there != self.segment_of[node]

    def dead_nodes(self, number: int) -> dict[Node, int]:
        """The nodes below a segment's that lead nowhere, and from which of its entrances each is reached. The
        engine runs them where it runs all that it reaches."""
        segment = self.segments[number]
        found: dict[Node, int] = {}
        stack = [(node, segment.reach[node]) for node in segment.nodes]
        while stack:
            node, reach = stack.pop()
            for _, edge in self.below(node):
                child = edge[0]
                known = found.get(child, 0)
                if child in self.segment_of or edge in self._sinks or self._rebuilt_below(node, edge):
                    continue
                if known | reach != known:
                    found[child] = known | reach
                    stack.append((child, found[child]))
        return found

    def _rebuilt_below(self, node: Node, edge: Key) -> UserTensor | None:
        known = self._rebuilt.get(edge)
        return None if known is None or node in self._within[edge] else known

    def _own_history(self, native: UserTensor) -> set[Node]:
        """The nodes above a written argument that are in the history of what is written to tensors that share
        its own: these writes make that history, and it cannot be there before."""
        end = key_of(native.edge)
        starts = [key_of(self._edge_of[v]) for v in native.leads_to if v in self._edge_of]
        stack = [node for node, number in starts if (node, number) != end]
        found: set[Node] = set()
        while stack:
            node = stack.pop()
            if node not in found and node is not end[0]:
                found.add(node)
                stack.extend(child for _, (child, _) in self.below(node))
        return found

    def _nodes_below_segment(self, item: Node | UserTensor) -> Iterator[Node | UserTensor]:
        if isinstance(item, UserTensor):
            for value in item.leads_to:
                start = self._edge_of.get(value)
                if start is not None and key_of(start) not in self._sinks:
                    yield start.node
            return
        for _, edge in self.below(item):
            native = self._rebuilt_below(item, edge)
            if native is not None:
                yield native
            elif edge not in self._sinks:
                yield edge[0]

    def _starts(self) -> Iterator[Node | UserTensor]:
        for one in self._user_tensors:
            if one.rebuilt is not None:
                yield one
            if key_of(one.edge) not in self._sinks and (one.rebuilt is None or one.value is not None):
                yield one.edge.node

    def _topological_order(self) -> list[Node | UserTensor]:
        """Everything, children before parents."""
        order: list[Node | UserTensor] = []
        seen: set[Node | UserTensor] = set()
        stack: list[tuple[Node | UserTensor, bool]] = [(start, False) for start in self._starts()]
        while stack:
            item, done = stack.pop()
            if done:
                order.append(item)
            elif item not in seen:
                seen.add(item)
                stack.append((item, True))
                stack.extend((child, False) for child in self._nodes_below_segment(item))
        return order

    def _reachability_masks(self, order: list[Node | UserTensor]) -> dict[Node | UserTensor, int]:
        """From which exposed tensors (bit j for the j-th) everything is reached."""
        masks = dict.fromkeys(order, 0)
        for bit, one in enumerate(self._user_tensors):
            if one.rebuilt is not None:
                masks[one] |= 1 << bit
            elif key_of(one.edge) not in self._sinks:
                masks[one.edge.node] |= 1 << bit
        for item in reversed(order):
            for child in self._nodes_below_segment(item):
                masks[child] |= masks[item]
        return masks

    def _needed_nodes(
        self, order: list[Node | UserTensor], masks: dict[Node | UserTensor, int]
    ) -> set[Node | UserTensor]:
        """What leads to an argument, to something that the caller has, or to where backwards meet that lead
        nowhere: the one that comes second finds freed what it needs."""
        values = {edge.node for edge in self._edge_of.values() if key_of(edge) not in self._sinks}
        reached: dict[Node | UserTensor, set[int]] = {}
        for item in order:
            for child in self._nodes_below_segment(item):
                reached.setdefault(child, set()).add(masks[item])
        needed: set[Node | UserTensor] = set()
        for item in order:
            if (
                isinstance(item, UserTensor)
                or item in values
                or len(reached.get(item, ())) > 1
                or any(
                    edge in self._sinks or self._rebuilt_below(item, edge) is not None or edge[0] in needed
                    for _, edge in self.below(item)
                )
            ):
                needed.add(item)
        return needed

    def _nodes_leading_to_ends(self, order: list[Node | UserTensor]) -> set[Node]:
        found: set[Node] = set()
        for item in order:
            if not isinstance(item, UserTensor) and any(
                edge in self._sinks or self._rebuilt_below(item, edge) is not None or edge[0] in found
                for _, edge in self.below(item)
            ):
                found.add(item)
        return found

    def _divide_segments(self) -> bool:
        """Cut the segments of which eager runs a custom function or does not, by where gradients come in: one
        that is run makes zeros of a gradient that it does not get. Whether there are more of them then."""
        segments: list[NodeGroup] = []
        for segment in self.segments:
            parts: dict[int, NodeGroup] = {}
            divided = _runs_in_part(segment)
            for node in segment.nodes:
                part = segment.reach[node] if divided else 0
                if part not in parts:
                    parts[part] = NodeGroup()
                    segments.append(parts[part])
                parts[part].nodes.append(node)
        if len(segments) == len(self.segments):
            return False
        self.segments = segments
        self.segment_of = {node: i for i, segment in enumerate(segments) for node in segment.nodes}
        self._enter_segment()
        return True

    def _enter_segment(self) -> None:
        for one in sorted((e for e in self._user_tensors if e.value is not None), key=_value):
            number = self.segment_of.get(one.edge.node)
            if number is not None and key_of(one.edge) not in self._sinks:
                self.segments[number].cotangent_inputs[key_of(one.edge)] = one.value
        for segment in self.segments:
            for node in segment.nodes:
                for _, edge in self.below(node):
                    if (
                        self.leaves_segment(node, edge)
                        and not self.is_sink(edge)
                        and not self.rebuilt_edge(node, edge)
                    ):
                        self.segments[self.segment_of[edge[0]]].cotangent_inputs.setdefault(edge, None)
        for number, segment in enumerate(self.segments):
            segment.cotangent_inputs = _in_turn(segment.cotangent_inputs)
            segment.reach = dict.fromkeys(segment.nodes, 0)
            for bit, (node, _) in enumerate(segment.cotangent_inputs):
                segment.reach[node] |= 1 << bit
            for node in segment.nodes:
                for _, edge in self.below(node):
                    if self.segment_of.get(edge[0]) == number and not self.leaves_segment(node, edge):
                        segment.reach[edge[0]] |= segment.reach[node]


def _in_turn(entrances: dict[Key, int | None]) -> dict[Key, int | None]:
    """The results of each node in their order: where one that keeps its gradient is written to, autograd
    looks for that at the node's first result."""
    turns: dict[Node, int] = {}
    for node, _ in entrances:
        turns.setdefault(node, len(turns))
    return dict(sorted(entrances.items(), key=lambda entrance: (turns[entrance[0][0]], entrance[0][1])))


def _runs_in_part(segment: NodeGroup) -> bool:
    """Whether a custom function is reached from some of the entrances and not from others."""
    every = (1 << len(segment.cotangent_inputs)) - 1
    return any(
        autograd_graph.is_function_node(node) and segment.reach[node] != every for node in segment.nodes
    )


def _value(one: UserTensor) -> int:
    assert one.value is not None
    return one.value
