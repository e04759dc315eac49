"""Python that eager runs in a backward (custom functions, hooks, checkpoints) reads what is there then."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import aot
from aot import errors
from tests.support.agreement import checking_nop, leaf

pytestmark = pytest.mark.clause("gradients")

SETTINGS = types.SimpleNamespace(scale=2.0, other=1.0)


class Scaled(torch.autograd.Function):
    """Reads the scale in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        y: Tensor = x.sin() * SETTINGS.scale
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        y: Tensor = gradient * x.cos() * SETTINGS.scale
        return y


class Held(torch.autograd.Function):
    """Reads it of an object that its context holds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: Any) -> Tensor:
        ctx.settings = [settings]
        ctx.kept = x.exp()
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.settings[0].scale * ctx.kept, None


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return (x @ w).sin() * SETTINGS.scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        inner = gradient * (x @ w).cos() * SETTINGS.scale
        return inner @ w.t(), x.t() @ inner


def custom(x: Tensor) -> Tensor:
    y: Tensor = Scaled.apply(x * 2)  # type: ignore[no-untyped-call]
    return y.exp()


def held(x: Tensor) -> Tensor:
    y: Tensor = Held.apply(x, SETTINGS)  # type: ignore[no-untyped-call]
    return y.exp()


def hooked(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda gradient: gradient * SETTINGS.scale)  # type: ignore[no-untyped-call]
    return y.exp()


def block(x: Tensor) -> Tensor:
    y: Tensor = x.sin() * SETTINGS.scale * x.exp()
    return y


def checkpointed(x: Tensor) -> Tensor:
    y: Tensor = checkpoint(block, x, use_reentrant=False)
    return y * 2


def unpacked(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t, lambda t: t * SETTINGS.scale):
        return x.sin() * x


SCRIPTS: list[Callable[[Tensor], Tensor]] = [custom, held, hooked, checkpointed, unpacked]


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.callback(vars(SETTINGS).update, scale=2.0, other=1.0)
        yield


def run(
    function: Callable[[Tensor], Tensor], scales: list[float], create_graph: bool = False
) -> list[Tensor]:
    """A call under the first scale, and a backward under each of the others."""
    SETTINGS.scale = scales[0]
    x = leaf(3)
    y = function(x)
    found = [y.detach()]
    for scale in scales[1:]:
        SETTINGS.scale = scale
        (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True, create_graph=create_graph)
        found.append(gradient.detach())
        if gradient.requires_grad:
            SETTINGS.scale = scales[0]
            found.append(torch.autograd.grad(gradient.sum(), x, retain_graph=True)[0])
    return found


@pytest.mark.parametrize("function", SCRIPTS, ids=lambda one: one.__name__)
def test_a_backward_reads_what_is_there_then(function: Callable[[Tensor], Tensor]) -> None:
    compiled = aot.aot_function(function, checking_nop)
    for scales in ([2.0, 2.0], [2.0, 3.0], [2.0, 3.0, 2.0, 4.0, 3.0], [3.0, 2.0], [2.0, 2.0, 3.0]):
        torch.testing.assert_close(run(compiled, scales), run(function, scales))
    assert len(compiled.specializations) <= 2


@pytest.mark.parametrize("function", [custom, checkpointed], ids=lambda one: one.__name__)
def test_so_does_one_that_is_differentiated(function: Callable[[Tensor], Tensor]) -> None:
    compiled = aot.aot_function(function, checking_nop)
    for scales in ([2.0, 2.0], [2.0, 3.0], [2.0, 3.0, 2.0]):
        expected = run(function, scales, create_graph=True)
        torch.testing.assert_close(run(compiled, scales, create_graph=True), expected)


def test_what_only_the_forward_reads_does_not_matter_to_it() -> None:
    def f(x: Tensor) -> Tensor:
        y: Tensor = Scaled.apply(x) * SETTINGS.other  # type: ignore[no-untyped-call]
        return y

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return checking_nop(graph, inputs)

    compiled = aot.aot_function(f, checking_nop, bw_compiler=backend)
    x = leaf(3)
    y = compiled(x)
    SETTINGS.other = 7.0
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 2 * x.detach().cos())
    assert len(graphs) == 1


def test_a_backward_without_python_is_not_looked_at() -> None:
    compiled = aot.aot_function(block, checking_nop)
    x = leaf(3)
    y = compiled(x)
    assert "scripts_hold" not in compiled.specializations[0].wrapper
    expected = leaf(3)
    z = block(expected)
    SETTINGS.scale = 3.0
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(z.sum(), expected))


def test_a_value_that_was_not_saved_is_refused() -> None:
    """Which value a backward reads depends on what has changed: the compiled forward saves those of one."""

    class Either(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = torch.rand(3), x.exp()
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            y: Tensor = gradient * ctx.kept[SETTINGS.scale == 2]
            return y

    compiled = aot.aot_function(lambda x: Either.apply(x) + 1, checking_nop)  # type: ignore[no-untyped-call]
    x, other = leaf(3), leaf(3)
    y = compiled(x)
    SETTINGS.scale = 3.0
    with pytest.raises(errors.DoubleBackwardUnsupported, match="not saved"):
        (y * other).sum().backward()
    assert x.grad is None
    SETTINGS.scale = 2.0
    y = compiled(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())


@pytest.mark.parametrize("budget", [None, 1.0, 0.0])
@pytest.mark.parametrize("chosen", [(0,), (1,), (0, 1)])
def test_whatever_is_saved_and_whichever_result_is_differentiated(
    budget: float | None, chosen: tuple[int, ...]
) -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y: Tensor = Product.apply(x, w)  # type: ignore[no-untyped-call]
        return checkpointed(y), y * 2

    def gradients(function: Callable[[Tensor, Tensor], Any]) -> list[Tensor]:
        SETTINGS.scale = 2.0
        x, w = leaf(3, 3), leaf(3, 3)
        results = function(x, w)
        found = []
        for SETTINGS.scale in (3.0, 2.0, 4.0):
            loss = torch.stack([results[i].sum() for i in chosen]).sum()
            found += torch.autograd.grad(loss, (x, w), retain_graph=True)
        return found

    cut = functools.partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
    compiled = aot.aot_function(f, checking_nop, partition_fn=None if budget is None else cut)
    torch.testing.assert_close(gradients(compiled), gradients(f))
