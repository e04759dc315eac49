"""Operators that take functions (`torch.cond` and its like), recorded as what they do with these.

In eager they have Dynamo capture the functions, and run them. In a trace the functions are called, as often
as the operator would call them, and what they do is recorded, with its history: so `map` and `scan` become as
many copies as there are steps. Where a condition depends on an argument, which way a call goes is not known:
`cond` has the operator itself recorded, and its functions as graphs of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aot.capture.control_flow.cond import record_cond
from aot.capture.control_flow.while_loop import record_while_loop
from aot.capture.intercept.patches import unsupported_higher_order_op
from aot.capture.recorder.recorder import Recorder
from aot.torch_internals import autograd_graph, dispatcher, mode_stacks, pytree, tensor_impl


def _unknown(value: Any) -> Recorder | None:
    """What records the trace, where a condition is not known in it."""
    recorder = mode_stacks.current_dispatch_mode()
    if isinstance(value, Tensor) and isinstance(recorder, Recorder) and not recorder.is_constant(value):
        return recorder
    return None


def _cond(dense: Any, condition: Any, true: Any, false: Any, operands: Any) -> Any:
    recorder = _unknown(condition)
    if recorder is not None:
        return record_cond(recorder, condition, true, false, operands)
    return _apart("cond", (true if condition else false)(*operands), operands)


def _switch_kernel(dense: Any, index: Any, branches: Sequence[Callable[..., Any]], operands: Any) -> Any:
    """The branch of an index (which `torch.switch` has clamped). Where no one knows it, a `cond` of the first
    branch and of what is left, which every backend has."""
    first, *others = branches
    if not others:
        return first(*operands)
    recorder = _unknown(index)
    if recorder is None:
        return _apart("switch", branches[int(index)](*operands), operands)

    def rest(*given: Any) -> Any:
        return _switch_kernel(dense, index - 1, others, given)

    return record_cond(recorder, index <= 0, first, rest, operands)


def _while_loop_kernel(
    dense: Any, condition: Callable[..., Any], body: Any, carried: Any, others: Any
) -> Any:
    given = carried
    turns = False
    while True:
        asked = condition(*carried, *others)
        recorder = _unknown(asked)
        if recorder is not None:
            return record_while_loop(recorder, condition, body, carried, others)
        if not asked:
            break
        carried, turns = body(*carried, *others), True
    if not turns:
        return tuple(one.clone() if isinstance(one, Tensor) else one for one in carried)
    return _apart("while_loop", carried, (*given, *others))


class _Stacked(torch.autograd.Function):
    """What `map` stacks below autograd, where views are noticed all the same: ATen's `stack` of tensors with
    dimensions is their `cat`, and a view of that. All that is stacked is made by one node, as in eager."""

    @staticmethod
    def forward(ctx: Any, count: int, *rows: Tensor) -> tuple[Tensor, ...]:
        ctx.count = count
        groups = [rows[i : i + count] for i in range(0, len(rows), count)]
        return tuple(
            torch.cat(group).view(count, *group[0].shape) if group[0].dim() else torch.stack(group)
            for group in groups
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(row for gradient in gradients for row in gradient.unbind())


def _map_kernel(
    dense: Any,
    function: Callable[..., Any],
    mapped: Sequence[Tensor],
    others: Sequence[Any],
    *,
    mutated_arg_indices: str = "",
) -> Any:
    # (Which of `mapped` the function writes to, torch 2.15 is told. Here it writes to their rows.)
    results = [function(*rows, *others) for rows in zip(*mapped, strict=True)]
    leaves, spec = zip(*(pytree.tree_flatten(result) for result in results), strict=True)
    columns = list(zip(*leaves, strict=True))
    # (A backward may give no gradient for an operand.)
    there = [column for column in columns if column[0] is not None]
    rows = [row for column in there for row in column]
    stacked = iter(_Stacked.apply(len(results), *rows) if rows else ())  # type: ignore[no-untyped-call]
    return pytree.tree_unflatten([None if c[0] is None else next(stacked) for c in columns], spec[0])


class _Tied(torch.autograd.Function):
    """What one node makes in eager: where one of several results gets a gradient, the others get zeros."""

    @staticmethod
    def forward(ctx: Any, *results: Tensor) -> tuple[Tensor, ...]:
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def _scan_kernel(dense: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    first = autograd_graph.next_sequence_number()
    leaves, spec = pytree.tree_flatten(dense(*args, **kwargs))
    tied = list(_Tied.apply(*leaves))  # type: ignore[no-untyped-call]
    recorder = mode_stacks.current_dispatch_mode()
    if isinstance(recorder, Recorder):  # eager's node keeps what it has as attributes
        recorder.unfreed.append(range(first, autograd_graph.next_sequence_number()))
    return pytree.tree_unflatten(tied, spec)


def _as_it_runs(dense: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return dense(*args, **kwargs)


def _invoke_subgraph(dense: Any, function: Callable[..., Any], identifier: Any, *operands: Any) -> Any:
    return function(*operands)


def _invoke_quant(dense: Any, function: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    return function(*operands)


def _hints_wrapper(dense: Any, function: Callable[..., Any], args: Any, kwargs: Any, hints: Any) -> Any:
    """What the function does: hints say how to compile it, and a compiler of graphs may leave them alone."""
    return function(*args, **kwargs)


def _apart(name: str, results: Any, operands: Any) -> Any:
    """The same; refused where a result lies in the memory of an operand, which Dynamo does not allow."""
    given = {tensor_impl.storage_key(one) for one in operands if isinstance(one, Tensor)}
    leaves, _ = pytree.tree_flatten(results)
    if any(isinstance(one, Tensor) and tensor_impl.storage_key(one) in given for one in leaves):
        raise unsupported_higher_order_op(f"{name}, of which a result shows the memory of an operand")
    return results


dispatcher.register_higher_order_kernels(
    {
        "cond": _cond,
        "switch": _switch_kernel,
        "while_loop": _while_loop_kernel,
        "map_impl": _map_kernel,
        "scan": _scan_kernel,
        "flex_attention": _as_it_runs,
        "invoke_subgraph": _invoke_subgraph,
        "invoke_quant_packed": _invoke_quant,
        "hints_wrapper": _hints_wrapper,
    }
)
