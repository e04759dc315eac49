"""In which order a call does what it does after the forward graph has run.

A segment of the backward becomes a node of the caller's autograd graph when it is applied, and what it is
applied to must have its history by then: other segments' results, and written arguments and views where the
gradient goes through them. They in turn need segments' results to be made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from aot.analysis.effect_summary import (
    AliasRoot,
    ArgumentRoot,
    BaseRoot,
    EffectSummary,
    FunctionViewRoot,
    IsRoot,
    Output,
    SameAsOutput,
    ValueRoot,
    View,
    ViewTime,
    WrapperRoot,
    value_of,
    version_bumps_by_outputs,
)
from aot.capture.autograd.edge_targets import ArgumentEdge, CotangentEdge, OutputEdge, WrittenEdge
from aot.errors import UnsupportedOperation
from aot.joint.joint import Segment

# What is done: ("segment", k) is applied, all happens that happens to ("storage", s) of the arguments,
# ("root", k) and ("output", i) are made.
Action = tuple[Literal["segment", "storage", "root", "output"], int]


def _waits_for_storage_action(item: Action, needs: Callable[[Action], Iterator[Action]]) -> bool:
    """Whether anything has to happen to the arguments before."""
    seen: set[Action] = set()
    stack = [item]
    while stack:
        one = stack.pop()
        if one[0] == "storage":
            return True
        if one not in seen:
            seen.add(one)
            stack.extend(needs(one))
    return False


def _moves(output: Output) -> bool:
    return isinstance(output, View) and output.bumps_version


def schedule(
    effects: EffectSummary, segments: Sequence[Segment], storages: Sequence[int]
) -> tuple[Action, ...]:
    """Everything, in an order in which it can be done.

    Args:
        storages: for each tensor of the call, which storage it lies in.

    Raises:
        UnsupportedOperation: there is no such order.
    """
    # (The functions below refer to themselves; they must not keep the tensors of the trace.)
    writes, roots, outputs, required = (
        effects.writes,
        effects.roots,
        effects.outputs,
        effects.begin_requires_grad,
    )
    replaced = effects.replaced
    segment_of = {
        e.value: k for k, s in enumerate(segments) for e in s.cotangent_inputs if e.value is not None
    }
    values = [value_of(root) for root in roots]
    made_by = [None if value is None else segment_of.get(value) for value in values]
    function_views = {
        root.history: root.base
        for root, number in zip(roots, made_by, strict=True)
        # (A custom function may return a tensor and a view of it: one segment makes both.)
        if isinstance(root, FunctionViewRoot) and made_by[root.base] != number
    }
    made_of: dict[int | None, list[Action]] = {
        root.history: [("output", position) for position in root.meta.positions]
        for root in roots
        if isinstance(root, WrapperRoot) and root.history is not None
    }
    # (Aliases with a history are made of others when they get that.)
    carriers: dict[int | None, list[Action]] = {
        root.history: [("root", root.root)]
        for root in roots
        if isinstance(root, AliasRoot) and root.history is not None and root.root is not None
    }
    moved = version_bumps_by_outputs(outputs, roots, storages)
    order: dict[Action, None] = {}
    active: set[Action] = set()

    def needs(item: Action) -> Iterator[Action]:
        kind, number = item
        if kind == "segment":
            for gradient in segments[number].gradients:
                yield from needs_of_target(gradient.target)
            for target in segments[number].second_order_targets:
                yield from needs_of_target(target)
            for entrance in segments[number].cotangent_inputs:
                if entrance.value in function_views:
                    yield "root", function_views[entrance.value]
                yield from made_of.get(entrance.value, ())
                yield from carriers.get(entrance.value, ())
        elif kind == "storage":
            for write in writes:
                if write.tracked and storages[write.tensor] == number:
                    yield "segment", segment_of[write.value]
        elif kind == "root":
            yield from needs_of_root(number)
        else:
            output = outputs[number]
            if isinstance(output, SameAsOutput):
                yield "output", output.output
            elif isinstance(output, IsRoot) or (
                isinstance(output, View) and output.taken is not ViewTime.BEFORE_WRITES
            ):
                yield "root", output.root
                if isinstance(output, View) and output.through is not None:
                    yield "output", output.through

    def needs_of_target(target: object) -> Iterator[Action]:
        if isinstance(target, ArgumentEdge):
            if target.tensor in required:
                yield "storage", storages[target.tensor]
        elif isinstance(target, WrittenEdge):
            yield "storage", storages[target.tensor]
            yield from (("output", position) for position in moved.get(storages[target.tensor], ()))
        elif isinstance(target, CotangentEdge):
            yield "segment", target.segment
        elif isinstance(target, OutputEdge):
            output = outputs[target.output]
            assert isinstance(output, (View, IsRoot))
            yield "root", output.root  # of an early view, too: a write moves its history
            yield "output", target.output

    def needs_of_root(number: int) -> Iterator[Action]:
        root = roots[number]
        if isinstance(root, (ArgumentRoot, BaseRoot)):
            yield "storage", storages[root.tensor]
            yield from (("output", new) for tensor, _, new in replaced if tensor == root.tensor)
            return
        if isinstance(root, FunctionViewRoot):
            yield "root", root.base
            values = [root.history]
        elif isinstance(root, ValueRoot):
            values = [root.value]
        elif isinstance(root, WrapperRoot):
            values = [] if root.history is None else [root.history]
            yield from (("output", position) for position in root.meta.positions)
        else:  # (What is made of a value is so whether that has its history already or not.)
            memory = root.memory
            values = [] if root.history is None else [root.history]
            if root.root is not None:
                yield "root", root.root
            if memory is not None and memory.tensor is not None and root.history is None:
                yield "storage", storages[memory.tensor]
        yield from (("segment", segment_of[value]) for value in values if value in segment_of)

    def visit(item: Action) -> None:
        if item in order:
            return
        if item in active:
            raise UnsupportedOperation(
                "tensors on one storage of the arguments are written in turn with others, each with the "
                "gradient of what was written before; clone one of them"
            )
        active.add(item)
        for other in needs(item):
            visit(other)
        order[item] = None

    # Gradients are added up in the order in which the engine runs the nodes, which is that of their making.
    in_turn = sorted(range(len(segments)), key=lambda number: segments[number].engine_order)
    # A write moves the history of views, so whatever can be applied before is.
    for number in in_turn:
        if not _waits_for_storage_action(("segment", number), needs):
            visit(("segment", number))
    for storage in dict.fromkeys(storages):
        visit(("storage", storage))
    for number in in_turn:
        visit(("segment", number))
    # (What moves a version counter does so before other views are taken, which would be older than that.)
    for position in sorted(range(len(outputs)), key=lambda i: not _moves(outputs[i])):
        visit(("output", position))
    for number in range(len(roots)):
        visit(("root", number))
    return tuple(order)
