"""Tensor subclasses that wrap other tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import get_default_nowrap_functions
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = [
    "acts_as_plain",
    "as_class_of",
    "cache_nowrap_functions",
    "is_dispatched_natively",
    "is_wrapper_subclass",
    "make_wrapper",
    "shell",
]


is_wrapper_subclass: Callable[[object], bool] = is_traceable_wrapper_subclass


def acts_as_plain(tensor: Tensor) -> bool:
    """Whether operations on a tensor, in this thread and at this moment, are those on a plain one: its class
    has a `__torch_function__` at most, and torch does not ask that."""
    kind: Any = type(tensor)
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ or is_lazy(tensor):
        return False
    asked = kind.__torch_function__ is not torch._C._disabled_torch_function_impl
    return not (asked and torch._C._is_torch_function_enabled())


def as_class_of(fake: Tensor, tensor: Tensor) -> Tensor:
    """What stands for a tensor, as one of its class: a view of the same if it is a view."""
    kind = type(tensor)
    if kind is Tensor or type(fake) is kind:
        return fake
    if tensor._is_view():
        return fake.as_subclass(kind)
    make: Any = Tensor._make_subclass
    return make(kind, fake)  # type: ignore[no-any-return]


def is_dispatched_natively(kind: type) -> bool:
    """Whether torch runs operations on a wrapper subclass itself, and not that one's `__torch_dispatch__`, of
    which nothing else can be told than that torch calls it not."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and kind is distributed.DTensor


def make_wrapper(kind: type, size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Any:
    """One of a type of these, of which nothing is set but what it shows, in row-major order."""
    make: Any = Tensor._make_wrapper_subclass
    return make(kind, size, dtype=dtype, device=device)


def shell(wrapper: Tensor) -> Tensor:
    """What shares the version counter of a wrapper subclass, and is made of nothing."""
    with torch._C._DisableTorchDispatch():
        return wrapper.detach()


def cache_nowrap_functions() -> None:
    """Have torch note which attributes of tensors a subclass gets as they are, before these are replaced: it
    looks once, and would take what stands for them then for them ever after."""
    get_default_nowrap_functions()
