"""The backward of a trace, recorded segment by segment in one run of torch's own engine.

Hooks on the nodes at which a gradient leaves its segment note it, and hand the next segment a tangent of its
own in its place. So every node runs once, with all that eager's engine does around it (sums, casts, the
function's own hooks), and what is recorded for a segment depends on that segment's tangents alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import GradientEdge, Node

from aot.capture.autograd.edge_targets import CotangentEdge
from aot.capture.autograd.segments import Key, SegmentedGraph, UserTensor
from aot.capture.recorder.recorder import Recorder
from aot.capture.recorder.session import fake_of
from aot.errors import recording_refusals
from aot.graph.value_meta import meta_of
from aot.guards.dynamic_code import dynamic_code_refused
from aot.tensors.geometry import Geometry
from aot.tensors.subclasses import (
    GradientLayout,
    flatten_gradient,
    inner_tensors,
    is_wrapper,
    unflatten_subclass,
)
from aot.torch_internals import autocast_state, autograd_graph, dispatcher, mode_stacks, tensor_impl


@dataclass(frozen=True, slots=True)
class Tangent:
    """What comes in at an entrance.

    Attributes:
        fake: the tensor that stands for it in the trace.
        nodes: a placeholder for it, or for each tensor that it is made of.
        layout: how they lie.
    """

    fake: Tensor
    nodes: tuple[fx.Node, ...]
    layout: GradientLayout


@dataclass(slots=True)
class RecordedSegment:
    """One segment's backward.

    Attributes:
        tangents: by entrance; those that are missing never get a gradient.
        gradients: what it computes, by where it goes.
        reach: for each of these, the entrances (bit j for the j-th) that it depends on.
        exits: the edges where gradients go out, and where that is.
        custom_function_grads: for each custom function, the nodes of the gradients that come to it.
        written: the same for each write to a view. Autograd's node for it looks at nothing where none comes.
        wrapped: those of the latter gradients that are wrapper subclasses.
    """

    tangents: dict[int, Tangent] = field(default_factory=dict)
    gradients: dict[Hashable, Tensor] = field(default_factory=dict)
    reach: dict[Hashable, int] = field(default_factory=dict)
    exits: dict[Hashable, Key] = field(default_factory=dict)
    custom_function_grads: dict[Node, list[fx.Node]] = field(default_factory=dict)
    written: dict[Node, list[fx.Node]] = field(default_factory=dict)
    wrapped: dict[Node, Tensor] = field(default_factory=dict)

    def mask(self, reached: int) -> int:
        """The tangents (bit j for the j-th) that come in at entrances, of which there is a bit for each."""
        numbers = [e for e in sorted(self.tangents) for _ in self.tangents[e].nodes]
        return sum(1 << j for j, entrance in enumerate(numbers) if reached >> entrance & 1)

    def behind(self, nodes: Iterable[fx.Node], known: Mapping[fx.Node, Collection[fx.Node]]) -> int:
        """The tangents (bit j for the j-th) that any of some nodes is computed from, as is `known`."""
        wanted = {tangent for node in nodes for tangent in known[node]}
        flat = (node for _, tangent in sorted(self.tangents.items()) for node in tangent.nodes)
        return sum(1 << j for j, node in enumerate(flat) if node in wanted)


@dataclass(frozen=True, slots=True)
class RetracePoint:
    """A piece of the autograd graph of a trace.

    Attributes:
        cotangent_inputs: where gradients come in, each with a tensor that looks like them.
        sinks: where gradients go out.
        available: the values of the trace that a backward is given, by number.
        released: whether the function lets a leaf require no grad any more: autograd has saved that leaf
            itself, and finds it so when it is differentiated again.
        rebuilt_edges: edges that gradients of the gradients may go to, besides those of `cotangent_inputs`.
    """

    recorder: Recorder
    cotangent_inputs: tuple[tuple[Key, Tensor], ...]
    sinks: tuple[Key, ...]
    available: dict[fx.Node, int]
    released: bool
    rebuilt_edges: tuple[Key, ...] = ()

    @property
    def own_targets(self) -> tuple[Key, ...]:
        """The edges that gradients of the gradients may go to, where somebody has one."""
        return (*(edge for edge, _ in self.cotangent_inputs), *self.rebuilt_edges)


def guess_tangent_layout(like: Tensor) -> Geometry:
    """How the tangent of a plain tensor is guessed to lie: as the tensor, or row-major where that shows one
    element twice."""
    where = Geometry(tuple(like.shape), like.stride(), 0, like.dtype)
    if where.overlaps_itself_somehow:
        where = where._replace(stride=torch.empty(like.shape, device="meta").stride())
    return where


class BackwardRecorder:
    """Runs the backward of a trace.

    Args:
        graph: the autograd graph, cut.
        ends: the edges where the arguments entered, and what they are.
        example_grads: for every value with a history, a tensor that looks like it.
        name: what the tangents are called in the graph.
        create_graph: whether what is computed gets a history of its own, from everything that the backward
            reads.
        tracked: the values whose tangents are part of that history.
        exact: the values whose tangents are as the tensor in `likes`, which is one.
        silent: edges at which no gradient comes in, although a backward runs what is below them.

    Attributes:
        segments: what is recorded, segment by segment.
        by_value: the tangents of values.
    """

    def __init__(
        self,
        recorder: Recorder,
        graph: SegmentedGraph,
        ends: Mapping[Key, Hashable],
        example_grads: Mapping[int, Tensor],
        name: str = "tangents",
        create_graph: bool = False,
        tracked: Collection[int] = (),
        exact: Collection[int] = (),
        silent: Sequence[Key] = (),
    ) -> None:
        self._name = name
        self._create_graph = create_graph
        self._recorder = recorder
        self._graph = graph
        self._ends = ends
        self._silent = silent
        self._entrances: dict[Key, tuple[int, int]] = {}
        self.by_value: dict[int, Tangent] = {}
        self._tangents = 0
        self.segments = [RecordedSegment() for _ in graph.segments]
        for number, segment in enumerate(graph.segments):
            for entrance, (edge, value) in enumerate(segment.cotangent_inputs.items()):
                self._entrances[edge] = number, entrance
                if value is not None:
                    tangent = self.by_value[value] = self.make_tangent(
                        example_grads[value], value in tracked, value in exact
                    )
                    self.segments[number].tangents[entrance] = tangent

    def make_tangent(self, like: Tensor, tracked: bool = False, exact: bool = False) -> Tangent:
        """A new tangent (`guess_tangent_layout`); of a wrapper subclass, made of such in the same way, which
        is a guess that it may correct if it is not `exact`."""
        if not is_wrapper(like):
            return self._make_plain_tangent(like, tracked, exact)
        coerce = getattr(like, "__coerce_tangent_metadata__", None)
        if coerce is not None and not exact:
            with self._recorder, dispatcher.trace_kernels_on(), torch.no_grad():
                like = coerce()
        meta, plain, shared = flatten_gradient(like)
        parts = [self._make_plain_tangent(one) for one in plain]
        with self._recorder, dispatcher.trace_kernels_on():
            fake = unflatten_subclass(meta, [part.fake for part in parts], shared)
        fake.requires_grad_(tracked)
        meta, _, _ = flatten_gradient(fake)  # (It may say whether it requires grad.)
        nodes = tuple(node for part in parts for node in part.nodes)
        return Tangent(
            fake, nodes, GradientLayout(tuple(w for part in parts for w in part.layout.wheres), meta)
        )

    def _make_plain_tangent(self, like: Tensor, tracked: bool = False, exact: bool = False) -> Tangent:
        where = guess_tangent_layout(like)
        fake = self._recorder.lifetimes.track(fake_of(where, like.device, self._recorder.builder.symbolic))
        self._tangents += 1
        node = self._recorder.builder.placeholder(f"{self._name}_{self._tangents}", meta_of(fake))
        state = self._recorder.track_storage(fake)
        state.define(where, node)
        state.held = True
        # (What is guessed from a gradient that is such may have others added to it.)
        if exact and not tracked and tensor_impl.is_zero_tensor(like):
            with self._recorder, torch.no_grad():
                fake = torch.ops.aten._efficientzerotensor(like.shape, dtype=like.dtype, device=like.device)
        fake.requires_grad_(tracked)
        return Tangent(fake, (node,), GradientLayout((where,)))

    def run(self) -> None:
        """Record every segment.

        Raises:
            Exception: whatever a node of the graph raises, as it raises it.
        """
        self._recorder.acts.clear()
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                autograd_graph.recording_unpacked(self._graph.segment_of, self._recorder.unpacked)
            )
            nothing = self._zero_gradients()
            for node, _ in nothing:
                stack.callback(node.register_prehook(_without_gradients).remove)
            self._recorder.hooks.nothing = tuple(nothing.values())
            for number, segment in enumerate(self._graph.segments):
                for node in segment.nodes:
                    exits: dict[int, Hashable] = {}
                    for i, edge in self._graph.below(node):
                        if self._graph.leaves_segment(node, edge):
                            sink = exits[i] = self._sink(node, edge)
                            recorded = self.segments[number]
                            recorded.reach[sink] = recorded.reach.get(sink, 0) | segment.reach[node]
                            recorded.exits[sink] = edge
                    if exits:
                        handle = node.register_hook(self._segment_exit_hook(number, exits))
                        stack.callback(handle.remove)
                    if autograd_graph.is_function_node(node):
                        nodes = self.segments[number].custom_function_grads[node] = []
                        stack.callback(node.register_prehook(self._gradient_noting_hook(nodes)).remove)
                    elif autograd_graph.is_copy_slices(node):
                        nodes = self.segments[number].written[node] = []
                        stack.callback(node.register_prehook(self._gradient_noting_hook(nodes)).remove)
                        stack.callback(
                            node.register_prehook(self._gradient_keeping_hook(number, node)).remove
                        )
            self._record_segment_backward(range(len(self.segments)), nothing)

    def _zero_gradients(self) -> dict[Key, Tensor]:
        """For each node that only edges without a gradient lead to, one of these, with something that is like
        a gradient: the engine does not start where it is given none."""
        started = {edge[0] for edge in self._entrances}
        for segment in self._graph.segments:
            started.update(child for node in segment.nodes for _, (child, _) in self._graph.below(node))
        found: dict[Key, Tensor] = {}
        for node, number in self._silent:
            if node not in started and node in self._graph.segment_of:
                started.add(node)
                size, dtype, device = autograd_graph.grad_input_metadata(node, number)
                # (Autograd's own hooks see it: `retain_grad` copies it.)
                with recording_backward(self._recorder), torch.no_grad():
                    found[node, number] = torch.zeros((), dtype=dtype, device=device).expand(size)
        return found

    def _gradient_noting_hook(self, nodes: list[fx.Node]) -> Callable[[tuple[Tensor | None, ...]], None]:
        """A hook that notes the gradients which come to a node."""

        def hook(gradients: tuple[Tensor | None, ...]) -> None:
            with mode_stacks.dispatch_modes_off(), torch.no_grad():
                for gradient in gradients:
                    if gradient is not None:
                        nodes.extend(self._recorder.read(part) for part in inner_tensors(gradient))

        return hook

    def _gradient_keeping_hook(self, number: int, node: Node) -> Callable[[tuple[Tensor | None, ...]], None]:
        """A hook that keeps the gradient which comes to a write, if it is a wrapper subclass."""

        def hook(gradients: tuple[Tensor | None, ...]) -> None:
            if gradients[0] is not None and is_wrapper(gradients[0]):
                self.segments[number].wrapped[node] = gradients[0]

        return hook

    def _record_segment_backward(
        self, numbers: Any, nothing: Mapping[Key, Tensor] = MappingProxyType({})
    ) -> None:
        starts = [GradientEdge(*edge) for edge in nothing]
        given = list(nothing.values())
        for number in numbers:
            edges = list(self._graph.segments[number].cotangent_inputs)
            for entrance, tangent in self.segments[number].tangents.items():
                starts.append(GradientEdge(*edges[entrance]))
                given.append(tangent.fake)
        if starts:
            # Whatever leads to the caller's tensors runs, if it leads to an argument or not.
            ends = dict.fromkeys([*self._ends, *self._entrances, *self._graph.rebuilt_edges])
            with recording_backward(self._recorder):
                torch.autograd.grad(
                    starts,
                    [GradientEdge(*edge) for edge in ends],
                    given,
                    retain_graph=True,
                    create_graph=self._create_graph,
                    allow_unused=True,
                )

    def _sink(self, node: Node, edge: Key) -> Hashable:
        if edge in self._ends:
            return self._ends[edge]
        return self._graph.rebuilt_edge(node, edge) or CotangentEdge(*self._entrances[edge])

    def _segment_exit_hook(
        self, number: int, exits: dict[int, Hashable]
    ) -> Callable[..., tuple[Tensor | None, ...]]:
        """A hook that takes the gradients that leave a node's segment out of the engine's hands."""
        found = self.segments[number].gradients

        def hook(inputs: tuple[Tensor | None, ...], outputs: Any) -> tuple[Tensor | None, ...]:
            passed = list(inputs)
            for i, target in exits.items():
                gradient = inputs[i]
                if gradient is None:
                    continue
                known = found.get(target)
                found[target] = gradient if known is None else known + gradient
                for part in inner_tensors(found[target]):
                    self._recorder.state(part).held = True
                passed[i] = None
                if isinstance(target, CotangentEdge):
                    tangents = self.segments[target.segment].tangents
                    if target.cotangent_input not in tangents:
                        with mode_stacks.dispatch_modes_off():
                            tangents[target.cotangent_input] = self.make_tangent(gradient)
                        passed[i] = tangents[target.cotangent_input].fake
            return tuple(passed)

        return hook


def _without_gradients(gradients: tuple[Tensor | None, ...]) -> tuple[None, ...]:
    """A hook after which no gradient has come to a node."""
    return (None,) * len(gradients)


def numbers_of(recorder: Recorder, ends: Sequence[Key]) -> dict[Key, int]:
    """The number of each end, by the edges that stand for it."""
    numbers: dict[Key, int] = {}
    for number, edge in enumerate(ends):
        numbers.setdefault(edge, number)
    for edge, before in recorder.renewed.items():
        if before in numbers:
            numbers.setdefault(edge, numbers[before])
    return numbers


def record_unsegmented(
    recorder: Recorder,
    entrances: Mapping[int, tuple[Key, Tensor]],
    ends: Sequence[Key],
    name: str,
    create_graph: bool = False,
    tracked: Collection[int] = (),
    exact: Collection[int] = (),
    silent: Sequence[Key] = (),
    watching: Callable[[BackwardRecorder, Iterable[Node]], contextlib.AbstractContextManager[None]]
    | None = None,
) -> tuple[BackwardRecorder, dict[int, Tensor]]:
    """Run the engine from entrances to ends, in one piece; the gradients by end.

    Args:
        entrances: edges by number, each with a tensor that looks like its gradient.
        name, create_graph, tracked, exact, silent: see `BackwardRecorder`.
        watching: what is entered while it runs, given the nodes that it may run.
    """
    numbers = numbers_of(recorder, ends)
    exposed = [UserTensor(GradientEdge(*edge), None, j) for j, (edge, _) in entrances.items()]
    exposed += [UserTensor(GradientEdge(*edge), None, None) for edge in silent]
    likes = {j: like for j, (_, like) in entrances.items()}
    graph = SegmentedGraph(exposed, numbers, whole=True)
    engine = BackwardRecorder(recorder, graph, numbers, likes, name, create_graph, tracked, exact, silent)
    with contextlib.ExitStack() as stack:
        if watching is not None:
            stack.enter_context(watching(engine, graph.segment_of))
        stack.enter_context(autograd_graph.functions_skipped(_custom_functions_below_edges(graph, ends)))
        engine.run()
    found: dict[int, Tensor] = {}
    for segment in engine.segments:
        for end, gradient in segment.gradients.items():
            assert isinstance(end, int)
            found[end] = gradient
    for j, (edge, like) in entrances.items():
        if j not in engine.by_value:
            tangent = engine.by_value[j] = engine.make_tangent(like, j in tracked, j in exact)
            if edge in numbers:
                known = found.get(numbers[edge])
                with recorder, torch.set_grad_enabled(create_graph):
                    found[numbers[edge]] = tangent.fake if known is None else known + tangent.fake
    return engine, found


def _custom_functions_below_edges(graph: SegmentedGraph, ends: Iterable[Key]) -> list[Node]:
    """The custom functions below some edges that are not part of a graph. Where another end lies below them
    the engine runs them without any gradient, since these are taken at the ends."""
    found: list[Node] = []
    stack, seen = [node for node, _ in ends], set(graph.segment_of)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(child for _, (child, _) in graph.below(node))
            if autograd_graph.is_function_node(node):
                found.append(node)
    return found


@contextlib.contextmanager
def recording_backward(recorder: Recorder) -> Iterator[None]:
    """What the engine is to run under to be recorded."""
    with (
        recording_refusals(),
        recorder.draws.draws_traced(),
        dispatcher.trace_kernels_on(),
        recorder,
        dynamic_code_refused(),
        torch.autograd.set_multithreading_enabled(False),
        recorder.threads.other_threads_watched(),
    ):
        yield


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """As a backward outside of any autocast runs. (`autocast_state.without_autocast` would keep a formula
    from entering one of its own.)"""
    with contextlib.ExitStack() as stack:
        for device in autocast_state.AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
