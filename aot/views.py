"""Views of a storage with any geometry: another dtype, lazily conjugated or negated, as bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from aot import torch_internals as internals
from aot.geometry import Geometry


def lazy(tensor: Tensor, conj: bool, neg: bool) -> Tensor:
    """An alias that shows its memory lazily conjugated or negated, or as it is; `tensor` if that does so."""
    if tensor.is_conj() != conj:
        tensor = tensor.conj()
    return internals.negative_view(tensor) if tensor.is_neg() != neg else tensor


def physical(tensor: Tensor) -> Tensor:
    """A detached alias that shows what is in memory."""
    return lazy(tensor.detach(), False, False)


def seen_as(tensor: Tensor, where: Geometry) -> Tensor:
    """A view of a tensor's storage with the geometry `where`; differentiable as far as dtypes allow."""
    if where.dtype != tensor.dtype:
        tensor = lazy(tensor, False, False)
        if is_part(where.dtype, tensor.dtype):
            tensor = torch.view_as_real(tensor)
        elif is_part(tensor.dtype, where.dtype):
            tensor = torch.view_as_complex(tensor.as_strided((where.stop, 2), (2, 1), 0))
        else:
            # All of the storage up to there, as numbers of the one dtype, then of the other.
            ours, theirs = tensor.dtype.itemsize, where.dtype.itemsize
            count = -(-where.stop * theirs // ours)
            count += -count % max(1, theirs // ours)
            tensor = tensor.as_strided((count,), (1,), 0).view(where.dtype)
    return lazy(tensor.as_strided(where.size, where.stride, where.offset), where.conj, where.neg)


def is_part(real: torch.dtype, number: torch.dtype) -> bool:
    """Whether `real` is the dtype of the real and imaginary parts of complex numbers of dtype `number`."""
    return number.is_complex and number.to_real() == real


def stretch_of_bytes(tensor: Tensor, start: int, count: int) -> Tensor:
    """`count` bytes of the storage that a tensor lies in, uint8, flat, outside autograd."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, start, (count,), (1,))
