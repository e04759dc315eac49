"""Gradients in memory: how they lie, who else holds them, and what may be written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot import errors
from tests.support.agreement import assert_agrees, assert_same_story, leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("strides", "gradients")]


class Tripling(torch.autograd.Function):
    """Writes to the gradient that it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.mul_(3)


def _beside_another(x: Tensor) -> tuple[Tensor, Tensor]:
    written = Tripling.apply(x * 1)  # type: ignore[no-untyped-call]
    other = x.sin()
    return (written + other) * 2, other


def _with_a_hook_that_writes(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient.mul_(3))
    return y + 1


@pytest.mark.parametrize("f", [Tripling.apply, _beside_another, _with_a_hook_that_writes])
def test_a_gradient_that_others_may_hold_is_not_written_to(f: Callable[[Tensor], Any]) -> None:
    with pytest.raises(errors.UnsupportedOperation, match="return a new one"):
        aot.aot_function(f, aot.nop)(leaf(3))


def test_a_gradient_that_nobody_else_holds_may_be_written_to() -> None:
    f = lambda x: Tripling.apply(x.sin()) * 2 + x  # type: ignore[no-untyped-call]  # noqa: E731
    assert_agrees(f, lambda: [leaf(3)], grad=True)


class ByStrides(torch.autograd.Function):
    """The third number of a gradient for all, by where it lies in its storage."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.as_strided(gradient.shape, (0,), gradient.storage_offset() + 2) * 2


def test_a_tangent_that_is_read_by_strides_and_does_not_begin_with_its_storage() -> None:
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        y: Tensor = ByStrides.apply(x)  # type: ignore[no-untyped-call]
        return y, x.exp()

    for function in (lambda x: two(x)[0], two):
        compiled = aot.aot_function(function, aot.nop)
        for create_graph in (False, True):
            x = leaf(4)
            given = torch.arange(9.0)[3:7]
            results = [f(x) for f in (function, compiled)]
            first = [r[0] if isinstance(r, tuple) else r for r in results]
            theirs, ours = (torch.autograd.grad(r, x, given, create_graph=create_graph)[0] for r in first)
            assert torch.equal(theirs, ours) and torch.equal(ours, torch.full((4,), 10.0))


def test_a_backward_that_raises_for_some_strides_is_refused_for_others() -> None:
    """oneDNN's `gelu_backward` does not take those of a diagonal of a row-major tensor."""

    def f(x: Tensor) -> Tensor:
        return torch.diag_embed(torch.nn.functional.gelu(x))

    x = torch.ones(2, 2, 2, requires_grad=True)
    rows, columns = torch.ones(2, 2, 2, 2), torch.ones(2, 2, 2, 2).permute(3, 2, 1, 0)
    with pytest.raises(RuntimeError, match="could not construct a memory descriptor") as eagers:
        f(x).backward(rows)
    compiled = aot.aot_function(f, aot.nop)
    with pytest.raises(RuntimeError) as ours:
        compiled(x).backward(rows)
    assert str(ours.value) == str(eagers.value)
    f(x).backward(columns)  # which eager can
    with pytest.raises(errors.UnsupportedTangent, match="laid out as the result"):
        compiled(x).backward(columns)


def test_a_backward_that_raises_for_all_strides_raises_for_all() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.exp()
        result = y.sin().outer(y.new_ones(2))
        y.add_(1)
        return result

    for gradient in (torch.ones(3, 2), torch.ones(2, 3).t()):
        for function in (f, aot.aot_function(f, aot.nop)):
            x = torch.ones(3, requires_grad=True)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                function(x).backward(gradient)


class _AsItComes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.view(gradient.shape)


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: a.sum() + b,
        lambda a, b: a + b,
        lambda a, b: (a.sum() + b) * 2,
        lambda a, b: (a.sum() + b.sum()) * 2,
        lambda a, b: a.sum() * 2 + b.sum(),
        lambda a, b: _AsItComes.apply(a) + b,
        lambda a, b: (_AsItComes.apply(a) + _AsItComes.apply(b)) * 2,
        lambda a, b: torch.stack([a, b]).sum(),
    ],
)
def test_gradients_that_show_the_memory_of_others(f: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Autograd keeps a view of the gradient that comes in as the `grad` of a leaf: it is written to when
    another gradient is added."""

    def story(function: Callable[..., Tensor]) -> list[Any]:
        leaves = [torch.tensor(3.0, requires_grad=True) for _ in range(2)]
        first, second = torch.tensor(2.0), torch.tensor(5.0)
        torch.autograd.backward(function(*leaves), first)
        grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
        told: list[Any] = [[one.data_ptr() == other.data_ptr() for one in (first, *grads)] for other in grads]
        torch.autograd.backward(function(*leaves), second)
        found = torch.autograd.grad(function(*leaves), leaves, second)
        told += [[one is other for one in (second, *found)] for other in found]
        told += [[one.data_ptr() == other.data_ptr() for one in (second, *found)] for other in found]
        return [*told, first.item(), second.item(), [grad.item() for grad in grads]]

    assert_same_story(f, story)


@pytest.mark.parametrize("size", [(2, 1), (1, 2), (1, 1)])
@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: a.view(-1).view(a.shape) - b,
        lambda a, b: a - b.view(-1).view(b.shape),
        lambda a, b: a.reshape(a.shape) + b.reshape(b.shape),
        lambda a, b: torch._foreach_add([a.view(-1).view(a.shape)], [b])[0],
    ],
)
def test_gradients_that_show_the_memory_of_one_that_lies_otherwise(
    f: Callable[[Tensor, Tensor], Tensor], size: tuple[int, int]
) -> None:
    """Strides of dimensions of one element do not count: it is the same memory."""

    def story(function: Callable[..., Tensor]) -> list[Any]:
        leaves = [torch.ones(size, requires_grad=True) for _ in range(2)]
        first, second = torch.full(size[::-1], 2.0).t(), torch.full(size, 5.0)
        torch.autograd.backward(function(*leaves), first)
        grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
        told: list[Any] = [[one.data_ptr() == other.data_ptr() for one in (first, *grads)] for other in grads]
        torch.autograd.backward(function(*leaves), second)
        return [*told, first.tolist(), second.tolist(), [grad.tolist() for grad in grads]]

    assert_same_story(f, story)


def test_what_leads_nowhere_and_was_modified_raises_in_its_backward() -> None:
    """Neither result leads to the argument, so that no backward runs while the function is compiled."""

    def f(a: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            part, *_ = a.chunk(3, 0)
        first, second = torch._foreach_exp([part, part])
        taken = second.take(torch.arange(1))
        second.mul_(2.0)
        return first, taken

    def story(function: Callable[..., Any]) -> list[Any]:
        told: list[Any] = []
        for i in range(2):
            x = leaf(3)
            result = function(x)[i]
            told += torch.autograd.grad(result, x, allow_unused=True)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.backward()
        return told

    assert_same_story(f, story)


def test_what_is_left_of_a_sum_lies_as_the_sum_does() -> None:
    """The kernel of `group_norm`'s backward counts on that, and is told of nothing else by its formula."""

    def told(function: Callable[..., Any]) -> Any:
        x = leaf(2, 3)
        first, second = function(x, values(2, 2))
        cotangents = values(2, 5, start=3) ** 2, values(2, 8, start=4) ** 2
        return [
            torch.autograd.grad(result, x, cotangent, retain_graph=True)[0]
            for result, cotangent in zip((first, second), cotangents, strict=True)
        ]

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        normed = torch.nn.functional.group_norm(x, 1)
        first = torch.cat((normed, y), 1)
        return first, torch.cat((first, normed), 1)

    for dynamic in (False, True):
        torch.testing.assert_close(told(aot.aot_function(f, aot.nop, dynamic=dynamic)), told(f))
