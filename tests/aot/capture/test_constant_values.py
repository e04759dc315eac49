"""Values in a trace: those that depend on literals alone are known, and checks of arguments are kept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import assert_agrees, leaf, values

pytestmark = pytest.mark.clause("repeat")


def item_of_a_literal(x: Tensor) -> Tensor:
    return x * torch.tensor([1, 2]).sum().item()


def literal_written_to(x: Tensor) -> Tensor:
    count = torch.zeros(2, dtype=torch.int64)
    count[1] = 2
    return x[: int(count.sum())]


def lengths_of_a_literal(x: Tensor) -> tuple[Tensor, ...]:
    return x.split([int(n) for n in torch.tensor([1, 2])])


def branch_on_a_literal(x: Tensor) -> Tensor:
    return x.sin() if torch.equal(torch.ones(2), torch.full((2,), 1.0)) else x.cos()


def repeated_as_a_literal_says(x: Tensor) -> Tensor:
    return torch.repeat_interleave(x, torch.tensor([2, 0, 1]))


@pytest.mark.parametrize(
    "function",
    [
        item_of_a_literal,
        literal_written_to,
        lengths_of_a_literal,
        branch_on_a_literal,
        repeated_as_a_literal_says,
    ],
    ids=lambda f: f.__name__,
)
def test_what_depends_on_literals_is_known(function: Callable[..., Tensor]) -> None:
    assert_agrees(function, lambda: [leaf(3)])


def item_of_a_literal_with_an_argument_in_it(x: Tensor) -> Tensor:
    mixed = torch.zeros(3)
    mixed[0] = x[0]
    return x * mixed.sum().item()


def item_of_a_draw(x: Tensor) -> Tensor:
    return x * torch.rand(()).item()


@pytest.mark.parametrize("function", [item_of_a_literal_with_an_argument_in_it, item_of_a_draw])
def test_what_depends_on_more_is_computed_at_each_call(function: Callable[..., Tensor]) -> None:
    assert_agrees(function, lambda: [values(3)])


def covariance(x: Tensor, weights: Tensor) -> Tensor:
    return torch.cov(x, aweights=weights)


def signal(spectrum: Tensor, window: Tensor) -> Tensor:
    return torch.istft(torch.view_as_complex(spectrum), 8, window=window)


def test_checks_of_arguments_pass_and_raise_as_in_eager() -> None:
    assert_agrees(covariance, lambda: [leaf(3, 5), values(5).abs()])
    assert_agrees(covariance, lambda: [leaf(3, 5), -values(5).abs()], raises=RuntimeError, grad=True)
    spectrum = lambda: leaf(5, 9, 2)  # noqa: E731
    assert_agrees(signal, lambda: [spectrum(), torch.ones(8)])
    assert_agrees(signal, lambda: [spectrum(), torch.zeros(8)], raises=RuntimeError, grad=True)


def test_a_known_specialization_checks_its_own_arguments() -> None:
    compiled = aot.aot_function(covariance, aot.nop)
    compiled(values(3, 5), values(5).abs())
    with pytest.raises(RuntimeError, match="check of values"):
        compiled(values(3, 5), -values(5).abs())
    assert len(compiled.specializations) == 1


@pytest.mark.parametrize(
    "function",
    [
        torch.tensor_split,
        lambda x, at: x * float(x.numpy().sum()),
        lambda x, at: copy.deepcopy(x),
    ],
    ids=["tensor_split", "numpy", "deepcopy"],
)
def test_reading_memory_is_refused(function: Callable[..., object]) -> None:
    with pytest.raises(aot.Unsupported, match="memory"):
        aot.aot_function(function, aot.nop)(values(4), torch.tensor([1, 3]))


def test_tensors_can_be_printed() -> None:
    shown: list[str] = []

    def printing(x: Tensor) -> Tensor:
        y = x * 2
        shown.extend([repr(y), str(x), f"{x}"])
        return y

    x = values(4)
    aot.aot_function(printing, aot.nop)(x)
    assert shown == ["tensor(..., size=(4,), dtype=torch.float32)"] * 3
    assert repr(x).startswith("tensor([")


class ScaledByDistinctValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * torch.unique(x).sum()


def test_a_backward_that_depends_on_values_is_refused_at_the_call() -> None:
    compiled = aot.aot_function(ScaledByDistinctValues.apply, aot.nop)
    with pytest.raises(aot.Unsupported, match="_unique"):
        compiled(leaf(4))


def grown_in_place(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return x.addbmm_(first, second)


def test_an_in_place_operation_that_grows_its_target_is_refused() -> None:
    with pytest.raises(aot.Unsupported, match="resizes"):
        aot.aot_function(grown_in_place, aot.nop)(values(1), values(2, 3, 4), values(2, 4, 5))


def encoded(x: Tensor, scale: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(x, 5) * scale


def test_one_hot_checks_its_argument_in_the_graph() -> None:
    assert_agrees(encoded, lambda: [torch.tensor([[1, 0], [4, 4]]), leaf(5)])
    assert_agrees(encoded, lambda: [torch.empty(0, 3, dtype=torch.int64), leaf(5)])
    assert_agrees(encoded, lambda: [torch.tensor([1, 5]), leaf(5)], raises=RuntimeError, grad=True)
    assert_agrees(encoded, lambda: [torch.tensor([1, -1]), leaf(5)], raises=RuntimeError, grad=True)
    assert_agrees(encoded, lambda: [torch.tensor([1.0]), leaf(5)], raises=RuntimeError, grad=True)
    assert not hasattr(torch.nn.functional.one_hot, "__wrapped__")


def test_whether_memory_is_pinned_is_known_of_what_the_function_makes() -> None:
    assert_agrees(lambda x: x * 3 if (x * 2).is_pinned() else x * 2, lambda: [values(3)])
    with pytest.raises(aot.errors.DataDependentValue, match="page-locked"):
        aot.aot_function(lambda x: x * 3 if x.is_pinned() else x, aot.nop)(values(3))
