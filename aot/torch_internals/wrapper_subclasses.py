"""Tensor subclasses that wrap other tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import get_default_nowrap_functions
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["cache_nowrap_functions", "is_dispatched_natively", "is_wrapper_subclass", "make_wrapper", "shell"]


is_wrapper_subclass: Callable[[object], bool] = is_traceable_wrapper_subclass


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
