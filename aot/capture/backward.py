"""The backward of a trace, recorded segment by segment in one run of torch's own engine.

Hooks on the nodes at which a gradient leaves its segment note it, and hand the next segment a tangent of its
own in its place. So every node runs once, with all that eager's engine does around it (sums, casts, the
function's own hooks), and what is recorded for a segment depends on that segment's tangents alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import GradientEdge, Node

from aot import torch_internals as internals
from aot.capture.graph import meta_of
from aot.capture.recorder import Recorder, fake_of
from aot.capture.segments import ArgumentEdge, EntranceEdge, Graph, Key, Target
from aot.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Tangent:
    """What comes in at an entrance: a placeholder, and the tensor that stands for it in the trace."""

    node: fx.Node
    where: Geometry
    fake: Tensor


@dataclass(slots=True)
class Recorded:
    """One segment's backward.

    Attributes:
        tangents: by entrance; those that are missing never get a gradient.
        gradients: what it computes, by where it goes.
        reach: for each of these, the entrances (bit j for the j-th) that it depends on.
    """

    tangents: dict[int, Tangent] = field(default_factory=dict)
    gradients: dict[Target, Tensor] = field(default_factory=dict)
    reach: dict[Target, int] = field(default_factory=dict)


class Engine:
    """Runs the backward of a trace.

    Args:
        graph: the autograd graph, cut.
        ends: the edges where the arguments entered, and what they are.
        likes: for every value with a history, a tensor that looks like it.
    """

    def __init__(
        self,
        recorder: Recorder,
        graph: Graph,
        ends: Mapping[Key, ArgumentEdge],
        likes: Mapping[int, Tensor],
    ) -> None:
        self._recorder = recorder
        self._graph = graph
        self._ends = ends
        self._entrances: dict[Key, tuple[int, int]] = {}
        self._tangents = 0
        self.segments = [Recorded() for _ in graph.segments]
        for number, segment in enumerate(graph.segments):
            for entrance, (edge, value) in enumerate(segment.entrances.items()):
                self._entrances[edge] = number, entrance
                if value is not None:
                    self.segments[number].tangents[entrance] = self.tangent(likes[value])

    def tangent(self, like: Tensor) -> Tangent:
        """A new tangent: laid out as the tensor is, or row-major where that shows one element twice."""
        where = Geometry(tuple(like.shape), like.stride(), 0, like.dtype)
        if where.overlaps_itself_somehow:
            where = where._replace(stride=torch.empty(like.shape, device="meta").stride())
        fake = fake_of(where, like.device)
        self._tangents += 1
        node = self._recorder.builder.placeholder(f"tangents_{self._tangents}", meta_of(fake))
        self._recorder.adopt(fake).define(where, node)
        return Tangent(node, where, fake)

    def run(self) -> None:
        """Record every segment.

        Raises:
            Exception: whatever a node of the graph raises, as it raises it.
        """
        with contextlib.ExitStack() as stack:
            for number, segment in enumerate(self._graph.segments):
                for node in segment.nodes:
                    exits = dict(self._exits(node))
                    if exits:
                        self._note(number, segment.reach[node], exits)
                        handle = node.register_hook(self._leaving(number, exits))
                        stack.callback(handle.remove)
            self._differentiate(range(len(self.segments)))

    def try_segment(self, number: int) -> None:
        """Run everything that a backward through one segment runs, to see whether it raises; what this
        records is read by nobody."""
        self._differentiate([number])

    def _differentiate(self, numbers: Any) -> None:
        starts: list[GradientEdge] = []
        given: list[Tensor] = []
        for number in numbers:
            edges = list(self._graph.segments[number].entrances)
            for entrance, tangent in self.segments[number].tangents.items():
                starts.append(GradientEdge(*edges[entrance]))
                given.append(tangent.fake)
        if starts:
            with recording_backward(self._recorder):
                torch.autograd.grad(
                    starts,
                    [GradientEdge(*e) for e in self._ends],
                    given,
                    retain_graph=True,
                    allow_unused=True,
                )

    def _exits(self, node: Node) -> Iterator[tuple[int, Target]]:
        for i, edge in self._graph.below(node):
            if self._graph.leaves_segment(node, edge):
                yield (
                    i,
                    self._ends.get(edge)
                    or self._graph.native(node, edge)
                    or EntranceEdge(*self._entrances[edge]),
                )

    def _note(self, number: int, reach: int, exits: dict[int, Target]) -> None:
        segment = self.segments[number]
        for target in exits.values():
            segment.reach[target] = segment.reach.get(target, 0) | reach

    def _leaving(self, number: int, exits: dict[int, Target]) -> Callable[..., tuple[Tensor | None, ...]]:
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
                passed[i] = None
                if isinstance(target, EntranceEdge):
                    tangents = self.segments[target.segment].tangents
                    if target.entrance not in tangents:
                        with internals.modes_off():
                            tangents[target.entrance] = self.tangent(gradient)
                        passed[i] = tangents[target.entrance].fake
            return tuple(passed)

        return hook


@contextlib.contextmanager
def recording_backward(recorder: Recorder) -> Iterator[None]:
    """What the engine is to run under, to be recorded as eager's backward runs outside of any autocast."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(recorder.draws.traced())
        stack.enter_context(recorder)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        for device in internals.AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
