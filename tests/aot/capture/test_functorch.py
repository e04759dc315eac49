"""Transforms of `torch.func`, forward-mode AD and tracers, in a compiled function and around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

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


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("name", ["grad", "jvp", "vmap", "dual"])
def test_a_compiled_function_is_not_transformed(name: str, warm: bool) -> None:
    """pytorch/pytorch#187284: a tangent is not lost."""
    written = Written()
    compiled, x = written.compiled, written.argument
    if warm:
        compiled(values(3))
    around: dict[str, Callable[[], Any]] = {
        "grad": lambda: torch.func.grad(lambda y: compiled(y * 1).sum())(x),
        "jvp": lambda: torch.func.jvp(compiled, (x,), (values(3),)),
        "vmap": lambda: torch.func.vmap(compiled)(x),
        "dual": lambda: of_dual(compiled)(x, values(3)),
    }
    with pytest.raises(errors.UnsupportedArgument, match="transform inside of the function"):
        around[name]()
    written.assert_as_before()


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda f: torch.func.grad(lambda y: f(y).sum())])
def test_a_function_is_not_compiled_inside_of_a_transform_that_it_has_no_part_in(transform: Function) -> None:
    written = Written()
    with pytest.raises(errors.UnsupportedOperation, match="call it before"):
        transform(lambda y: y + written.compiled(written.argument))(values(3))
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
