"""The min-cut partitioner: what it saves and recomputes, and that results stay those of eager."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import aot
from aot.partition import max_flow
from aot.partition.knapsack import knapsack_within
from aot.partition.tensor_bytes import span_bytes
from tests.support.agreement import leaf, non_leaf, values

pytestmark = pytest.mark.both_devices

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]

min_cut = aot.min_cut_rematerialization_partition


def saved_by(function: Callable[..., Any], args: Sequence[Any], partition: Partition) -> dict[str, int]:
    """The saved values and their bytes, after a check of the results against eager, bit for bit."""
    compiled = aot.aot_function(function, aot.nop, partition_fn=partition)
    results = []
    for one in (function, compiled):
        fresh = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        torch.manual_seed(0)
        out = one(*fresh)
        out.sum().backward()
        results.append([out, *(a.grad for a in fresh)])
    for ours, eager in zip(*results, strict=True):
        assert (ours is None) == (eager is None)
        assert ours is None or torch.equal(ours, eager)
    (backward,) = compiled.specializations[0].backwards
    assert backward is not None
    inputs = [n for n in backward.graph.nodes if n.op == "placeholder"]
    return {n.name: span_bytes(n) for n in inputs if not n.name.startswith("tangents_")}


def recomputed_by(function: Callable[..., Any], args: Sequence[Any], partition: Partition) -> list[str]:
    """The operations that run in the forward and again in the backward."""
    compiled = aot.aot_function(function, aot.nop, partition_fn=partition)
    compiled(*args)
    (one,) = compiled.specializations
    assert len(one.backwards) == 1
    names = {n.name for n in one.forward.graph.nodes if n.op == "call_function"}
    backward = [n for n in one.backwards[0].graph.nodes if n.op == "call_function"]
    return [str(n.target) for n in backward if n.name in names]


def chain(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sin().exp().tanh().mul(2).sigmoid()


def test_cheap_operations_are_recomputed_from_a_dear_one() -> None:
    args = [values(3, 4), leaf(4, 5)]
    assert len(saved_by(chain, args, aot.default_partition)) == 5
    assert list(saved_by(chain, args, min_cut)) == ["primals_1", "mm_default"]
    assert "aten.mm.default" not in recomputed_by(chain, args, min_cut)


def test_the_smallest_value_of_a_chain_is_saved() -> None:
    def narrow(x: Tensor) -> Tensor:
        return (x.sin().sum(0).exp() + 1).expand(64, 4).cos()

    saved = saved_by(narrow, [leaf(64, 4)], min_cut)
    assert sum(size for name, size in saved.items() if name != "primals_1") <= 4 * 4


def test_a_condition_is_saved_instead_of_what_it_was_computed_from() -> None:
    """The mask that a gradient formula makes of a value needs no tangent, and takes fewer bytes."""

    def clamped(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).clamp(-1, 1)

    saved = saved_by(clamped, [values(8, 8), leaf(8, 8)], min_cut)
    assert sorted(saved.values()) == [8 * 8, 8 * 8 * 4]


def test_parameters_cost_nothing() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x * w.sin()).sum()

    assert list(saved_by(f, [leaf(6), leaf(6)], min_cut)) == ["primals_1", "primals_2"]
    assert list(saved_by(f, [leaf(6), leaf(6)], aot.default_partition)) == [
        "primals_1",
        "primals_2",
        "sin_default",
    ]


def test_a_base_is_saved_once_for_all_its_views() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = (x @ w).chunk(3, -1)
        return q.t() @ k * v.sum()

    saved = saved_by(f, [values(4, 6), leaf(6, 12)], min_cut)
    assert sum(saved.values()) <= 4 * 6 * 4 + 4 * 12 * 4 + 4 + 4 * 4 * 4


def test_random_draws_are_saved() -> None:
    def f(x: Tensor) -> Tensor:
        return functional.dropout(x.sin(), 0.5) * torch.rand(5)

    for budget in (0.0, 1.0):
        partition = functools.partial(min_cut, memory_budget=budget)
        again = recomputed_by(f, [leaf(5)], partition)
        assert not any("bernoulli" in name or "rand" in name for name in again)
        saved_by(f, [leaf(5)], partition)


def test_uninitialized_memory_is_not_made_twice() -> None:
    def f(x: Tensor) -> Tensor:
        memory = torch.empty(3, 3)
        return (memory.fill_(2) * x).sin() * torch.empty_like(x).copy_(x)

    for budget in (0.0, 1.0):
        partition = functools.partial(min_cut, memory_budget=budget)
        saved_by(f, [leaf(3, 3)], partition)


@torch.library.custom_op("aot_tests::counted_double", mutates_args=())
def counted_double(x: Tensor) -> Tensor:
    CALLS.append(1)
    return x * 2


CALLS: list[int] = []


@counted_double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


counted_double.register_autograd(lambda ctx, grad: grad * 2)


def test_operations_outside_aten_are_never_repeated() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.ops.aot_tests.counted_double(x).sin()

    compiled = aot.aot_function(f, aot.nop, partition_fn=functools.partial(min_cut, memory_budget=0))
    y = compiled(leaf(3))
    del CALLS[:]
    y.sum().backward()
    assert not CALLS


def deep(x: Tensor, *weights: Tensor) -> Tensor:
    for w in weights:
        x = functional.gelu(x @ w)
    return x


def test_the_memory_budget_bounds_what_is_saved() -> None:
    args = [leaf(6, 8), *(leaf(8, 8, start=i) for i in range(8))]
    sizes = []
    times = []
    for budget in (0.0, 0.25, 0.5, 0.75, 1.0):
        partition = functools.partial(min_cut, memory_budget=budget)
        saved = saved_by(deep, args, partition)
        weights = {f"primals_{i}" for i in range(2, 10)}
        sizes.append(sum(size for name, size in saved.items() if name not in weights))
        times.append(recomputed_by(deep, args, partition).count("aten.mm.default"))
    low, high = sizes[0], sizes[-1]
    assert low < high
    for budget, size in zip((0.0, 0.25, 0.5, 0.75, 1.0), sizes, strict=True):
        assert size <= low + budget * (high - low)
    assert sizes == sorted(sizes)
    assert times == sorted(times, reverse=True)
    assert (times[0], times[-1]) == (8, 0)


@pytest.mark.parametrize("budget", [-0.1, 1.5, float("nan")])
def test_a_budget_that_is_none(budget: float) -> None:
    compiled = aot.aot_function(
        torch.sin, aot.nop, partition_fn=functools.partial(min_cut, memory_budget=budget)
    )
    x = leaf(3)
    with pytest.raises(aot.PartitionError, match="between 0 and 1"):
        compiled(x)


def test_a_joint_graph_that_is_none() -> None:
    graph = fx.Graph()
    x = graph.placeholder("primals_1")
    graph.output((graph.call_function(torch.ops.aten.sin.default, (x,)),))
    module = fx.GraphModule({}, graph)
    for partition in (aot.default_partition, min_cut):
        with pytest.raises(aot.PartitionError, match=r"primals_1 .* has no meta\['val'\]"):
            partition(module, [], num_fwd_outputs=1)
        with pytest.raises(aot.PartitionError, match="has 1 outputs"):
            partition(module, [], num_fwd_outputs=2)


def test_what_eager_does_not_keep_may_be_written_to() -> None:
    """Eager keeps the result of exp; the partitioner may have the argument."""

    def f(x: Tensor) -> Tensor:
        return x.exp().mul(2).sin().sum(0)

    x = leaf(4, 4)
    compiled = aot.aot_function(f, aot.nop, partition_fn=min_cut)
    (expected,) = torch.autograd.grad(f(x).sum(), x)
    y = compiled(x)
    with torch.no_grad():
        x.zero_()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, expected)


def test_what_eager_keeps_may_not_be_written_to() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sin()

    for partition in (aot.default_partition, min_cut):
        x, w = non_leaf(3), leaf(3)
        y = aot.aot_function(f, aot.nop, partition_fn=partition)(x, w)
        with torch.no_grad():
            w.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y.sum(), w)


def test_a_write_to_a_returned_view_of_what_is_saved_is_noticed() -> None:
    """A view that autograd does not know, as a reshape that copies ends in, counts its versions itself."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.reshape(4)
        return torch.dot(y, y), y

    for partition in (aot.default_partition, min_cut):
        square, y = aot.aot_function(f, aot.nop, partition_fn=partition)(leaf(2, 2).t())
        with torch.no_grad():
            y.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            square.backward()


def test_results_that_were_recomputed_from_may_be_written_to() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y, y.sin().cos()

    x, w = values(3, 3), leaf(3, 3)
    compiled = aot.aot_function(f, aot.nop, partition_fn=min_cut)
    results = []
    for function in (f, compiled):
        first, second = function(x, w)
        try:
            with torch.no_grad():
                first.zero_()
            results.append(torch.autograd.grad(second.sum(), w)[0])
        except RuntimeError as error:
            results.append(type(error))
    assert results[0] is results[1] is RuntimeError


def test_recomputation_is_put_off() -> None:
    """Each recomputed value comes just before what reads it, not all of them at the start."""
    args = [values(6, 8), *(leaf(8, 8, start=i) for i in range(4))]
    partition = functools.partial(min_cut, memory_budget=1)
    compiled = aot.aot_function(deep, aot.nop, partition_fn=partition)
    compiled(*args)
    (backward,) = compiled.specializations[0].backwards
    assert backward is not None
    order = [str(n.target) for n in backward.graph.nodes if n.op == "call_function"]
    recomputed = [i for i, name in enumerate(order) if name == "aten.gelu.default"]
    products = [i for i, name in enumerate(order) if name == "aten.mm.default"]
    assert len(recomputed) == 3
    assert all(any(a < p < b for p in products) for a, b in itertools.pairwise(recomputed))


def _arcs(rng: random.Random, vertices: int) -> list[tuple[int, int, int | None]]:
    capacities = [0, 1, 2, 3, 7, None]
    pairs = [(rng.randrange(vertices), rng.randrange(vertices)) for _ in range(3 * vertices)]
    return [(a, b, rng.choice(capacities)) for a, b in pairs if a != b]


def _smallest(vertices: int, arcs: list[tuple[int, int, int | None]]) -> int | None:
    """By trying every cut."""
    best: int | None = None
    for bits in range(1 << (vertices - 2)):
        side = {vertices - 1} | {i + 1 for i in range(vertices - 2) if bits >> i & 1}
        cut = [c for a, b, c in arcs if a not in side and b in side]
        if None not in cut and (best is None or sum(c for c in cut if c is not None) < best):
            best = sum(c for c in cut if c is not None)
    return best


@pytest.mark.parametrize("with_solver", [max_flow.with_igraph, max_flow.minimum_cut_with_networkx])
def test_cuts_are_the_smallest_there_are(with_solver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_flow, "_solver", lambda: with_solver)
    rng = random.Random(0)
    uncuttable = 0
    for _ in range(300):
        arcs = _arcs(rng, 7)
        expected = _smallest(7, arcs)
        if expected is None:
            uncuttable += 1
            with pytest.raises(aot.PartitionError, match="neither be saved nor recomputed"):
                max_flow.minimum_cut(7, arcs, 0, 6)
        else:
            value, side = max_flow.minimum_cut(7, arcs, 0, 6)
            assert value == expected
            assert 6 in side
            assert 0 not in side
    assert 10 < uncuttable < 290


def test_both_solvers_report_the_cut_nearest_to_the_sink() -> None:
    rng = random.Random(1)
    for _ in range(300):
        arcs = [(a, b, 100 if c is None else c) for a, b, c in _arcs(rng, 9)]
        assert max_flow.with_igraph(9, arcs, 0, 8) == max_flow.minimum_cut_with_networkx(9, arcs, 0, 8)
    assert max_flow.with_igraph(4, [(0, 1, 2), (1, 2, 2), (2, 3, 2)], 0, 3) == {3}


def test_a_solver_that_returns_no_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_flow, "_solver", lambda: lambda *_: {0, 1, 2})
    with pytest.raises(aot.PartitionError, match="no cut"):
        max_flow.minimum_cut(3, [(0, 1, 1), (1, 2, 1)], 0, 2)


def test_the_knapsack_is_filled_with_the_best() -> None:
    rng = random.Random(2)
    for _ in range(200):
        weights = [rng.randrange(1, 9) for _ in range(8)]
        worth = [float(rng.randrange(1, 9)) for _ in range(8)]
        capacity = rng.randrange(0, 30)
        chosen = knapsack_within(weights, worth, capacity)
        assert sum(weights[i] for i in chosen) <= capacity
        subsets = [[i for i in range(8) if bits >> i & 1] for bits in range(1 << 8)]
        fitting = [s for s in subsets if sum(weights[i] for i in s) <= capacity]
        assert sum(worth[i] for i in chosen) == max(sum(worth[i] for i in s) for s in fitting)


def test_the_knapsack_never_exceeds_a_large_capacity() -> None:
    rng = random.Random(3)
    weights = [rng.randrange(1, 10**9) for _ in range(40)]
    chosen = knapsack_within(weights, [1.0] * 40, 5 * 10**9)
    assert 0 < sum(weights[i] for i in chosen) <= 5 * 10**9


@pytest.mark.parametrize("function", [torch.sin, torch.nan_to_num, functional.softplus, torch.logit])
def test_a_second_derivative_finds_what_it_needs(function: Callable[[Tensor], Tensor]) -> None:
    """Of values of one size those are saved that eager saves; others count for what they are made of."""

    def f(x: Tensor) -> Tensor:
        return function(x * 0.5)

    x = (torch.arange(1.0, 5.0) / 8).requires_grad_()
    compiled = aot.aot_function(f, aot.nop, partition_fn=aot.min_cut_rematerialization_partition)
    second = []
    for g in (f, compiled):
        (first,) = torch.autograd.grad(g(x).sum(), x, create_graph=True)
        second.append(torch.autograd.grad((first * x).sum(), x)[0])
    assert torch.equal(*second)


def test_equal_gradients_are_two_tensors_beside_a_checkpoint() -> None:
    """What a checkpoint computes again may be computed already; a formula's gradients are each their own."""

    def f(x: Tensor, y: Tensor, z: Tensor, k: Tensor) -> Tensor:
        again = checkpoint(lambda z: z.sin().cos(), z, use_reentrant=False)
        assert isinstance(again, Tensor)
        return x * k + y * k + again

    compiled = aot.aot_function(f, aot.nop, partition_fn=aot.min_cut_rematerialization_partition)
    leaves = [leaf(4) for _ in range(3)]
    first, second, _ = torch.autograd.grad(compiled(*leaves, values(4)).sum(), leaves)
    first.zero_()
    assert torch.equal(second, values(4))
