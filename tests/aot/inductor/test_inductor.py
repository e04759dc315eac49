"""Inductor below the AOT layer: its kernels do as eager does."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

import aot
from aot import errors
from aot.frontends.dynamo import aotfuzz_inductor
from tests.support.agreement import compile_with_inductor as compiled

pytestmark = [pytest.mark.clause("values", "strides"), pytest.mark.usefixtures("small_inductor")]


def test_forward_and_backward_are_inductors() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(torch.tensor([1.0, 2.0, 3.0]))
        return (x * w.sin()).softmax(-1), x.t()

    def run(function: Any) -> list[Tensor]:
        torch.manual_seed(0)
        x, w = torch.rand(4, 3), torch.rand(4, 3, requires_grad=True)
        result, view = function(x, w)
        once = torch.autograd.grad(result.square().sum(), w, retain_graph=True)
        twice = torch.autograd.grad(result.square().sum(), w)
        assert view._base is x
        return [x, result.detach(), *once, *twice]

    function = compiled(f)
    expected = run(f)
    given, codes = run_and_get_code(run, function)
    for value, other in zip(given, expected, strict=True):
        torch.testing.assert_close(value, other)
    assert len(codes) >= 2 and all("cpp_fused" in code for code in codes)
    (one,) = function.specializations
    assert "_softmax" in one.forward.code  # what Inductor decomposed is a copy


def test_a_graph_without_a_backward_writes_to_its_inputs() -> None:
    function = compiled(lambda x: x.cos_().sum())
    x, y = torch.rand(5), torch.rand(5)
    total, (code,) = run_and_get_code(function, x)
    assert "cpp_fused" in code and total.item() == pytest.approx(x.sum().item())
    (info,) = function.specializations[0].metadata.input_info
    assert info.mutation_type is aot.MutationType.MUTATED_IN_GRAPH
    expected = y.cos()
    assert function(y).item() == pytest.approx(expected.sum().item())
    torch.testing.assert_close(y, expected)


@pytest.mark.nightly
def test_offsets_are_counted_from_the_beginning_of_a_storage() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y + 1

    def arguments() -> tuple[Tensor, Tensor]:
        x = torch.arange(12.0)[4:10]
        return x, x.view(torch.int32)

    expected, given = arguments(), arguments()
    result = compiled(f)(*given)
    assert torch.equal(result, f(*expected)) and torch.equal(given[0], expected[0])


def _put_and_copied(x: Tensor, y: Tensor) -> Tensor:
    x.index_put_((torch.tensor([1, 2]),), torch.tensor(7.0))
    return x.clone()


def _added_and_copied(x: Tensor, y: Tensor) -> Tensor:
    torch._foreach_add_([x], [y])
    return x.to(torch.float32, copy=True)


def _copied_and_written_later(x: Tensor, y: Tensor) -> None:
    y[0:].copy_(x[0:])
    x.add_(1)


def _moved_within(x: Tensor, y: Tensor) -> None:
    x[1:] = x[:-1].clone()


def _repeated_once(x: Tensor, y: Tensor) -> Tensor:
    kept = x.repeat(1)
    x.index_put_((torch.tensor([0]),), torch.tensor(5.0))
    return kept


def _joined_with_nothing(x: Tensor, y: Tensor) -> Tensor:
    torch._foreach_mul_([x], [y])
    return torch.cat([x])


def _rolled(x: Tensor) -> Tensor:
    return (torch.arange(len(x)) + 1) % len(x)


def _put_into_itself(x: Tensor, y: Tensor) -> Tensor:
    value = x * 2
    return value.index_put((_rolled(x),), value)


def _a_part_put_into_the_whole(x: Tensor, y: Tensor) -> Tensor:
    value = x * 2
    return value.index_put((_rolled(x)[:-1],), value[:-1])


def _a_copy_put_into_the_original(x: Tensor, y: Tensor) -> Tensor:
    value = x * 2
    return value.index_put((_rolled(x),), value.clone())


def _put_where_its_elements_say(x: Tensor, y: Tensor) -> Tensor:
    value = (y * 3 + 1).long() % 4
    return value.index_put((value,), value + 1)


def _put_back(x: Tensor, y: Tensor) -> None:
    x.copy_(x.index_put((_rolled(x),), x))


def _swapped(x: Tensor, y: Tensor) -> None:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def _copied_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    value = x.square()  # which is a copy for another exponent
    return value.clone(), value.clone()


def _view_copied_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = x * 3
    return torch.cat([value.view(2, 3)]), value.clone(), y.clone()


COPYING = [
    _put_and_copied, _added_and_copied, _copied_and_written_later, _moved_within, _repeated_once,
    _joined_with_nothing, _swapped, _copied_twice, _view_copied_twice, _put_into_itself, _put_back,
    _a_part_put_into_the_whole, _a_copy_put_into_the_original, _put_where_its_elements_say,
]  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("function", COPYING)
def test_a_copy_lies_elsewhere(function: Callable[..., Any]) -> None:
    def run(called: Callable[..., Any]) -> list[Tensor]:
        x, y = torch.arange(6.0), torch.arange(6.0) + 10
        result = called(x, y)
        results = list(result) if isinstance(result, tuple) else [] if result is None else [result]
        for i, one in enumerate(results):
            one.add_(10**i)  # which is seen in x, or in another result, if it lies there
        return [x, y, *results]

    for value, expected in zip(run(compiled(function)), run(function), strict=True):
        assert torch.equal(value, expected)


@pytest.mark.nightly
def test_results_have_the_dtype_and_lie_as_in_eager() -> None:
    def judged(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.any(), x.any(0)  # of uint8, as no other dtype's

    def normalized(x: Tensor) -> Tensor:
        lying = torch.fft.irfft(x, dim=0)
        mean, variance = torch.full((2,), 2.0), torch.full((2,), 2.0)
        result = torch.nn.functional.batch_norm(lying, mean, variance, training=True)
        return torch.nn.functional.dropout(result, 0.5)  # drawn in the order of memory

    for function, x in (
        (judged, torch.arange(6, dtype=torch.uint8).view(2, 3)),
        (normalized, torch.arange(4).view(2, 2) * (1 - 0.5j)),
    ):
        torch.manual_seed(0)
        expected = function(x)  # type: ignore[operator]
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(function)(x), expected)


@pytest.mark.nightly
def test_zeros_without_memory() -> None:
    def f(x: Tensor) -> Tensor:
        half = x.sgn()
        return (x * 2).sgn() * x.log() + x.sin() + half.t()  # a product of such zeros and an infinity is zero

    def run(function: Any) -> list[Tensor]:
        x = torch.arange(4.0).view(2, 2).requires_grad_()
        first = torch.autograd.grad(function(x).sum(), x, retain_graph=True)
        outside = torch.autograd.grad(function(x).sgn().sum(), x)
        return [*first, *outside, function(first[0])]

    for value, expected in zip(run(compiled(f)), run(f), strict=True):
        torch.testing.assert_close(value, expected, equal_nan=True)
    (given,) = torch.autograd.grad((x := torch.ones(3, requires_grad=True)).sgn().sum(), x)
    assert torch.equal(compiled(lambda t: t + 1)(given), torch.ones(3))


@pytest.mark.nightly
def test_operations_that_are_made_of_writes() -> None:
    """The gradient of `cumprod` is computed by operations that write in place."""
    gradients = []
    for function in (Tensor.cumprod, compiled(Tensor.cumprod)):
        x = torch.tensor([0.5, 3.0, 2.0], requires_grad=True)
        gradients += torch.autograd.grad(function(x, 0), x, torch.tensor([1.0, -2.0, 4.0]))
    torch.testing.assert_close(*gradients)


def test_draws_are_made_in_order_and_read_or_not() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = torch.rand(4), torch.rand(4)
        torch.rand(3)
        return second * 2 + x, first - x

    drawn = []
    for function in (f, compiled(f)):
        torch.manual_seed(3)
        drawn.append([*function(torch.ones(4)), torch.get_rng_state()])
    for value, other in zip(*drawn, strict=True):
        assert torch.equal(value, other)


def test_draws_are_eagers() -> None:
    def f(*given: Tensor) -> list[Tensor]:
        return [
            drawn
            for x in given
            for drawn in (
                (x / 4).bernoulli(),
                torch.randint(9, (5,)) + x[0],
            )
        ]

    drawn = []
    for function in (f, compiled(f)):
        torch.manual_seed(3)
        x = torch.tensor([1.0, 2.0, 3.0])
        drawn.append([*function(x, x.double()), torch.get_rng_state()])
    assert all(map(torch.equal, *drawn))


@pytest.mark.nightly
def test_draws_are_made_before_they_are_read_and_in_the_order_of_memory() -> None:
    """Inductor fuses what reads a Bernoulli draw with a normalization before it, and runs that too early."""

    def f(x: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        normal = nn.functional.layer_norm(x, (8,), scale, scale)
        return nn.functional.dropout(normal), nn.functional.dropout(x.transpose(0, 1)), torch.rand_like(x.mT)

    drawn = []
    for function in (f, compiled(f)):
        torch.manual_seed(3)
        x = torch.arange(48.0).reshape(2, 3, 8).requires_grad_()
        results = function(x, torch.ones(8))
        torch.stack([one.square().sum() for one in results[:2]]).sum().backward()
        drawn.append([*results, x.grad, torch.get_rng_state()])
    for value, other in zip(*drawn, strict=True):
        torch.testing.assert_close(value, other)


def test_a_draw_that_nobody_reads_is_made_before_the_next() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        larger = torch.maximum(x, x / 3)
        torch.randint(0, 7, (1,))
        return larger, nn.functional.dropout(x, 0.25)

    drawn = []
    for function in (f, compiled(f)):
        torch.manual_seed(0)
        drawn.append((*function(torch.arange(16.0)), torch.get_rng_state()))
    assert all(map(torch.equal, *drawn))


def test_what_inductor_cannot_take_apart_stays_whole() -> None:
    """It divides by the number of elements."""
    x = torch.zeros(0, requires_grad=True)
    compiled(nn.functional.huber_loss)(x, x).backward()
    assert x.grad is not None and x.grad.shape == (0,)


@pytest.mark.nightly
def test_an_index_of_no_dimensions() -> None:
    """The decomposition of `take` reads it as a number."""

    def f(x: Tensor) -> Tensor:
        return x.take(torch.arange(3)[2]) * torch.randint(2, 3, ())

    x = torch.arange(3.0)
    torch.testing.assert_close(compiled(f)(x), f(x))


def _diagonals(x: Tensor) -> None:
    x.diagonal().mul_(2)
    x.diagonal().add_(x.diagonal().flip(0))


def _diagonal_and_whole(x: Tensor) -> None:
    x.diagonal().mul_(2)
    x.copy_(x.flip(0) + x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("f", [_diagonals, _diagonal_and_whole])
def test_what_is_read_between_two_writes(f: Callable[[Tensor], None]) -> None:
    """Inductor writes in place, and fuses the second write with a read of other elements."""
    mine, eagers = (torch.arange(16.0).reshape(4, 4) for _ in range(2))
    compiled(f)(mine)
    f(eagers)
    torch.testing.assert_close(mine, eagers)


@torch.library.custom_op("aotfuzz_tests::accumulate_", mutates_args={"x"})
def accumulate_(x: Tensor, y: Tensor) -> None:
    """Add twice the second."""
    x.add_(y * 2)


def _reads_an_argument_before(x: Tensor) -> Tensor:
    y = x * 2
    accumulate_(x, y)
    return torch.stack((y, x), 0)


def _copies_an_argument_before(x: Tensor) -> Tensor:
    y = x.clone()
    accumulate_(x, y)
    return torch.stack((y, x), 0)


def _reads_a_draw_before(x: Tensor) -> Tensor:
    z = torch.arange(4.0).cumsum(0)
    y = z * 2
    accumulate_(z, x)
    return y + z


def _writes_to_a_part(x: Tensor) -> Tensor:
    y = x + 1
    accumulate_(x[1:3], y[1:3])
    return y * x


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "f",
    [_reads_an_argument_before, _copies_an_argument_before, _reads_a_draw_before, _writes_to_a_part],
)
def test_what_a_custom_operator_writes_to_is_read_before(f: Callable[[Tensor], Tensor]) -> None:
    """Inductor computes what was read of it once more, from what has been written (`torch.compile` too)."""
    mine, eagers = (torch.arange(4.0) for _ in range(2))
    result = compiled(f)(mine)
    torch.testing.assert_close(result, f(eagers))
    torch.testing.assert_close(mine, eagers)


def test_a_custom_operator_writes_in_place_to_what_nobody_reads() -> None:
    """A copy would be as right, and slower."""
    _, codes = run_and_get_code(compiled(lambda x: accumulate_(x, x.new_ones(4))), torch.arange(4.0))
    (code,) = codes
    assert "accumulate_.default(arg" in code


def test_a_graph_without_inputs() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.arange(3)
        accumulate_(y, y.clone())
        return y

    assert compiled(f)(torch.ones(2)).tolist() == [0, 3, 6]


@pytest.mark.nightly
def test_a_part_of_what_is_joined_shown_as_another_dtype() -> None:
    """Inductor computes it where it is joined, and demands that it be aligned."""

    def shown(x: Tensor, show: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        total = x.sum(0, keepdim=True)
        joined = torch.cat((x[:1], total), 0)
        return show(total) * 2, joined + 1

    def f(x: Tensor) -> Any:
        as_complex = partial(torch.Tensor.view, dtype=torch.complex64)
        return shown(x, lambda y: y.view(torch.uint8)), shown(x, torch.view_as_complex), shown(x, as_complex)

    x = torch.randn(3, 2, requires_grad=True)
    torch.testing.assert_close(compiled(f)(x), f(x))


def test_functions_of_small_numbers() -> None:
    """Inductor's kernels for a CPU are as exact as 1 is."""

    def f(x: Tensor) -> list[Tensor]:
        functions = (
            x.erf(),
            x.expm1(),
            x.atanh(),
            x.erfinv(),
            *(g(x) for g in (nn.functional.elu, nn.functional.celu, nn.functional.selu)),
        )
        return [y * 2 for y in functions]

    x = torch.tensor([1e-30, -1e-12, 1e-8, -1e-4, 0.125, 0.99999994, -3.0, 0.0] * 4)
    torch.testing.assert_close(compiled(f)(x), f(x), rtol=1e-6, atol=0, equal_nan=True)


def test_what_is_given_as_out() -> None:
    """Decompositions of operations that are given `out=` do not take it."""

    def f(x: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.empty(2, 2)
        torch.mm(x, x, out=made)
        torch.add(x, made, alpha=2, out=given)
        return made, given

    x = torch.arange(4.0).reshape(2, 2)
    mine, eagers = torch.zeros(2, 2).t(), torch.zeros(2, 2).t()
    torch.testing.assert_close(compiled(f)(x, mine), f(x, eagers))
    torch.testing.assert_close(mine, eagers)


def test_complex_products_of_nothing() -> None:
    """Inductor views complex numbers as pairs of real ones, which must be dense."""
    x = torch.zeros(0, dtype=torch.complex64, requires_grad=True)
    product = compiled(lambda x: torch.outer(x, x))(x)
    product.backward(torch.zeros_like(product))
    assert product.shape == (0, 0) and x.grad is not None and x.grad.shape == (0,)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("grad", [False, True])
def test_complex_numbers_written_to_a_part_of_real_ones(grad: bool) -> None:
    """Inductor does not see that views of complex numbers are written to, and read them as bytes before."""

    def f(whole: Tensor, part: Tensor, x: Tensor) -> Tensor:
        part.put_(torch.arange(4), part.clone(), accumulate=True)
        return nn.functional.instance_norm(x).clone()

    x = torch.ones(2, 2, 2, 2, dtype=torch.float64, requires_grad=grad)
    mine, eagers = (torch.arange(16.0, dtype=torch.float64) for _ in range(2))
    for function, whole in ((compiled(f), mine), (f, eagers)):
        function(whole, torch.view_as_complex(whole.as_strided((4, 2), (4, 1))), x)
    assert torch.equal(mine, eagers)


@pytest.mark.nightly
def test_a_size_that_depends_on_known_values() -> None:
    """The second derivative of a trace asks which of the diagonal's places are the same."""

    def second(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def f(x: Tensor) -> Tensor:
        return torch.trace(x).exp()

    x = torch.arange(9.0).reshape(3, 3).div(8).requires_grad_()
    if torch.__version__ < (2, 12):
        with pytest.raises(errors.UnsupportedOperation, match="below Inductor"):
            second(compiled(f), x)
    else:
        torch.testing.assert_close(second(compiled(f), x), second(f, x))


@pytest.mark.nightly
def test_operations_made_of_others_that_take_symbols_in_python_alone() -> None:
    def f(x: Tensor) -> Tensor:
        return nn.functional.pad(x, (1, 1), mode="reflect").exp()

    dynamic = torch.compile(f, backend=aotfuzz_inductor, dynamic=True)
    for size in (4, 5):
        given, expected = (torch.arange(3.0 * size).reshape(3, size).requires_grad_() for _ in range(2))
        dynamic(given).sum().backward()
        f(expected).sum().backward()
        torch.testing.assert_close(given.grad, expected.grad)


def test_strides_of_what_runs_as_it_is_are_those_of_its_kernel() -> None:
    """Its meta kernel says otherwise: an index that is not in row-major order makes such a result."""

    def f(x: Tensor) -> Tensor:
        return x[x.t() % 3]

    x = torch.arange(9).reshape(3, 3)
    result = torch.compile(f, backend="aotfuzz_inductor")(x)
    assert torch.equal(result, f(x))
    assert result.stride() == f(x).stride() != torch.empty(3, 3, 3).stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_zeros_with_gaps_for_a_gradient_that_is_not_given(dtype: torch.dtype) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x.unsafe_split(2, 1)

    for call in (f, torch.compile(f, backend="aotfuzz_inductor")):
        x = torch.arange(18.0).reshape(2, 3, 3).to(dtype).requires_grad_()
        results = call((x * 1).as_strided((3, 3, 2), (1, 3, 9), 0))
        (gradient,) = torch.autograd.grad(results[1].abs().sum(), x)
        expected = torch.zeros(2, 3, 3, dtype=dtype)
        expected[:, 2, :] = torch.tensor(1.0, dtype=dtype)
        assert torch.equal(gradient, expected)


def _operands(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.arange(math.prod(shape)).reshape(shape).to(dtype) + 1 for shape in shapes]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize(
    "f",
    [
        lambda t, a, b: t.add(a @ b, alpha=2),
        lambda t, a, b: (a @ b).add(t, alpha=3),
        lambda t, a, b: t[0].add(a @ b, alpha=2),
        lambda t, a, b: (t + a @ b).add(a @ b, alpha=2),
        lambda t, a, b: t.sub(a @ b, alpha=2),
        lambda t, a, b: (
            torch.baddbmm(t[None], a[None], b[None], alpha=2, beta=3)
            if t.is_floating_point()
            else t.add(a @ b, alpha=2).abs()
        ),
    ],
)
def test_a_sum_with_a_product_keeps_its_alpha(f: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Inductor makes `addmm` of them."""
    args = _operands(dtype, (2, 3), (2, 4), (4, 3))
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="aotfuzz_inductor")
    torch.testing.assert_close(compiled(*args), f(*args))


def test_a_sum_of_two_dtypes_with_a_product_keeps_its_alpha() -> None:
    def f(t: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return t.add(a @ b, alpha=0.5)

    args = [*_operands(torch.float64, (2, 3)), *_operands(torch.int64, (2, 4), (4, 3))]
    torch._dynamo.reset()
    assert torch.equal(torch.compile(f, backend="aotfuzz_inductor")(*args), f(*args))
