"""In which order a call does what it does after the forward graph has run.

A segment of the backward becomes a node of the caller's autograd graph when it is applied, and what it is
applied to must have its history by then: other segments' results, and written arguments and views where the
gradient goes through them. They in turn need segments' results to be made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from aot.analysis.effect_summary import (
    AliasRoot,
    ArgumentRoot,
    BaseRoot,
    EffectSummary,
    FunctionViewRoot,
    IsRoot,
    Output,
    Root,
    SameAsOutput,
    View,
    ViewTime,
    WrapperRoot,
    value_of,
    version_bumps_by_outputs,
)
from aot.capture.autograd.edge_targets import ArgumentEdge, CotangentEdge, Target, WrittenEdge
from aot.errors import UnsupportedOperation
from aot.joint.joint import Segment

# What is done: ("segment", k) is applied, all happens that happens to ("storage", s) of the arguments,
# ("root", k) and ("output", i) are made.
Action = tuple[Literal["segment", "storage", "root", "output"], int]


def schedule(
    effects: EffectSummary, segments: Sequence[Segment], storages: Sequence[int]
) -> tuple[Action, ...]:
    """Everything, in an order in which it can be done.

    Args:
        storages: for each tensor of the call, which storage it lies in.

    Raises:
        UnsupportedOperation: there is no such order.
    """
    order = _Order(_Needs(effects, segments, storages))
    # Gradients are added up in the order in which the engine runs the nodes, which is that of their making.
    in_turn = sorted(range(len(segments)), key=lambda number: segments[number].engine_order)
    # A write moves the history of views, so whatever can be applied before is.
    for number in in_turn:
        if not order.waits_for_storage(("segment", number)):
            order.add(("segment", number))
    for storage in dict.fromkeys(storages):
        order.add(("storage", storage))
    for number in in_turn:
        order.add(("segment", number))
    # (What moves a version counter does so before other views are taken, which would be older than that.)
    outputs = effects.outputs
    for position in sorted(range(len(outputs)), key=lambda i: not _moves(outputs[i])):
        order.add(("output", position))
    for number in range(len(effects.roots)):
        order.add(("root", number))
    return order.actions


def _moves(output: Output) -> bool:
    return isinstance(output, View) and output.bumps_version


class _Order:
    """Actions, each after what it needs."""

    def __init__(self, needs: _Needs) -> None:
        self._needs = needs
        self._done: dict[Action, None] = {}
        self._active: set[Action] = set()

    @property
    def actions(self) -> tuple[Action, ...]:
        return tuple(self._done)

    def add(self, item: Action) -> None:
        """Put an action into the order, after all that it needs.

        Raises:
            UnsupportedOperation: it needs itself.
        """
        if item in self._done:
            return
        if item in self._active:
            raise UnsupportedOperation(
                "tensors on one storage of the arguments are written in turn with others, each with the "
                "gradient of what was written before; clone one of them"
            )
        self._active.add(item)
        for other in self._needs.of(item):
            self.add(other)
        self._done[item] = None

    def waits_for_storage(self, item: Action) -> bool:
        """Whether anything has to happen to the arguments before."""
        seen: set[Action] = set()
        stack = [item]
        while stack:
            action = stack.pop()
            if action[0] == "storage":
                return True
            if action not in seen:
                seen.add(action)
                stack.extend(self._needs.of(action))
        return False


class _Needs:
    """What has to be done before each action."""

    def __init__(self, effects: EffectSummary, segments: Sequence[Segment], storages: Sequence[int]) -> None:
        self._effects = effects
        self._segments = segments
        self._storages = storages
        roots = effects.roots
        self._segment_of: dict[int | None, int] = {
            e.value: k for k, s in enumerate(segments) for e in s.cotangent_inputs if e.value is not None
        }
        values = [value_of(root) for root in roots]
        made_by = [None if value is None else self._segment_of.get(value) for value in values]
        self._function_views = {
            root.history: root.base
            for root, number in zip(roots, made_by, strict=True)
            # (A custom function may return a tensor and a view of it: one segment makes both.)
            if isinstance(root, FunctionViewRoot) and made_by[root.base] != number
        }
        self._made_of: dict[int | None, list[Action]] = {
            root.history: [("output", position) for position in root.meta.positions]
            for root in roots
            if isinstance(root, WrapperRoot) and root.history is not None
        }
        # (Aliases with a history are made of others when they get that.)
        self._carriers: dict[int | None, list[Action]] = {
            root.history: [("root", root.root)]
            for root in roots
            if isinstance(root, AliasRoot) and root.history is not None and root.root is not None
        }
        self._moved = version_bumps_by_outputs(effects.outputs, roots, storages)

    def of(self, item: Action) -> Iterator[Action]:
        """What an action needs, in the order in which it is looked for."""
        kind, number = item
        if kind == "segment":
            yield from self._of_segment(self._segments[number])
        elif kind == "storage":
            for write in self._effects.writes:
                if write.tracked and self._storages[write.tensor] == number:
                    yield "segment", self._segment_of[write.value]
        elif kind == "root":
            yield from self._of_root(self._effects.roots[number])
        else:
            yield from self._of_output(self._effects.outputs[number])

    def _of_segment(self, segment: Segment) -> Iterator[Action]:
        for gradient in segment.gradients:
            yield from self._of_target(gradient.target)
        for target in segment.second_order_targets:
            yield from self._of_target(target)
        for entrance in segment.cotangent_inputs:
            if entrance.value in self._function_views:
                yield "root", self._function_views[entrance.value]
            yield from self._made_of.get(entrance.value, ())
            yield from self._carriers.get(entrance.value, ())

    def _of_output(self, output: Output) -> Iterator[Action]:
        if isinstance(output, SameAsOutput):
            yield "output", output.output
        elif isinstance(output, IsRoot):
            yield "root", output.root
        elif isinstance(output, View) and output.taken is not ViewTime.BEFORE_WRITES:
            yield "root", output.root
            if output.through is not None:
                yield "output", output.through

    def _of_target(self, target: Target) -> Iterator[Action]:
        if isinstance(target, ArgumentEdge):
            if target.tensor in self._effects.begin_requires_grad:
                yield "storage", self._storages[target.tensor]
        elif isinstance(target, WrittenEdge):
            storage = self._storages[target.tensor]
            yield "storage", storage
            yield from (("output", position) for position in self._moved.get(storage, ()))
        elif isinstance(target, CotangentEdge):
            yield "segment", target.segment
        else:
            output = self._effects.outputs[target.output]
            assert isinstance(output, (View, IsRoot))
            yield "root", output.root  # of an early view, too: a write moves its history
            yield "output", target.output

    def _of_root(self, root: Root) -> Iterator[Action]:
        if isinstance(root, (ArgumentRoot, BaseRoot)):
            yield "storage", self._storages[root.tensor]
            replaced = self._effects.replaced
            yield from (("output", new) for tensor, _, new in replaced if tensor == root.tensor)
            return
        if isinstance(root, FunctionViewRoot):
            yield "root", root.base
        elif isinstance(root, WrapperRoot):
            yield from (("output", position) for position in root.meta.positions)
        elif isinstance(root, AliasRoot):
            yield from self._of_alias(root)
        segment = self._segment_of.get(value_of(root))
        if segment is not None:
            yield "segment", segment

    def _of_alias(self, root: AliasRoot) -> Iterator[Action]:
        # (What is made of a value is so whether that has its history already or not.)
        memory = root.memory
        if root.root is not None:
            yield "root", root.root
        if memory is not None and memory.tensor is not None and root.history is None:
            yield "storage", self._storages[memory.tensor]
