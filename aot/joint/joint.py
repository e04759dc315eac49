"""The joint graph as data: one graph for forward and backward, and the segments of the backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from aot.capture.autograd.edge_targets import RebuiltEdge, Target
from aot.capture.autograd.engine import RetracePoint
from aot.capture.trace_result import Primal
from aot.graph.graph_text import graph_lines, labels, layout_text, section, shape_text
from aot.tensors.geometry import Geometry
from aot.tensors.subclasses import GradientLayout


@dataclass(frozen=True, slots=True)
class CotangentInput:
    """Where gradients come into a segment: a value of the forward, or something in between that only other
    segments differentiate.

    Attributes:
        value: the value, or None.
        size, dtype, device: what a gradient looks like.
        tangent: the layout that its gradient was traced with; None if it never has one.
        kept: whether the segment keeps the tensor that has this edge, so that gradients of its gradients come
            in here as well.
    """

    value: int | None
    size: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    tangent: GradientLayout | None
    kept: bool = False

    def __str__(self) -> str:
        value = "an edge between segments" if self.value is None else f"v{self.value}"
        shape = [] if self.value is None and self.tangent is None else [shape_text(self.dtype, self.size)]
        tangent = "no tangent" if self.tangent is None else f"tangent {_gradient_text(self.tangent)}"
        return ", ".join([value, *shape, tangent, *labels(self, "kept")])


def _gradient_text(layout: GradientLayout) -> str:
    wheres = ", ".join(map(layout_text, layout.wheres))
    return wheres if layout.meta is None else f"{layout.meta.kind.__name__} of ({wheres})"


def tangent_numbers(bits: int) -> list[int]:
    """The numbers of the tangents in a set of these."""
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


Shared = tuple[Literal["tensor", "output"], int]  # ("tensor", i) of the call, or ("output", p)


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient that a segment computes.

    Attributes:
        target: where it goes.
        results: which of the segment's results it is, or is made of; empty where eager never has one.
        tangents: bit j is set when it depends on tangent j; without any of those it is None, as in eager.
        layout: how they lie, if it is a wrapper subclass.
        shared: the parts that it shares with others: a tensor of the call, or an output.
        viewed: whether it is another tensor in the memory of what has its value, as the gradient that comes
            in is where a formula takes a view that shows all of it. Autograd keeps a tensor that nobody else
            holds for the `grad` of a leaf, and copies others.
    """

    target: Target
    results: tuple[int, ...]
    tangents: int
    layout: GradientLayout | None = None
    shared: tuple[Shared, ...] = ()
    viewed: bool = False

    def __str__(self) -> str:
        results = ", ".join(f"g{result}" for result in self.results) or "none"
        words = [f"{results} to {self.target}, of tangents {tangent_numbers(self.tangents)}"]
        words += [] if self.layout is None else [_gradient_text(self.layout)]
        words += [f"shares {kind} {number}" for kind, number in self.shared]
        return ", ".join([*words, *labels(self, "viewed")])


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the backward that runs as a whole, and is one node of the caller's autograd graph.

    Attributes:
        cotangent_inputs: where gradients come in. Their tangents are the segment's tangents, in order.
        gradients: what goes out, in the order of their results; nothing, where nothing leads to an argument.
        failure: the type and text of what eager's backward raises here.
        failing: the strides of the gradients for which it does, if there are others for which it does not.
        kept: what of the caller's the backward keeps.
        second_order_targets: where gradients of the gradients go besides.
        rebuilt_targets: what has a native history and was kept by the nodes, as it is after the call:
            gradients of the gradients go there as well, if it is still so.
        frees: whether eager's backward frees something, so that a second one raises.
        stays: whether eager's backward frees nothing, and keeps something all the same.
        runs_custom_function: whether custom functions run in it, which say themselves what a missing gradient
            is. So they do where none comes in at all.
        needed: sets of tangents (bits); a backward that lacks some tangents, and all of one of these sets, is
            recorded again. What it computes is not to be told from this one.
        engine_order: grows with the place that it has in eager's graph.
        dead_targets: those of the gradients that go to a result which leads nowhere.
        idle: whether it looks at nothing where no gradient comes in: what it keeps is for writes to views.
    """

    cotangent_inputs: tuple[CotangentInput, ...]
    gradients: tuple[Gradient, ...]
    failure: tuple[type[Exception], str] | None = None
    failing: tuple[int, ...] | None = None
    kept: tuple[SavedInput, ...] = ()
    second_order_targets: tuple[Target, ...] = ()
    rebuilt_targets: tuple[RebuiltEdge, ...] = ()
    frees: bool = False
    stays: bool = False
    runs_custom_function: bool = False
    needed: tuple[int, ...] = ()
    engine_order: int = 0
    dead_targets: tuple[int, ...] = ()
    idle: bool = False

    def __str__(self) -> str:
        fails = [] if self.failure is None else [f"{self.failure[0].__name__}: {self.failure[1]}"]
        strides = [] if self.failing is None else [f"for gradients of strides {list(self.failing)}"]
        needed = [f"recorded again without tangents {tangent_numbers(bits)}" for bits in self.needed]
        dead = [f"gradient {number} leads nowhere" for number in self.dead_targets]
        flags = labels(self, "frees", "stays", "runs_custom_function", "idle")
        return "".join(
            (
                section("in", self.cotangent_inputs),
                section("out", self.gradients),
                section("keeps", self.kept),
                section("second order", (*self.second_order_targets, *self.rebuilt_targets)),
                section("checks", (*fails, *strides, *needed, *dead, *flags)),
            )
        )

    @property
    def tangents(self) -> tuple[int, ...]:
        """For each tangent, the entrance that it comes in at."""
        tangents = (
            (e, one.tangent) for e, one in enumerate(self.cotangent_inputs) if one.tangent is not None
        )
        return tuple(e for e, tangent in tangents for _ in tangent.wheres)

    @property
    def results(self) -> int:
        """How many results the backward graph has."""
        return sum(len(gradient.results) for gradient in self.gradients)

    @property
    def shared(self) -> tuple[Shared, ...]:
        """What its gradients share with others."""
        return tuple(dict.fromkeys(one for gradient in self.gradients for one in gradient.shared))


@dataclass(frozen=True, slots=True)
class LiveInput:
    """Memory of the forward that a backward reads as it finds it, and writes to.

    Attributes:
        tensor: the argument whose memory it is, if it is one's.
        value: the value for the caller that it is; None for what the forward has made for the backward.
        where: where in its storage.
        counted: whether the write moves the version counter.
    """

    tensor: int | None
    value: int | None
    where: Geometry
    counted: bool

    def __str__(self) -> str:
        memory = "memory of the forward" if self.tensor is None else f"memory of t{self.tensor}"
        value = [] if self.value is None else [f"v{self.value}"]
        return ", ".join([f"{memory} as {layout_text(self.where)}", *value, *labels(self, "counted")])


@dataclass(frozen=True, slots=True)
class Joint:
    """A recorded program, forward and backward.

    Attributes:
        graph: primals and tangents in, values then gradients out, the latter of both segment by segment.
        returned: which values of the `EffectSummary` it returns, in order.
        primals: what each primal is.
        generators: the devices whose generators' states come in after the primals, and go out after the
            values; none unless random draws are functionalized.
        segments: the parts of the backward; empty for a program without one.
        levels: what each part can be recorded again from, if it computes anything.
        in_input_memory: names of values that an argument's memory holds when the call returns, with the
            argument and their place in its storage.
        python_callbacks: what of the function's Python eager runs in the backward; None for all of it.
        live: names of forward values that stand for memory which the backward writes to.
    """

    graph: fx.GraphModule
    returned: tuple[int, ...]
    primals: tuple[Primal, ...]
    generators: tuple[torch.device, ...]
    segments: tuple[Segment, ...]
    levels: tuple[RetracePoint | None, ...]
    in_input_memory: dict[str, tuple[int, Geometry]]
    python_callbacks: tuple[Any, ...] | None
    live: dict[str, LiveInput]

    @property
    def values(self) -> int:
        """How many values the graph returns, states included, before the gradients."""
        return len(self.returned) + len(self.generators)

    def __str__(self) -> str:
        live = (f"{name}: {memory}" for name, memory in self.live.items())
        resident = (
            f"{name}: in the memory of t{tensor} as {layout_text(where)}"
            for name, (tensor, where) in self.in_input_memory.items()
        )
        segments = (section(f"segment {number}", [one]) for number, one in enumerate(self.segments))
        return "".join(
            (
                section("inputs", self.primals),
                section("graph", graph_lines(self.graph.graph, self.graph)),
                section("returned", [", ".join(f"v{value}" for value in self.returned)]),
                section("in input memory", resident),
                section("live memory", live),
                *segments,
            )
        )


@dataclass(frozen=True, slots=True)
class SavedInput:
    """A tensor of the caller's that eager's backward keeps: written to between forward and backward, it makes
    the backward raise.

    Attributes:
        tensor, root: which argument or which root of the outputs; one of the two.
        tangents: the segment's tangents (bit j for the j-th), each of which has it unpacked; 0 if it is not
            counted.
        always: whether a backward that none of these comes to unpacks it, too.
        counted: whether a write to it is noticed; not if it is kept under another version counter (`.data`).
        needs_history: the same, if it is the very tensor that is unpacked, which has a history, and raises
            when that has been taken from it (`detach_`).
        only_for_dead_targets: whether only what leads to no argument unpacks it, which does not run where the
            engine is asked for the gradients of some arguments.
        reason: what is raised when it was written to, if that is not that it was: a view that was taken
            without grad does not know its history any more.
    """

    tensor: int | None
    root: int | None
    tangents: int
    always: bool = True
    counted: bool = True
    needs_history: int = 0
    only_for_dead_targets: bool = False
    reason: str | None = None

    def __str__(self) -> str:
        kept = f"r{self.root}" if self.tensor is None else f"t{self.tensor}"
        words = [f"{kept}, for tangents {tangent_numbers(self.tangents)}"]
        words += [] if self.always else ["only for these"]
        words += [] if self.counted else ["not counted"]
        words += [f"with its history for {tangent_numbers(self.needs_history)}"] if self.needs_history else []
        words += labels(self, "only_for_dead_targets")
        return ", ".join([*words, *([] if self.reason is None else [self.reason])])
