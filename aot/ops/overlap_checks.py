"""Overlap checks: writes that ATen refuses, or whose result depends on the order, because tensors overlap.

In: an operation and its arguments, before it is recorded. Out: nothing, an error of ATen's, or a refusal.
Fakes have no memory, and meta kernels do not look for overlaps, so these checks do it.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from aot import errors
from aot.ops.call_targets import is_custom
from aot.ops.classify import tensors_in
from aot.tensors.geometry import geometry, is_dense
from aot.tensors.symbolic_sizes import specialize_sizes
from aot.torch_internals import autograd_state, mode_stacks, pytree, tensor_impl


def check_list_overlap(func: Any, targets: list[Tensor], args: tuple[Any, ...]) -> None:
    """Refuse an operation on lists whose tensors overlap.

    It handles the tensors in order, and its functional form does not.
    """
    others = [t for a in args[1:] if isinstance(a, (list, tuple)) for t in a if isinstance(t, Tensor)]
    pairs = itertools.chain(itertools.combinations(targets, 2), itertools.product(targets, others))
    if any(_may_overlap(a, b) for a, b in pairs):
        raise errors.UnsupportedOperation(
            f"{func} on a list whose tensors share storage with each other or with what is read; call "
            f"it per tensor"
        )


def check_custom_operator_overlap(
    func: Any, targets: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Refuse a custom operator that writes to memory which another of its arguments shows too.

    It runs on copies, which do not overlap, and nobody knows in which order its kernel reads and writes.
    """
    given = list(tensors_in(args, kwargs))
    for target in targets:
        if sum(_may_overlap(target, one) for one in given) > 1:  # `given` has the target itself
            raise errors.UnsupportedOperation(
                f"{func} writes to a tensor of shape {tuple(target.shape)} whose memory another of its "
                f"arguments shows as well; give it a clone"
            )


def check_write_order_overlap(
    func: Any, target: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise what `func` raises for a written `target` that shows elements several times, or else refuse it.

    Most kernels check that, but meta kernels do not. So the real kernel runs on zeros.
    """

    def zeros(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        size, stride = specialize_sizes(value.size()), specialize_sizes(value.stride())
        blank = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
        return blank.zero_()

    if not is_custom(func):
        with mode_stacks.dispatch_modes_off(), autograd_state.outside_inference_mode(), torch.no_grad():
            func(*pytree.tree_map(zeros, args), **pytree.tree_map(zeros, kwargs))
    raise errors.UnsupportedOperation(
        f"{func} writes to a tensor of shape {tuple(target.shape)} that shows elements several times: its "
        f"result depends on the order of the writes; clone it first"
    )


def check_partial_overlap(target: Tensor, args: tuple[Any, ...]) -> None:
    """Raise the error of ATen's `assert_no_partial_overlap`, by its rules (ATen/MemoryOverlap.cpp)."""
    where = geometry(target)
    for other in args:
        if not isinstance(other, Tensor) or other is target:
            continue
        there = geometry(other)
        if not _may_overlap(target, other) or not (is_dense(where) and is_dense(there)):
            continue
        if where.bytes != there.bytes or where.stride != there.stride:
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor "
                "refer to a single memory location. Please clone() the tensor before performing the "
                "operation."
            )


def check_partial_overlap_of_lists(targets: list[Tensor], args: tuple[Any, ...]) -> None:
    """Do `check_partial_overlap` for an operation on lists, which handles tensors one by one on a CPU."""
    lists = [a for a in args if isinstance(a, (list, tuple)) and len(a) == len(targets)]
    for target, *beside in zip(targets, *lists, strict=True):
        if target.is_cpu:
            check_partial_overlap(target, tuple(beside))


def shows_the_same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors show the same elements in the same order."""
    return tensor_impl.storage_key(first) == tensor_impl.storage_key(second) and geometry(first) == geometry(
        second
    )


def _may_overlap(first: Tensor, second: Tensor) -> bool:
    """Whether the spans of two tensors on one storage overlap."""
    if first is second:
        return True
    if tensor_impl.storage_key(first) != tensor_impl.storage_key(second):
        return False
    (start, stop), (begin, end) = geometry(first).bytes, geometry(second).bytes
    return start < end and begin < stop
