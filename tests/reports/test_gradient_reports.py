"""Programs after public reports that are about gradients, each with its number."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import assert_agrees, assert_same_story, checking_nop, leaf, told, values

pytestmark = pytest.mark.both_devices

Function = Callable[..., Any]


def test_a_gradient_of_one_result_with_respect_to_another() -> None:
    """pytorch/pytorch#132929: as a loss on the decoder's sensitivity to the latents."""

    def f(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        latent = (x @ w).tanh()
        apart = x.exp()
        return (latent @ v).sin(), latent, apart

    def story(function: Function) -> Any:
        x, w, v = leaf(4, 3), leaf(3, 2), leaf(2, 3, start=9)
        result, latent, apart = function(x, w, v)
        some = torch.autograd.grad(result.sum(), [latent, apart, w], retain_graph=True, allow_unused=True)
        (sensitivity,) = torch.autograd.grad(result.sum(), latent, create_graph=True)
        (result.mean() + sensitivity.square().mean()).backward()
        return some, sensitivity, x.grad, w.grad, v.grad

    assert_same_story(f, story)


def test_a_layer_whose_result_goes_nowhere_gets_no_gradient() -> None:
    """pytorch/torchdynamo#1102: zeros would let an optimizer with weight decay or momentum move it."""

    def f(x: Tensor, w: Tensor, pooler: Tensor) -> tuple[Tensor, Tensor]:
        hidden = (x @ w).relu()
        return hidden, hidden @ pooler

    def story(function: Function) -> Any:
        w, pooler = leaf(3, 3), leaf(3, 3, start=9)
        optimizer = torch.optim.AdamW([w, pooler], lr=0.1, weight_decay=0.5)
        for step in range(2):
            optimizer.zero_grad()
            function(values(2, 3, start=step), w, pooler)[0].square().sum().backward()
            optimizer.step()
        return w, pooler, pooler.grad

    assert_same_story(f, story)


def _drops(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x @ w, 0.5).sin() @ w


def _adds_noise(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return (y * torch.randn_like(y)).sin() * torch.bernoulli(y.sigmoid())


@pytest.mark.parametrize("budget", [0, 0.005, 0.3, 0.5, 0.9, 1])
@pytest.mark.parametrize("f", [_drops, _adds_noise])
def test_a_draw_is_made_once_whatever_the_memory_budget(f: Function, budget: float) -> None:
    """pytorch/pytorch#190758, #190717"""
    partition = functools.partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
    for functionalize in (False, True):
        assert_agrees(
            f,
            lambda: [leaf(4, 4), leaf(4, 4, start=5)],
            grad=True,
            double=lambda: [
                leaf(4, 4, dtype=torch.float64),
                leaf(4, 4, dtype=torch.float64, start=5),
            ],
            partition=partition,
            functionalize_rng_ops=functionalize,
        )


@pytest.mark.parametrize("budget", [0, 0.5, 1])
@pytest.mark.parametrize("view", [lambda b: b, lambda b: b[1:2], lambda b: b.t()])
def test_what_is_written_in_between_is_not_read_again(view: Function, budget: float) -> None:
    """pytorch/pytorch#197039: in the forward, by the caller, or by the next call."""

    def f(x: Tensor, w: Tensor, buffer: Tensor) -> Tensor:
        y = (x + view(buffer)).sin()
        buffer.mul_(3)
        return (y @ w).cos()

    def story(function: Function) -> Any:
        x, w, buffer = leaf(4, 4), leaf(4, 4, start=3), values(4, 4, start=8)
        first = function(x, w, buffer)
        second = function(x, w, buffer)
        buffer.zero_()
        (first * 2 + second).sum().backward()
        return x.grad, w.grad, buffer

    partition = functools.partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
    expected = story(f)
    for got, one in zip(
        story(aot.aot_function(f, checking_nop, partition_fn=partition)), expected, strict=True
    ):
        torch.testing.assert_close(got, one)


PARTITIONERS: dict[str, Function] = {
    "default": aot.default_partition,
    "min-cut": aot.min_cut_rematerialization_partition,
    "recompute": functools.partial(aot.min_cut_rematerialization_partition, memory_budget=0),
}

KEEPING_OTHERS: dict[str, Function] = {
    "its result": lambda x: (x * 2 + 1).sigmoid().exp(),
    "a view of its result": lambda x: x.view(-1)[2:].tanh(),
    "indices": lambda x: x.max(0).values * 3,
    "nothing": lambda x: torch.cat([x + x.detach(), x.relu()]),
    "the argument": lambda x: torch.nn.functional.layer_norm(x, (3,)),
}


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("name", KEEPING_OTHERS)
def test_the_caller_writes_to_what_he_gave(name: str, partitioner: str) -> None:
    """pytorch/pytorch#185497: whether a backward complains does not depend on what a partitioner keeps."""
    f = KEEPING_OTHERS[name]

    def story(function: Function) -> Any:
        root = leaf(4, 3)
        x = root * 1
        result = function(x)
        with torch.no_grad():
            x.mul_(3)
        (gradient,) = torch.autograd.grad(result.sum(), root)
        return gradient

    compiled = aot.aot_function(f, checking_nop, partition_fn=PARTITIONERS[partitioner])
    if name == "the argument":
        for function in (f, compiled):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                story(function)
    else:
        torch.testing.assert_close(story(compiled), story(f))


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

    def story(function: Function) -> tuple[Tensor, ...]:
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
