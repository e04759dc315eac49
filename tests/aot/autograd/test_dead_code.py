"""What nobody reads is not computed, unless eager may raise there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import functorch.compile as stock
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import aot
from tests.support.agreement import assert_agrees, leaf, values

pytestmark = pytest.mark.clause("errors")

# Operations of a square matrix and of indices that are out of its range.
RAISING: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "index": lambda x, i: x[i],
    "written index": lambda x, i: x.clone().index_fill_(0, i, 1.0),
    "put": lambda x, i: x.index_put((i,), x[0]),
    "select": lambda x, i: x.index_select(0, i),
    "added": lambda x, i: x.index_add(0, i, x),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "take": lambda x, i: x.take(i + 9),
    "masked scatter": lambda x, i: x.masked_scatter(x == x, x[0]),
    "embedding": lambda x, i: functional.embedding(i, x),
    "bag": lambda x, i: functional.embedding_bag(i, x, torch.zeros_like(i[:1])),
    "classes": functional.nll_loss,
    "margins": functional.multi_margin_loss,
    "probabilities": lambda x, i: functional.binary_cross_entropy(x * 100, x),
    "division": lambda x, i: i // (i * 0),
    "rounded division": lambda x, i: torch.div(i, i * 0, rounding_mode="trunc"),
    "remainder": lambda x, i: i % (i * 0),
    "inverse": lambda x, i: torch.linalg.inv(x * 0),
    "decomposition": lambda x, i: torch.linalg.svd(x / 0),
    "histogram": lambda x, i: torch.histc(x / 0),
}


@pytest.mark.parametrize("make", [values, leaf])
@pytest.mark.parametrize("name", RAISING)
def test_what_raises_for_some_values_raises_where_nobody_reads_it(
    name: str, make: Callable[..., Tensor]
) -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        RAISING[name](x, i)
        x.detach().add_(1)
        return x * 2

    with pytest.raises((RuntimeError, IndexError)) as eager:
        f(make(3, 3), torch.tensor([3, 4, 5]))
    for partition in (aot.default_partition, aot.min_cut_rematerialization_partition):
        x = make(3, 3)
        with pytest.raises(eager.type):
            aot.aot_function(f, aot.nop, partition_fn=partition)(x, torch.tensor([3, 4, 5]))
        assert torch.equal(x, make(3, 3))  # as in eager, the write comes after it


@pytest.mark.parametrize("partition", [stock.default_partition, stock.min_cut_rematerialization_partition])
@pytest.mark.parametrize("name", ["classes", "bag"])
def test_other_partitioners_take_several_results_that_nobody_reads(
    name: str, partition: Callable[..., Any]
) -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        RAISING[name](x, i)
        return (x * 2).sin()

    make = lambda: (torch.eye(3, requires_grad=True), torch.tensor([0, 1, 2]))  # noqa: E731
    compiled = aot.aot_function(f, aot.nop, partition_fn=partition)
    (x, i), (y, j) = make(), make()
    ours, theirs = compiled(x, i), f(y, j)
    assert torch.equal(ours, theirs)
    ours.sum().backward()
    theirs.sum().backward()
    assert torch.equal(x.grad, y.grad)


UNFIT: dict[str, Callable[[Tensor], Any]] = {
    "factors of two dtypes": lambda x: x.bfloat16() @ x,
    "a matrix that is no sum's": lambda x: torch.addmm(x, x[:1], x),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_kernels_refuse_and_their_meta_kernels_do_not(name: str) -> None:
    def f(x: Tensor) -> Tensor:
        UNFIT[name](x)
        return x * 2

    assert_agrees(f, lambda: [leaf(3, 3)], raises=RuntimeError)


@pytest.mark.parametrize("partition", [aot.default_partition, aot.min_cut_rematerialization_partition])
def test_what_cannot_raise_is_dropped_and_nothing_is_run_again(partition: Any) -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        x.sin()
        x[i]
        return x.exp().sum()

    compiled = aot.aot_function(f, aot.nop, partition_fn=partition)
    compiled(leaf(3, 3), torch.tensor([2, 1])).backward()
    (specialization,) = compiled.specializations
    forward, *backwards = (
        [node.target for node in module.graph.nodes]
        for module in (specialization.forward, *specialization.backwards)
    )
    assert torch.ops.aten.index.Tensor in forward and torch.ops.aten.sin.default not in forward
    assert backwards and not any(torch.ops.aten.index.Tensor in targets for targets in backwards)
