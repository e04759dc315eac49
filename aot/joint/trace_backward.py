"""The joint graph: the recorded forward, then its backward, recorded in the same trace.

In: a `Traced` and its `EffectSummary`. Out: a `Joint` (`aot.joint.joint`): one graph whose inputs are primals
then tangents and whose outputs are the forward's values then the gradients, as AOTAutograd's convention has
it, and the `Segment`s that the backward consists of: what comes in, what goes out to where, and what of the
caller's they keep.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node

from aot.analysis.effect_summary import EffectSummary
from aot.capture.autograd.edge_targets import ArgumentEdge, CotangentEdge, RebuiltEdge, Target
from aot.capture.autograd.engine import (
    BackwardRecorder,
    RecordedSegment,
    RetracePoint,
    Tangent,
    without_autocast,
)
from aot.capture.autograd.segments import Key, SegmentedGraph, UserTensor, key_of
from aot.capture.memory.storage import Storage
from aot.capture.run import Traced
from aot.capture.trace_result import Primal
from aot.errors import LeafCreatedInside, Unsupported, UnsupportedOperation
from aot.graph.builder import GraphBuilder
from aot.graph.purity import eliminate_dead_code
from aot.joint.backward_errors import BackwardError, check_external_effects, find_raising, find_raising_node
from aot.joint.boundary import check_boundary_hooks, check_remembered_sinks, gradient_sinks, user_tensors
from aot.joint.dependencies import (
    aliased_gradients,
    custom_function_needs,
    segments_with_constant_gradients,
    tangent_dependencies,
)
from aot.joint.joint import CotangentInput, Gradient, Joint, LiveInput, SavedInput, Segment, Shared
from aot.joint.live_memory import LiveMemory
from aot.joint.python_callbacks import python_callbacks
from aot.joint.saved_tensors import (
    external_effect_with_dead_saved,
    find_saved_edges,
    find_saved_inputs,
    frees_saved_tensors,
    keeps_attributes,
)
from aot.tensors.geometry import Geometry, geometry
from aot.tensors.subclasses import inner_tensors, is_nested, is_wrapper, layout_of, shared_inner_tensors
from aot.torch_internals import autograd_graph, autograd_state, fx_graphs, symbolic_shapes, tensor_impl


def trace_joint(forward: Traced, effects: EffectSummary) -> Joint:
    """Differentiate the recorded forward, inside its trace, and close the graph.

    Raises:
        AutogradStateMutation: autograd would not find the way back to an argument.
        LeafCreatedInside: something requires grad although no argument does.
        UnsupportedOperation: a checkpoint with ``use_reentrant=True``.
        UnsupportedHook: the function has registered a hook where the caller may register others.
    """
    recorder = forward.recorder
    builder = recorder.builder
    ends = gradient_sinks(forward, effects)
    histories = {i: v.history for i, v in enumerate(effects.values) if v.history is not None}
    histories |= dict(enumerate(effects.histories, len(effects.values)))
    if recorder.hooks.any:
        check_boundary_hooks(forward, user_tensors(forward, effects, histories, ends), ends)
    tangent_nodes: list[fx.Node] = []
    gradient_nodes: list[fx.Node] = []
    segments: tuple[Segment, ...] = ()
    levels: list[RetracePoint | None] = []
    scripts: tuple[Any, ...] | None = ()
    live: dict[str, LiveInput] = {}
    if histories and not ends:
        raise LeafCreatedInside(
            "an output or a written argument requires grad, but no argument does: its gradient ends in a "
            "leaf that the function made; make the leaf outside and pass it in"
        )
    if histories:
        for node in builder.graph.nodes:
            node.meta["partitioner_tag"] = "is_forward"
        builder.backward = True
        recording = _JointTracer(forward, effects, histories, ends)
        segments = recording.record_joint(tangent_nodes, gradient_nodes)
        check_remembered_sinks(forward, [gradient.target for s in segments for gradient in s.gradients])
        levels = [*recording.levels, *[None] * (len(segments) - len(recording.levels))]
        scripts, live = recording.python_callbacks, recording.live.inputs
    kept = {write.value: write.tensor for write in effects.kept}
    returned = tuple(i for i in range(len(effects.values)) if i not in kept)
    nodes = [effects.values[i].node for i in returned]
    copies = [(forward.primals[i].node, effects.values[value].node) for value, i in kept.items()]
    states = recorder.rng_states
    first, last = ({}, {}) if states is None else (states.first, states.last)
    outputs = [*nodes, *last.values(), *gradient_nodes]
    primals = _close_joint_graph(builder, forward.primals, [*first.values(), *tangent_nodes], copies, outputs)
    builder.annotate(builder.graph.nodes)
    module = fx_graphs.LazyGraphModule(builder.root, builder.graph, "Joint")
    resident = _is_in_input_memory(forward)
    return Joint(module, returned, primals, tuple(first), segments, tuple(levels), resident, scripts, live)


class _JointTracer:
    """The backward of one trace."""

    def __init__(
        self,
        forward: Traced,
        effects: EffectSummary,
        histories: Mapping[int, Tensor],
        ends: Mapping[Key, ArgumentEdge],
    ) -> None:
        self.forward = forward
        self.effects = effects
        self.histories = histories
        self.sinks = ends
        self.user_tensors = user_tensors(forward, effects, histories, ends)
        self.edges = {i: autograd_state.gradient_edge(history) for i, history in histories.items()}
        self.levels: list[RetracePoint | None] = []
        self.python_callbacks: tuple[Any, ...] | None = ()
        self.live = LiveMemory(forward, effects)

    def record_joint(self, tangents: list[fx.Node], gradients: list[fx.Node]) -> tuple[Segment, ...]:
        """Record; `tangents` and `gradients` are extended by the nodes that come in and go out."""
        recorder = self.forward.recorder
        graph, engine, failing = self._run_engine()
        firsts = [min(map(autograd_graph.sequence_number, nodes.nodes)) for nodes in graph.segments]
        self._assign_effects_to_segments(graph, engine, firsts, failing)
        self.python_callbacks = python_callbacks(graph.segment_of, recorder.hooks.functions)
        own = find_saved_edges(recorder, graph)
        arguments, roots = self.forward.entry.tensors_and_subclasses, self.effects.root_fakes
        behind = tangent_dependencies(recorder.builder.graph, engine.segments)
        with torch.autograd.set_multithreading_enabled(False):
            kept = find_saved_inputs(recorder, graph, engine, arguments, roots, behind)
        segments: list[Segment] = []
        entered: set[int | None] = set()
        numbers = {*firsts, *(failure.number for failure in failing.values())}
        turns = {number: turn for turn, number in enumerate(sorted(numbers), 1)}
        results = [self._read(recorded) for recorded in engine.segments]
        self.live.close(graph, engine)
        constant = segments_with_constant_gradients(recorder.builder.graph, engine.segments, results)
        for nodes, recorded, keeps, mine in zip(graph.segments, engine.segments, kept, own, strict=True):
            entered.update(nodes.cotangent_inputs.values())
            if not recorded.gradients:
                recorded.tangents.clear()
            tangents.extend(node for e in sorted(recorded.tangents) for node in recorded.tangents[e].nodes)
            gradients.extend(results[len(segments)])
            further = self._further_argument_edges(nodes.nodes, recorded)
            native = _kept_native_histories(graph, nodes.cotangent_inputs, recorded, mine)
            segment = self._joint_segment(
                nodes.cotangent_inputs,
                recorded,
                keeps,
                mine,
                aliased_gradients(recorded, results[len(segments)]),
            )
            frees, idle = frees_saved_tensors(recorder, graph, engine, len(segments), (*arguments, *roots))
            whole, lacking = custom_function_needs(graph, nodes, recorded, behind)
            if len(segments) in constant:
                lacking = (0,)
            turn = turns[firsts[len(segments)]]
            vain = tuple(k for k, one in enumerate(segment.gradients) if _is_vain(graph, one.target))
            segment = replace(
                segment,
                second_order_targets=tuple(further),
                frees=frees,
                engine_order=turn,
                dead_targets=vain,
            )
            stays = not frees and keeps_attributes(recorder, graph, len(segments))
            segment = replace(segment, rebuilt_targets=tuple(native.values()), stays=stays)
            segment = replace(segment, runs_custom_function=whole, needed=lacking, idle=idle and not whole)
            segments.append(segment)
            self.levels.append(
                self._retraceable_segment(nodes.cotangent_inputs, recorded, segment, further.values(), native)
            )
        for value in self.histories:
            if value not in entered:
                failure = failing.get(value)
                segment = self._gradients_without_nodes(engine, value, failure, tangents, gradients)
                turn = 0 if failure is None else turns[failure.number]
                segments.append(replace(segment, engine_order=turn))
        return tuple(segments)

    def _run_engine(self) -> tuple[SegmentedGraph, BackwardRecorder, dict[int, BackwardError]]:
        """Run the backward; without the values, which come last, of which the backward raises in eager."""
        graph, engine = self._cut(self.user_tensors)
        try:
            with without_autocast(), self.live.recording():
                engine.run()
        except (Unsupported, symbolic_shapes.GuardOnDataDependentSymNode):
            raise
        except Exception as error:
            failing = self._find_failing(graph, error)
            graph, engine = self._cut([e for e in self.user_tensors if e.value not in failing])
            with without_autocast():
                engine.run()
            return graph, engine, failing
        return graph, engine, {}

    def _find_failing(self, graph: SegmentedGraph, error: Exception) -> dict[int, BackwardError]:
        """The values whose backward raises as eager's does.

        Raises:
            UnsupportedOperation: the compiled backward could not raise that in its place.
            Exception: `error`, if it comes of none of them.
        """
        recorder = self.forward.recorder
        if symbolic_shapes.is_symint_unsupported(error):
            raise UnsupportedOperation(
                "a formula of the backward takes no symbols for sizes; compile each size for itself "
                "(dynamic=False)"
            ) from error
        if recorder.backward_writes:
            raise UnsupportedOperation(
                "a backward that raises, and writes to a tensor of the forward; write outside of it"
            ) from error
        failing = find_raising(recorder, self.user_tensors, self.histories, self._cut)
        if not failing:  # each alone leads nowhere, and is not run
            nowhere = {e.value for e in self.user_tensors if e.edge.node not in graph.reaches_input}
            last = find_raising_node(*self._cut(self.user_tensors))
            failing.update((v, BackwardError(error, None, last)) for v in self.histories if v in nowhere)
        if not failing:
            raise error
        if any(n.name() == "CheckpointFunctionBackward" for n in graph.segment_of):
            raise UnsupportedOperation(
                "torch.utils.checkpoint with use_reentrant=True, which runs a backward of its own inside "
                "the backward; pass use_reentrant=False"
            ) from error
        return failing

    def _read(self, recorded: RecordedSegment) -> list[fx.Node]:
        """The nodes of what a segment computes."""
        with torch.no_grad():
            parts = (part for gradient in recorded.gradients.values() for part in inner_tensors(gradient))
            return [self.forward.recorder.read(part) for part in parts]

    def _assign_effects_to_segments(
        self,
        graph: SegmentedGraph,
        engine: BackwardRecorder,
        firsts: Sequence[int],
        failing: Mapping[int, BackwardError],
    ) -> None:
        """Note of each operation that acts outside in which segment it runs."""
        assigned: list[tuple[fx.Node, Node, int]] = []
        for node, at in self.forward.recorder.acts:
            number = graph.segment_of.get(at) if at is not None else None
            if at is None or number is None or not engine.segments[number].gradients:
                raise _acts_nowhere(node)
            node.meta["segment"] = number
            assigned.append((node, at, number))
        check_external_effects(assigned, firsts, failing.values())
        good = [one.edge.node for one in self.user_tensors if one.value not in failing]
        idle = external_effect_with_dead_saved(self.forward.recorder, graph, engine, good)
        if idle is not None:
            raise _acts_nowhere(idle)

    def _cut(
        self, exposed: list[UserTensor], likes: Mapping[int, Tensor] | None = None
    ) -> tuple[SegmentedGraph, BackwardRecorder]:
        graph = SegmentedGraph(exposed, self.sinks)
        return graph, BackwardRecorder(self.forward.recorder, graph, self.sinks, likes or self.histories)

    def _joint_segment(
        self,
        entrances: Mapping[Key, int | None],
        recorded: RecordedSegment,
        kept: tuple[SavedInput, ...],
        own: Collection[Key],
        viewed: Collection[Hashable],
    ) -> Segment:
        gradients: list[Gradient] = []
        for target, gradient in recorded.gradients.items():
            assert isinstance(target, Target)
            first = sum(len(before.results) for before in gradients)
            mask = recorded.mask(recorded.reach[target])
            layout = layout_of(gradient) if is_wrapper(gradient) else None
            count = 1 if layout is None else len(layout.wheres)
            results = tuple(range(first, first + count))
            shared = tuple(map(self._shared_gradient_part, shared_inner_tensors(gradient)))
            gradients.append(Gradient(target, results, mask, layout, shared, target in viewed))
        # What gives nothing (a norm of order 0, a custom function) runs all the same, and so does what is
        # below it.
        never = [t for t in recorded.exits if isinstance(t, Target) and t not in recorded.gradients]
        gradients += [Gradient(target, (), 0) for target in never]
        return Segment(
            tuple(
                self._joint_entrance(value, edge, recorded.tangents.get(e), edge in own)
                for e, (edge, value) in enumerate(entrances.items())
            ),
            tuple(gradients),
            kept=kept,
        )

    def _further_argument_edges(
        self, nodes: Iterable[Node], recorded: RecordedSegment
    ) -> dict[ArgumentEdge, Key]:
        """The edges of arguments that only the gradients of a segment's gradients may go to, with the edge in
        the trace: a write to a view keeps the view, and goes to its base, where the segment leads."""
        if not recorded.gradients or not any(map(autograd_graph.is_copy_slices, nodes)):
            return {}
        fakes, joined = self.forward.entry.tensors_and_subclasses, self.forward.recorder.joined

        def storage(target: ArgumentEdge) -> int:
            return tensor_impl.storage_key(fakes[target.tensor])

        bases = {
            storage(target) for target in self._argument_edges_reached((node, 0) for node in nodes)
        } & joined
        return {
            target: edge
            for edge, target in self.sinks.items()
            if target not in recorded.gradients and storage(target) in bases
        }

    def _argument_edges_reached(self, edges: Iterable[Key]) -> list[ArgumentEdge]:
        """The arguments' edges that the history behind some edges leads to."""
        found: dict[ArgumentEdge, None] = {}
        stack, seen = list(edges), set()
        while stack:
            key = stack.pop()
            if key in self.sinks:
                found[self.sinks[key]] = None
            elif key[0] not in seen:
                seen.add(key[0])
                stack.extend((n, k) for n, k in key[0].next_functions if n is not None)
        return list(found)

    def _retraceable_segment(
        self,
        entrances: Mapping[Key, int | None],
        recorded: RecordedSegment,
        segment: Segment,
        further: Iterable[Key],
        native: Iterable[Key],
    ) -> RetracePoint | None:
        """The segment, to be recorded again: its ends are its exits first."""
        if not recorded.gradients:
            return None
        ends = dict.fromkeys(recorded.exits[gradient.target] for gradient in segment.gradients)
        ends.update(dict.fromkeys([*further, *recorded.exits.values(), *self.sinks]))
        likes: list[tuple[Key, Tensor]] = []
        for e, (edge, value) in enumerate(entrances.items()):
            tangent = recorded.tangents.get(e)
            if value is not None:
                likes.append((edge, self.histories[value]))
            else:
                likes.append((edge, torch.empty(()) if tangent is None else tangent.fake))
        released = bool(self.effects.end_requires_grad)
        return RetracePoint(self.forward.recorder, tuple(likes), tuple(ends), {}, released, tuple(native))

    def _gradients_without_nodes(
        self,
        engine: BackwardRecorder,
        value: int,
        failure: BackwardError | None,
        tangents: list[fx.Node],
        gradients: list[fx.Node],
    ) -> Segment:
        """A value whose backward raises, leads to no argument, or is an argument's gradient as it comes."""
        edge = key_of(self.edges[value])
        if failure is not None:
            entrance = self._joint_entrance(value, edge, None)
            targets = tuple(Gradient(target, (), 0) for target in self._argument_edges_reached([edge]))
            return Segment((entrance,), targets, (type(failure.error), str(failure.error)), failure.strides)
        if edge not in self.sinks:
            return Segment((self._joint_entrance(value, edge, None),), ())
        tangent = engine.make_tangent(self.histories[value])
        tangents.extend(tangent.nodes)
        gradients.extend(tangent.nodes)
        count = len(tangent.nodes)
        layout = None if tangent.layout.meta is None else tangent.layout
        shared = tuple(map(self._shared_gradient_part, shared_inner_tensors(tangent.fake)))
        gradient = Gradient(self.sinks[edge], tuple(range(count)), (1 << count) - 1, layout, shared)
        return Segment((self._joint_entrance(value, edge, tangent),), (gradient,))

    def _shared_gradient_part(self, part: Tensor) -> Shared:
        """Which tensor of the call, or which output, a part of a gradient is."""
        for i, one in enumerate(self.forward.entry.fakes):
            if one is part:
                return "tensor", i
        for i, one in enumerate(self.forward.outputs):
            if one is part:
                return "output", i
        raise UnsupportedOperation(
            "the gradient of a nested tensor whose offsets are neither an argument nor a part of an output; "
            "return it"
        )

    def _joint_entrance(
        self, value: int | None, edge: Key, tangent: Tangent | None, kept: bool = False
    ) -> CotangentInput:
        like: Tensor | None = None
        if value is not None:
            like = self.histories[value]
        elif tangent is not None:
            like = tangent.fake
        if value is None and like is not None and is_nested(like):
            raise UnsupportedOperation(
                "a nested tensor on the way between results that are differentiated apart; return it as well"
            )
        if like is None:
            _, dtype, device = autograd_graph.grad_input_metadata(*edge)
            return CotangentInput(None, (), dtype, device, None)
        layout = None if tangent is None else tangent.layout
        return CotangentInput(value, tuple(like.shape), like.dtype, like.device, layout, kept)


def _acts_nowhere(node: fx.Node) -> UnsupportedOperation:
    return UnsupportedOperation(
        f"{node.target} in a backward that computes no gradient of an argument: nothing runs there when the "
        f"function is compiled; call it in another place"
    )


def _kept_native_histories(
    graph: SegmentedGraph, entrances: Collection[Key], recorded: RecordedSegment, kept: Collection[Key]
) -> dict[Key, RebuiltEdge]:
    """What a segment keeps that has a native history, other than what its gradients go to anyway."""
    if not recorded.gradients:
        return {}
    known = {*entrances, *recorded.exits.values()}
    return {edge: what for edge, what in graph.rebuilt_edges.items() if edge in kept and edge not in known}


def _is_vain(graph: SegmentedGraph, target: Target) -> bool:
    """Whether a gradient goes to a result that leads nowhere."""
    if not isinstance(target, CotangentEdge):
        return False
    node, _ = list(graph.segments[target.segment].cotangent_inputs)[target.cotangent_input]
    return node not in graph.reaches_input


def _is_in_input_memory(forward: Traced) -> dict[str, tuple[int, Geometry]]:
    found: dict[str, tuple[int, Geometry]] = {}
    seen: set[tuple[Storage, torch.dtype]] = set()
    for i, fake in enumerate(forward.entry.fakes):
        state = forward.recorder.state(fake)
        kind = state, fake.dtype
        if not state.writes or state is not forward.entry.states[i] or kind in seen or geometry(fake).is_lazy:
            continue
        seen.add(kind)
        for where, node in state.current().items():
            if where.dtype == fake.dtype and not where.is_lazy:
                found.setdefault(node.name, (i, where))
    return found


def _close_joint_graph(
    builder: GraphBuilder,
    primals: list[Primal],
    others: list[fx.Node],
    copies: list[tuple[fx.Node, fx.Node]],
    outputs: list[fx.Node],
) -> tuple[Primal, ...]:
    """Put placeholders first, `primals` and then `others`, let the graph write to its inputs last (`copies`:
    to, from), give it its output, and drop what nobody needs."""
    graph = builder.graph
    for target, value in copies:
        builder.emit(torch.ops.aten.copy_.default, target, value)
    graph.output(tuple(outputs))
    anchor = graph._root
    for node in [p.node for p in primals] + others:
        anchor.append(node)
        anchor = node
    eliminate_dead_code(graph)
    _give_readers_to_raising_nodes(builder)
    used: list[Primal] = []
    for primal in primals:
        if primal.node.users:
            used.append(primal)
        else:
            graph.erase_node(primal.node)
    kept = {p.node for p in used} | set(others)
    for node in list(graph.nodes):
        if node.op == "placeholder" and node not in kept:
            graph.erase_node(node)
    return tuple(used)


def _give_readers_to_raising_nodes(builder: GraphBuilder) -> None:
    """Let something read what has several results and is there for what it may raise: partitioners, torch's
    among them, know by its readers that it is no single tensor."""
    for node in list(builder.graph.nodes):
        several = node.op == "call_function" and isinstance(builder.metas.get(node), tuple)
        if several and builder.metas[node] and not node.users:
            with builder.graph.inserting_after(node):
                reader = builder.item(node, 0)
            reader.meta.pop("partitioner_tag", None)
            reader.meta |= {key: tag for key, tag in node.meta.items() if key == "partitioner_tag"}
