"""Activation checkpointing: what the user wants recomputed is, with the forward's draws, and is not saved."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import aot
from tests.support.agreement import PARTITIONERS, assert_agrees, leaf, non_leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("gradients", "randomness")]

aten = torch.ops.aten


def block(x: Tensor, w: Tensor) -> Tensor:
    return functional.gelu(x @ w).sin() @ w


def two_blocks(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(2):
        x = x + checkpoint(block, x, w, use_reentrant=False)
    return x


def with_dropout(x: Tensor, w: Tensor) -> Tensor:
    def noisy(x: Tensor) -> Tensor:
        return functional.dropout(block(functional.dropout(x, 0.4), w), 0.3) * torch.rand(4, 3)

    y: Tensor = checkpoint(noisy, x, use_reentrant=False)
    return checkpoint(noisy, y, use_reentrant=False) + torch.rand(4, 3)  # type: ignore[no-any-return]


def nested(x: Tensor, w: Tensor) -> Tensor:
    def outer(x: Tensor) -> Tensor:
        y: Tensor = checkpoint(block, x.sin(), w, use_reentrant=False)
        return functional.dropout(y, 0.5).cos()

    y: Tensor = checkpoint(outer, x, use_reentrant=False)
    return y


def with_a_mutation(x: Tensor, w: Tensor) -> Tensor:
    def writes(x: Tensor) -> Tensor:
        y = x @ w
        y.mul_(2).sin_()
        return y @ w.t()

    y: Tensor = checkpoint(writes, x, use_reentrant=False)
    return y


def attention(x: Tensor, w: Tensor) -> Tensor:
    """Its kernel may draw, and does not without dropout."""

    def attends(x: Tensor, dropout: float) -> Tensor:
        heads = (x @ w).view(1, 1, 4, 3)
        return functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=dropout).view(4, 3)

    y: Tensor = checkpoint(attends, x, 0.0, use_reentrant=False)
    z: Tensor = checkpoint(attends, y, 0.5, use_reentrant=False)
    return z


def with_policy(policy: Callable[..., CheckpointPolicy]) -> Callable[[Tensor, Tensor], Tensor]:
    def f(x: Tensor, w: Tensor) -> Tensor:
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        for _ in range(2):
            x = x + checkpoint(block, x, w, use_reentrant=False, context_fn=contexts)
        return x

    return f


def save_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if op is aten.mm.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "two blocks": two_blocks,
    "dropout": with_dropout,
    "nested": nested,
    "a mutation": with_a_mutation,
    "attention": attention,
}


def make() -> list[Tensor]:
    return [leaf(4, 3), leaf(3, 3, start=5)]


def compiled_with(function: Callable[..., Any], partition: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """What a partitioner saves, and the operations of the backward graph."""
    compiled = aot.aot_function(function, aot.nop, partition_fn=partition)
    compiled(*make())
    (backward,) = compiled.specializations[0].backwards
    assert backward is not None
    names = [n.name for n in backward.graph.nodes if n.op == "placeholder"]
    return names[:-1], [str(n.target) for n in backward.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_agrees_with_eager(name: str, partitioner: str) -> None:
    assert_agrees(CHECKPOINTED[name], make, partition=PARTITIONERS[partitioner])


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_policy_agrees_with_eager(partitioner: str) -> None:
    """By hand: eager allows one backward through such a region, and the oracles take several."""
    results = []
    f = with_policy(save_products)
    for function in (f, aot.aot_function(f, aot.nop, partition_fn=PARTITIONERS[partitioner])):
        x, w = make()
        y = function(x, w)
        results.append([y, *torch.autograd.grad(y.sum(), (x, w))])
    for ours, eager in zip(*results, strict=True):
        assert torch.equal(ours, eager)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_nothing_inside_is_saved(partitioner: str) -> None:
    saved, operations = compiled_with(two_blocks, PARTITIONERS[partitioner])
    assert saved == ["primals_1", "primals_2", "add_tensor"]
    assert operations.count("aten.gelu.default") == 2


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_what_the_policy_wants_saved_is(partitioner: str) -> None:
    saved, operations = compiled_with(with_policy(save_products), PARTITIONERS[partitioner])
    assert {"mm_default", "mm_default_2"} <= set(saved)
    assert not {"mm_default_1", "mm_default_3"} & set(saved)
    assert operations.count("aten.gelu.default") >= 2


def test_recomputation_comes_when_its_region_is_reached() -> None:
    _, operations = compiled_with(two_blocks, aot.default_partition)
    first, second = (i for i, name in enumerate(operations) if name == "aten.gelu.default")
    assert any("gelu_backward" in name for name in operations[first:second])


def test_every_backward_sees_the_draws_of_its_own_forward() -> None:
    def f(x: Tensor) -> Tensor:
        y: Tensor = checkpoint(lambda t: functional.dropout(t, 0.5), x, use_reentrant=False)
        return y

    compiled = aot.aot_function(f, aot.nop)
    x = torch.ones(64, requires_grad=True)
    first, second = compiled(x), compiled(x)
    torch.rand(5)
    state = torch.get_rng_state()
    for y in (second, first, second):
        (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.equal(gradient, y.detach())
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_reentrant_kind_is_refused_by_name() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y: Tensor = checkpoint(block, x, w, use_reentrant=True)
        return y

    x, w = make()
    with pytest.raises(aot.Unsupported, match="use_reentrant=False"):
        aot.aot_function(f, aot.nop)(x, w)
    assert torch.equal(x, values(4, 3))


@pytest.mark.parametrize("partition", PARTITIONERS)
def test_a_backward_repeats_a_draw_of_several_results(partition: str) -> None:
    """Of which each is saved, and not all of them together."""

    def part(a: Tensor) -> tuple[Tensor, Tensor]:
        turned = a.t()
        return turned, torch.nn.functional.dropout(turned, 0.5)

    def f(a: Tensor) -> Tensor:
        result: Tensor = checkpoint(part, a, use_reentrant=False)[1]
        return result

    assert_agrees(f, lambda: [leaf(3, 2)], grad=True, partition=PARTITIONERS[partition])


class Counts(nn.Module):
    """Moves a buffer each time it runs, as a mixture of experts that counts what its experts get."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.add_(x.detach().sum(0))
        return (x * 2).sin()


WRITING: dict[str, Callable[[], nn.Module]] = {
    "a buffer": Counts,
    "a batch norm": lambda: nn.BatchNorm1d(2),
}


@pytest.mark.parametrize("name", WRITING)
def test_a_block_that_writes_and_is_not_run_again(name: str) -> None:
    results = []
    for compile in (lambda f: f, lambda f: torch.compile(f, backend="aotfuzz")):
        torch._dynamo.reset()
        block = WRITING[name]()
        with torch.no_grad():
            y = compile(lambda x, block=block: checkpoint(block, x, use_reentrant=False))(values(4, 2))
        results.append([y, *block.state_dict().values()])
    torch.testing.assert_close(*results, rtol=0, atol=0)


class _Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


class _SavingInVain(_Saving):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


SAVES: dict[str, Callable[[Tensor], Any]] = {
    "its result": torch.exp,
    "its argument": torch.sin,
    "both": torch.max,
    "both, of equal elements": torch.amax,
    "one of the elements": torch.median,
    "by a custom function": _Saving.apply,
    "by a custom function that does not ask for it": _SavingInVain.apply,
    "in a checkpoint of its own": lambda b: checkpoint(torch.max, b.sin(), use_reentrant=False),
    "nothing": torch.sum,
}


@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize("saves", SAVES)
def test_what_a_checkpoint_was_given_is_checked_when_something_inside_is_asked_for(
    saves: str, written: int
) -> None:
    """Autograd checks all of the checkpoint's arguments, also those that no gradient needs."""

    def f(a: Tensor, b: Tensor) -> Any:
        def part(a: Tensor, b: Tensor) -> tuple[Tensor, Any]:
            return a[...], SAVES[saves](b)

        return checkpoint(part, a, b, use_reentrant=False)

    def raises(function: Callable[..., Any]) -> bool:
        given = non_leaf(2, 2), non_leaf(3)
        results = function(*given)
        with torch.no_grad():
            given[written].mul_(2)
        tensors = [t for t in tree_leaves(results) if t.requires_grad]
        try:
            torch.autograd.backward(tensors, [torch.ones_like(t) for t in tensors])
        except RuntimeError as error:
            assert "has been modified by an inplace operation" in str(error)
            return True
        return False

    assert raises(f) == (saves not in ("nothing", "by a custom function that does not ask for it"))
    assert raises(aot.aot_function(f, aot.nop)) == raises(f)
