"""Backwards that write to what the forward has left: buffers of a checkpointed block, and what a custom
function keeps and changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import aot
from tests.support.agreement import PARTITIONERS, assert_agrees, leaf, values
from tests.support.versions import needs_torch

pytestmark = [pytest.mark.clause("gradients", "input-data", "versions")]


class Kept(torch.autograd.Function):
    """Counts in an attribute of its context, which autograd does not check."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: Tensor) -> Tensor:
        ctx.count = count
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.count.add_(1)
        return gradient * ctx.count, None


class History(torch.autograd.Function):
    """Scaling as of 8-bit floats: the greatest gradients of the last steps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, history: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.history = history
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        ctx.history.copy_(ctx.history.roll(-1))
        ctx.history[0] = gradient.abs().max()
        return gradient * x.cos() / ctx.history.max(), None


class Several(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *counts: Tensor) -> Tensor:
        ctx.counts = counts
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        torch._foreach_add_(ctx.counts, 1.0)
        return gradient * ctx.counts[0].sum(), *(None for _ in ctx.counts)


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        ctx.total = total
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, None]:
        ctx.total.add_(first.sum() + second.sum())
        return first + second, None


def _apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    return function.apply(*args)  # type: ignore[no-untyped-call]


def _checkpointed(function: Callable[..., Tensor]) -> Callable[..., Any]:
    return lambda *args: checkpoint(lambda x: function(x, *args[1:]), args[0], use_reentrant=False)


def _counted(x: Tensor, seen: Tensor) -> Tensor:
    with torch.no_grad():
        seen.add_(x.detach().sum(0))
    return (x * 2).sin() * seen.sum()


def _of_its_own(x: Tensor) -> Tensor:
    return _apply(Kept, x.sin(), x.detach().clone())  # type: ignore[no-any-return]


def _returned(x: Tensor) -> tuple[Tensor, Tensor]:
    count = x.detach().clone()
    return _apply(Kept, x, count), count


def _normalized(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return torch.nn.functional.batch_norm(x.sin(), mean, variance, training=True).cos()


def _batch(*others: Tensor) -> Callable[[], list[Tensor]]:
    return lambda: [leaf(4, 2), *(other.clone() for other in others)]


def _shifted() -> list[Tensor]:
    return [leaf(2), torch.zeros(6)[2:4]]


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], list[Tensor]]]] = {
    "an argument": (lambda x, n: _apply(Kept, x.sin(), n), _batch(values(2))),
    "one that the forward changes": (lambda x, n: _apply(Kept, x.sin(), n.mul_(2)), _batch(values(2))),
    "one that lies apart": (lambda x, n: _apply(Kept, x.sin(), n), _shifted),
    "a part of one": (lambda x, n: _apply(Kept, x.sin(), n[:1]), _shifted),
    "twice": (lambda x, n: _apply(Kept, _apply(Kept, x, n).sin(), n), _batch(values(2))),
    "what the forward has made": (_of_its_own, _batch()),
    "a result": (_returned, _batch()),
    "a history": (lambda x, h: _apply(History, x, h), _batch(values(3))),
    "several at once": (lambda x, *n: _apply(Several, x, *n), _batch(values(2), values(3))),
    "by two results": (lambda x, n: _apply(Pair, x, n), _batch(torch.zeros(()))),
    "a counter": (_checkpointed(_counted), _batch(torch.zeros(2))),
    "a batch norm": (_checkpointed(_normalized), _batch(torch.zeros(2), torch.ones(2))),
    "a function in a checkpoint": (
        _checkpointed(lambda x, h: _apply(History, x, h)),
        _batch(values(3)),
    ),
}


@pytest.mark.parametrize("partitioner", ["default", "min-cut"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_eager(name: str, partitioner: str) -> None:
    function, make = PROGRAMS[name]
    assert_agrees(function, make, partition=PARTITIONERS[partitioner])


def test_it_is_written_under_the_autocast_state_of_the_backward() -> None:
    """Such a backward is recorded again."""
    found = []
    for compile in (lambda f: f, lambda f: aot.aot_function(f, aot.nop)):
        x, n = leaf(4, 2), values(2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            compile(PROGRAMS["an argument"][0])(x, n).sum().backward()
        found.append([x.grad, n])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_derivative_of_such_a_backward_is_refused() -> None:
    x, n = leaf(4, 2), values(2)
    result = aot.aot_function(PROGRAMS["an argument"][0], aot.nop)(x, n)
    with pytest.raises(aot.errors.DoubleBackwardUnsupported, match="writes to a tensor of the forward"):
        torch.autograd.grad(result.sum(), x, create_graph=True)
    assert torch.equal(n, values(2))


def test_results_that_share_a_block_are_refused() -> None:
    """A backward from either would run it again; that from both together once."""

    def f(x: Tensor, seen: Tensor) -> Any:
        return checkpoint(lambda x: (_counted(x, seen), x.cos() * 2), x, use_reentrant=False)

    seen = torch.zeros(2)
    with pytest.raises(aot.errors.UnsupportedOperation, match="return one result"):
        aot.aot_function(f, aot.nop)(leaf(4, 2), seen)
    assert torch.equal(seen, torch.zeros(2))


class Counts(nn.Module):
    """Moves a buffer each time it runs, as a mixture of experts that counts what its experts get."""

    seen: Tensor

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late = late
        self.inner = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x).sin()
        if self.late:
            y = y * 2
        with torch.no_grad():
            self.seen.add_(y.detach().sum(0))
        return y if self.late else y.cos()


MODULES: dict[str, Callable[[], nn.Module]] = {
    "a counter": lambda: Counts(late=False),
    "a counter after all that is saved": lambda: Counts(late=True),
    "a batch norm": lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Dropout()),
}


def train(module: nn.Module, call: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """What three steps give: the first backward comes after the second forward."""
    torch.manual_seed(0)
    found: list[Tensor] = []
    waiting: list[Tensor] = []
    for step in range(3):
        result = call(values(4, 2, start=step))
        waiting.append(result.sum())
        for loss in waiting if step else ():
            loss.backward()  # type: ignore[no-untyped-call]
        waiting = waiting if not step else []
        found += [result.detach(), *(buffer.clone() for buffer in module.buffers())]
        found += [p.grad.clone() for p in module.parameters() if p.grad is not None]
    return found


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", MODULES)
def test_a_checkpointed_block_writes_as_often_as_in_eager(name: str) -> None:
    """Once in the forward and once more in the backward, if the recomputation comes to that."""
    found = []
    for compile in (lambda f: f, lambda f: torch.compile(f, backend="aotfuzz", fullgraph=True)):
        torch.manual_seed(1)
        block = MODULES[name]()
        found.append(train(block, compile(lambda x, m=block: checkpoint(m, x, use_reentrant=False))))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.usefixtures("fresh_dynamo")
@needs_torch(">=2.13", "torch 2.11 checks what a checkpoint was given")
def test_a_block_that_writes_to_a_tensor_of_the_callers() -> None:
    found = []
    for compile in (lambda f: f, lambda f: torch.compile(f, backend="aotfuzz")):
        x, seen = leaf(4, 2), torch.zeros(2)
        compile(lambda x, seen=seen: checkpoint(lambda x: _counted(x, seen), x, use_reentrant=False))(
            x
        ).sum().backward()
        found.append([x.grad, seen])
    torch.testing.assert_close(*found, rtol=0, atol=0)
