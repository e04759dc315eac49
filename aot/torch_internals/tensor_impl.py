"""What a tensor is to C++: storage, offset, layout, version counter, lazy bits, references to it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aot.torch_internals import mode_stacks

__all__ = [
    "compile_tensor_test",
    "count_python_references",
    "empty_real_tensor",
    "foreach_copy",
    "has_memory",
    "has_symbolic_sizes",
    "is_view",
    "is_zero_tensor",
    "layout_of",
    "make_zero_tensor",
    "nbytes_of",
    "negative_view",
    "offset_of",
    "set_lazy_bits",
    "set_version_counters",
    "storage_key",
    "storage_of",
]


def storage_key(tensor: Tensor) -> int:
    """The address of the tensor's storage object: equal exactly for tensors that share it, while it lives."""
    return int(_untyped_storage(tensor)._cdata)


_untyped_storage: Any = torch._C.TensorBase.untyped_storage  # which is replaced in traces


# Write each tensor of a second list to that of a first one; on the CPU one after the other, as by `copy_`.
foreach_copy: Callable[[list[Tensor], list[Tensor]], None] = torch._foreach_copy_


_LIST_REFERENCES = next(map(sys.getrefcount, [object()]))
_use_count: Callable[[Tensor], int] = getattr(Tensor, "_use_count", lambda _: 0)


@functools.cache
def _holds_python_object() -> bool:
    """Whether C++ holds a reference to a tensor's Python object for as long as C++ refers to the tensor.

    (It is not asked at import: ``python -W error::aot.RecompileWarning`` imports so early that torch aborts.)
    """
    with torch.inference_mode(False):
        tensor = torch.empty(0, device="cpu")
        before = sys.getrefcount(tensor)
        view = tensor.view(-1)
        return view._base is tensor and sys.getrefcount(tensor) > before


def count_python_references(tensors: list[Tensor]) -> list[int]:
    """Count what refers to each tensor in a list from Python: objects other than the list, and frames.

    Where torch does not tell what of it C++ holds, the count may be one too high, and is never too low.
    """
    counts = list(map(sys.getrefcount, tensors))
    kept = _holds_python_object()
    shared = [kept and uses > 1 for uses in map(_use_count, tensors)]
    return [count - _LIST_REFERENCES - by_torch for count, by_torch in zip(counts, shared, strict=True)]


def layout_of(tensor: Tensor) -> torch.layout:
    """Its layout, also of one that nobody may use."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.layout


def has_symbolic_sizes(tensor: Tensor) -> bool:
    """Whether kernels without symbols refuse it: its sizes are symbols, or have been."""
    return bool(tensor._has_symbolic_sizes_strides)


def has_memory(tensor: Tensor) -> bool:
    """Whether there is memory for what a strided tensor shows."""
    try:
        return tensor.untyped_storage().data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        return False


@functools.lru_cache(maxsize=100)
def empty_real_tensor(dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of no elements that has the dispatch keys of a device, as fakes have not."""
    with mode_stacks.outside_all_modes(), torch._C.DisableTorchFunction(), torch.inference_mode(False):
        return torch.empty(0, dtype=dtype, device=device)


def negative_view(tensor: Tensor) -> Tensor:
    """A view that shows the negative of every element, lazily."""
    view: Tensor = torch._neg_view(tensor)
    return view


def set_lazy_bits(tensor: Tensor, conj: bool, neg: bool) -> None:
    """Let `tensor` itself show its memory lazily conjugated, negated or neither."""
    torch._C._set_conj(tensor, conj)
    torch._C._set_neg(tensor, neg)


def is_zero_tensor(tensor: Tensor) -> bool:
    """Whether `tensor` is made by ``torch._efficientzerotensor``, as some derivatives are."""
    return tensor._is_zerotensor()


def make_zero_tensor(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """What ``torch._efficientzerotensor`` gives, whatever traces it. It has memory nowhere."""
    with torch._C._DisableTorchDispatch():
        zeros: Tensor = torch._efficientzerotensor(size, dtype=dtype, device=device)
    return zeros


def set_version_counters(tensors: Sequence[Tensor], versions: Sequence[int]) -> None:
    """Set version counters, one tensor after the other."""
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def compile_tensor_test(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """A test of as many objects: whether each is a tensor like the one here in type, size, stride, dtype,
    device, layout, requires_grad, conj and neg bit (and, outside of inference mode, in being an inference
    tensor), and no two are one. It costs some 0.04 us for each."""
    sizes: list[Any] = [list(tensor.shape) for tensor in tensors]
    strides: list[Any] = [list(tensor.stride()) for tensor in tensors]
    guards = torch._C._dynamo.guards.TensorGuards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    )
    test: Callable[..., bool] = guards.check
    return test


# What a tensor and a storage tell, as functions to map over many of them.
storage_of = torch._C.TensorBase.untyped_storage
offset_of = torch._C.TensorBase.storage_offset
is_view: Callable[[Tensor], bool] = torch._C.TensorBase._is_view
nbytes_of = torch.UntypedStorage.nbytes
