"""Arguments that are wrapper subclasses, as several test modules need them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from tests.support.agreement import values
from tests.support.aot.subclasses import Masked, Scaled


def two(*size: int, grad: bool = False, start: int = 0) -> Any:
    return TwoTensor(values(*size, start=start), values(*size, start=start + 3) * 2).requires_grad_(grad)


def nested_two() -> Any:
    return TwoTensor(two(3), two(3, start=4)).requires_grad_()


def scaled(grad: bool = True) -> Any:
    return Scaled(values(2, 3), 2.0).requires_grad_(grad)


def masked(grad: bool = True, start: int = 0) -> Any:
    mask = torch.tensor([[True, False, True], [False, True, True]])
    return Masked(values(2, 3, start=start), mask).requires_grad_(grad)


def write_between(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1
    y.mul_(x)
    return y, y * x


def chunks(grad: bool = False) -> list[Any]:
    whole = two(6, 2, grad=grad) * 1
    return [whole[:2], whole[2:4], whole[4:]]


def jagged(grad: bool = True, offsets: Tensor | None = None) -> Any:
    offsets = torch.tensor([0, 2, 6]) if offsets is None else offsets
    return torch.nested.nested_tensor_from_jagged(values(6, 3), offsets).detach().requires_grad_(grad)
