"""Sparse gradients: a wrapper subclass that stands for a sparse tensor in a trace.

The gradient of `nn.Embedding(sparse=True)` has the layout ``torch.sparse_coo``. A graph holds no sparse
tensors, but it can hold their indices and values. So a wrapper subclass of these two stands for the gradient
in the trace. At run time the same class makes the real sparse tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aot.errors import UnsupportedOperation
from aot.torch_internals import plain_fakes, wrapper_subclasses

aten = torch.ops.aten

_ALIKE = {aten.detach.default, aten.alias.default, aten.clone.default}
_SCALED = {aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.neg.default}


Sum = Any  # the number of a part, or a pair of sums


class SparseGradient(Tensor):
    """A sparse tensor of a trace, or a sum of several.

    The number of entries of a sum depends on which indices are equal. ATen finds that out when it adds, so
    the sum is computed at run time.

    Attributes:
        parts: for each summand its indices, int64 of shape (sparse dimensions, entries), and its values, of
            shape (entries, *dense dimensions).
        total: the order in which the parts are summed.
        coalesced: the only summand is marked as having no index twice.
    """

    parts: tuple[tuple[Tensor, Tensor], ...]
    total: Sum
    coalesced: bool

    @staticmethod
    def __new__(
        cls,
        parts: Sequence[tuple[Tensor, Tensor]],
        size: Sequence[Any],
        total: Sum = 0,
        coalesced: bool = False,
    ) -> SparseGradient:
        values = parts[0][1]
        made: SparseGradient = wrapper_subclasses.make_wrapper(cls, size, values.dtype, values.device)
        made.parts, made.total, made.coalesced = tuple(parts), total, coalesced
        for number, (indices, values) in enumerate(parts):
            setattr(made, f"indices_{number}", indices)
            setattr(made, f"values_{number}", values)
        return made

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Sum, bool]]:
        names = [f"{what}_{number}" for number in range(len(self.parts)) for what in ("indices", "values")]
        return names, (self.total, self.coalesced)

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], context: tuple[Sum, bool], size: Sequence[Any], stride: Sequence[Any]
    ) -> Tensor:
        total, coalesced = context
        pairs = [(inner[f"indices_{k}"], inner[f"values_{k}"]) for k in range(len(inner) // 2)]
        if any(plain_fakes.is_fake(values) or values.is_meta for _, values in pairs):
            return SparseGradient(pairs, size, total, coalesced)

        def summed(of: Sum) -> Tensor:
            if isinstance(of, tuple):
                one, other = map(summed, of)
                return one + other
            indices, values = pairs[of]
            return torch.sparse_coo_tensor(
                indices, values, torch.Size(size), check_invariants=False, is_coalesced=coalesced
            )

        return summed(total)

    def to_dense(self, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None) -> Tensor:
        """What eager's method gives; ATen's asks for a layout, which is strided here."""
        values = self.parts[0][1]
        dense = _add(torch.zeros(self.shape, dtype=values.dtype, device=values.device), self)
        return dense if dtype is None else dense.to(dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        one = args[0]
        scalars = all(not isinstance(a, Tensor) or a.dim() == 0 for a in args[1:])
        if func in _ALIKE:
            pairs = [(func(indices), func(values)) for indices, values in one.parts]
            return SparseGradient(pairs, one.shape, one.total, one.coalesced)
        if func in _SCALED and scalars and isinstance(one, SparseGradient) and len(one.parts) == 1:
            ((indices, values),) = one.parts
            return SparseGradient([(indices, func(values, *args[1:]))], one.shape, 0, one.coalesced)
        if func is aten.add.Tensor and not kwargs:
            return _add(*args)
        raise UnsupportedOperation(
            f"{func} of a sparse gradient (nn.Embedding(sparse=True)), which no graph holds; let the "
            f"gradient be that of a leaf, or use sparse=False"
        )


def made_of_parts(
    sparse_dim: int,
    dense_dim: int,
    size: Sequence[Any],
    indices: Tensor,
    values: Tensor,
    *,
    is_coalesced: bool | None = None,
    **options: Any,
) -> SparseGradient:
    """Replaces ``_sparse_coo_tensor_with_dims_and_tensors`` in a trace."""
    return SparseGradient([(indices, values)], size, 0, bool(is_coalesced))


def embedding_bag_backward(
    gradient: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bags: Tensor,
    sizes: Tensor,
    largest: Tensor,
    rows: int,
    scale_by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Tensor | None,
    padding: int = -1,
) -> Any:
    """Replaces ``_embedding_bag_backward`` with a sparse gradient; None for a dense one."""
    if not sparse:
        return None
    if not bags.numel():  # the bag of each index, which the forward computes only if it needs it
        ends = offsets.new_zeros(len(indices) + 1).index_add(0, offsets, torch.ones_like(offsets))
        bags = (ends.cumsum(0) - 1)[: len(indices)]
    return aten._embedding_bag_sparse_backward.default(
        gradient, indices, offsets, bags, sizes, rows, scale_by_frequency, mode, weights, padding
    )


def _add(one: Tensor, other: Tensor) -> Tensor:
    """The sum that autograd takes of the gradients of two uses; a sparse and a dense one give a dense one.

    Raises:
        UnsupportedOperation: a summand is marked as coalesced, or a sparse one has several sparse dimensions
            or another dtype.
    """
    if isinstance(one, SparseGradient) and isinstance(other, SparseGradient):
        if not (one.coalesced or other.coalesced):
            total = _moved(other.total, len(one.parts)), one.total
            return SparseGradient((*one.parts, *other.parts), one.shape, total)
    else:
        dense, sparse = (other, one) if isinstance(one, SparseGradient) else (one, other)
        assert isinstance(sparse, SparseGradient)
        if all(len(i) == 1 and values.dtype == dense.dtype for i, values in sparse.parts):
            for indices, values in sparse.parts:
                dense = dense.index_add(0, indices[0], values)
            return dense
    raise UnsupportedOperation(
        "the sum of a sparse gradient and another one, of which it cannot be told what eager makes; use "
        "sparse=False"
    )


def _moved(total: Sum, by: int) -> Sum:
    return tuple(_moved(one, by) for one in total) if isinstance(total, tuple) else total + by
