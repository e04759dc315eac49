"""Transforms of `torch.func`, forward-mode AD and tracers, in a compiled function and around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import aot
from aot import errors
from tests.support.agreement import assert_agrees, checking_nop, leaf, non_leaf, values

Function = Callable[..., Any]


def wave(x: Tensor) -> Tensor:
    return (x**3).sin()


def of_dual(function: Function) -> Function:
    """The value and the tangent of a function, by a dual tensor."""

    def f(x: Tensor, t: Tensor) -> Any:
        with forward_ad.dual_level():
            primal, tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, t)))
        return primal, tangent

    return f


def of_jvp(function: Function) -> Function:
    return lambda x, t: torch.func.jvp(function, (x,), (t,))


def twice(x: Tensor, t: Tensor) -> Any:
    def derivative(y: Tensor) -> Any:
        return torch.func.jvp(wave, (y,), (t,))[1]

    return torch.func.jvp(derivative, (x,), (t,))


class Zero(torch.autograd.Function):
    """Says that the derivative of a sine is zero."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


INSIDE: dict[str, Function] = {
    "a dual tensor": of_dual(wave),
    "a dual tensor of a layout of its own": lambda x, t: of_dual(wave)(x, t.expand(2, 3).t()[:, 0]),
    "views": of_dual(lambda x: (x[1:] * x[:-1]).view(-1, 1)),
    "a write": of_dual(lambda x: x.clone().mul_(x)),
    "jvp": of_jvp(wave),
    "jvp of jvp": twice,
    "jvp under vmap": lambda x, t: torch.func.vmap(of_jvp(wave))(torch.stack((x, t)), torch.stack((t, x))),
    "the gradient of jvp": lambda x, t: torch.func.grad(lambda y: of_jvp(wave)(y, t)[1].sum())(x),
    "jacobian forwards": lambda x, t: torch.func.jacfwd(wave)(x),
    "jacobian backwards": lambda x, t: torch.func.jacrev(wave)(x),
    "hessian": lambda x, t: torch.func.hessian(lambda y: wave(y).sum())(x),
    "vjp": lambda x, t: torch.func.vjp(wave, x)[1](t),
    "a custom function": lambda x, t: torch.func.grad(lambda y: (Zero.apply(y) + y).sum())(x) * t,
}


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("make", [values, leaf, non_leaf])
def test_a_function_transforms_another(name: str, make: Function) -> None:
    """pytorch/pytorch#193279, #187284"""
    assert_agrees(
        INSIDE[name],
        lambda: [make(3), make(3, start=4)],
        double=lambda: [make(3, dtype=torch.float64), make(3, dtype=torch.float64, start=4)],
    )


def _asks(x: Tensor, y: Tensor) -> Any:
    return x.is_same_size(y), y.is_same_size(y[1:]), x.is_set_to(x.view(3)), x.is_set_to(x[1:]), x * 2


def test_metadata_that_an_operation_asks_for() -> None:
    assert_agrees(_asks, lambda: [values(3), values(3, start=4)])


class Written:
    """A compiled function that writes to its argument, and what it is called with."""

    def __init__(self) -> None:
        self.compiled = aot.aot_function(lambda x: x.mul_(2), checking_nop)
        self.argument = values(3)

    def assert_as_before(self) -> None:
        assert torch.equal(self.argument, values(3))
        assert self.argument._version == 0
        assert torch.equal(self.compiled(values(3)), values(3) * 2)


AROUND: dict[str, Callable[[Function, Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(lambda y: f(y * 1).sum())(x),
    "grad and value": lambda f, x: torch.func.grad_and_value(lambda y: f(y * y).prod())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x * 1,), (values(3),)),
    "vjp": lambda f, x: torch.func.vjp(lambda y: f(y * 1), x)[1](values(3)),
    "vmap": lambda f, x: torch.func.vmap(lambda y: f(y * 1))(x.reshape(3, 1).expand(3, 2)),
    "jacrev": lambda f, x: torch.func.jacrev(lambda y: f(y * 1))(x),
    "hessian": lambda f, x: torch.func.hessian(lambda y: f(y * y).prod())(x),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda y: f(y * y).prod()))(x.view(3, 1)),
    "dual": lambda f, x: of_dual(f)(x * 1, values(3)),
    "dual level alone": lambda f, x: _within_dual_level(f, x * 1),
    "no part in it": lambda f, x: torch.func.vmap(lambda y: y + f(values(3)))(x),
}


def _within_dual_level(function: Function, x: Tensor) -> Any:
    with forward_ad.dual_level():
        return function(x)


TRANSFORMED: list[Function] = [lambda x: x.mul_(2), wave, lambda x: (x + 1).view(-1).sin_() * x]


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("function", TRANSFORMED)
@pytest.mark.parametrize("make", [values, leaf])
def test_what_is_transformed_runs_as_it_is(
    function: Function, name: str, warm: bool, make: Callable[[int], Tensor]
) -> None:
    """pytorch/pytorch#187284: a tangent is not lost."""
    compiled = aot.aot_function(function, checking_nop)
    if warm:
        for one in (values(3), values(3) * 1):
            compiled(one)
    for _ in range(2):
        expected, got = (pytree.tree_leaves(AROUND[name](f, make(3))) for f in (function, compiled))
        assert len(expected) == len(got)
        for one, other in zip(expected, got, strict=True):
            torch.testing.assert_close(other, one)
            assert other.requires_grad == one.requires_grad
    assert torch.equal(compiled(values(3)), function(values(3)))  # and then it is compiled again
    assert compiled.specializations


def test_parameters_that_are_transformed() -> None:
    module = torch.nn.Linear(3, 2)
    compiled = aot.aot_module(module, checking_nop)
    weights = dict(module.named_parameters())

    def loss(function: Function, given: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(function, given, (values(4, 3),)).square().sum()

    expected = torch.func.grad(lambda given: loss(module, given))(weights)
    prefixed = {f"{_prefix(compiled)}{name}": value for name, value in weights.items()}
    got = torch.func.grad(lambda given: loss(compiled, given))(prefixed)
    for one, other in zip(expected.values(), got.values(), strict=True):
        torch.testing.assert_close(other, one)


def _prefix(compiled: torch.nn.Module) -> str:
    """What the names of parameters of a compiled module begin with."""
    return next(iter(dict(compiled.named_parameters()))).removesuffix("weight")


def test_nothing_is_compiled_ahead_inside_of_a_transform() -> None:
    written = Written()

    def ahead(y: Tensor) -> Tensor:
        written.compiled.specialize((written.argument,), {})
        return y

    with pytest.raises(errors.UnsupportedOperation, match="compile it before"):
        torch.func.vmap(ahead)(values(3))
    written.assert_as_before()


def _traces(x: Tensor) -> Any:
    return make_fx(lambda y: y.sin() * 2)(x)(x * 2)


def _linearizes(x: Tensor) -> Any:
    return torch.func.linearize(wave, x)[1](x)


@pytest.mark.parametrize("f", [_traces, _linearizes])
@pytest.mark.parametrize("make", [values, leaf])
def test_another_tracer_is_refused(f: Function, make: Function) -> None:
    """It would find what is done to record the function, and the function would get a wrong graph."""
    with pytest.raises(errors.UnsupportedOperation, match="trace apart"):
        aot.aot_function(f, checking_nop)(make(3))


def test_a_function_is_not_compiled_while_another_tracer_is_on() -> None:
    written = Written()
    with pytest.raises(errors.UnsupportedOperation, match="trace apart"):
        make_fx(written.compiled)(written.argument)
    written.assert_as_before()
    traced = make_fx(written.compiled)(values(3))
    assert torch.equal(traced(values(3, start=5)), values(3, start=5) * 2)
