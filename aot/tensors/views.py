"""Views: make views of a storage with any geometry, and find which operations may return views.

A geometry may have another dtype, or a conj or neg bit.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from aot.tensors.geometry import Geometry
from aot.torch_internals import op_queries, tensor_impl


def with_lazy_bits(tensor: Tensor, conj: bool, neg: bool) -> Tensor:
    """An alias with these conj and neg bits; `tensor` itself if it has them."""
    if tensor.is_conj() != conj:
        tensor = tensor.conj()
    return tensor_impl.negative_view(tensor) if tensor.is_neg() != neg else tensor


def physical(tensor: Tensor) -> Tensor:
    """A detached alias without conj and neg bit."""
    return with_lazy_bits(tensor.detach(), False, False)


def as_strided_view(tensor: Tensor, where: Geometry) -> Tensor:
    """A view of a tensor's storage with the geometry `where`, differentiable if the dtypes allow it."""
    if where.dtype != tensor.dtype:
        tensor = with_lazy_bits(tensor, False, False)
        stop = 0 if 0 in where.size else where.stop
        if is_component_dtype(where.dtype, tensor.dtype):
            tensor = torch.view_as_real(tensor)
        elif is_component_dtype(tensor.dtype, where.dtype):
            tensor = torch.view_as_complex(tensor.as_strided((stop, 2), (2, 1), 0))
        else:
            # The storage up to there, first as numbers of the tensor's dtype, then of the other one.
            ours, theirs = tensor.dtype.itemsize, where.dtype.itemsize
            count = -(-stop * theirs // ours)
            count += -count % max(1, theirs // ours)
            if count * ours > tensor.untyped_storage().nbytes():
                return _put_view_at(tensor, where)
            tensor = tensor.as_strided((count,), (1,), 0).view(where.dtype)
    return with_lazy_bits(tensor.as_strided(where.size, where.stride, where.offset), where.conj, where.neg)


def _put_view_at(tensor: Tensor, where: Geometry) -> Tensor:
    """`as_strided_view` for a storage whose size is no multiple of the tensor's element size.

    The result is an alias that shares the version counter, but is no view.
    """
    there = torch.empty(0, dtype=where.dtype, device=tensor.device)
    there.set_(tensor.untyped_storage(), where.offset, where.size, where.stride)
    alias = tensor.detach()
    alias.data = there
    return with_lazy_bits(alias, where.conj, where.neg)


def is_component_dtype(real: torch.dtype, number: torch.dtype) -> bool:
    """Whether `real` is the dtype of the real and imaginary parts of complex numbers of dtype `number`."""
    return number.is_complex and number.to_real() == real


def bitcast_view(tensor: Tensor, dtype: torch.dtype, start: int, count: int) -> Tensor:
    """A span of a tensor's storage as another dtype, with one dimension, outside autograd.

    It has `count` elements of `dtype`, from element `start` of the storage.
    """
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, start, (count,), (1,))


def may_alias(op: op_queries.OpOverload) -> bool:
    """Whether a result of `op` may share its first argument's memory.

    The schema says so, or a tag, or neither (`is_undeclared_view`).
    """
    return op.is_view or torch.Tag.maybe_aliasing_or_mutating in op.tags or is_undeclared_view(op)


def alias_root(node: fx.Node) -> fx.Node:
    """The value in whose memory another one may lie: the base of its chain of views."""
    while True:
        made = node.args[0] if node.target is operator.getitem else node
        assert isinstance(made, fx.Node)
        first = made.args[0] if made.args else None
        declared = isinstance(made.target, op_queries.OpOverload) and may_alias(made.target)
        if not (declared and isinstance(first, fx.Node)):
            return node
        node = first


def is_undeclared_view(op: op_queries.OpOverload) -> bool:
    """Whether `op` is a view although its schema says that its result is new: autograd treats it as new."""
    return op in _UNDECLARED_VIEWS


_UNDECLARED_VIEWS = {
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.unsafe_split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default,
    torch.ops.aten.unsafe_chunk.default,
}
