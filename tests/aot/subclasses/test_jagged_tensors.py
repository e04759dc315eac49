"""Nested tensors (`torch.jagged`) as arguments of `torch.compile`, made inside, and returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import aot

nested = torch.nested


def jagged(*lengths: int) -> Tensor:
    torch.manual_seed(len(lengths))
    return nested.nested_tensor([torch.randn(n, 4) for n in lengths], layout=torch.jagged, requires_grad=True)


def pieces(*lengths: int) -> list[Tensor]:
    return [torch.randn(n, 4, requires_grad=True) for n in lengths]


def with_offsets(*lengths: int) -> list[Tensor]:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return [torch.randn(sum(lengths), 4, requires_grad=True), offsets]


def made_twice(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    forth = nested.as_nested_tensor([a, b], layout=torch.jagged)
    return forth, nested.as_nested_tensor([b, a], layout=torch.jagged)


def made_of_one(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    one = nested.nested_tensor_from_jagged(values * 2, offsets)
    return one, one.sin(), nested.nested_tensor_from_jagged(values, offsets) * 3


ARGUMENTS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: x.sin() * 2,
    "multiplied": lambda x: x * torch.ones(4) + x.exp(),
    "normalized": lambda x: functional.layer_norm(x, (4,)).softmax(-1),
    "values": lambda x: x.values() * 2,
    "made again": lambda x: nested.nested_tensor_from_jagged(x.values() * 2, x.offsets()),
    "taken apart": lambda x: x.unbind()[0] * 2,
    "padded": lambda x: x.to_padded_tensor(0.0),
    "shaped by its size": lambda x: (x * 2).view(x.size(0), -1, 2, 2),
    "as it is": lambda x: x,
}
MADE: dict[str, tuple[Callable[..., Any], Callable[..., list[Tensor]]]] = {
    "of a list": (lambda a, b: nested.as_nested_tensor([a, b], layout=torch.jagged), pieces),
    "twice": (made_twice, pieces),
    "of values": (nested.nested_tensor_from_jagged, with_offsets),
    "of one": (made_of_one, with_offsets),
}


def left(function: Callable[..., Any], arguments: list[Tensor]) -> list[Any]:
    """What a call returns, what that is for autograd, and the gradients."""
    results = function(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    plain = [one.values() if one.is_nested else one for one in results]
    sum((one * one).sum() for one in plain).backward()
    grads = [one.grad for one in arguments]
    return [
        [one.detach() for one in plain],
        [one.values() if one is not None and one.is_nested else one for one in grads],
        [(type(one), one._is_view(), type(one._base), one.requires_grad, one.is_leaf) for one in results],
        [one.grad_fn.name() for one in results if one.grad_fn is not None and one._is_view()],
    ]


def assert_same(expected: Any, found: Any) -> None:
    assert type(expected) is type(found)
    if isinstance(expected, list):
        assert len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor):
        assert torch.equal(expected, found)
    else:
        assert expected == found


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_of_torch_compile(name: str) -> None:
    torch._dynamo.reset()
    function = ARGUMENTS[name]
    compiled = torch.compile(function, backend="aotfuzz")
    for lengths in ((2, 4), (3, 1, 2), (2, 4), (5, 4)):
        assert_same(left(function, [jagged(*lengths)]), left(compiled, [jagged(*lengths)]))


def test_arguments_of_one_shape_and_of_others() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x + y * 2

    def arguments() -> list[Tensor]:
        x = jagged(2, 4)
        return [x, nested.nested_tensor_from_jagged(torch.ones(6, 4), x.offsets()).detach().requires_grad_()]

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="aotfuzz")
    assert_same(left(f, arguments()), left(compiled, arguments()))
    with pytest.raises(RuntimeError):
        f(jagged(2, 4), jagged(2, 4))
    with pytest.raises(RuntimeError):
        compiled(jagged(2, 4), jagged(2, 4))


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("directly", [True, False])
def test_made_inside_and_returned(name: str, directly: bool) -> None:
    torch._dynamo.reset()
    function, make = MADE[name]
    compiled = aot.aot_function(function, aot.nop) if directly else torch.compile(function, backend="aotfuzz")
    for lengths in ((2, 4), (3, 1)):
        torch.manual_seed(0)
        expected = left(function, make(*lengths))
        torch.manual_seed(0)
        assert_same(expected, left(compiled, make(*lengths)))


def test_a_gradient_with_respect_to_what_was_made() -> None:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = nested.as_nested_tensor([a, b], layout=torch.jagged)
        return y, y * 2

    def gradients(function: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor]:
        a, b = torch.ones(2, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
        y, z = function(a, b)
        (first,) = torch.autograd.grad(z.values().sum(), y, retain_graph=True)
        y.register_hook(lambda g: g * 3)
        (z.values().sum() + y.values().sum()).backward()
        return [first.values(), a.grad, b.grad]

    assert_same(gradients(f), gradients(aot.aot_function(f, aot.nop)))
