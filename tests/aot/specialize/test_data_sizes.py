"""Sizes and numbers that depend on values: masks, `nonzero`, `item`, `unique`, call after call as eager."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

import aot
from tests.support.agreement import assert_agrees, assert_same_call, leaf, values

Make = Callable[[], list[Any]]


def mask(*bits: int) -> Tensor:
    return torch.tensor(bits, dtype=torch.bool)


def written(x: Tensor, where: Tensor, y: Tensor) -> Tensor:
    x = x * 1
    x[where] = y
    return x


def written_to_an_argument(x: Tensor, where: Tensor, y: Tensor) -> Tensor:
    x[where] = y
    return x * 2


def added_in_place(x: Tensor, where: Tensor, y: Tensor) -> Tensor:
    x = x * 1
    x[where] += y
    return x


def scattered(x: Tensor, where: Tensor, y: Tensor) -> Tensor:
    return x.masked_scatter(where, y).sin()


def of_one_count(x: Tensor, where: Tensor) -> Tensor:
    return x[where] + x[where].exp()


def put_together(x: Tensor, where: Tensor) -> Tensor:
    return torch.cat([x[where], x[~where]])


def classified(x: Tensor, target: Tensor) -> Tensor:
    known = target >= 0
    return functional.cross_entropy(x[known], target[known])


BITS = ((1, 0, 1, 0), (1, 1, 1, 0), (1, 0, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1))
MASKED: list[Callable[..., Any]] = [
    lambda x, where: x[where].sin(),
    lambda x, where: x.masked_select(where) * x.sum(),
    lambda x, where: (x[where], x[where].shape[0], x * 2),
    lambda x, where: x[where].softmax(0),
    lambda x, where: x[:, None].expand(4, 3)[where] @ x[:3],
    of_one_count,
    put_together,
]


@pytest.mark.parametrize("function", MASKED)
def test_what_a_mask_selects(function: Callable[..., Any]) -> None:
    compiled = aot.aot_function(function, aot.nop)
    for bits in BITS:
        assert not assert_same_call(function, compiled, lambda bits=bits: [leaf(4), mask(*bits)])
    assert len(compiled.specializations) < len(BITS) + 1


@pytest.mark.parametrize("function", [written, written_to_an_argument, added_in_place, scattered])
@pytest.mark.parametrize("whole", [False, True])
def test_what_a_mask_writes_has_a_gradient(function: Callable[..., Any], whole: bool) -> None:
    compiled = aot.aot_function(function, aot.nop)
    base = values if function is written_to_an_argument else leaf
    for bits in BITS:
        size = 4 if whole and function is scattered else sum(bits)
        source = (lambda: leaf(1).sum()) if whole and function is not scattered else (lambda n=size: leaf(n))
        assert not assert_same_call(
            function, compiled, lambda bits=bits, source=source: [base(4), mask(*bits), source()]
        )


COUNTED: list[tuple[Callable[..., Any], list[Make]]] = [
    (
        lambda x: x.nonzero() * 2,
        [lambda v=v: [torch.tensor(v)] for v in ([0.0, 1, 2], [3.0, 1, 2], [0.0, 0, 1], [0.0, 0, 0])],
    ),
    (
        lambda n: torch.arange(n.max().item()),
        [lambda v=v: [torch.tensor(v)] for v in ([0, 2], [0, 5], [0, 1], [0, 0], [3, 2])],
    ),
    (
        lambda x, n: x[: n.item()] * 2,
        [lambda v=v: [leaf(5), torch.tensor(v)] for v in (2, 4, 1, 0, 7, -1, 2)],
    ),
    (
        lambda x, s: x * s.sum().item() + s.item(),
        [lambda v=v: [leaf(3), torch.tensor([v])] for v in (1.5, 2.5, 0.0, -1.0)],
    ),
    (
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        [lambda v=v: [torch.tensor(v)] for v in ([1, 2, 1], [1, 2, 3], [1, 1, 1])],
    ),
    (
        lambda x: torch.unique(x, dim=1),
        [lambda v=v: [torch.tensor([v, v])] for v in ([1, 2, 1], [1, 1, 1])],
    ),
    (
        lambda x, n: x.repeat_interleave(n, dim=0).cos(),
        [lambda v=v: [leaf(3, 2), torch.tensor(v)] for v in ([1, 2, 1], [1, 2, 3], [0, 0, 1])],
    ),
    (
        lambda x, n: x.split(n.tolist())[0].sum() + n.tolist()[1],
        [lambda v=v: [leaf(4), torch.tensor(v)] for v in ([1, 3], [2, 2])],
    ),
    (
        torch.bincount,
        [lambda v=v: [torch.tensor(v)] for v in ([1, 2, 1], [1, 5, 3])],
    ),
    (
        lambda x, n: torch.zeros(n.max().item() + 1).scatter_add(0, n, x),
        [lambda v=v: [leaf(3), torch.tensor(v)] for v in ([0, 1, 1], [0, 3, 1])],
    ),
    (classified, [lambda v=v: [leaf(4, 3), torch.tensor(v)] for v in ([0, -1, 2, 1], [0, 1, 2, 1])]),
    (lambda n: torch.arange(n.item()), [lambda v=v: [torch.tensor(v)] for v in (2.5, 4.0, 3.5, 7.1)]),
    (lambda x: x[torch.rand(6) > 0.5] * 2, [lambda: [leaf(6)], lambda: [leaf(6)]]),
    (lambda x: x * torch.rand(()).item(), [lambda: [leaf(6)], lambda: [leaf(6)]]),
]


@pytest.mark.parametrize(("function", "calls"), COUNTED)
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_and_numbers_from_data(function: Callable[..., Any], calls: list[Make], dynamic: bool) -> None:
    compiled = aot.aot_function(function, aot.nop, dynamic=dynamic)
    for make in calls:
        assert not assert_same_call(function, compiled, make)


def test_one_compile_answers_other_counts() -> None:
    compiled = aot.aot_function(lambda x: x.nonzero(), aot.nop)
    for count in (2, 3, 5, 4):
        assert compiled((torch.arange(5) < count).float()).shape == (count, 1)
    assert len(compiled.specializations) == 1


def test_a_min_cut_and_a_second_derivative() -> None:
    assert_agrees(
        lambda x, where: x[where].sin() * x[where].sum(),
        lambda: [leaf(4), mask(1, 0, 1, 1)],
        partition=aot.min_cut_rematerialization_partition,
    )

    def f(x: Tensor, where: Tensor, y: Tensor) -> Tensor:
        return written(x, where, y).pow(3).sum()

    def second(function: Callable[..., Tensor]) -> list[Tensor]:
        x, y = torch.tensor([1.0, 2, 3, 4]).requires_grad_(), torch.tensor([5.0, 6]).requires_grad_()
        first = torch.autograd.grad(function(x, mask(1, 0, 1, 0), y), (x, y), create_graph=True)
        return list(torch.autograd.grad(sum(g.pow(2).sum() for g in first), (x, y)))

    for want, got in zip(second(f), second(aot.aot_function(f, aot.nop)), strict=True):
        assert torch.equal(want, got)


def test_backends_are_told_where_numbers_are_found() -> None:
    graphs: list[fx.GraphModule] = []

    def compiler(module: fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    aot.aot_function(lambda x: x.nonzero().sum() * x.max().item(), compiler)(torch.tensor([0, 1, 2]))
    bound = {
        str(node.target): node.meta["unbacked_bindings"]
        for node in graphs[0].graph.nodes
        if node.meta.get("unbacked_bindings")
    }
    assert list(bound) == ["aten.nonzero.default", "aten._local_scalar_dense.default"]
    assert [len(path) for one in bound.values() for path in one.values()] == [2, 0]
    assert all(str(symbol).startswith("u") for one in bound.values() for symbol in one)


def test_what_the_function_branches_on_is_refused() -> None:
    for function in (
        lambda x: x * 2 if x.sum().item() > 3 else x,
        lambda x: x * 2 if x.sum() else x,
        lambda x: sum(x * i for i in range(x.max().item())),
        lambda x: x * len(f"{x.max().item()}"),
    ):
        with pytest.raises(aot.errors.DataDependentValue):
            aot.aot_function(function, aot.nop)(torch.tensor([1, 2]))


def test_compiles_for_one_value_each_come_to_an_end() -> None:
    compiled = aot.aot_function(lambda x: torch.ones(4, 4)[:, : x.item()].view(-1, 2), aot.nop)
    with pytest.raises(RuntimeError, match="invalid"):
        aot.aot_function(lambda x: torch.ones(3)[: x.item()].view(-1, 2), aot.nop)(torch.tensor(3))
    assert compiled(torch.tensor(4)).shape == (8, 2)


def test_what_a_graph_has_drawn_before_it_gives_up_is_drawn_again() -> None:
    def f(x: Tensor, where: Tensor) -> Tensor:
        return torch.rand(3).sum() + (x * torch.rand(4))[where]

    compiled = aot.aot_function(f, aot.nop)
    for bits in BITS:
        assert not assert_same_call(f, compiled, lambda bits=bits: [leaf(4), mask(*bits)])


def test_beside_a_view_that_was_taken_without_history() -> None:
    """Symbols begin in the middle of a trace, and the bases of the arguments are known by then."""

    def make(bits: tuple[int, ...]) -> list[Any]:
        with torch.no_grad():
            return [leaf(4)[:2], values(4), mask(*bits)]

    def f(view: Tensor, x: Tensor, where: Tensor) -> Tensor:
        return x * where.sum().item() + view.sum()

    compiled = aot.aot_function(f, aot.nop)
    for bits in BITS:
        assert not assert_same_call(f, compiled, lambda bits=bits: make(bits))


@pytest.mark.parametrize("before", [0, 3])
def test_sizes_that_depend_on_what_is_drawn(before: int) -> None:
    """A trace moves the generators on; what it assumes of a size is what the call draws."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        earlier = torch.rand(before)
        drawn = torch.randn(2)  # of which one or none is positive, mostly: numbers that are assumed
        return drawn[drawn > 0] + x, drawn[drawn < 0.5] + earlier.sum()

    for seed in range(6):
        torch.manual_seed(seed)
        compiled = aot.aot_function(f, aot.nop)
        assert not assert_same_call(f, compiled, lambda: [values(1)])


def test_quantiles_are_checked_in_the_graph() -> None:
    compiled = aot.aot_function(lambda x, q: torch.quantile(x, q), aot.nop)  # noqa: PLW0108
    for q in (0.25, 0.75):
        assert torch.equal(compiled(values(5), torch.tensor(q)), torch.quantile(values(5), q))
    for q in (1.5, float("nan")):
        with pytest.raises(RuntimeError, match=r"values must be in the range \[0, 1\]"):
            compiled(values(5), torch.tensor(q))


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("inverse", [False, True])
def test_unique_along_a_dimension(dim: int, inverse: bool) -> None:
    x = torch.tensor([[1.0, 1, 0], [1, 1, 0], [2, 2, 0]])
    for unique in (torch.unique, torch.unique_consecutive):
        f = functools.partial(unique, dim=dim, return_inverse=inverse)
        assert_agrees(f, lambda: [x.clone()])


def test_what_a_function_changes_in_a_module_it_changes_once_a_call() -> None:
    """Such a call is compiled each time, and that compile has run the function."""
    layer, calls = nn.Identity(), []

    def f(x: Tensor, where: Tensor) -> Tensor:
        calls.append(None)
        layer.register_forward_hook(lambda *_: None)
        return x[where].sum()

    compiled = aot.aot_function(f, aot.nop)
    for number, bits in enumerate(BITS, 1):
        assert compiled(values(4), mask(*bits)).equal(values(4)[mask(*bits)].sum())
        assert len(layer._forward_hooks) == len(calls) == number


@pytest.mark.parametrize("backend", ["aotfuzz", pytest.param("aotfuzz_inductor", marks=pytest.mark.nightly)])
def test_through_torch_compile(backend: str) -> None:
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(settings):
        for function, makes in (
            (written, [lambda b=b: [leaf(4), mask(*b), leaf(sum(b))] for b in BITS[:2]]),
            (lambda x, where: x[where] * 2, [lambda b=b: [leaf(4), mask(*b)] for b in BITS]),
            COUNTED[0],
            COUNTED[1],
        ):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=backend, fullgraph=True)
            for make in makes:
                assert not assert_same_call(function, compiled, make)


def test_calls_at_which_the_function_raises_use_nothing_up() -> None:
    def f(x: Tensor, where: Tensor, a: Tensor) -> Tensor:
        return x[where].sum() + torch.linalg.cholesky(a).sum()

    compiled = aot.aot_function(f, aot.nop)
    good, bad = torch.eye(2), -torch.eye(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", aot.RecompileWarning)
        for _ in range(20):
            with pytest.raises(torch.linalg.LinAlgError):
                compiled(values(4), mask(*BITS[0]), bad)
        assert len(compiled.specializations) <= 1
        for bits in BITS:
            arguments = values(4), mask(*bits), good
            assert torch.equal(compiled(*arguments), f(*arguments))


@pytest.mark.parametrize(
    "f",
    [
        lambda n: n * (n.item() // 2),
        lambda n: n * round(n.item(), 1),
        lambda n: n * n.item().__float__(),
        lambda n: n * divmod(n.long().item(), 2)[0],
        lambda n: n * {3: 1}[n.long().item()],
    ],
)
def test_what_only_numbers_can_do_is_refused_by_name(f: Callable[[Tensor], Tensor]) -> None:
    number = torch.tensor(3.5)
    with pytest.raises(aot.errors.DataDependentValue):
        aot.aot_function(f, aot.nop)(number)
    with pytest.warns(aot.FallbackWarning):
        assert torch.equal(aot.aot_function(f, aot.nop, on_unsupported="eager")(number), f(number))


def test_an_error_of_the_functions_own_beside_a_number_stays_its_own() -> None:
    with pytest.raises(TypeError, match="has no len"):
        aot.aot_function(lambda n: n * n.item() + len(3), aot.nop)(torch.tensor(3.5))  # type: ignore[arg-type]
