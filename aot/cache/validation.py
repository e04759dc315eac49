"""Validation: check that the parts of a compile that was read belong together.

In: a `Lowered` whose parts have been parsed, each by itself. Out: nothing, or `Corrupt`. Parts refer to
tensors, values and outputs by number, and the wrapper's source is made of these numbers (``t0``, ``v3``). A
number without an object would only show when a call runs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from aot.analysis.effect_summary import (
    AliasRoot,
    ArgumentRoot,
    BaseRoot,
    FunctionViewRoot,
    IsRoot,
    Memory,
    SameAsOutput,
    ValueRoot,
    View,
    Write,
)
from aot.cache import operator_table as table
from aot.cache.codec import Corrupt
from aot.capture.autograd.edge_targets import ArgumentEdge, CotangentEdge, OutputEdge, WrittenEdge
from aot.joint.joint import CotangentInput, Gradient, SavedInput, Segment
from aot.pipeline.artifact import Lowered
from aot.runtime.plan import Input, Plan
from aot.runtime.saved_values import Saved, SelfSaved, VersionCheck
from aot.runtime.schedule import schedule
from aot.tensors.geometry import Geometry
from aot.tensors.subclasses import GradientLayout
from aot.torch_internals import pytree

# For each class, the kind of objects to which the numbers in a field refer.
_NUMBERS: Mapping[type, Mapping[str, str]] = {
    Plan: {
        **dict.fromkeys(
            ("storages", "leaves", "foreach_groups", "begin_requires_grad", "end_requires_grad", "detached"),
            "tensor",
        ),
        **dict.fromkeys(("pinned_views", "version_bumps_only", "retaining", "views_with_history"), "tensor"),
        **dict.fromkeys(("returned", "input_values", "in_input_memory"), "value"),
        "inference_values": "returned",
        "retaining_outputs": "output",
    },
    Input: {"tensor": "tensor"},
    Write: {"tensor": "tensor", "value": "value"},
    Memory: {"tensor": "tensor", "value": "returned"},
    ArgumentRoot: {"tensor": "tensor"},
    BaseRoot: {"tensor": "view"},
    ValueRoot: {"value": "returned"},
    AliasRoot: {"root": "root", "history": "returned"},
    FunctionViewRoot: {"base": "root", "history": "returned"},
    IsRoot: {"root": "root"},
    View: {"root": "root", "required": "tensor or root", "through": "output"},
    SameAsOutput: {"output": "output"},
    ArgumentEdge: {"tensor": "tensor"},
    WrittenEdge: {"tensor": "tensor"},
    OutputEdge: {"output": "output"},
    CotangentEdge: {"segment": "segment"},
    SavedInput: {"tensor": "tensor", "root": "root"},
    VersionCheck: {"tensor": "tensor", "root": "root"},
    Saved: {"index": "saved", "tensor": "tensor", "primal": "input", "values": "value"},
    CotangentInput: {"value": "returned"},
}


# The field which says that a number means the base of an argument, not the argument.
_OF_BASE: Mapping[type, str] = {Write: "base", ArgumentEdge: "of_base", WrittenEdge: "of_base"}


def check_lowered(lowered: Lowered, views: Collection[int], places: int | None) -> None:
    """Check that the parts of a compile belong together, and to a call.

    Args:
        lowered: the compile.
        views: the positions of tensors of the call that are views.
        places: how many places the module has for tensors; None if there is no module.

    Raises:
        Corrupt: they do not belong together.
    """
    plan = lowered.plan
    if not len(lowered.backwards) == len(lowered.again) == len(plan.parts):
        raise Corrupt("parts of several compiles")
    _check_lowered_whole(plan, lowered.forward)
    _check_number_ranges(plan, views)
    for part in plan.parts:
        _check_segment_numbers(part.segment, part.own, len(part.saved), plan)
    for backward, part in zip(lowered.backwards, plan.parts, strict=True):
        wanted = len(part.saved) + len(part.segment.tangents), part.segment.results
        if backward is not None and _shape(backward) != wanted:
            raise Corrupt("a plan for another graph")
        if (backward is None and part.segment.results) or (backward is not None and _copies(backward)):
            raise Corrupt("no backward")
    if not lowered.grad_targets <= set(range(plan.tensors)):
        raise Corrupt("no tensor")
    casts = lowered.casts
    numbers = [number for one, _ in casts.used for number in (one.leaf, one.cast)]
    if not all(number < plan.tensors for number in (*numbers, *(number for number, _ in casts.made))):
        raise Corrupt("no tensor that is cast")
    if lowered.spec.num_leaves != len(plan.outputs):
        raise Corrupt("a tree of other results")
    if places is not None:
        _check_module_results(lowered.spec, places)


def _check_module_results(spec: pytree.TreeSpec, places: int) -> None:
    """Check that the results are a pair: the module's result, and a dict of new tensors for its places."""
    tree = pytree.tree_unflatten(range(spec.num_leaves), spec)
    if type(tree) is not tuple or len(tree) != 2 or type(tree[1]) is not dict:
        raise Corrupt("a tree of other results")
    if not all(type(number) is int and 0 <= number < places for number in tree[1]):
        raise Corrupt("results for other places")


def _check_lowered_whole(plan: Plan, forward: fx.GraphModule) -> None:
    results = len(plan.returned) + len(plan.generators) + plan.saved
    if _shape(forward) != (len(plan.inputs), results):
        raise Corrupt("a plan for another graph")
    # Compiles with symbols, wrapper subclasses or functionalized draws are not stored.
    if (
        plan.replaced
        or plan.runs_python
        or plan.wrapped
        or plan.generators
        or plan.num_user_outputs != len(plan.outputs)
    ):
        raise Corrupt("a plan of another kind")
    if len(plan.storages) != plan.tensors or len(set(plan.returned)) != len(plan.returned):
        raise Corrupt("no storages, or no values")
    written = {write.tensor for write in plan.kept}
    inputs = [plan.inputs[i] for i in _copies(forward)]
    places = {one.tensor: place for place, one in enumerate(inputs) if one.span is None}
    if len(inputs) != len(places) or places.keys() != written:
        raise Corrupt("a graph that writes to other inputs than the plan says")
    if plan.forward_is_empty and (results or any(node.op == "call_function" for node in forward.graph.nodes)):
        raise Corrupt("a graph that is said to do nothing")
    if plan.order != schedule(plan, [part.segment for part in plan.parts], plan.storages):  # type: ignore[arg-type]
        raise Corrupt("another order")


def _copies(module: fx.GraphModule) -> Sequence[int]:
    """The positions of inputs that a graph writes to, in order."""
    inputs = {node: place for place, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    copies = module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return [inputs[node.args[0]] for node in copies]


def _check_number_ranges(plan: Plan, views: Collection[int]) -> None:
    known: Mapping[str, Collection[int]] = {
        "tensor": range(plan.tensors),
        "view": views,
        "value": range(len(plan.values)),
        "returned": frozenset(plan.returned),
        "root": range(len(plan.roots)),
        "tensor or root": range(max(plan.tensors, len(plan.roots))),
        "output": range(len(plan.outputs)),
        "segment": range(len(plan.parts)),
        "saved": range(plan.saved),
        "input": range(len(plan.inputs)),
    }
    stack: list[Any] = [plan]
    while stack:
        value = stack.pop()
        if type(value) is Geometry:
            continue
        if type(value) in (tuple, frozenset):
            stack += [one for one in value if type(one) not in _LEAVES]
            continue
        of_base = _OF_BASE.get(type(value))
        if of_base is not None and getattr(value, of_base) and value.tensor not in views:
            raise Corrupt(f"no view: {value.tensor}")
        for name, counted in _fields(type(value)):  # type: ignore[arg-type]
            inner = getattr(value, name)
            if inner is None:
                continue
            if counted is None:
                if type(inner) not in _LEAVES:
                    stack.append(inner)
            elif not all(number in known[counted] for number in _ints(inner)):
                raise Corrupt(f"no {counted}: {inner!r:.80}")
    for tensor, _ in (*plan.changes, *plan.grown_storages):
        if tensor >= plan.tensors:
            raise Corrupt(f"no tensor: {tensor}")
    returned = frozenset(plan.returned)
    if not all(write.value in returned for write in plan.writes):
        raise Corrupt("a value that the graph does not return")


_LEAVES = frozenset((int, bool, str, type(None), torch.dtype, torch.device))


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, str | None], ...]:
    """The fields of a dataclass, each with the kind of its numbers or None; none for another class."""
    if not dataclasses.is_dataclass(kind):
        return ()
    numbers = _NUMBERS.get(kind, {})
    return tuple((field.name, numbers.get(field.name)) for field in dataclasses.fields(kind))


def _ints(value: Any) -> Iterable[int]:
    if type(value) is int:
        return (value,)
    return [number for one in value for number in _ints(one)]


def _check_segment_numbers(segment: Segment, own: tuple[SelfSaved, ...], saved: int, plan: Plan) -> None:
    entrances = range(len(segment.cotangent_inputs))
    everything = 1 << len(segment.tangents)
    results = [number for gradient in segment.gradients for number in gradient.results]
    masks = [*segment.needed, *(gradient.tangents for gradient in segment.gradients)]
    layouts = [one.tangent for one in segment.cotangent_inputs] + [one.layout for one in segment.gradients]
    extra = [one.position for one in own if one.position >= saved]
    if (
        not segment.cotangent_inputs
        or results != list(range(segment.results))
        or any(mask >= everything for mask in masks)
        or not all(map(_is_plain, layouts))
        or any(one.cotangent_input not in entrances for one in own)
        or extra != list(range(saved, saved + len(extra)))
        or any(gradient.shared for gradient in segment.gradients)
        or any(
            edge >= len(segment.gradients) + len(segment.second_order_targets)
            for edge in segment.dead_targets
        )
    ):
        raise Corrupt("no segment")
    for target in (*map(_target, segment.gradients), *segment.second_order_targets):
        if isinstance(target, CotangentEdge):
            there = plan.parts[target.segment].segment.cotangent_inputs
            if target.cotangent_input >= len(there):
                raise Corrupt("no entrance")


def _target(gradient: Gradient) -> object:
    return gradient.target


def _is_plain(layout: GradientLayout | None) -> bool:
    """Whether a layout is None or that of one plain tensor."""
    return layout is None or (layout.meta is None and len(layout.wheres) == 1)


def _is_one(value: object) -> bool:
    return isinstance(value, fx.Node) and table.schema_results_of(value) in ("Tensor", "int")


def _shape(module: fx.GraphModule) -> tuple[int, int]:
    """The numbers of inputs and of results of a graph.

    Raises:
        Corrupt: a result is no tensor and no integer.
    """
    nodes = list(module.graph.nodes)
    results = nodes[-1].args[0] if nodes[-1].args else None
    if type(results) is tuple and not all(one is None or _is_one(one) for one in results):
        raise Corrupt("a result that is no tensor")
    return sum(node.op == "placeholder" for node in nodes), len(results) if type(results) is tuple else -1
