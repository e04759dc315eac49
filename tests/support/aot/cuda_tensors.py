"""Tensors on the GPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.support.agreement import leaf, values


def on_gpu(*tensors: Tensor) -> list[Tensor]:
    """Copies on the device; leaves stay leaves."""
    return [t.detach().to("cuda").requires_grad_(t.requires_grad) for t in tensors]


def gpu_values(*size: int, **more: Any) -> Tensor:
    return on_gpu(values(*size, **more))[0]


def gpu_leaf(*size: int, **more: Any) -> Tensor:
    return on_gpu(leaf(*size, **more))[0]
