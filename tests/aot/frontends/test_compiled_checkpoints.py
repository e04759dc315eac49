"""`torch.utils.checkpoint` through `torch.compile`: Dynamo makes an operator of it that takes a graph."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import aot
from tests.support.agreement import leaf
from tests.support.versions import needs_torch

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.clause("gradients", "randomness")]

aten = torch.ops.aten
Function = Callable[..., Tensor]

run_checkpointed: Callable[..., Tensor] = functools.partial(checkpoint, use_reentrant=False)
save_products = functools.partial(create_selective_checkpoint_contexts, [aten.mm.default])
save_noise = functools.partial(create_selective_checkpoint_contexts, [aten.rand_like.default])


def nested(x: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        return functional.dropout(x.sin(), 0.3)

    return run_checkpointed(lambda x: run_checkpointed(inner, x.cos()) * torch.rand_like(x), x)


def under_autocast(x: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.dropout((x @ x.t()).sin(), 0.5)

    return run_checkpointed(block, x).float()


def two_blocks_and_draws_outside(x: Tensor) -> Tensor:
    y = run_checkpointed(lambda x: functional.dropout(x.sin(), 0.5) * x.cos(), x * torch.rand(3, 3))
    return run_checkpointed(lambda y: functional.dropout(y.sin(), 0.2), y) * torch.rand(3, 3)


DRAWING: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: run_checkpointed(lambda x: torch.dropout(x.sin(), 0.5, True), x),
    "alpha dropout": lambda x: run_checkpointed(lambda x: functional.alpha_dropout(x.sin(), 0.5, True), x),
    "dropout of features": lambda x: run_checkpointed(lambda x: functional.dropout1d(x.sin()).exp(), x),
    "rand_like": lambda x: run_checkpointed(lambda x: x.sin() * torch.rand_like(x), x),
    "bernoulli": lambda x: run_checkpointed(lambda x: x.sin() * x.detach().sigmoid().bernoulli(), x),
    "normal": lambda x: run_checkpointed(lambda x: x.sin() * torch.normal(x.detach(), 1.0), x),
    "multinomial": lambda x: run_checkpointed(lambda x: x.sin() * x.detach().abs().multinomial(2)[:, :1], x),
    "in place": lambda x: run_checkpointed(lambda x: torch.empty(3, 3).uniform_() * x.sin(), x),
    "attention": lambda x: run_checkpointed(
        lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5), x
    ),
    "vmap": lambda x: run_checkpointed(lambda x: functional.dropout(torch.vmap(torch.exp)(x.sin())), x),
    "nested": nested,
    "autocast": under_autocast,
    "several": two_blocks_and_draws_outside,
    "a policy": lambda x: run_checkpointed(
        lambda x: functional.dropout((x @ x).sin(), 0.5), x, context_fn=save_products
    ),
    "a policy that saves the draw": lambda x: run_checkpointed(
        lambda x: torch.rand_like(x) * x.sin(), x, context_fn=save_noise
    ),
}


def train(f: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """What two steps give, and what the default generator draws after each."""
    torch.manual_seed(0)
    found: list[Tensor] = []
    for _ in range(2):
        x = leaf(3, 3)
        y = f(x)
        found += [y.detach(), *torch.autograd.grad(y.sum(), x), torch.rand(2)]
    return found


@pytest.mark.parametrize(
    "name, partitioner",
    [*((name, "default") for name in DRAWING), ("several", "min-cut"), ("nested", "min-cut")],
)
def test_a_recomputation_repeats_the_draws_of_its_forward(name: str, partitioner: str) -> None:
    f = DRAWING[name]
    expected = train(f)
    compiled = torch.compile(f, backend="aotfuzz", options={"partitioner": partitioner}, fullgraph=True)
    torch.testing.assert_close(train(compiled), expected, rtol=0, atol=0)


def test_inductor_is_given_the_draws_as_they_are() -> None:
    f = DRAWING["several"]
    expected = train(f)
    compiled = torch.compile(f, backend="aotfuzz_inductor")
    torch.testing.assert_close(train(compiled), expected, rtol=1e-5, atol=1e-6)


def test_a_backward_may_be_run_twice_and_differentiated() -> None:
    """Torch's kernel of the operator takes the tools of selective checkpointing, which allow one backward."""

    def derivatives(f: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        x = leaf(3, 3)
        y = f(x).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (again,) = torch.autograd.grad(y, x, retain_graph=True)
        return [first, again, *torch.autograd.grad(first.sum(), x), torch.rand(2)]

    f = DRAWING["dropout"]
    expected = derivatives(f)
    torch.testing.assert_close(derivatives(torch.compile(f, backend="aotfuzz")), expected, rtol=0, atol=0)


class _Squashed(torch.nn.Module):
    """A parametrization that is computed again in the backward."""

    def forward(self, weight: Tensor) -> Tensor:
        return run_checkpointed(lambda w: (w * w).sigmoid(), weight)


def test_a_partitioner_recomputes_nothing_that_a_checkpoint_recomputes_anyway() -> None:
    layer = torch.nn.Linear(16, 16, bias=False)
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", _Squashed())
    graphs: list[torch.fx.GraphModule] = []

    def record(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return aot.nop(graph, inputs)

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        partition = aot.min_cut_rematerialization_partition
        return aot.aot_module_simplified(graph, inputs, record, partition_fn=partition)

    torch.compile(layer, backend=backend)(leaf(2, 16)).sum().backward()
    counts = [len(g.graph.find_nodes(op="call_function", target=aten.sigmoid.default)) for g in graphs]
    assert counts == [1, 1]


@pytest.mark.clause("lifetime")
def test_state_of_an_optimizer_goes_with_it() -> None:
    """Not when Python's garbage collector runs next, which is off in many a training loop."""

    def references() -> list[weakref.ref[Tensor]]:
        layer = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        step = torch.compile(optimizer.step, backend="aotfuzz")
        for _ in range(2):
            layer(torch.ones(3, 2)).sum().backward()
            step()
        gc.collect()  # what compiling leaves
        gc.disable()
        return [weakref.ref(parameter) for parameter in layer.parameters()]

    collecting = gc.isenabled()
    try:
        assert [reference() for reference in references()] == [None, None]
    finally:
        if collecting:
            gc.enable()


def test_draws_that_the_caller_does_not_want_repeated_are_refused() -> None:
    def f(x: Tensor) -> Tensor:
        return run_checkpointed(functional.dropout, x.sin(), preserve_rng_state=False)

    with pytest.raises(aot.errors.RandomStateMutation, match="preserve_rng_state"):
        torch.compile(f, backend="aotfuzz")(leaf(3))


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -gradient * ctx.strength, None


class _Wave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, t: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.t = t
        return (x * t).sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * (x * ctx.t).cos() * ctx.t, None


def _loop(x: Tensor, t: float) -> Tensor:
    def turn(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, y * t

    loop: Callable[..., tuple[Tensor, Tensor]] = torch._higher_order_ops.while_loop
    return loop(lambda i, y: i < 3, turn, (torch.tensor(0), x))[1]


def _reversed(x: Tensor, t: float) -> Tensor:
    result: Tensor = _Reversal.apply(x, t)  # type: ignore[no-untyped-call]
    return result


def _waved(x: Tensor, t: float) -> Tensor:
    result: Tensor = _Wave.apply(x, t)  # type: ignore[no-untyped-call]
    return result


TAKING_A_NUMBER: dict[str, Callable[[Tensor, float], Tensor]] = {
    "a closure": lambda x, t: run_checkpointed(lambda x: (x * t).sin(), x),
    "an argument": lambda x, t: run_checkpointed(lambda x, t: (x * t).sin(), x, t),
    "arithmetic": lambda x, t: run_checkpointed(lambda x: x.sin() * (t * 2 + 1) / max(t, 0.1), x),
    "a branch": lambda x, t: run_checkpointed(lambda x: x.sin() if t > 0.5 else x.cos(), x),
    "the part of a dropout": lambda x, t: run_checkpointed(lambda x: functional.dropout(x.sin(), t), x),
    "two of them": lambda x, t: run_checkpointed(lambda x, s: (x * t).sin() + s, x, t * 2),
    "a reversed gradient": _reversed,
    "what is saved and a number": _waved,
    "a function in a checkpoint": lambda x, t: run_checkpointed(lambda x: _reversed(x.sin(), t), x),
    "a loop": _loop,
}


_IN_A_LOOP = needs_torch("<2.15", "torch 2.15 refuses a float that changes in a `while_loop`, in eager too")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_IN_A_LOOP if name == "a loop" else ()) for name in TAKING_A_NUMBER]
)
def test_a_number_that_changes_is_the_number_of_each_call(name: str) -> None:
    """Dynamo hands over a float that has changed as a tensor, which operators that take functions get."""

    def steps(f: Callable[[Tensor, float], Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        found: list[Tensor] = []
        for t in (0.25, 0.5, 0.75, 0.5):
            x = leaf(3)
            y = f(x, t)
            found += [y.detach(), *torch.autograd.grad(y.sum(), x)]
        return found

    f = TAKING_A_NUMBER[name]
    expected = steps(f)
    torch.testing.assert_close(steps(torch.compile(f, backend="aotfuzz")), expected, rtol=0, atol=0)
