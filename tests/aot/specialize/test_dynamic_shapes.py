"""`dynamic=True`: one compile answers calls of many sizes, as eager does, or says that it does not."""

from __future__ import annotations

import logging
import numbers
import pprint
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from tests.support.agreement import (
    assert_each_agrees,
    assert_same_call,
    checking_nop,
    compile_counted,
    leaf,
    non_leaf,
    values,
)

pytestmark = pytest.mark.clause("repeat")

Make = Callable[[], list[Any]]

# The formula of `trace` asks for the number of elements.
TRACE_TAKES_NUMBERS = torch.__version__ < (2, 12)

SIZES = [(4, 7), (5, 9), (6, 10), (13, 4), (4, 6)]


def _makes(make: Callable[[int, int], list[Any]]) -> list[Make]:
    return [lambda n=n, m=m: make(n, m) for n, m in SIZES]


def _matmul(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.t()).relu().sum(0)


def _views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.t(), x.view(-1), x[1:, ::2], (x * y).reshape(-1, 1), y.unsqueeze(0).expand(2, -1, -1)


def _written(x: Tensor, y: Tensor) -> Tensor:
    x[:, 1:].mul_(2)
    y.t().add_(x.t())
    return x.diagonal() * y.sum()


def _sizes(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return x.shape, x.numel() // 2, x.shape[0] / 2, x.stride(), x.shape[0] * y.new_ones(()), y.size(1) - 1


def _made(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    n, m = x.shape
    return torch.zeros(n + m), torch.arange(n) * 2, x.new_full((m, n), 2.5), torch.cat([x, y]).flatten()


def _normalized(x: Tensor, y: Tensor) -> Tensor:
    return (torch.softmax(x, -1) * y / x.shape[-1] ** 0.5).var(0)


def _reshaped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.t_()
    y.unsqueeze_(1)
    return x, y * 2


def _split(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    first, second = x.split([2, x.shape[0] - 2])
    return first.clone(), second, y.chunk(2)[0] * 2


FUNCTIONS = [_matmul, _views, _written, _sizes, _made, _normalized, _reshaped, _split]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("tensor", [values, non_leaf], ids=["plain", "non-leaf"])
def test_one_compile_answers_every_size(function: Callable[..., Any], tensor: Callable[..., Tensor]) -> None:
    makes = _makes(lambda n, m: [tensor(n, m), tensor(n, m, start=2)])
    compiled = assert_each_agrees(function, makes, specializations=1, dynamic=True)
    assert compiled.specializations[0].sizes is not None


@pytest.mark.parametrize("partition", [aot.default_partition, aot.min_cut_rematerialization_partition])
def test_gradients(partition: Any) -> None:
    makes = _makes(lambda n, m: [leaf(n, m), leaf(n, m, start=2)])
    for function in (_matmul, _views, _normalized):
        assert_each_agrees(function, makes, specializations=1, dynamic=True, partition=partition)


@pytest.mark.parametrize(
    "lying",
    [
        lambda n, m: values(m, n).t(),
        lambda n, m: values(n, 3 * m)[:, ::3],
        lambda n, m: values(2 * n, m)[n:],
        lambda n, m: values(1, m).expand(n, m),
        lambda n, m: values(n, m).conj(),
    ],
    ids=["transposed", "strided", "offset", "expanded", "contiguous"],
)
def test_arguments_of_any_layout(lying: Callable[[int, int], Tensor]) -> None:
    makes = _makes(lambda n, m: [lying(n, m), values(n, m)])
    assert_each_agrees(_normalized, makes, specializations=1, dynamic=True)


def test_a_layout_of_another_kind_is_compiled_for_itself() -> None:
    dense = _makes(lambda n, m: [values(n, m), values(n, m)])
    strided = _makes(lambda n, m: [values(n, 3 * m)[:, ::3], values(n, m)])
    assert_each_agrees(_normalized, [*dense, *strided], specializations=2, dynamic=True)


def _second_is_written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    before = x * 2
    y.add_(1)
    return before + x, x.sum(0)


@pytest.mark.parametrize(
    "together",
    [
        lambda n, m: (lambda x: [x, x])(values(n, m)),
        lambda n, m: (lambda x: [x, x.view(n, m)])(values(n, m)),
        lambda n, m: (lambda x: [x, x.t()])(values(n, m)),
        lambda n, m: (lambda x: [x[:-1], x[1:]])(values(n + 1, m)),
        lambda n, m: (lambda x: [x[:n], x[n:]])(values(2 * n, m)),
        lambda n, m: (lambda x: [x[:, :m], x[:, m:]])(values(n, 2 * m)),
    ],
    ids=["one object", "whole views", "transposed", "overlapping", "halves", "columns"],
)
def test_arguments_that_share_memory(together: Callable[[int, int], list[Tensor]]) -> None:
    compiled = assert_each_agrees(_second_is_written, _makes(together), specializations=1, dynamic=True)
    assert compiled.specializations[0].sizes is not None


def test_a_write_beside_what_another_argument_shows() -> None:
    """Its elements are looked for one by one, where neither argument is a stretch of storage."""

    def f(x: Tensor, y: Tensor) -> None:
        x[:, 0].mul_(2)

    def make(n: int, m: int) -> list[Tensor]:
        x = values(n, m)
        return [x, x.as_strided((3,), (2,), 0)]

    makes = [partial(make, n, m) for n, m in ((2, 3), (3, 4), (5, 3))]
    assert_each_agrees(f, makes, specializations=3, dynamic=True)


@pytest.mark.parametrize("stride", [(1, 1, 2), (7, 1, 5), (2, 1, 1)])
@pytest.mark.parametrize(
    "make",
    [
        torch.zeros_like,
        torch.ones_like,
        lambda x: torch.full_like(x, 2),
        torch.empty_like,
        Tensor.clone,
        Tensor.sin,
        lambda x: x.new_zeros(x.shape),
        lambda x: torch.where(x > 0, x, x + 1),
    ],
)
def test_dimensions_of_one_element_keep_their_strides(
    make: Callable[[Tensor], Tensor], stride: tuple[int, ...]
) -> None:
    """Views of another dtype look at them."""

    def f(x: Tensor) -> tuple[int, ...]:
        return make(x).stride()

    compiled = aot.aot_function(f, aot.nop, dynamic=True)
    for _ in range(2):
        x = values(2).as_strided((1, 2, 1), stride)
        assert compiled(x) == f(x)


def test_a_written_dimension_of_one_element_that_lies_otherwise() -> None:
    """By symbols `triu` lays out its result as it lies itself, by numbers anew."""

    def f(x: Tensor) -> None:
        x.unsqueeze(0).view(torch.int16).transpose(0, 2).triu_(1)

    assert_each_agrees(f, _makes(lambda n, m: [values(1, n + m)]), specializations=1, dynamic=True)


def test_what_the_function_asks_of_sizes_is_asked_of_later_calls() -> None:
    def f(x: Tensor) -> Tensor:
        if x.shape[0] > 5:
            return x.sum(0)
        return x * x.shape[0]

    makes = [lambda n=n: [values(n, 3)] for n in (2, 3, 5, 6, 7, 12)]
    assert_each_agrees(f, makes, specializations=2, dynamic=True)


def test_a_stride_that_something_was_divided_by_becomes_zero() -> None:
    """What is asked of later calls is asked of this one as well, to say why it is compiled anew."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.addcdiv(y, x, y)

    compiled = aot.aot_function(f, checking_nop, dynamic=True)
    for step in (2, 0, 3):
        x = leaf(13) * 1
        with torch.no_grad():
            element = x.as_strided((), (), 5)
        y = x.as_strided((5,), (step,), 0)
        assert torch.equal(compiled(element, y), f(element, y))


def test_zero_and_one_are_not_like_other_sizes() -> None:
    makes = [lambda n=n: [values(n, 3), values(4, 3)] for n in (2, 5, 1, 0, 7)]

    def f(x: Tensor, y: Tensor) -> Tensor:
        return x.sum(0) + y.mean(0)

    assert_each_agrees(f, makes, specializations=3, dynamic=True)


def test_sizes_that_were_equal_and_are_not_any_more() -> None:
    makes = [lambda n=n, m=m: [values(n, m)] for n, m in ((4, 4), (6, 6), (3, 5), (7, 2))]
    assert_each_agrees(lambda x: x.t() * 2, makes, specializations=2, dynamic=True)


def test_a_size_that_becomes_a_number_is_one_from_then_on() -> None:
    def f(x: Tensor) -> Tensor:
        total = x.new_zeros(x.shape[1])
        for i in range(x.shape[0]):  # Python counts with numbers
            total = total + x[i]
        return total

    makes = [lambda n=n, m=m: [values(n, m)] for n, m in ((3, 4), (3, 7), (5, 4), (5, 9))]
    assert_each_agrees(f, makes, specializations=2, dynamic=True)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.after = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (head(x).view(*x.shape[:2], 2, 4).transpose(1, 2) for head in self.heads)
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        result: Tensor = self.after(x + (weights @ v).transpose(1, 2).reshape(x.shape))
        return result


def test_places_that_become_one_while_they_are_in_use() -> None:
    """To take the first size for 2, as `chunk` does here, makes one of places that were told apart before."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        first, second = x.chunk(2, 0)
        return x[0:2], first.flatten(0, -1), second.mul_(2)

    compiled = aot.aot_function(function, aot.nop, dynamic=True)
    with aot.config.patch(traced_size=lambda size: 2 * size):
        for n in (2, 3, 4):
            assert_same_call(function, compiled, lambda n=n: [torch.arange(4.0 * n).reshape(n, 2, 2)])
    assert all(one.sizes is not None for one in compiled.specializations)


def test_fifty_shapes_of_a_network() -> None:
    torch.manual_seed(0)
    layer = Attention()
    compiled = aot.aot_module(layer, checking_nop, dynamic=True)
    parameters = list(layer.parameters())
    for k in range(50):
        x = torch.randn(2 + k % 7, 2 + k, 8)
        expected = layer(x)
        got = compiled(x)
        assert torch.equal(expected, got)
        theirs = torch.autograd.grad(expected.square().mean(), parameters)
        ours = torch.autograd.grad(got.square().mean(), parameters)
        assert all(map(torch.equal, theirs, ours))
    # (docs/reference/refusals.md: ATen of 2.11 takes no symbols in products of more than two dimensions.)
    most = 6 if torch.__version__ >= "2.12" else 50
    assert len(compiled.compiled.specializations) <= most


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (gradient * 3)[:]


@pytest.mark.parametrize("custom", [False, True], ids=["written", "custom function"])
def test_second_derivatives_of_what_was_written_in_part(custom: bool) -> None:
    """What comes to these nodes is read while the backward is recorded."""

    def f(x: Tensor) -> Tensor:
        if custom:
            return _Scaled.apply(x[1:]).exp()  # type: ignore[no-any-return, no-untyped-call]
        view = x[1:]
        view.exp_()
        return view

    compiled = aot.aot_function(f, aot.nop, dynamic=True)
    for n in (3, 5):
        found = []
        for function in (f, compiled):
            start = leaf(n, 2)
            base = start * 1  # (as long as it is there)
            (first,) = torch.autograd.grad(function(base).sum(), start, create_graph=True)
            found += torch.autograd.grad(first.square().sum(), start)
        torch.testing.assert_close(*found)


def test_parameters_keep_their_sizes() -> None:
    layer = nn.Linear(3, 5)
    compiled = aot.aot_module(layer, aot.nop, dynamic=True)
    for n in (5, 3, 7):  # equal to a parameter's, too
        assert torch.equal(compiled(torch.ones(n, 3)), layer(torch.ones(n, 3)))
    sizes = compiled.compiled.specializations[0].sizes
    assert sizes is not None and len(sizes.names) <= 2  # of the input alone
    layer.weight = nn.Parameter(torch.ones(7, 3))
    layer.bias = None
    assert compiled(torch.ones(4, 3)).shape == (4, 7)


def test_second_and_third_derivatives() -> None:
    compiled, counted = compile_counted(_normalized, dynamic=True)
    for n, m in SIZES:
        stories = []
        for function in (_normalized, compiled):
            x, y = leaf(n, m), leaf(n, m, start=2)
            gradients: Any = [function(x, y)]
            for _ in range(3):
                total = sum(g.square().sum() for g in gradients)
                gradients = torch.autograd.grad(total, [x, y], create_graph=True)
            stories.append([g.detach() for g in gradients])
        for theirs, ours in zip(*stories, strict=True):
            assert torch.allclose(theirs, ours, rtol=1e-4, atol=1e-6)
    assert counted.calls == 1


def test_a_size_that_becomes_a_number_while_the_backward_is_recorded() -> None:
    """What was noted of views of a tangent under a symbol may not be found under the number; they are taken
    by `as_strided` then."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        twice = torch.cat((x, x))
        return twice, torch.cat((x, x.square())), torch.cat((x, twice))

    compiled = aot.aot_function(f, checking_nop, dynamic=True)
    for n in (3, 2, 3):
        x = torch.arange(n).to(torch.complex64).requires_grad_()
        gradient = torch.arange(3 * n) + 0j
        (theirs,) = torch.autograd.grad(f(x)[2], x, gradient)
        (ours,) = torch.autograd.grad(compiled(x)[2], x, gradient)
        assert torch.equal(theirs, ours)


def test_fewer_tangents() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin().sum(0), x.cos() * x.shape[0]

    compiled = aot.aot_function(f, checking_nop, dynamic=True)
    for n in (3, 5, 4):
        for which in (0, 1):
            x = leaf(n, 2)
            (theirs,) = torch.autograd.grad(f(x)[which].sum(), x)
            (ours,) = torch.autograd.grad(compiled(x)[which].sum(), x)
            assert torch.equal(theirs, ours)
    assert len(compiled.specializations) == 1


def test_what_cannot_be_traced_with_symbols_is_compiled_for_each_size(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def f(x: Tensor) -> Tensor:
        if type(x.shape[0]) is not int:
            raise TypeError("a function that takes no symbols")
        return x * 2

    compiled = aot.aot_function(f, aot.nop, dynamic=True)
    with caplog.at_level(logging.DEBUG, logger="aot.guards"):
        for n in (3, 4, 3):
            assert torch.equal(compiled(torch.ones(n)), torch.ones(n) * 2)
    assert len(compiled.specializations) == 2
    assert all(one.sizes is None for one in compiled.specializations)
    assert sum("each size for itself" in record.getMessage() for record in caplog.records) == 1


def _told(x: Tensor) -> tuple[Any, ...]:
    size, half = x.shape[0], x.shape[0] / 2
    texts = (f"{size:03d} {half:.2f} {size > 3}", str(x.shape), f"{tuple(x.shape)}", repr(half))
    return (x.sin(), *texts, ", ".join(map(str, x.shape)), pprint.pformat({"size": size}))


def _kinds(x: Tensor) -> tuple[Any, ...]:
    size, half = x.shape[0], x.shape[0] / 2
    kinds = isinstance(size, int), isinstance(size, numbers.Integral), isinstance(half, float)
    return (x.sin(), *kinds, isinstance(size > 3, bool), isinstance(size, str), isinstance(x.dim(), int))


@pytest.mark.parametrize("function, compiles", [(_told, 3), (_kinds, 1)])
def test_sizes_look_like_numbers_to_the_users_code(function: Callable[..., Any], compiles: int) -> None:
    shows = [vars(one).copy() for one in (torch.SymInt, torch.SymFloat, torch.SymBool)]
    compiled = aot.aot_function(function, aot.nop, dynamic=True)
    for n in (3, 4, 5):
        x = torch.ones(n, 2)
        assert compiled(x)[1:] == function(x)[1:]
    assert all(one.sizes is not None for one in compiled.specializations)
    assert len(compiled.specializations) == compiles
    assert [vars(one) for one in (torch.SymInt, torch.SymFloat, torch.SymBool)] == shows


def test_results_lie_as_the_kernel_lays_them() -> None:
    def f(x: Tensor) -> Tensor:
        result = torch.nn.functional.batch_norm(x.transpose(-2, -1), None, None, training=True)
        result.index_add_(0, torch.arange(2), x.transpose(-2, -1))
        return result

    makes = _makes(lambda n, m: [torch.arange(2.0 * n * m).view(2, m, n)])
    assert_each_agrees(f, makes, specializations=1, dynamic=True)


def test_values_that_depend_on_sizes_are_not_known() -> None:
    def f(x: Tensor) -> Tensor:
        return x.trace().square()  # of which the second derivative takes the places of the diagonal

    fixed, symbolic = (aot.aot_function(f, aot.nop, dynamic=dynamic) for dynamic in (False, True))
    for n in (2, 3):
        x = torch.rand(n, 3, requires_grad=True)
        given, expected = (torch.autograd.grad(g(x), x, create_graph=True)[0] for g in (fixed, f))
        assert torch.equal(*(torch.autograd.grad(one.sum(), x)[0] for one in (given, expected)))
        (first,) = torch.autograd.grad(symbolic(x), x)
        assert torch.equal(first, expected)
        if not TRACE_TAKES_NUMBERS:
            with pytest.raises(aot.DoubleBackwardUnsupported, match="on the call"):
                torch.autograd.grad(symbolic(x), x, create_graph=True)
    taken = [one.sizes is not None for one in symbolic.specializations]
    assert taken == ([False, False] if TRACE_TAKES_NUMBERS else [True])


def test_marked_dimensions() -> None:
    compiled, counted = compile_counted(lambda x, y: (x * 2).sum(0) + y.shape[0])
    for n, m, k in ((3, 4, 2), (5, 4, 2), (6, 4, 2), (6, 7, 2), (7, 7, 2), (7, 7, 3)):
        x, y = torch.ones(n, m), torch.ones(k)
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(compiled(x, y), torch.full((m,), 2.0 * n + k))
    assert counted.calls == 3  # for each m and k
    assert torch.equal(compiled(torch.ones(9, 7), torch.ones(3)), torch.full((7,), 21.0))
    assert counted.calls == 3  # which is not marked, but of the same kind


def test_dimensions_that_are_marked_as_static() -> None:
    compiled, counted = compile_counted(lambda x: x * 2, dynamic=True)
    for n, m in ((3, 4), (5, 4), (5, 6), (7, 6)):
        x = torch.ones(n, m)
        torch._dynamo.mark_static(x, 1)
        assert torch.equal(compiled(x), torch.full((n, m), 2.0))
    assert counted.calls == 2


def test_graphs_take_numbers_first() -> None:
    compiled = aot.aot_function(lambda x: x.view(-1, 2) * x.shape[0], aot.nop, dynamic=True)
    compiled(torch.ones(4, 6))
    graph = compiled.specializations[0].forward.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    kinds = [isinstance(node.meta["val"], torch.SymInt) for node in inputs]
    assert kinds == sorted(kinds, reverse=True) and True in kinds
    assert not any(isinstance(node.meta["val"], torch.SymInt) for node in inputs[kinds.index(False) :])


def test_a_call_is_answered_by_what_was_compiled_for_another() -> None:
    compiled, counted = compile_counted(_normalized, dynamic=True)
    with aot.config.patch(traced_size=lambda number: 2 * number):
        assert torch.equal(compiled(values(3, 4), values(3, 4)), _normalized(values(3, 4), values(3, 4)))
    (one,) = compiled.specializations
    shown = next(node for node in one.forward.graph.nodes if node.name == "primals_1").meta["val"]
    assert [n.node.hint for n in shown.shape] == [6, 8]  # twice as many
    assert counted.calls == 1
