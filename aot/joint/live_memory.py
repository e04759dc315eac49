"""Memory of the forward that a backward writes to, in the joint graph.

An argument's is one more input of the graph, which the forward hands on and the backward copies onto; what
the forward has made is copied once for the backward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import fx
from torch.autograd.graph import Node

from aot.analysis.effect_summary import EffectSummary, ValueRoot
from aot.capture.autograd.engine import BackwardRecorder
from aot.capture.autograd.segments import SegmentedGraph
from aot.capture.memory.storage import Storage
from aot.capture.recorder.backward_writes import copy_back, pin_readers
from aot.capture.recorder.recorder import Recorder
from aot.capture.run import Traced
from aot.capture.trace_result import Primal
from aot.errors import UnsupportedOperation
from aot.graph.value_meta import lookup
from aot.joint.joint import LiveInput
from aot.joint.saved_tensors import hooks_of
from aot.tensors.geometry import Geometry, geometry
from aot.torch_internals import activation_checkpoint


class LiveMemory:
    """The live memory of one joint graph.

    Attributes:
        inputs: by the names of the nodes that stand for it.
    """

    def __init__(self, forward: Traced, effects: EffectSummary) -> None:
        self._forward = forward
        self._effects = effects
        self.inputs: dict[str, LiveInput] = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """While the backward is recorded that is compiled with the forward."""
        writes = self._forward.recorder.backward_writes
        writes.make_live = self._make_live
        try:
            with writes.recording():
                yield
        finally:
            writes.make_live = None

    def _make_live(self, state: Storage, where: Geometry, before: fx.Node) -> fx.Node:
        builder = self._forward.recorder.builder
        meta = builder.metas[before]
        assert isinstance(meta, int)
        if lookup(meta).stride != where.stride:
            raise UnsupportedOperation(
                "a backward writes to a tensor whose value lies otherwise in the graph; make it contiguous"
            )
        tensor = self._argument(state, where)
        if tensor is None:
            with builder.graph.inserting_after(before):
                node = builder.graph.call_function(torch.ops.aten.clone.default, (before,))
            builder.metas[node] = meta
        else:
            node = builder.placeholder(f"live_{len(self.inputs)}", meta, where.offset)
            before.append(node)  # which some of its readers stand behind
            self._forward.primals.append(Primal(node, tensor, where.dtype, False))
        node.meta["partitioner_tag"] = "is_forward"
        value = None if tensor is not None else self._value(state, before)
        self.inputs[node.name] = LiveInput(tensor, value, where, False)
        return node

    def _argument(self, state: Storage, where: Geometry) -> int | None:
        """The argument that shows just some memory; None for what the forward has made."""
        entry = self._forward.entry
        for number, (fake, lies_in) in enumerate(zip(entry.fakes, entry.states, strict=True)):
            if lies_in is state and geometry(fake) == where:
                return number
        if state.entries:
            raise UnsupportedOperation(
                "a backward writes to an argument that shows a part of its memory, or whose shape or strides "
                "have changed; return what is to be written instead"
            )
        return None

    def _value(self, state: Storage, before: fx.Node) -> int | None:
        """The value for the caller that memory of the forward is; None for what he does not get."""
        if all(self._forward.storage(tensor)[0] is not state for tensor in self._forward.recorder.results):
            return None
        effects = self._effects
        given = {root.value for root in effects.roots if isinstance(root, ValueRoot)}
        for number, value in enumerate(effects.values):
            if value.node is before and number in given:
                return number
        raise UnsupportedOperation(
            "a backward writes to memory of which the function returns a view, or what was written to; "
            "return a copy"
        )

    def close(self, graph: SegmentedGraph, engine: BackwardRecorder) -> None:
        """Let the backward copy what it has written onto the memory.

        Raises:
            UnsupportedOperation: it cannot be told with which part of the backward it is written.
        """
        recorder = self._forward.recorder
        for live, value in recorder.backward_writes.end():
            segments = {graph.segment_of.get(node) for node in live.writers}
            number = segments.pop()
            checkpoints = {one for node in live.writers for one in _checkpoints_around(recorder, node)}
            others = [s for k, s in enumerate(graph.segments) if k != number and engine.segments[k].gradients]
            if (
                segments
                or number is None
                or not engine.segments[number].gradients
                or any(checkpoints & _checkpoints_around(recorder, node) for s in others for node in s.nodes)
            ):
                raise UnsupportedOperation(
                    "a backward writes to a tensor of the forward in what several results are differentiated "
                    "by, or none; return one result"
                )
            name = live.node.name
            self.inputs[name] = replace(self.inputs[name], counted=live.counted)
            pin_readers(recorder.builder.graph, live.node)
            if value is not live.node:
                copy_back(recorder.builder, live.node, value, number)


def _checkpoints_around(recorder: Recorder, node: Node) -> set[int]:
    """The checkpoints that a node of the autograd graph was made in. It may have any of them run again."""
    hooks = hooks_of(recorder, node)
    return set() if hooks is None else {id(one) for one in activation_checkpoint.checkpoints_around(hooks)}
