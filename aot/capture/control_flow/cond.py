"""`torch.cond` whose condition depends on an argument, as an operation of the graph.

Its functions become graphs of their own (`subgraph`), which a node of the operator calls, with all that they
read as operands. For autograd it is one operation, as in eager: all of its results require grad if one of its
operands does, and its backward is a `cond` of the branches' derivatives, which compute what they need of the
forward once more.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot.capture.autograd.segments import Key
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
    without_aliasing,
    wrap_values,
)
from aot.capture.intercept.patches import hook_patch_suspended, unsupported_higher_order_op
from aot.capture.recorder.recorder import Recorder
from aot.errors import DoubleBackwardUnsupported
from aot.graph.layout import with_strides
from aot.graph.value_meta import intern, is_contiguous, lookup, meta_of
from aot.torch_internals import higher_order_ops, pytree


@dataclass(frozen=True, slots=True)
class _Cond:
    """A condition and its branches.

    Attributes:
        outer: what records the trace that it is in.
        condition: its node.
        branches: what its functions have recorded.
        results: the tensors that they have returned.
        edges: for each tensor from outside that they compute with, where it was in the autograd graph; none
            if nothing is differentiated.
        metas: of each of these, how it lies.
    """

    outer: weakref.ref[Recorder]
    condition: fx.Node
    branches: tuple[SubgraphRecorder, SubgraphRecorder]
    results: tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
    edges: tuple[Key | None, ...]
    metas: tuple[int, ...]

    def record(self) -> list[Tensor]:
        """Append it, and make fakes for its results."""
        values = [
            without_aliasing(branch, [read_value(branch, result) for result in results])
            for branch, results in zip(self.branches, self.results, strict=True)
        ]
        return self._append_cond(values, ())

    def record_backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Append its backward: a gradient for each tensor from outside that has a history."""
        outer = self.outer()
        assert outer is not None
        tangents = {i: outer.read(g) for i, g in enumerate(gradients) if g is not None}
        wanted = [(edge, meta) for edge, meta in zip(self.edges, self.metas, strict=True) if edge is not None]
        since = [next(iter(reversed(branch.builder.graph.nodes)), None) for branch in self.branches]
        values: list[list[fx.Node]] = []
        for branch, results in zip(self.branches, self.results, strict=True):
            found, given = branch.record_subgraph_derivative(results, [edge for edge, _ in wanted], tangents)
            for i, node in given.items():
                branch.inputs[node] = with_strides(
                    outer.builder, tangents[i], branch.builder.meta(node).stride
                )
            nodes = []
            for gradient, (_, meta) in zip(found, wanted, strict=True):
                size, _, dtype, device = lookup(meta)
                if gradient is None:
                    zeros = torch.ops.aten.zeros.default
                    node = branch.builder.emit(zeros, list(size), dtype=dtype, device=device)
                else:
                    node = _contiguous(branch, read_value(branch, gradient))
                nodes.append(node)
            values.append(without_aliasing(branch, nodes))
        made = iter(self._append_cond(values, since))
        return [None if edge is None else next(made) for edge in self.edges]

    def _append_cond(
        self, values: Sequence[Sequence[fx.Node]], since: Sequence[fx.Node | None]
    ) -> list[Tensor]:
        outer = self.outer()
        assert outer is not None
        graphs, operands = subgraph_modules(self.branches, values, since)
        metas = tuple(intern(self.branches[0].builder.meta(value)) for value in values[0])
        nodes = append_higher_order_call(
            outer, higher_order_ops.COND, (self.condition,), graphs, (tuple(operands),), metas
        )
        return wrap_values(outer, nodes)


def record_cond(recorder: Recorder, condition: Tensor, true: Any, false: Any, operands: Sequence[Any]) -> Any:
    """Record ``torch.cond(condition, true, false, operands)``.

    Raises:
        UnsupportedOperation: a branch changes something outside, draws, acts outside, returns the memory of a
            tensor from outside or one memory twice; or the two return other things than each other.
    """
    check_operands(recorder, "cond", (condition, *pytree.tree_flatten(operands)[0]))
    entered = Captures()
    branches = SubgraphRecorder(recorder, "cond", entered), SubgraphRecorder(recorder, "cond", entered)
    returned, specs = [], []
    for branch, function in zip(branches, (true, false), strict=True):
        leaves, spec = pytree.tree_flatten(branch.record_subgraph(function, operands))
        check_subgraph_results(branch, "cond", leaves)
        returned.append(leaves)
        specs.append(spec)
    if specs[0] != specs[1] or not all(map(same_result_type, *returned)):
        raise unsupported_higher_order_op(
            "cond, of which the branches return other structures, or tensors of other shapes, dtypes, "
            "strides or devices"
        )
    results = tuple(tuple(v for v in leaves if isinstance(v, Tensor)) for leaves in returned)
    metas = tuple(map(meta_of, entered.tensors))
    followed = is_followed()
    differentiable = followed and entered.require_grad
    call = _Cond(
        weakref.ref(recorder),
        recorder.read(condition),
        branches,
        (results[0], results[1]),
        entered.edges() if differentiable else (),
        metas,
    )
    if differentiable:
        tensors = iter(_Conditional.apply(call, *entered.tensors))  # type: ignore[no-untyped-call]
    elif followed and any(tensor.requires_grad for some in results for tensor in some):
        raise unsupported_higher_order_op("cond, of which a result requires grad and no operand does")
    else:
        tensors = iter(call.record())
    flat = [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in returned[0]]
    return pytree.tree_unflatten(flat, specs[0])


class _Conditional(torch.autograd.Function):
    """A `cond` in the trace's autograd graph."""

    @staticmethod
    def forward(ctx: Any, call: _Cond, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return tuple(call.record())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise DoubleBackwardUnsupported(
                "create_graph=True through torch.cond, of which eager records no second derivative; call the "
                "original function"
            )
        ctx.saved_tensors  # noqa: B018  (They are checked for writes.)
        with hook_patch_suspended():
            return (None, *ctx.call.record_backward(gradients))


def _contiguous(branch: SubgraphRecorder, node: fx.Node) -> fx.Node:
    """The same value in row-major order: gradients of the two branches lie alike."""
    if is_contiguous(branch.builder.meta(node)):
        return node
    clone = torch.ops.aten.clone.default
    return branch.builder.emit(clone, node, memory_format=torch.contiguous_format)
