"""Tensor subclasses with a `__torch_function__` alone: plain below `torch.compile`, which asks that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from tests.support.agreement import assert_same_call, leaf, values


class Plain(Tensor):
    """Has what every subclass inherits."""


class Turned(Tensor):
    """Takes the cosine for the sine."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(torch.cos if func is torch.sin else func, types, args, kwargs or {})


class Disabled(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Weight(nn.Parameter):
    pass


KINDS = [Plain, Turned, Disabled]

FUNCTIONS: list[Callable[..., Any]] = [
    lambda x: torch.sin(x) * 2,
    lambda x: (x.mul_(2), None)[1],
    lambda x: (x[:1], x + 1, x),
    lambda x: torch.sin(x).sum() * x.shape[0],
    lambda x: x.view(-1).add_(1) * x,
]


def compiled_with(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="aotfuzz", options={"on_unsupported": "raise"}, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_below_torch_compile(kind: type[Tensor], function: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = compiled_with(function, dynamic=dynamic)
    for size in (3, 3, 4):
        makes = (
            lambda n=size: [values(n).as_subclass(kind)],
            lambda n=size: [(leaf(n) * 1).as_subclass(kind)],
            lambda n=size: [Tensor._make_subclass(kind, values(n))],
        )
        for make in makes:
            assert not assert_same_call(function, compiled, make)
            assert type(compiled(*make())) is type(function(*make()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_leaf_gets_its_gradient(kind: type[Tensor]) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (torch.sin(x) * y).sum()

    compiled = compiled_with(f)
    for _ in range(2):
        grads = []
        for function in (f, compiled):
            x = Tensor._make_subclass(kind, values(3), True)
            function(x, values(3)).backward()
            grads.append(x.grad)
        torch.testing.assert_close(grads[1], grads[0])


def test_beside_a_view_of_one() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y.mul_(2)
        return x + 1, x

    def make() -> list[Tensor]:
        x = values(4).as_subclass(Turned)
        return [x, x[:2]]

    assert not assert_same_call(f, compiled_with(f), make)


def test_a_parameter_of_a_class_of_its_own() -> None:
    def make() -> nn.Linear:
        module = nn.Linear(3, 2)
        module.weight, module.bias = Weight(values(2, 3)), nn.Parameter(values(2))
        return module

    for compile in (lambda m: aot.aot_module(m, aot.nop), compiled_with):
        module, reference = make(), make()
        for one in (compile(module), reference):
            one(values(4, 3)).square().sum().backward()
        torch.testing.assert_close(module.weight.grad, reference.weight.grad)
        assert isinstance(module.weight, Weight)


def test_what_the_function_may_ask_for_is_there() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if isinstance(x, Disabled) else x

    for x in (values(2).as_subclass(Disabled), Tensor._make_subclass(Disabled, values(2))):
        assert torch.equal(aot.aot_function(f, aot.nop)(x), f(x))


def test_where_torch_asks_them_they_are_refused() -> None:
    with pytest.raises(aot.errors.UnsupportedArgument, match="Turned"):
        aot.aot_function(lambda x: x.sin(), aot.nop)(values(2).as_subclass(Turned))
