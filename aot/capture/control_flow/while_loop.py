"""`while_loop` whose condition depends on an argument, as an operation of the graph.

Its condition and its body become graphs of their own (`subgraph`). Where autograd follows it, a loop is one
operation, as in eager, and its backward is a loop in its turn: the forward keeps what each turn has carried
on, stacked, and the backward's turns take that from the last one to the first, compute what they need of the
turn once more, and carry the gradients of what was carried; those of what is read besides are added up.

How many turns there are is known when they have been made. So many rows has what is kept, whatever else the
graph says of sizes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import get_gradient_edge

from aot.capture.autograd.segments import Key, key_of
from aot.capture.control_flow.subgraph import (
    Captures,
    SubgraphRecorder,
    append_higher_order_call,
    check_operands,
    check_subgraph_results,
    is_followed,
    read_value,
    same_result_type,
    subgraph_modules,
    subgraph_nodes_needed_for,
    without_aliasing,
    wrap_values,
)
from aot.capture.intercept.patches import hook_patch_suspended, unsupported_higher_order_op
from aot.capture.recorder.recorder import Recorder
from aot.errors import DoubleBackwardUnsupported
from aot.graph.builder import GraphBuilder
from aot.graph.layout import with_strides
from aot.graph.value_meta import ValueMeta, intern, lookup, meta_of, rows_of
from aot.torch_internals import fx_graphs, higher_order_ops, mode_stacks, pytree, symbolic_shapes

_NAME = "while_loop"

aten = torch.ops.aten


def record_while_loop(
    recorder: Recorder, condition: Any, body: Any, carried: Sequence[Any], others: Sequence[Any]
) -> Any:
    """Record ``while_loop(condition, body, carried, others)``.

    Raises:
        UnsupportedOperation: as `record_cond`; what is carried is no tensor, or a complex one that is
            differentiated; or the body returns it with another shape, dtype or strides.
    """
    check_operands(recorder, _NAME, (*carried, *others))
    if not all(isinstance(one, Tensor) for one in carried):
        raise unsupported_higher_order_op(f"{_NAME}, which carries a number; carry a tensor of it")
    if any(one.stride() != one.detach().clone().stride() for one in carried):
        raise unsupported_higher_order_op(
            f"{_NAME}, which carries a tensor with gaps, or with one element in several places"
        )
    entered = Captures()
    first, second = SubgraphRecorder(recorder, _NAME, entered), SubgraphRecorder(recorder, _NAME, entered)
    asked = first.record_subgraph(condition, (*map(first.carry, carried), *others))
    inside = [second.carry(one) for one in carried]
    if is_followed():  # (which tensors from outside the body reads turns out when it runs)
        for one in inside:
            one.requires_grad_(_has_gradient(one))
    leaves = pytree.tree_flatten(second.record_subgraph(body, (*inside, *others)))[0]
    check_subgraph_results(first, _NAME, [asked])
    check_subgraph_results(second, _NAME, leaves, inside)
    if len(leaves) != len(inside) or not all(map(same_result_type, leaves, inside)):
        raise unsupported_higher_order_op(
            f"{_NAME}, of which the body returns something else than it is given"
        )
    if not isinstance(asked, Tensor) or asked.dim() or asked.dtype is not torch.bool:
        raise unsupported_higher_order_op(
            f"{_NAME}, of which the condition is not always a tensor of one bool"
        )
    differentiable = is_followed() and (entered.require_grad or any(one.requires_grad for one in carried))
    if differentiable and any(one.is_complex() for one in (*carried, *entered.tensors)):
        raise unsupported_higher_order_op(
            f"{_NAME}, of complex numbers, in grad mode and where something requires grad"
        )
    loop = _Loop(
        outer=weakref.ref(recorder),
        condition=first,
        body=second,
        asked=asked,
        given=tuple(recorder.read(one) for one in carried),
        inside=tuple(inside),
        results=tuple(leaves),
        edges=entered.edges() if differentiable else (),
        metas=tuple(map(meta_of, entered.tensors)),
    )
    if not differentiable:
        return tuple(loop.record_loop())
    return _Looping.apply(loop, *carried, *entered.tensors)  # type: ignore[no-untyped-call]


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.is_floating_point()


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the forward of a loop keeps: what each turn has carried on, stacked, and how many turns there were
    (a tensor without dimensions)."""

    stacks: tuple[fx.Node, ...]
    turns: fx.Node


@dataclass(frozen=True, slots=True)
class _Loop:
    """A condition and a body.

    Attributes:
        outer: what records the trace that it is in.
        condition, body: what these have recorded.
        asked: what the condition has returned.
        given: the nodes of what is carried into the first turn.
        inside: what is carried, as the body is given it.
        results: what it has returned.
        edges: for each tensor from outside that they compute with, where it was in the autograd graph; none
            if nothing is differentiated.
        metas: of each of these, how it lies.
    """

    outer: weakref.ref[Recorder]
    condition: SubgraphRecorder
    body: SubgraphRecorder
    asked: Tensor
    given: tuple[fx.Node, ...]
    inside: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    edges: tuple[Key | None, ...]
    metas: tuple[int, ...]

    @property
    def _outer(self) -> Recorder:
        outer = self.outer()
        assert outer is not None
        return outer

    def record_loop(self) -> list[Tensor]:
        """Append it, and make fakes for its results."""
        graphs, operands = self._functions()
        metas = tuple(map(meta_of, self.inside))
        nodes = append_higher_order_call(
            self._outer, higher_order_ops.WHILE_LOOP, (), graphs, (self.given, tuple(operands)), metas
        )
        return wrap_values(self._outer, nodes)

    def record_loop_keeping_turns(self) -> tuple[list[Tensor], _Kept]:
        """The same, with what its backward needs."""
        outer, builder = self._outer, self._outer.builder
        count = meta_of(torch.zeros((), dtype=torch.int64))
        self.condition.carried_as(count)
        turn = self.body.carried_as(count)
        graphs, operands = self._functions([self.body.builder.emit(aten.add.Tensor, turn, 1)])
        metas = (*map(meta_of, self.inside), count)
        rows = symbolic_shapes.unbacked_symint()
        stacks = append_higher_order_call(
            outer,
            higher_order_ops.WHILE_LOOP_STACK_OUTPUT,
            (),
            graphs,
            ((*self.given, _number(builder, 0)), tuple(operands)),
            tuple(rows_of(lookup(meta), rows) for meta in metas),
        )
        lasts = [
            builder.emit(
                aten.clone.default,
                builder.emit(aten.select.int, stack, 0, -1),
                memory_format=torch.contiguous_format,
            )
            for stack in stacks
        ]
        # (Without a turn the stacks have one row, which is what was given.)
        return wrap_values(outer, lasts[:-1]), _Kept(tuple(stacks[:-1]), lasts[-1])

    def _functions(self, more: Sequence[fx.Node] = ()) -> tuple[list[fx.GraphModule], list[fx.Node]]:
        results = without_aliasing(self.body, [read_value(self.body, result) for result in self.results])
        asked = without_aliasing(self.condition, [read_value(self.condition, self.asked)])
        return _loop_graphs(self.condition, self.body, asked, [*results, *more])

    def record_backward(self, gradients: Sequence[Tensor], kept: _Kept) -> list[Tensor | None]:
        """Append its backward: a gradient for each tensor that is carried, and then for each from outside; or
        None where there is none."""
        outer, builder = self._outer, self._outer.builder
        floats = [j for j, one in enumerate(self.inside) if _has_gradient(one)]
        wanted = [(edge, lookup(meta)) for edge, meta in zip(self.edges, self.metas, strict=True) if edge]
        with torch.enable_grad():
            ends = [key_of(get_gradient_edge(self.inside[j])) for j in floats]
        last = next(iter(reversed(self.body.builder.graph.nodes)), None)
        ends += [edge for edge, _ in wanted]
        found, incoming = self.body.record_subgraph_derivative(self.results, ends, floats)
        looks = [
            self.body.builder.meta(incoming[j]) if j in incoming else _look(self.inside[j]) for j in floats
        ]
        looks += [meta._replace(stride=_contiguous(meta.size)) for _, meta in wanted]
        asking, back = (SubgraphRecorder(outer, _NAME, Captures()) for _ in range(2))
        back.builder.root = self.body.builder.root  # functions that take functions are there
        count = meta_of(torch.zeros((), dtype=torch.int64))
        turn, *carried = (back.carried_as(meta) for meta in (count, *map(intern, looks)))
        for node in back.carried:
            asking.carried_as(back.builder.metas[node])  # type: ignore[arg-type]
        asked = asking.builder.emit(aten.lt.Tensor, asking.carried[0], asking.subgraph_input(kept.turns))
        nodes = [None if one is None else read_value(self.body, one) for one in found]
        needed = subgraph_nodes_needed_for(self.body, [node for node in nodes if node is not None], last)
        standing = {incoming[j]: node for j, node in zip(floats, carried, strict=False) if j in incoming}
        standing |= self._carried_before(back, turn, kept, needed)
        copies = _copy_branch_nodes(self.body, needed, back, standing)
        values = [back.builder.emit(aten.add.Tensor, turn, 1)]
        for i, (gradient, before, look) in enumerate(zip(nodes, carried, looks, strict=True)):
            summed = i >= len(floats)
            if gradient is not None and summed:
                values.append(back.builder.emit(aten.add.Tensor, before, copies[gradient]))
            elif gradient is not None:
                values.append(with_strides(back.builder, copies[gradient], look.stride))
            else:
                values.append(before if summed else _zeros(back.builder, look))
        graphs, operands = _loop_graphs(asking, back, [asked], without_aliasing(back, values))
        start = [_number(builder, 0)]
        for j, look in zip(floats, looks, strict=False):
            # (Zeros without memory are no operands of such an operator; a copy has some.)
            gradient = builder.emit(aten.clone.default, outer.read(gradients[j]))
            start.append(with_strides(builder, gradient, look.stride))
        start += [_zeros(builder, look) for look in looks[len(floats) :]]
        metas = tuple(intern(look) for look in looks)
        results = append_higher_order_call(
            outer, higher_order_ops.WHILE_LOOP, (), graphs, (tuple(start), tuple(operands)), (count, *metas)
        )
        tensors = iter(wrap_values(outer, results[1:]))
        there = [*map(_has_gradient, self.inside), *(edge is not None for edge in self.edges)]
        return [next(tensors) if one else None for one in there]

    def _carried_before(
        self, back: SubgraphRecorder, turn: fx.Node, kept: _Kept, needed: set[fx.Node]
    ) -> dict[fx.Node, fx.Node]:
        """What was carried into the turn that a turn of the backward is for, by what it is in the body."""
        emit = back.builder.emit
        # The last turn was number `turns - 1`, which was given what the one before has left.
        before = emit(aten.sub.Tensor, emit(aten.sub.Tensor, back.subgraph_input(kept.turns), turn), 2)
        row = emit(aten.view.default, emit(aten.clamp_min.default, before, 0), [1])
        at_first = emit(aten.lt.Scalar, before, 0)
        found: dict[fx.Node, fx.Node] = {}
        for node, stack, given in zip(self.body.carried, kept.stacks, self.given, strict=False):
            if node in needed:
                meta = self.body.builder.meta(node)
                shown = emit(aten.index_select.default, back.subgraph_input(stack), 0, row)
                shown = emit(aten.view.default, shown, list(meta.size))
                shown = emit(aten.where.self, at_first, back.subgraph_input(given), shown)
                found[node] = with_strides(back.builder, shown, meta.stride)
        return found


def _copy_branch_nodes(
    branch: SubgraphRecorder, needed: set[fx.Node], to: SubgraphRecorder, standing: dict[fx.Node, fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Repeat some nodes of a branch in another one, where others stand for some."""
    copies = dict(standing)
    graph, metas, offsets = to.builder.graph, to.builder.metas, to.builder.offsets
    for node, outside in branch.inputs.items():
        if node in needed:
            copies[node] = to.subgraph_input(outside)
    for node in branch.builder.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = fx_graphs.copy_node(graph, node, copies)
            copies[node].meta.pop("partitioner_tag", None)
            if node in branch.builder.metas:
                metas[copies[node]] = branch.builder.metas[node]
                offsets[copies[node]] = branch.builder.offsets.get(node, 0)
    return copies


def _loop_graphs(
    condition: SubgraphRecorder, body: SubgraphRecorder, asked: list[fx.Node], results: list[fx.Node]
) -> tuple[list[fx.GraphModule], list[fx.Node]]:
    graphs, operands = subgraph_modules((condition, body), (asked, results))
    output: Any = graphs[0].graph.output_node()
    output.args = output.args[0]  # the condition, and no tuple of it
    graphs[0].recompile()
    return graphs, operands


def _number(builder: GraphBuilder, value: int) -> fx.Node:
    return builder.emit(aten.full.default, [], value, dtype=torch.int64)


def _zeros(builder: GraphBuilder, look: ValueMeta) -> fx.Node:
    zeros = builder.emit(aten.zeros.default, list(look.size), dtype=look.dtype, device=look.device)
    return with_strides(builder, zeros, look.stride)


def _look(tensor: Tensor) -> ValueMeta:
    return lookup(meta_of(tensor))


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(size, device="meta").stride()


class _Looping(torch.autograd.Function):
    """A loop in the trace's autograd graph."""

    @staticmethod
    def forward(ctx: Any, loop: _Loop, *tensors: Tensor) -> tuple[Tensor, ...]:
        with mode_stacks.dispatch_modes_off():
            results, ctx.kept = loop.record_loop_keeping_turns()
        # (Attributes, as in eager: nothing is freed, and another backward goes through.)
        ctx.loop, ctx.tensors = loop, tensors
        # In eager they are rows of the stacks, and not to be written to.
        return tuple(result.view_as(result) for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise DoubleBackwardUnsupported(
                "create_graph=True through a while_loop with a condition that depends on an argument, of "
                "which eager's second derivatives are wrong; call the original function"
            )
        with hook_patch_suspended(), mode_stacks.dispatch_modes_off():
            for tensor in ctx.tensors:  # (which is noted: they are checked for writes)
                ctx.loop._outer.read(tensor)
            return (None, *ctx.loop.record_backward(gradients, ctx.kept))
