"""The plan: everything that a call does besides running graphs, as pure data.

In: `EffectSummary`, a `Joint` and the partitioned forward graph. Out: a `Plan`, from which `codegen` writes
the wrapper. It holds no tensor, no fake and no node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from aot.analysis.effect_summary import (
    Change,
    EffectSummary,
    Output,
    Root,
    ValueRoot,
    Write,
    effect_sections,
    numbered,
)
from aot.capture.autograd.edge_targets import ArgumentEdge, WrittenEdge
from aot.graph.graph_text import labels, layout_text, section
from aot.joint.joint import Joint, SavedInput, Segment
from aot.runtime.saved_values import (
    OUTSIDE_OF_AUTOGRAD,
    Saved,
    SavedValuePlanner,
    SelfSaved,
    VersionCheck,
    tangents_read_by_offset,
)
from aot.runtime.schedule import Action, schedule
from aot.specialize.inline_cache import PlacementSensitivity
from aot.tensors.geometry import Geometry
from aot.tensors.symbolic_sizes import ShapeGuards
from aot.tensors.views import alias_root


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input: the memory of tensor number `tensor`, or a flat stretch of the storage that it lies in.

    Attributes:
        dtype: of the tensor; a stretch of another dtype is one of bytes.
        lazy: whether the tensor shows its memory lazily conjugated or negated.
    """

    tensor: int
    span: Geometry | None
    dtype: torch.dtype
    lazy: bool

    def __str__(self) -> str:
        span = "" if self.span is None else f", its storage as {layout_text(self.span)}"
        return f"t{self.tensor}{span}{', lazy' * self.lazy}"


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """A segment of the backward, and what is kept for it: see `saved_values`.

    Attributes:
        needs_history: what must not have lost its history.
        from_start: the tangents that must lie at the start of their storage, counted as the graph takes them.
        stays: whether what is saved stays after a backward that does not retain the graph.
    """

    segment: Segment
    saved: tuple[Saved, ...]
    watched: tuple[VersionCheck, ...]
    own: tuple[SelfSaved, ...]
    from_start: frozenset[int]

    @property
    def stays(self) -> bool:
        # (A result that is kept as an attribute of its own node would keep itself.)
        return self.segment.stays and not self.own

    @property
    def needs_history(self) -> tuple[SavedInput, ...]:
        return tuple(kept for kept in self.segment.kept if kept.needs_history)

    def __str__(self) -> str:
        flags = [*labels(self, "stays"), *(f"tangent {i} from the start" for i in sorted(self.from_start))]
        return "".join(
            (
                str(self.segment),
                section("saved", self.saved),
                section("compared versions", self.watched),
                section("kept by its own node", self.own),
                section("flags", flags),
            )
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call does.

    Attributes:
        tensors: how many tensors the call has.
        storages: for each of them, the number of the storage that it lies in.
        leaves: those that are leaves and require grad.
        foreach_groups: groups of those of which several are written to by one call.
        wrapped: whether there are wrapper subclasses among the tensors and the results.
        inputs: the forward graph's inputs.
        forward_is_empty: whether the forward graph computes nothing, and returns nothing.
        generators: the devices whose generators' states it takes after these, and returns after the values.
        values: the layout of each value.
        returned: which of them the forward graph returns, in order.
        input_values: the values that are graph inputs.
        in_input_memory: those that lie in the memory of one.
        saved: how many saved values it returns after these.
        kept: the writes that the graph does itself.
        parts: the parts of the backward.
        order: in which order everything is done after the forward graph has run.
        writes, changes, begin_requires_grad, end_requires_grad, detached, pinned_views, grown_storages,
        version_bumps_only, roots, outputs, retaining,
            retaining_outputs, views_with_history, replaced, num_user_outputs: see `EffectSummary`.
        grad: grad mode at the call; `grad_after`: when it returns.
        inference: whether the call is made in inference mode.
        inference_values: the values that the caller gets as inference tensors.
        runs_python: whether eager runs the function's Python in the backward.
        placement: what else matters to what is done than the elements of the tensors, how they are laid out,
            and where gradients of those go that require grad.
        numbers: the numbers of a call that are symbols in the graphs.
    """

    tensors: int
    storages: tuple[int, ...]
    leaves: frozenset[int]
    foreach_groups: tuple[frozenset[int], ...]
    wrapped: bool
    inputs: tuple[Input, ...]
    forward_is_empty: bool
    generators: tuple[torch.device, ...]
    values: tuple[Geometry, ...]
    returned: tuple[int, ...]
    input_values: frozenset[int]
    in_input_memory: frozenset[int]
    saved: int
    kept: tuple[Write, ...]
    parts: tuple[SegmentPlan, ...]
    order: tuple[Action, ...]
    writes: tuple[Write, ...]
    changes: tuple[tuple[int, Change], ...]
    begin_requires_grad: tuple[int, ...]
    end_requires_grad: tuple[int, ...]
    detached: tuple[int, ...]
    pinned_views: tuple[tuple[int, int], ...]
    grown_storages: tuple[tuple[int, int], ...]
    version_bumps_only: tuple[int, ...]
    roots: tuple[Root, ...]
    outputs: tuple[Output, ...]
    retaining: tuple[int, ...]
    retaining_outputs: tuple[int, ...]
    views_with_history: tuple[int, ...]
    replaced: tuple[tuple[int, tuple[str, ...], int], ...]
    num_user_outputs: int
    grad: bool
    grad_after: bool
    inference: bool
    inference_values: tuple[int, ...]
    runs_python: bool
    placement: PlacementSensitivity
    numbers: ShapeGuards

    def __str__(self) -> str:
        inputs = (f"{entry}{', a leaf' * (entry.tensor in self.leaves)}" for entry in self.inputs)
        flags = labels(self, "forward_is_empty", "inference", "runs_python", "wrapped")
        flags += [f"{self.saved} saved values"] if self.saved else []
        flags += [f"generator state of {device}" for device in self.generators]
        modes = [] if self.grad == self.grad_after else [f"grad mode is {self.grad_after} after the call"]
        return "".join(
            (
                section("storages", [", ".join(map(str, self.storages))]),
                section("graph inputs", inputs),
                section("values", numbered("v", map(self._value_text, range(len(self.values))))),
                *effect_sections(self),
                section("order", [", ".join(f"{kind} {number}" for kind, number in self.order)]),
                *(section(f"segment {number}", [part]) for number, part in enumerate(self.parts)),
                section("sizes", self.numbers.tests),
                section("flags", (*flags, *modes, f"what matters besides elements: {self.placement.value}")),
            )
        )

    def _value_text(self, value: int) -> str:
        words = [layout_text(self.values[value])]
        words += [] if value in self.returned else ["not returned"]
        words += ["a graph input"] if value in self.input_values else []
        words += ["in a graph input's memory"] if value in self.in_input_memory - self.input_values else []
        return ", ".join([*words, *(["inference"] if value in self.inference_values else [])])


def make_plan(
    effects: EffectSummary,
    joint: Joint,
    forward: fx.GraphModule,
    backwards: Sequence[tuple[fx.GraphModule | None, tuple[int, ...]]],
    storages: tuple[int, ...],
    parameters: frozenset[int],
    leaves: frozenset[int],
    together: tuple[frozenset[int], ...],
    wrapped: bool,
    asked: bool,
    apart: bool,
    grad: bool,
    grad_after: bool,
    inference: bool,
    numbers: ShapeGuards,
) -> Plan:
    """Combine what the stages learnt.

    Args:
        backwards: each segment's graph, and which saved values it takes.
        storages: for each tensor of the call, the number of the storage that it lies in.
        parameters: the tensors that live on in any case.
        leaves: those that are leaves and require grad.
        together: groups of those of which several are written to by one call.
        wrapped: whether there are wrapper subclasses among them, or among the results.
        asked: whether what the run did may depend on where these lie in their storage, how large that is,
            whether they are views, or what gradients they hold.
        apart: whether each has a storage and a history of its own.
        numbers: the numbers of a call that are symbols.

    Raises:
        UnsupportedOperation: what is to be done after the forward cannot be put into an order.
    """
    taken = [indices for _, indices in backwards]
    savings = SavedValuePlanner(forward, joint, effects, taken, storages, parameters)
    parts = [
        SegmentPlan(
            segment, *savings.decide_saved_values(segment, *backward), tangents_read_by_offset(backward[0])
        )
        for segment, backward in zip(joint.segments, backwards, strict=True)
    ]
    return Plan(
        tensors=len(storages),
        storages=storages,
        leaves=leaves.union(effects.begin_requires_grad),
        foreach_groups=together,
        wrapped=wrapped,
        inputs=tuple(Input(p.tensor, p.span, p.dtype, p.lazy) for p in joint.primals),
        forward_is_empty=not (joint.generators or numbers.computed)
        and all(_is_idle(node) for node in forward.graph.nodes),
        generators=joint.generators,
        values=tuple(v.where for v in effects.values),
        returned=joint.returned,
        input_values=frozenset(i for i, v in enumerate(effects.values) if v.node.op == "placeholder"),
        in_input_memory=frozenset(
            i for i, v in enumerate(effects.values) if alias_root(v.node).op == "placeholder"
        ),
        saved=savings.count,
        kept=effects.kept,
        parts=tuple(parts),
        order=schedule(effects, joint.segments, storages),
        writes=effects.writes,
        changes=effects.changes,
        begin_requires_grad=effects.begin_requires_grad,
        end_requires_grad=effects.end_requires_grad,
        detached=effects.detached,
        pinned_views=effects.pinned_views,
        grown_storages=effects.grown_storages,
        version_bumps_only=effects.version_bumps_only,
        roots=effects.roots,
        outputs=effects.outputs,
        retaining=effects.retaining,
        retaining_outputs=effects.retaining_outputs,
        views_with_history=effects.views_with_history,
        replaced=effects.replaced,
        num_user_outputs=effects.num_user_outputs,
        grad=grad,
        grad_after=grad_after,
        inference=inference,
        inference_values=tuple(i for i, value in enumerate(effects.values) if value.inference),
        runs_python=joint.python_callbacks != (),
        placement=_planned_layout(asked or joint.python_callbacks != (), apart, effects, joint, parts),
        numbers=numbers,
    )


def _is_idle(node: fx.Node) -> bool:
    """Whether it is an input, or a result of nothing."""
    return node.op == "placeholder" or (node.op == "output" and not node.args[0])


def _planned_layout(
    asked: bool, apart: bool, effects: EffectSummary, joint: Joint, parts: Sequence[SegmentPlan]
) -> PlacementSensitivity:
    moved = (
        *(
            effects.changes,
            effects.begin_requires_grad,
            effects.end_requires_grad,
            effects.detached,
            effects.pinned_views,
        ),
        *(
            effects.grown_storages,
            effects.retaining,
            effects.retaining_outputs,
            effects.views_with_history,
            effects.replaced,
        ),
    )
    if asked or any(moved):
        return PlacementSensitivity.FULL
    done = (effects.writes, effects.kept, effects.version_bumps_only)
    if (
        apart
        and not any(done)
        and all(isinstance(root, ValueRoot) for root in effects.roots)
        and all(primal.span is None for primal in joint.primals)
        and all(map(_does_planned_part_read_values, parts))
    ):
        return PlacementSensitivity.NONE
    return PlacementSensitivity.ALIASING


def _does_planned_part_read_values(part: SegmentPlan) -> bool:
    """Whether a part of the backward, and what is kept for it, leads to no other memory and no base."""
    segment = part.segment
    targets = (*(gradient.target for gradient in segment.gradients), *segment.second_order_targets)
    return not (
        part.watched
        or part.needs_history
        or segment.shared
        or any(one.how in OUTSIDE_OF_AUTOGRAD for one in part.saved)
        or any(isinstance(target, WrittenEdge) for target in targets)
        or any(isinstance(target, ArgumentEdge) and target.of_base for target in targets)
    )
