"""Gradients of layout ``sparse_coo``, of embeddings: entries, order and coalesced state as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import aot

BATCHES = [torch.tensor(rows) for rows in ([[1, 2], [1, 0]], [[3, 2], [1, 1]], [[1, 1], [1, 1]])]


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.table(x)) + self.table(x[0]) * 2 - self.table(x[1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x) @ self.table.weight.t()


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(10, 4, sparse=True, mode="mean")

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.flatten(), torch.tensor([0, 3]))


class WeightedBags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(10, 4, sparse=True, mode="sum")
        self.weights = nn.Parameter(torch.rand(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x, per_sample_weights=self.weights)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "embedding": lambda: nn.Embedding(10, 4, sparse=True),
    "padding": lambda: nn.Embedding(10, 4, sparse=True, padding_idx=1),
    "bag": lambda: nn.EmbeddingBag(10, 4, sparse=True, mode="sum"),
    "bag with padding": lambda: nn.EmbeddingBag(10, 4, sparse=True, mode="mean", padding_idx=1),
    "bags": Bags,
    "weighted bags": WeightedBags,
    "used twice": UsedTwice,
    "tied": Tied,
}


def trained(make: Callable[[], nn.Module], compile_it: Callable[[nn.Module], nn.Module]) -> list[Tensor]:
    """What the gradients are in each step of a training, and the parameters in the end."""
    torch.manual_seed(0)
    module = make()
    compiled = compile_it(module)
    sparse = [p for p in module.parameters() if p.shape[0] == 10 and not isinstance(module, Tied)]
    dense = [p for p in module.parameters() if all(p is not one for one in sparse)]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(dense, 0.1)] if dense else []
    optimizers += [torch.optim.SparseAdam(sparse, 0.1)] if sparse else []
    left: list[Tensor] = []
    for batch in BATCHES:
        for optimizer in optimizers:
            optimizer.zero_grad()
        for _ in range(2):  # what is there already is added to
            compiled(batch).sin().sum().backward()
        left += [p.grad.clone() for p in module.parameters()]
        for optimizer in optimizers:
            optimizer.step()
    return [*left, *(p.detach() for p in module.parameters())]


def assert_same_tensors(expected: list[Tensor], found: list[Tensor]) -> None:
    for one, other in zip(expected, found, strict=True):
        assert one.layout is other.layout
        if one.layout is torch.sparse_coo:
            assert one.is_coalesced() is other.is_coalesced()
            assert torch.equal(one._indices(), other._indices())
            one, other = one._values(), other._values()
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", MODULES)
def test_embeddings_train_as_in_eager(name: str) -> None:
    expected = trained(MODULES[name], lambda module: module)
    assert any(one.layout is torch.sparse_coo for one in expected) or name == "tied"
    assert_same_tensors(expected, trained(MODULES[name], lambda module: aot.aot_module(module, aot.nop)))


@pytest.mark.parametrize("name", ["padding", "used twice"])
def test_through_torch_compile_and_with_other_options(name: str) -> None:
    expected = trained(MODULES[name], lambda module: module)
    torch._dynamo.reset()
    assert_same_tensors(expected, trained(MODULES[name], lambda m: torch.compile(m, backend="aotfuzz")))
    cut = aot.min_cut_rematerialization_partition
    assert_same_tensors(
        expected, trained(MODULES[name], lambda m: aot.aot_module(m, aot.nop, partition_fn=cut))
    )
    assert_same_tensors(expected, trained(MODULES[name], lambda m: aot.aot_module(m, aot.nop, dynamic=True)))


class MadeDense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.to_dense()


@pytest.mark.parametrize("through_dynamo", [False, True])
def test_a_sparse_gradient_is_made_dense(through_dynamo: bool) -> None:
    def f(x: Tensor, index: Tensor) -> Tensor:
        return functional.embedding(index, MadeDense.apply(x * 2), sparse=True)

    compiled = torch.compile(f, backend="aotfuzz") if through_dynamo else aot.aot_function(f, aot.nop)
    gradients = []
    for function in (f, compiled):
        x = torch.ones(3, 2, requires_grad=True)
        function(x, torch.tensor([1, 0, 1])).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad)
    assert gradients[1].layout is torch.strided
    assert torch.equal(*gradients)


def test_a_gradient_that_is_scaled_and_one_that_is_asked_for() -> None:
    def f(table: Tensor, x: Tensor) -> Tensor:
        return functional.embedding(x, table * 2, sparse=True).sin()

    def gradient(function: Callable[..., Tensor]) -> Tensor:
        table = torch.arange(12.0).reshape(4, 3).requires_grad_()
        return torch.autograd.grad(function(table, torch.tensor([1, 1, 3])).sum(), table)[0]

    assert_same_tensors([gradient(f)], [gradient(aot.aot_function(f, aot.nop))])


def test_what_a_graph_cannot_hold_is_refused() -> None:
    def f(table: Tensor, x: Tensor) -> Tensor:
        return functional.embedding(x, table.t(), sparse=True)

    with pytest.raises(aot.errors.UnsupportedOperation, match="sparse gradient"):
        aot.aot_function(f, aot.nop)(torch.ones(3, 4, requires_grad=True), torch.tensor([1, 3]))
