"""Programs after public reports on torch's own ahead-of-time autograd, each with its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import assert_same_story, checking_nop, leaf, non_leaf, values

pytestmark = pytest.mark.both_devices

Function = Callable[..., Any]


def test_what_is_not_differentiated_is_not_computed() -> None:
    """pytorch/pytorch#131794, #186355"""
    ran: list[str] = []

    def counting(module: Any, inputs: Any) -> Any:
        names = [n.name for n in module.graph.nodes if n.op == "call_function"]

        def run(*arguments: Any) -> Any:
            ran.extend(names)
            return module(*arguments)

        return run

    compiled = aot.aot_function(lambda xs: [x.sin() for x in xs], aot.nop, counting)
    xs = [leaf(3, start=k) for k in range(3)]
    compiled(xs)[0].sum().backward()
    assert sum(name.startswith("cos") for name in ran) == 1
    assert [x.grad is None for x in xs] == [False, True, True]


def test_an_overflow_in_half_precision_that_only_autocast_in_the_backward_would_cause() -> None:
    """pytorch/pytorch#153044"""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).float().pow(2).sum() * 1e6

    def story(function: Function) -> Any:
        x, w = leaf(4, 4), leaf(4, 4, start=9)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = function(x, w)
        loss.backward()
        return loss, x.grad, w.grad

    assert_same_story(f, story)


@pytest.mark.parametrize("cache", [True, False])
def test_an_island_without_autocast(cache: bool) -> None:
    """pytorch/pytorch#179804"""

    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = x.float() @ w.float().t()
        return y @ w

    def story(function: Function) -> Any:
        x, w = leaf(4, 4, dtype=torch.bfloat16), leaf(4, 4, start=9)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache):
            result = function(x, w)
        result.float().sum().backward()
        return result, x.grad, w.grad

    assert_same_story(f, story)


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


def test_a_detached_part_and_a_backward_from_each() -> None:
    """pytorch/pytorch#97745"""

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x @ w
        return y.sum(), (y.detach() * w).sum(), y

    def story(function: Function) -> Any:
        x, w = leaf(3, 3), leaf(3, 3, start=9)
        first, second, third = function(x, w)
        second.backward()
        first.backward(retain_graph=True)
        third.detach().requires_grad_().sum().backward()
        return x.grad, w.grad, third.requires_grad

    assert_same_story(f, story)


def test_imperative_calls_on_tensors_of_the_function() -> None:
    """pytorch/pytorch#91468, #146212"""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x.retain_grad()
        y = x.clone()
        y.retain_grad()
        hidden = y * x
        hidden.register_hook(lambda g: g * 3.5)
        z = (hidden * hidden).clone()
        z.retain_grad()
        return z, y

    def story(function: Function) -> Any:
        x = non_leaf(3)
        z, y = function(x)
        z.clone().sum().backward()
        return x.grad, y.grad, z.grad

    assert_same_story(f, story)


def test_saved_tensor_hooks_around_the_call() -> None:
    """pytorch/pytorch#116221: what is saved is packed and unpacked, and nothing else is."""

    def story(function: Function) -> Any:
        x, w = leaf(3), leaf(3, start=3)
        packed: list[Any] = []

        def pack(t: Tensor) -> Tensor:
            packed.append(t.clone())
            return t * 2

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t * 5):
            result = function(x, w)
        result.sum().backward()
        return sorted(str(p.tolist()) for p in packed), x.grad, w.grad

    assert_same_story(lambda x, w: x * w, story)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_argument_that_is_resized_is_refused_as_what_it_is() -> None:
    """pytorch/pytorch#113707"""
    argument = torch.quantize_per_tensor(torch.arange(5.0), 0.1, 10, torch.qint8)
    with pytest.raises(aot.Unsupported, match="is quantized"):
        aot.aot_function(lambda x: x.resize_(10), checking_nop)(argument)
    assert argument.shape == (5,)


def test_a_backward_hook_that_a_module_gets_later() -> None:
    """pytorch/pytorch#115750, #117265"""
    layer = torch.nn.Linear(3, 3, bias=False)

    def f(w: Tensor, x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": w}, (x,))

    compiled = aot.aot_function(f, checking_nop)

    def gradient() -> Tensor:
        x = leaf(3)
        compiled(torch.eye(3), x).sum().backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(gradient(), torch.ones(3))
    handle = layer.register_full_backward_hook(lambda module, inputs, outputs: [g * 2 for g in inputs])
    assert torch.equal(gradient(), torch.full((3,), 2.0))
    handle.remove()
    assert torch.equal(gradient(), torch.ones(3))


def test_arguments_that_come_apart_first_and_overlapping_then() -> None:
    """pytorch/pytorch#139789"""

    def scaled(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(3)
        return x - y

    compiled = aot.aot_function(scaled, checking_nop)
    for function in (scaled, compiled):
        function(values(4), values(4, start=4))
    bases = [values(7), values(7)]
    results = [f(base[:4], base[2:6]) for f, base in zip((scaled, compiled), bases, strict=True)]
    assert torch.equal(*results)
    assert torch.equal(*bases)
    assert len(compiled.specializations) == 2
