"""How the modules of whole programs note them, and make their arguments; and what several programs use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.support.agreement import leaf, non_leaf, values

Program = tuple[Callable[..., Any], Callable[..., list[Any]]]


class Programs(dict[str, Program]):
    """Programs by name, collected by using this as a decorator."""

    def __call__(self, *make: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Note a program and how its arguments are made; each maker takes the floating dtype."""

        def note(function: Callable[..., Any]) -> Callable[..., Any]:
            self[function.__name__] = (function, lambda dtype: [one(dtype) for one in make])
            return function

        return note


class Square(torch.autograd.Function):
    """Makes zeros of a gradient that does not come."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient * ctx.saved_tensors[0]


class Holder:
    """An object whose attribute functions set."""

    def __init__(self, last: Any = None) -> None:
        self.last = last


class ViewAs(torch.autograd.Function):
    """A view that a custom function makes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class KeepsByAttribute(torch.autograd.Function):
    """One of torch's own objects holds a tensor of the trace, which is not saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = [x.exp()]
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.kept[0]


def w(*size: int, start: int = 0) -> Callable[[torch.dtype], Tensor]:
    """A parameter."""
    return lambda dtype: leaf(*size, dtype=dtype, start=start)


def h(*size: int, start: int = 0) -> Callable[[torch.dtype], Tensor]:
    """An activation: something computed."""
    return lambda dtype: non_leaf(*size, dtype=dtype, start=start)


def d(*size: int, start: int = 0) -> Callable[[torch.dtype], Tensor]:
    """Data, or a buffer."""
    return lambda dtype: values(*size, dtype=dtype, start=start)


def i(*numbers: int) -> Callable[[torch.dtype], Tensor]:
    """Indices."""
    return lambda dtype: torch.tensor(numbers)
