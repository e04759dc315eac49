"""Second derivatives of custom functions: eager's, or a typed error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import aot
from tests.support.agreement import assert_same_story, checking_nop, leaf

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("double-backward")]

Function = Callable[..., Any]
F64 = torch.float64


def _custom(backward: Function) -> Function:
    """An identity with a backward of its own, which also gets the argument."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return backward(gradient, *ctx.saved_tensors)

    return lambda x, w: (Custom.apply(x * w) ** 3).sum() + (x * w * w).sum()


def _zeroed_in_place(g: Tensor, x: Tensor) -> Tensor:
    g = g.clone()
    g[x < 0] = 0
    return g


def _shifted(g: Tensor, x: Tensor) -> Tensor:
    result = torch.zeros_like(g)
    result[1:] = g[:-1] * 2
    return result


def _differentiated_again(g: Tensor, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(x.tanh(), x, g)[0]


LINEAR: dict[str, Function] = {
    "as it is": lambda g, x: g,
    "none": lambda g, x: None,
    "zeros": lambda g, x: torch.zeros_like(g),
    "scaled": lambda g, x: -g * 3 * x.clamp(-1, 1) / 2,
    "masked": lambda g, x: torch.where(x > 0, g, 0.0) + g.masked_fill(x < 0, 0) + g * (x > 0),
    "masked in place": _zeroed_in_place,
    "shifted": _shifted,
    "copied": lambda g, x: torch.empty_like(g).copy_(g).mul_(x),
    "projected": lambda g, x: g - (g * x).sum() * x / x.norm() - g.mean(),
    "a formula of torch's": torch.ops.aten.sigmoid_backward.default,
    "a formula of torch's, taken": _differentiated_again,
    "a product of matrices": lambda g, x: x.outer(x) @ g + functional.linear(g, x.outer(x)),
    "gathered": lambda g, x: g[torch.tensor([2, 1, 0])] + g.flip(0).cumsum(0),
    "scattered": lambda g, x: torch.zeros_like(g).scatter(0, torch.tensor([2, 1, 0]), g),
    "put together": lambda g, x: torch.stack([g, g * x]).sum(0) + torch.cat([g[1:], g[:1]]),
    "with literals": lambda g, x: g * torch.tensor(2.0, dtype=F64) + torch.tensor(0.0, dtype=F64),
}

NOT_LINEAR: dict[str, Function] = {
    "clipped": lambda g, x: g.clamp(-0.5, 0.5),
    "its sign": lambda g, x: g.sign() * g,
    "normalized": lambda g, x: g / (g.norm() + 1),
    "squared": lambda g, x: g * g,
    "masked by itself": lambda g, x: torch.where(g > 0, g, 0.0),
    "more than itself": lambda g, x: g + 1,
    "more than itself, in place": lambda g, x: g.clone().add_(x),
    "partly something else": lambda g, x: g.masked_fill(x < 0, 1.0),
    "rounded": lambda g, x: torch.div(g, x, rounding_mode="floor") + g,
}


def _penalized(function: Function) -> Any:
    x, w = leaf(3, dtype=F64), leaf(3, dtype=F64, start=3)
    loss = function(x, w)
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + first.pow(2).sum()).backward()
    return x.grad, w.grad


@pytest.mark.parametrize("name", LINEAR)
def test_a_custom_function_that_is_linear_in_its_gradient(name: str) -> None:
    assert_same_story(_custom(LINEAR[name]), _penalized)


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_a_custom_function_that_is_not_linear_in_its_gradient_is_refused(name: str) -> None:
    """Eager applies it to the sum of the first and of higher derivatives."""
    function = aot.aot_function(_custom(NOT_LINEAR[name]), aot.nop)
    x, w = leaf(3, dtype=F64), leaf(3, dtype=F64, start=3)
    with pytest.raises(aot.DoubleBackwardUnsupported, match="not known to be linear"):
        function(x, w).backward(create_graph=True)
    assert x.grad is None
    assert w.grad is None
    function(x, w).backward()
    assert x.grad is not None


def test_a_custom_function_that_no_further_derivative_reaches_need_not_be_linear() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        clipped = _custom(NOT_LINEAR["clipped"])(x, w).detach()
        return _Clipped.apply(x * 2) * 3 + w.sin() * clipped

    def story(function: Function) -> Any:
        x, w = leaf(3, dtype=F64), leaf(3, dtype=F64, start=3)
        loss = function(x, w).sum()
        first = torch.autograd.grad(loss, [x, w], create_graph=True)
        (loss + first[1].pow(2).sum()).backward()
        return x.grad, w.grad

    assert_same_story(f, story)


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-0.5, 0.5)


class Demanding(torch.autograd.Function):
    """Raises where it gets no gradient at all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x * x, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor:
        (x,) = ctx.saved_tensors
        if first is None:
            if second is None:
                raise ValueError("no gradient")
            return second * 3
        return first * x * 2 if second is None else first * x * 2 + second * 3


def _demanded(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = Demanding.apply(x.exp())  # type: ignore[no-untyped-call]
    return first, first.sin() * second.detach() * x


@pytest.mark.parametrize("chosen", [(0,), (1,), (0, 1)])
def test_no_custom_function_is_called_without_gradients(chosen: tuple[int, ...]) -> None:
    def story(function: Function) -> Any:
        x = leaf(3, dtype=F64)
        results = function(x)
        told: list[Any] = []
        loss = sum(results[i].sum() for i in chosen)
        for _ in range(3):
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            told += gradient.tolist()
            loss = gradient.sin().sum()
        return told

    assert_same_story(_demanded, story)


def test_numbers_that_a_formula_conjugates_beside_a_leaf_in_a_buffer() -> None:
    """`aten.conj` of a number makes no view of an argument."""

    def story(f: Callable[..., Tensor]) -> list[Any]:
        part = torch.ones(4).view(2, 2).requires_grad_()
        x = torch.ones(2, requires_grad=True)
        (gradient,) = torch.autograd.grad(f(part, x).abs().sum(), x, create_graph=True)
        return [gradient.tolist(), gradient.requires_grad]

    assert_same_story(lambda part, x: x * 1j, story)


@pytest.mark.parametrize("write", [Tensor.cos_, Tensor.sin_])
def test_what_has_no_elements_need_not_have_been_saved(write: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> Tensor:
        write(x[2:2])
        x[torch.arange(4) % 4] = 4.0
        return x.select(0, 3)

    def told(function: Callable[..., Any]) -> Any:
        leaf_ = leaf(4, 2)
        x = leaf_ * 1
        result = function(x)
        found = []
        for root in (result, x):
            (gradient,) = torch.autograd.grad(root.sum(), leaf_, create_graph=True, retain_graph=True)
            found += [gradient.tolist(), gradient.requires_grad]
        return found

    compiled = aot.aot_function(f, checking_nop)
    assert told(f) == told(compiled) == told(compiled)


class DoubledTwice(torch.autograd.Function):
    """Its backward is no derivative of its argument, and says so with zeros that look like that."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return g * 2

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return h * 2, torch.zeros_like(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return DoubledTwice.apply(g, *ctx.saved_tensors)


def test_what_is_only_looked_like_need_not_have_been_saved() -> None:
    def told(function: Callable[..., Any]) -> Any:
        x = leaf(2, 3)
        (gradient,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
        return gradient.tolist(), second.tolist()

    compiled = aot.aot_function(Doubled.apply, checking_nop)
    assert told(Doubled.apply) == told(compiled) == told(compiled)
