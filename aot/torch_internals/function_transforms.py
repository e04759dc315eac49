"""Transforms of `torch.func`, and forward-mode AD: whether they are on, and which tensors they wrap."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = ["are_tensors_transformed", "is_any_transformed", "is_transforming", "transform_of"]


def is_transforming() -> bool:
    """Whether this is inside of a transform of `torch.func`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def are_tensors_transformed() -> bool:
    """Whether tensors may be more than they show: inside of such a transform, or of forward-mode AD."""
    return forward_ad._current_level >= 0 or is_transforming()


def _tangent(tensor: Tensor) -> Tensor | None:
    tangent: Tensor | None = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    return tangent


def transform_of(tensor: Tensor) -> str | None:
    """What is more to a tensor than it shows, if there is anything."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "is being transformed by torch.func"
    if forward_ad._current_level >= 0 and _tangent(tensor) is not None:
        return "has a tangent of forward-mode automatic differentiation"
    return None


def is_any_transformed(values: Iterable[object]) -> bool:
    """Whether a call with these is made inside of a transform of `torch.func`, or one has a tangent."""
    return is_transforming() or any(isinstance(one, Tensor) and transform_of(one) for one in values)
