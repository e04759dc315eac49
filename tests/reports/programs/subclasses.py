"""Reports about tensor subclasses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import aot
from tests.reports.report import Program, Report, Stock, Story
from tests.support.agreement import checking_nop, values
from tests.support.aot.subclasses import Coercing, assert_like_eager, seen


def _two(*size: int, start: int = 0, grad: bool = False) -> Tensor:
    made: Tensor = TwoTensor(values(*size, start=start), values(*size, start=start + 20))
    return made.requires_grad_(grad)


def _one_in_the_memory_of_another() -> list[Any]:
    inner, other = values(4), values(6, start=9)
    return [TwoTensor(inner, other[:4]), TwoTensor(other[:4].view(4), inner[:])]


def _writes_the_first(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return x + y, y.view(2, 2)


def _writes_the_second(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    y.mul_(2)
    return x + y, y.view(2, 2)


class Passing(torch.autograd.Function):
    """What follows the compiled function: its gradient for what it does not use is None."""

    @staticmethod
    def forward(ctx: Any, used: Tensor, unused: Tensor) -> Tensor:
        return used * 5

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * 5, None


def _both(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x.sin()


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.mul(3).view(2, 2).unbind(0))


def _uses_one(results: tuple[Tensor, ...]) -> Tensor:
    return results[0].sum()


def _uses_one_of_two(results: tuple[Tensor, ...]) -> Tensor:
    result: Tensor = Passing.apply(results[1], results[0])
    return result.sum()


def _differentiates(use: Callable[[tuple[Tensor, ...]], Tensor]) -> Story:
    def story(function: Callable[..., Any]) -> Any:
        x = _two(4, grad=True)
        use(function(x)).backward()
        return seen(x.grad, True)

    return story


def _turns(x: Tensor) -> Tensor:
    x.transpose_(0, 1)
    return x * 2


def _in_three_dimensions() -> list[Any]:
    return [_two(4, 4, 2)]


def _with_a_history() -> list[Any]:
    return [_two(4, 4, 2, grad=True) * 1]


def _in_two_dimensions() -> list[Any]:
    return [TwoTensor(values(2, 3), values(2, 3, start=5))]


def _inner_strides_are_those_of_the_subclass() -> None:
    x: Any = _two(4, 4, 2)
    aot.aot_function(_turns, aot.nop)(x)
    assert (x.stride(), x.a.stride(), x.b.stride()) == ((2, 8, 1),) * 3


def _exponential(x: Tensor) -> Tensor:
    return x.exp()


def _gives_a_plain_gradient(function: Callable[..., Any]) -> Any:
    x = Coercing(values(3), values(3, start=4)).requires_grad_()
    result = function(x)
    result.backward(values(3, start=7))
    return seen(x.grad, True)


class Boxed(Tensor):
    """A tensor subclass around another tensor, which does not say how to be taken apart."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Boxed:
        made: Boxed = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*(a.inner if isinstance(a, Boxed) else a for a in args), **(kwargs or {}))


def _adds_to_one_of_two(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 2


def _with_boxes_of_one_memory(function: Callable[..., Any]) -> Any:
    inner = values(4)
    return function(Boxed(inner), Boxed(inner[1:])), inner


def _a_refusal_leaves_what_is_inside_alone() -> None:
    inner = values(4)
    with pytest.raises(aot.errors.UnsupportedArgument, match="Boxed"):
        aot.aot_function(_adds_to_one_of_two, checking_nop)(Boxed(inner), Boxed(inner[1:]))
    assert torch.equal(inner, values(4))
    assert inner._version == 0


REPORTS = (
    Report(
        114415,
        "below subclasses, one argument lies in the memory of another",
        Program(_writes_the_first, _one_in_the_memory_of_another),
        Stock("values", "values"),
        since=(2, 13),
        as_reported=False,
        variants=(Program(_writes_the_second, _one_in_the_memory_of_another),),
        checks=tuple(
            functools.partial(assert_like_eager, f, _one_in_the_memory_of_another)
            for f in (_writes_the_first, _writes_the_second)
        ),
    ),
    Report(
        173123,
        "the gradient of a result that is not used is of the subclass",
        Program(_both, story=_differentiates(_uses_one)),
        Stock("raises", "raises"),
        since=(2, 13),
        as_reported=False,
        variants=(
            Program(_both, story=_differentiates(_uses_one_of_two)),
            Program(_parts, story=_differentiates(_uses_one)),
            Program(_parts, story=_differentiates(_uses_one_of_two)),
        ),
    ),
    Report(
        114975,
        "metadata of a subclass and of what it is made of change in place",
        Program(_turns, _in_three_dimensions),
        Stock("raises", "right"),
        newer=((2, 15), Stock()),
        since=(2, 13),
        as_reported=False,
        checks=(
            *(
                functools.partial(assert_like_eager, _turns, make)
                for make in (_in_three_dimensions, _with_a_history, _in_two_dimensions)
            ),
            _inner_strides_are_those_of_the_subclass,
        ),
    ),
    Report(
        184980,
        "a gradient is plain where a subclass was expected",
        Program(_exponential, story=_gives_a_plain_gradient),
        Stock("raises", "raises"),
        since=(2, 13),
        as_reported=False,
    ),
    Report(
        186517,
        "subclasses that share what is inside are refused",
        Program(_adds_to_one_of_two, story=_with_boxes_of_one_memory, refused="Boxed"),
        Stock("values", "right"),
        since=(2, 13),
        as_reported=False,
        checks=(_a_refusal_leaves_what_is_inside_alone,),
    ),
)
