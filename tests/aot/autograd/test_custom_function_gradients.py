"""Gradients of custom functions, and what a missing one is to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import PARTITIONERS, assert_agrees, assert_same_story, checking_nop, leaf, told
from tests.support.aot.programs import Square

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("gradients")]


class Joined(torch.autograd.Function):
    """Adds gradients of different shapes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.sum()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first * 2 + second


class Apart(torch.autograd.Function):
    """Has a gradient of zeros, and not none, where one result is differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return first * 2, second * 3


class Asking(torch.autograd.Function):
    """Asks which gradients there are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor:
        if first is None:
            assert second is not None
            return second * 11
        return first * 7 if second is None else first + second * 1000


@pytest.mark.parametrize("differentiate", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: Joined.apply(x * y),
        Apart.apply,
        lambda x, y: Asking.apply(x * y),
        lambda x, y: tuple(r * y for r in Asking.apply(x * y)),
    ],
)
def test_a_custom_function_says_what_a_missing_gradient_is(
    f: Callable[..., Any], differentiate: tuple[int, ...]
) -> None:
    make = lambda: [leaf(3), leaf(3, start=3)]  # noqa: E731
    assert_agrees(f, make, grad=True, differentiate=differentiate)
    assert_agrees(
        f, make, grad=True, differentiate=differentiate, partition=aot.min_cut_rematerialization_partition
    )


class Sevens(torch.autograd.Function):
    """Makes something else of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor:
        return torch.full((3,), 7.0) if gradient is None else gradient * 3


class First(torch.autograd.Function):
    """Gives a gradient to its first argument alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _some_of_a_node(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    return torch._foreach_neg([x, Square.apply(y)])


def _with_what_it_was_made_of(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    square = Square.apply(y)
    return [square, *torch._foreach_neg([x, square, z])]


def _two_that_are_entered_apart(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    sevens, square = Sevens.apply(x), Square.apply(y.sin())
    return [*torch._foreach_neg([sevens, square, z]), sevens + square]


def _below_a_function_that_gives_nothing(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    square = Square.apply(y)
    return [First.apply(x, square), First.apply(z, square.sin()), square]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("partition", [aot.default_partition, aot.min_cut_rematerialization_partition])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        _some_of_a_node,
        _with_what_it_was_made_of,
        _two_that_are_entered_apart,
        _below_a_function_that_gives_nothing,
    ],
)
def test_a_custom_function_to_which_no_gradient_comes_says_what_that_gives(
    f: Callable[..., list[Tensor]], create_graph: bool, partition: Any, dynamic: bool
) -> None:
    def gradients(function: Callable[..., list[Tensor]], chosen: Sequence[int]) -> Any:
        arguments = [leaf(3), leaf(3, start=3), leaf(3, start=5)]
        results = [function(*arguments)[i] for i in chosen]
        ones = [torch.ones(3) for _ in results]
        return torch.autograd.grad(results, arguments, ones, allow_unused=True, create_graph=create_graph)

    compiled = aot.aot_function(f, aot.nop, partition_fn=partition, dynamic=dynamic)
    count = len(f(leaf(3), leaf(3), leaf(3)))
    for chosen in (c for n in range(1, count + 1) for c in itertools.combinations(range(count), n)):
        expected, actual = gradients(f, chosen), gradients(compiled, chosen)
        for one, other in zip(expected, actual, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)


def test_a_custom_function_of_the_caller_s_gets_zeros_where_one_inside_gives_nothing() -> None:
    def story(function: Callable[..., Any]) -> Any:
        x, y = leaf(3), leaf(3, start=3)
        return torch.autograd.grad(function(x, Square.apply(y)).sum(), [x, y], allow_unused=True)  # type: ignore[no-untyped-call]

    assert_same_story(First.apply, story)


class Reading(torch.autograd.Function):
    """Asks for a value in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * gradient.sum().item()


def test_a_custom_backward_that_cannot_be_traced_is_refused_by_name() -> None:
    x = leaf(3)
    with pytest.raises(aot.Unsupported, match="value"):
        aot.aot_function(Reading.apply, checking_nop)(x)
    assert x.grad is None


class Keeping(torch.autograd.Function):
    """Keeps a tensor as an attribute, which autograd does not check, and saves another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ctx.x = x
        ctx.y = x * w
        ctx.save_for_backward(w)
        return ctx.y, x + w

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        (w,) = ctx.saved_tensors
        return first * w + second, first * ctx.x + second * ctx.y


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("written", ["x", "w", "y", None])
def test_a_write_to_what_a_custom_function_keeps(written: str | None, partitioner: str) -> None:
    """Eager notices it for saved tensors alone, and reads attributes as they are by then."""

    def story(function: Callable[..., Any]) -> tuple[Tensor, ...]:
        roots = [leaf(3), leaf(3, start=4)]
        x, w = (root * 1 for root in roots)
        first, second = function(x, w)
        if written is not None:
            with torch.no_grad():
                {"x": x, "w": w, "y": first}[written].mul_(3)
        return torch.autograd.grad(first.sum() + second.sum(), roots)

    compiled = aot.aot_function(Keeping.apply, checking_nop, partition_fn=PARTITIONERS[partitioner])
    if written is None:
        assert [*map(told, story(compiled))] == [*map(told, story(Keeping.apply))]
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            story(compiled)
