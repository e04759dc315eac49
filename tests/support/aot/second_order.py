"""Losses for second derivatives, and what comes of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def told(losses: Tensor, targets: list[Any]) -> list[Any]:
    """First derivatives, whether they require grad, and the second ones of those that do."""
    first = torch.autograd.grad(losses, targets, create_graph=True, allow_unused=True)
    told: list[Any] = [None if g is None else (g.detach(), g.requires_grad) for g in first]
    for gradient in first:
        if gradient is not None and gradient.requires_grad:
            loss = gradient.pow(2).sum()
            told += torch.autograd.grad(loss, targets, retain_graph=True, allow_unused=True)
    return told


def weighted(*tensors: Tensor | None) -> Tensor:
    return sum((t.detach().cos() * t + t * t).sum() for t in tensors if t is not None)  # type: ignore[return-value]


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3
