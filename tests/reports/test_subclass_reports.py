"""Programs after public reports that are about tensor subclasses, each with its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import aot
from tests.support.agreement import checking_nop, values
from tests.support.aot.subclasses import Coercing, assert_like_eager, seen


def two(*size: int, start: int = 0, grad: bool = False) -> Tensor:
    made: Tensor = TwoTensor(values(*size, start=start), values(*size, start=start + 20))
    return made.requires_grad_(grad)


@pytest.mark.parametrize("written", [0, 1])
def test_arguments_that_share_what_they_are_made_of(written: int) -> None:
    """pytorch/pytorch#114415: below subclasses, one argument lies in the memory of another."""

    def make() -> list[Any]:
        inner, other = values(4), values(6, start=9)
        return [TwoTensor(inner, other[:4]), TwoTensor(other[:4].view(4), inner[:])]

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        (x, y)[written].mul_(2)
        return x + y, y.view(2, 2)

    assert_like_eager(f, make)


def _both(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x.sin()


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.mul(3).view(2, 2).unbind(0))


class Passing(torch.autograd.Function):
    """What follows the compiled function: its gradient for what it does not use is None."""

    @staticmethod
    def forward(ctx: Any, used: Tensor, unused: Tensor) -> Tensor:
        return used * 5

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * 5, None


def _uses_one(results: tuple[Tensor, ...]) -> Tensor:
    return results[0].sum()


def _uses_one_of_two(results: tuple[Tensor, ...]) -> Tensor:
    result: Tensor = Passing.apply(results[1], results[0])
    return result.sum()


@pytest.mark.parametrize("f", [_both, _parts])
@pytest.mark.parametrize("use", [_uses_one, _uses_one_of_two])
def test_the_gradient_of_a_result_that_is_not_used(
    f: Callable[..., Any], use: Callable[[tuple[Tensor, ...]], Tensor]
) -> None:
    """pytorch/pytorch#173123: it came as a plain tensor of zeros, where a subclass was expected."""
    compiled = aot.aot_function(f, checking_nop)
    told = []
    for function in (f, compiled, compiled):
        x = two(4, grad=True)
        use(function(x)).backward()
        told.append(seen(x.grad, True))
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("grad", [False, True])
def test_metadata_of_a_subclass_changes_in_place(grad: bool) -> None:
    """pytorch/pytorch#114975: metadata of what a subclass is made of changed, and not the subclass's own."""

    def f(x: Tensor) -> Tensor:
        x.transpose_(0, 1)
        return x * 2

    def make() -> list[Any]:
        return [two(4, 4, 2, grad=grad) * 1 if grad else two(4, 4, 2)]

    for make_arguments in (make, lambda: [TwoTensor(values(2, 3), values(2, 3, start=5))]):
        assert_like_eager(f, make_arguments)
    x = two(4, 4, 2)
    aot.aot_function(f, aot.nop)(x)
    assert (x.stride(), x.a.stride(), x.b.stride()) == ((2, 8, 1),) * 3


def test_a_plain_gradient_where_a_subclass_was_expected() -> None:
    """pytorch/pytorch#184980: the type of the result says how it is made."""

    def f(x: Tensor) -> Tensor:
        return x.exp()

    def told(function: Callable[..., Any]) -> Any:
        x = Coercing(values(3), values(3, start=4)).requires_grad_()
        result = function(x)
        result.backward(values(3, start=7))
        return seen(x.grad, True)

    compiled = aot.aot_function(f, checking_nop)
    assert told(f) == told(compiled) == told(compiled)
