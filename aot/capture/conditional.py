"""`torch.cond` and `while_loop` whose condition depends on an argument, as operations of the graph.

Both functions become graphs of their own (`branches`), which a node of the operator calls, with all that they
read as operands. For autograd, `cond` is one operation, as in eager: all of its results require grad if one
of its operands does, and its backward is a `cond` of the branches' derivatives, which compute what they need
of the forward once more.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot import torch_internals as internals
from aot.capture.branches import Branch, Entered, apart, may_raise, modules
from aot.capture.graph import Recipe, intern, is_contiguous, lookup, meta_of
from aot.capture.recorder import Recorder
from aot.capture.replaced import takes_functions, unwatched
from aot.capture.segments import Key
from aot.constants import key_of
from aot.errors import DoubleBackwardUnsupported
from aot.geometry import geometry
from aot.subclasses import is_wrapper


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
    branches: tuple[Branch, Branch]
    results: tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
    edges: tuple[Key | None, ...]
    metas: tuple[int, ...]

    def record(self) -> list[Tensor]:
        """Append it, and make fakes for its results."""
        values = [
            apart(branch, [_read(branch, result) for result in results])
            for branch, results in zip(self.branches, self.results, strict=True)
        ]
        return self._append(values, ())

    def record_backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Append its backward: a gradient for each tensor from outside that has a history."""
        outer = self.outer()
        assert outer is not None
        tangents = {i: outer.read(g) for i, g in enumerate(gradients) if g is not None}
        wanted = [(edge, meta) for edge, meta in zip(self.edges, self.metas, strict=True) if edge is not None]
        since = [next(iter(reversed(branch.builder.graph.nodes)), None) for branch in self.branches]
        values: list[list[fx.Node]] = []
        for branch, results in zip(self.branches, self.results, strict=True):
            found = branch.differentiate(results, [edge for edge, _ in wanted], tangents)
            nodes = []
            for gradient, (_, meta) in zip(found, wanted, strict=True):
                size, _, dtype, device = lookup(meta)
                if gradient is None:
                    zeros = torch.ops.aten.zeros.default
                    node = branch.builder.emit(zeros, list(size), dtype=dtype, device=device)
                else:
                    node = _contiguous(branch, _read(branch, gradient))
                nodes.append(node)
            values.append(apart(branch, nodes))
        made = iter(self._append(values, since))
        return [None if edge is None else next(made) for edge in self.edges]

    def _append(self, values: Sequence[Sequence[fx.Node]], since: Sequence[fx.Node | None]) -> list[Tensor]:
        outer = self.outer()
        assert outer is not None
        graphs, operands = modules(self.branches, values, since)
        metas = tuple(intern(self.branches[0].builder.meta(value)) for value in values[0])
        return _appended(outer, internals.COND, (self.condition,), graphs, (tuple(operands),), metas)


def record_cond(recorder: Recorder, condition: Tensor, true: Any, false: Any, operands: Sequence[Any]) -> Any:
    """Record ``torch.cond(condition, true, false, operands)``.

    Raises:
        UnsupportedOperation: a branch changes something outside, draws, acts outside, returns the memory of a
            tensor from outside or one memory twice; or the two return other things than each other.
    """
    _check_whole(recorder, "cond", (condition, *internals.tree_flatten(operands)[0]))
    entered = Entered()
    branches = Branch(recorder, "cond", entered), Branch(recorder, "cond", entered)
    returned, specs = [], []
    for branch, function in zip(branches, (true, false), strict=True):
        leaves, spec = internals.tree_flatten(branch.run(function, operands))
        _check_results(branch, "cond", leaves)
        returned.append(leaves)
        specs.append(spec)
    if specs[0] != specs[1] or not all(map(_alike, *returned)):
        raise takes_functions(
            "cond, of which the branches return other structures, or tensors of other shapes, dtypes, "
            "strides or devices"
        )
    results = tuple(tuple(v for v in leaves if isinstance(v, Tensor)) for leaves in returned)
    metas = tuple(map(meta_of, entered.tensors))
    followed = _is_followed()
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
        raise takes_functions("cond, of which a result requires grad and no operand does")
    else:
        tensors = iter(call.record())
    flat = [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in returned[0]]
    return internals.tree_unflatten(flat, specs[0])


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
        with unwatched():
            return (None, *ctx.call.record_backward(gradients))


def record_while_loop(
    recorder: Recorder, condition: Any, body: Any, carried: Sequence[Any], others: Sequence[Any]
) -> Any:
    """Record ``while_loop(condition, body, carried, others)``.

    Raises:
        UnsupportedOperation: as `record_cond`; something that requires grad is carried or read in grad mode;
            what is carried is no tensor, or the body returns it with another shape, dtype or strides.
    """
    name = "while_loop"
    _check_whole(recorder, name, (*carried, *others))
    if not all(isinstance(one, Tensor) for one in carried):
        raise takes_functions(f"{name}, which carries a number; carry a tensor of it")
    entered = Entered()
    first, second = Branch(recorder, name, entered), Branch(recorder, name, entered)
    if any(one.stride() != one.detach().clone().stride() for one in carried):
        raise takes_functions(
            f"{name}, which carries a tensor with gaps, or with one element in several places"
        )
    asked = first.run(condition, (*map(first.carry, carried), *others))
    inside = list(map(second.carry, carried))
    leaves = second.run(body, (*inside, *others))
    if _is_followed() and (entered.require_grad or any(one.requires_grad for one in carried)):
        raise takes_functions(f"{name}, in grad mode and of tensors that require grad")
    leaves = internals.tree_flatten(leaves)[0]
    _check_results(first, name, [asked])
    _check_results(second, name, leaves, inside)
    if len(leaves) != len(inside) or not all(map(_alike, leaves, inside)):
        raise takes_functions(f"{name}, of which the body returns something else than it is given")
    if not isinstance(asked, Tensor) or asked.dim() or asked.dtype is not torch.bool:
        raise takes_functions(f"{name}, of which the condition is not always a tensor of one bool")
    values = [apart(first, [_read(first, asked)]), apart(second, [_read(second, leaf) for leaf in leaves])]
    graphs, operands = modules((first, second), values)
    output: Any = graphs[0].graph.output_node()
    output.args = output.args[0]  # the condition, and no tuple of it
    graphs[0].recompile()
    given = tuple(recorder.read(one) for one in carried)
    metas = tuple(map(meta_of, carried))
    return tuple(_appended(recorder, internals.WHILE_LOOP, (), graphs, (given, tuple(operands)), metas))


def _is_followed() -> bool:
    """Whether autograd follows what is done: not in inference mode, whatever the grad mode is."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def _appended(
    recorder: Recorder,
    op: Any,
    before: tuple[fx.Node, ...],
    graphs: Sequence[fx.GraphModule],
    after: tuple[tuple[fx.Node, ...], ...],
    metas: tuple[int, ...],
) -> list[Tensor]:
    builder = recorder.builder
    functions = [builder.module(op.name(), graph) for graph in graphs]
    node = builder.call(op, (*before, *functions, *after), {}, Recipe(True, metas))
    if not builder.backward and any(map(may_raise, graphs)):
        node.meta["may_raise"] = True
    return [recorder._result(node, i, meta) for i, meta in enumerate(metas)]


def _check_whole(recorder: Recorder, name: str, given: Sequence[Any]) -> None:
    if recorder.symbols is not None:
        raise takes_functions(f"{name}, of tensors with symbols for sizes")
    if any(map(is_wrapper, given)):
        raise takes_functions(f"{name}, of tensor subclasses")


def _check_results(branch: Branch, name: str, leaves: Sequence[Any], given: Sequence[Tensor] = ()) -> None:
    """Refuse results that are no tensors of the branch's own, each in memory of its own."""
    seen = {internals.storage_key(tensor) for tensor in given}
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            continue
        if is_wrapper(leaf):
            raise takes_functions(f"{name}, of which a result is a tensor subclass")
        key = internals.storage_key(leaf)
        if key in seen or not branch.is_own(leaf):
            raise takes_functions(
                f"{name}, of which a result shows the memory of an operand, of another result, or of a "
                f"tensor from outside"
            )
        if geometry(leaf).is_lazy:
            raise takes_functions(f"{name}, of which a result is lazily conjugated or negated")
        seen.add(key)


def _alike(first: Any, second: Any) -> bool:
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return (
            type(first) is type(second) and not isinstance(first, Tensor) and key_of(first) == key_of(second)
        )
    strides = [
        tuple(s for n, s in zip(one.shape, one.stride(), strict=True) if n != 1) for one in (first, second)
    ]
    return (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device) and (
        strides[0] == strides[1] or not first.numel()
    )


def _read(branch: Branch, tensor: Tensor) -> fx.Node:
    with torch.no_grad():
        return branch.read(tensor)


def _contiguous(branch: Branch, node: fx.Node) -> fx.Node:
    """The same value in row-major order: gradients of the two branches lie alike."""
    if is_contiguous(branch.builder.meta(node)):
        return node
    clone = torch.ops.aten.clone.default
    return branch.builder.emit(clone, node, memory_format=torch.contiguous_format)
