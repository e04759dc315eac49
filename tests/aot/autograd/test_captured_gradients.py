"""The `.grad` of tensors that a function gets from elsewhere than its arguments: read and set as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import checking_nop, values

pytestmark = pytest.mark.clause("gradients")

Function = Callable[[Tensor], Tensor]


class Weights:
    """Leaves that functions capture: one without a gradient, and one with."""

    def __init__(self) -> None:
        self.empty = torch.ones(2, requires_grad=True)
        self.full = torch.ones(2, requires_grad=True)
        self.full.grad = torch.full((2,), 5.0)
        self.known = torch.full((2,), 7.0)
        self.optimizer = torch.optim.SGD([self.empty, self.full], lr=0.1)

    def shown(self) -> list[list[float] | None]:
        gradients = (self.empty.grad, self.full.grad, self.known.grad)
        return [None if gradient is None else gradient.tolist() for gradient in gradients]


def sets_none(weights: Weights) -> Function:
    full = weights.full

    def f(x: Tensor) -> Tensor:
        full.grad = None
        return x * 2

    return f


def deletes(weights: Weights) -> Function:
    full = weights.full

    def f(x: Tensor) -> Tensor:
        del full.grad
        return x * 2

    return f


def sets_one_that_is_there(weights: Weights) -> Function:
    full, known = weights.full, weights.known

    def f(x: Tensor) -> Tensor:
        full.grad = known
        return x * 2

    return f


def sets_each_of_a_list(weights: Weights) -> Function:
    leaves = [weights.empty, weights.full]

    def f(x: Tensor) -> Tensor:
        for leaf in leaves:
            leaf.grad = None
        return x * 2

    return f


def sets_and_puts_back(weights: Weights) -> Function:
    full = weights.full

    def f(x: Tensor) -> Tensor:
        before, full.grad = full.grad, None
        full.grad = before
        return x * 2

    return f


def clears_by_an_optimizer(weights: Weights) -> Function:
    optimizer = weights.optimizer

    def f(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        return x * 2

    return f


def asks_whether_there_is_one(weights: Weights) -> Function:
    full = weights.full

    def f(x: Tensor) -> Tensor:
        return x * (2 if full.grad is None else 3)

    return f


def asks_by_name(weights: Weights) -> Function:
    def f(x: Tensor) -> Tensor:
        return x * (2 if getattr(weights.full, "grad", None) is None else 3)

    return f


ANSWERED = [
    *(sets_none, deletes, sets_one_that_is_there, sets_each_of_a_list, sets_and_puts_back),
    *(clears_by_an_optimizer, asks_whether_there_is_one, asks_by_name),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", ANSWERED, ids=lambda make: make.__name__)
def test_gradients_of_captured_leaves_are_as_in_eager(
    make: Callable[[Weights], Function], dynamic: bool
) -> None:
    def calls(compile_function: Callable[[Function], Any]) -> list[Any]:
        weights, seen = Weights(), []
        function = compile_function(make(weights))
        for number, gradient in enumerate((torch.full((2,), 6.0), None, torch.full((2,), 8.0), None)):
            seen.append((function(values(2) + number).tolist(), weights.shown()))
            weights.full.grad = gradient
        return seen

    compiled = calls(lambda function: aot.aot_function(function, checking_nop, dynamic=dynamic))
    assert compiled == calls(lambda function: function)


def sets_a_new_one(weights: Weights) -> Function:
    empty = weights.empty

    def f(x: Tensor) -> Tensor:
        empty.grad = x.detach() * 2
        return x * 2

    return f


def sets_a_new_one_of_what_requires_none(weights: Weights) -> Function:
    known = weights.known

    def f(x: Tensor) -> Tensor:
        known.grad = x.detach() * 2
        return x * 2

    return f


def clears_and_asks_for_a_number(weights: Weights) -> Function:
    full = weights.full

    def f(x: Tensor) -> Tensor:
        full.grad = None
        return x * 2 if x.sum().item() > 0 else x

    return f


def steps(weights: Weights) -> Function:
    empty, optimizer = weights.empty, weights.optimizer

    def f(x: Tensor) -> Tensor:
        empty.grad = x.detach() * 2
        optimizer.step()
        return x * 2

    return f


REFUSED = [sets_a_new_one, sets_a_new_one_of_what_requires_none, clears_and_asks_for_a_number, steps]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_a_refused_call_leaves_gradients_as_they_were(
    make: Callable[[Weights], Function], dynamic: bool
) -> None:
    weights = Weights()
    before, function = weights.shown(), make(weights)
    compiled = aot.aot_function(function, checking_nop, dynamic=dynamic)
    for _ in range(2):
        with pytest.raises(aot.Unsupported):
            compiled(values(2))
        assert weights.shown() == before
    function(values(2))  # which eager can still do
    assert weights.shown() != before


def test_a_gradient_that_is_not_asked_for_compiles_nothing_anew() -> None:
    compiles: list[None] = []
    weight = torch.ones(2, requires_grad=True)

    def compiler(graph: Any, *_: Any) -> Any:
        compiles.append(None)
        return graph

    compiled = aot.aot_function(lambda x: x * len(weight.shape), compiler)
    for gradient in (None, torch.ones(2), None):
        weight.grad = gradient
        compiled(values(2))
    assert len(compiles) == 1
