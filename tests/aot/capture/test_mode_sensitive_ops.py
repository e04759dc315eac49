"""Operations for which ATen goes another way while a dispatch mode is on: the trace goes eager's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, prod
from torch.nn.functional import max_pool1d, one_hot

import aot
from tests.support.agreement import assert_agrees, checking_nop, leaf, values

pytestmark = pytest.mark.clause("values")

INF, NAN = math.inf, math.nan
Function = Callable[..., Any]


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit, and laid out alike."""
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, check_stride=True)


def both(function: Function) -> list[Function]:
    return [function, aot.aot_function(function, checking_nop)]


def differentiated(function: Function, of: Tensor, gradient: float = 1.0) -> Tensor:
    argument = of.detach().clone().requires_grad_()
    result = function(argument)
    (found,) = torch.autograd.grad(result, argument, torch.full_like(result, gradient))
    return found


SQUARE = torch.randn(17, 17, generator=torch.Generator().manual_seed(0))
HERMITIAN = torch.complex(SQUARE + SQUARE.t(), SQUARE - SQUARE.t())[:5, :5]
COMPLEX = torch.complex(SQUARE, SQUARE.t() * 2)[:5, :5]

of_singular_values = {
    "svdvals": torch.linalg.svdvals,
    "cond": torch.linalg.cond,
    "nuclear": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "spectral": lambda x: torch.linalg.matrix_norm(x, 2),
    "rank": torch.linalg.matrix_rank,
    "rank of hermitian": lambda x: torch.linalg.matrix_rank(x, hermitian=True),
    "pinv": torch.linalg.pinv,
    "eigvals": torch.linalg.eigvals,
    "eigvalsh": torch.linalg.eigvalsh,
    "svd without vectors": lambda x: torch.svd(x, compute_uv=False)[1],
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", of_singular_values)
def test_values_without_vectors_are_equal_to_the_last_bit(name: str, inference: bool, grad: bool) -> None:
    with torch.inference_mode(inference), torch.set_grad_enabled(grad):
        eager, compiled = (f(SQUARE.clone()) for f in both(of_singular_values[name]))
    assert_same(compiled, eager)


def test_with_a_gradient_there_are_vectors() -> None:
    eager, compiled = (differentiated(f, SQUARE) for f in both(lambda x: torch.linalg.svdvals(x).sum()))
    assert_same(compiled, eager)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: max_pool1d(x, 3, 2, 1),
        lambda x: torch.nn.MaxPool1d(2)(x.transpose(0, 1)),
        lambda x: max_pool1d(x, 2).unsqueeze(0),
    ],
)
def test_a_pooled_tensor_is_no_view(function: Function, inference: bool) -> None:
    with torch.inference_mode(inference):
        assert_agrees(function, lambda: (values(6, 8),), grad=False)
    assert_agrees(function, lambda: (values(6, 8).requires_grad_(),))


@pytest.mark.parametrize("given", [[1, 4], [-1, 4], [1, 5], []])
def test_one_hot_under_any_name(given: list[int]) -> None:
    def f(x: Tensor) -> Tensor:
        return one_hot(x, 5)

    raises = RuntimeError if set(given) & {-1, 5} else None
    assert_agrees(f, lambda: (torch.tensor(given, dtype=torch.int64),), raises=raises)


def test_without_a_number_of_classes_one_hot_counts_them_at_each_call() -> None:
    compiled = aot.aot_function(lambda x: one_hot(x), checking_nop)  # noqa: PLW0108
    for classes in ([1, 4], [0, 2], [3, 0]):
        x = torch.tensor(classes)
        assert torch.equal(compiled(x), one_hot(x))


products: dict[str, Function] = {
    "all": lambda x: x.prod(),
    "imported": lambda x: prod(x),  # noqa: PLW0108
    "passed on": lambda x: next(map(torch.prod, [x])),
    "along": lambda x: torch.prod(x, 1),
    "along, keeping": lambda x: x.prod(-2, keepdim=True),
    "of another dtype": lambda x: x.prod(dtype=torch.float64),
}
rows = {
    "plain": [[1.0, 2, 3], [4, 5, 6]],
    "a zero": [[1.0, 0, 3], [4, 5, 6]],
    "zeros and infinity": [[1.0, 0, 0], [4, 5, INF]],
    "infinity": [[1.0, INF, 3], [4, 5, 6]],
    "a zero and infinity": [[1.0, INF, 0], [4, 5, 6]],
    "nan": [[1.0, NAN, 3], [4, 5, 6]],
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("row", rows)
@pytest.mark.parametrize("product", products)
def test_the_gradient_of_a_product(product: str, row: str, transposed: bool) -> None:
    of = torch.tensor(rows[row]).t() if transposed else torch.tensor(rows[row])
    eager, compiled = (differentiated(f, of) for f in both(products[product]))
    # (Where there are zeros, its layout is another one in eager.)
    torch.testing.assert_close(
        compiled, eager, rtol=0, atol=0, equal_nan=True, check_stride=not (of == 0).any()
    )


@pytest.mark.parametrize("row", rows)
@pytest.mark.parametrize("product", products)
def test_the_gradient_of_the_gradient_of_a_product(product: str, row: str) -> None:
    found = []
    for f in both(products[product]):
        x = torch.tensor(rows[row], requires_grad=True)
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        weights = torch.arange(1.0, 7).reshape(2, 3)
        (second,) = torch.autograd.grad((first * weights).sum(), x)
        found.append((first.detach(), second))
    assert_same(*found)


@pytest.mark.parametrize(
    "f",
    [lambda x: x.prod(1), lambda x: torch.prod(x[:, :1]), lambda x: (x * 1).cumprod_(0)],
)
@pytest.mark.parametrize("value", [0.0, 2.0])
def test_where_values_decide_what_is_differentiated_further(f: Function, value: float) -> None:
    x = torch.tensor([[value]], requires_grad=True)
    compiled = aot.aot_function(f, checking_nop)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
    assert gradient == 1
    with pytest.raises(aot.errors.DoubleBackwardUnsupported, match="zeros"):
        torch.autograd.grad(compiled(x).sum(), x, create_graph=True)


cumulated: dict[str, Function] = {
    "along": lambda x: x.cumprod(1),
    "down": lambda x: torch.cumprod(x, 0),
    "of another dtype": lambda x: x.cumprod(1, dtype=torch.float64),
    "transposed": lambda x: x.t().cumprod(-1).sin(),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("row", rows)
@pytest.mark.parametrize("f", cumulated)
def test_the_gradients_of_cumulated_products(f: str, row: str, create_graph: bool) -> None:
    found = []
    raised = []
    for function in both(cumulated[f]):
        x = torch.tensor(rows[row], requires_grad=True)
        weights = torch.arange(1.0, 7).reshape(2, 3)
        result = function(x)
        loss = (result * weights.reshape(result.shape)).sum()
        try:
            (first,) = torch.autograd.grad(loss, x, create_graph=create_graph)
        except RuntimeError as error:  # torch 2.11, of zeros and another dtype
            raised.append(str(error))
            continue
        found.append([first.detach()])
        if create_graph:
            found[-1] += torch.autograd.grad((first * weights).sum(), x)
    if raised:
        assert len(raised) == 2 and raised[0] == raised[1]
    else:
        torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("gradient", [1.0, -1.0, INF])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("row", rows)
@pytest.mark.parametrize("choice", [torch.max, torch.min, torch.median, torch.nanmedian])
def test_the_gradient_of_a_chosen_element(
    choice: Function, row: str, transposed: bool, gradient: float
) -> None:
    of = torch.tensor(rows[row]).t() if transposed else torch.tensor(rows[row])
    eager, compiled = (differentiated(f, of, gradient) for f in both(choice))
    assert_same(compiled, eager)
    assert torch.equal(compiled.signbit(), eager.signbit())


@pytest.mark.parametrize("function", [torch.nn.functional.silu, torch.nn.functional.mish])
def test_a_kernel_of_its_own_is_not_taken_apart(function: Function) -> None:
    eager, compiled = (differentiated(f, SQUARE, 0.7) for f in both(function))
    assert_same(compiled, eager)


decompositions: dict[str, tuple[Function, Tensor]] = {
    "eig": (torch.linalg.eig, COMPLEX),
    "eig of real": (torch.linalg.eig, SQUARE[:5, :5]),
    "eigh": (torch.linalg.eigh, HERMITIAN),
    "svd": (torch.linalg.svd, COMPLEX),
    "svd of a wide one": (lambda x: torch.linalg.svd(x, full_matrices=False), COMPLEX[:3]),
}
losses: dict[str, tuple[Function, bool]] = {
    "values": (lambda *parts: sum(p.abs().sum() for p in parts if p.dim() == 1), True),
    "absolute": (lambda *parts: sum(p.abs().pow(3).sum() for p in parts), True),
    "phases of the first": (lambda *parts: next(p for p in parts if p.dim() == 2).real.sum(), False),
    "phases of the last": (lambda *parts: parts[-1].real.sum(), False),
}


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("loss", losses)
@pytest.mark.parametrize("name", decompositions)
def test_a_loss_that_depends_on_phases_is_an_error(name: str, loss: str, twice: bool) -> None:
    decompose, of = decompositions[name]
    measure, defined = losses[loss]
    found: list[Any] = []

    def decompose_and_measure(x: Tensor) -> Tensor:
        result: Tensor = measure(*decompose(x))
        return result

    for f in both(decompose_and_measure):
        x = of.clone().requires_grad_()
        y = f(x)
        if f is not decompose_and_measure and name == "eigh" and loss == "absolute" and twice:
            with pytest.raises(aot.errors.DoubleBackwardUnsupported, match="both values and vectors"):
                torch.autograd.grad(y, x, create_graph=True)
            return
        if defined:
            (first,) = torch.autograd.grad(y, x, create_graph=twice)
            second = torch.autograd.grad(first.abs().sum(), x)[0] if twice else None
            found.append((first.detach(), second))
        else:
            with pytest.raises(RuntimeError, match=r"by e\^\{i phi\}"):
                torch.autograd.grad(y, x, create_graph=twice)
    if defined:
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_a_loss_of_both_sides_may_turn_them_together() -> None:
    def f(x: Tensor) -> Tensor:
        left, values, right = torch.linalg.svd(x)
        return (left[:, :1] @ right[:1] * values[0]).real.sum()

    eager, compiled = (differentiated(g, COMPLEX) for g in both(f))
    torch.testing.assert_close(compiled, eager)


@pytest.mark.parametrize(
    "function",
    [torch.vmap(torch.prod), torch.vmap(torch.linalg.svdvals), torch.func.grad(lambda x: x.prod())],
)
def test_transforms_come_first(function: Function) -> None:
    eager, compiled = (f(torch.eye(3).expand(2, 3, 3)) for f in both(function))
    assert_same(compiled, eager)


def test_autocast_comes_first() -> None:
    def f(x: Tensor) -> Any:
        with torch.autocast("cpu"):
            return torch.linalg.svdvals(x), x.prod(), torch.linalg.eigvalsh(x)

    eager, compiled = (g(SQUARE.bfloat16()) for g in both(f))
    assert_same(compiled, eager)


def test_other_threads_and_later_calls_are_as_ever() -> None:
    seen = []
    compiled = aot.aot_function(lambda x: x.prod(), checking_nop)
    x = values(3).requires_grad_()
    compiled(x)
    seen.append(type(x.prod().grad_fn).__name__)
    assert seen == ["ProdBackward0"]


def test_what_a_traceback_of_a_derivative_holds_can_be_looked_at() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.stack([part.abs().pow(3).sum() for part in torch.linalg.eigh(x)])

    x = HERMITIAN.clone().requires_grad_()
    y = aot.aot_function(f, checking_nop)(x)
    with pytest.raises(aot.errors.DoubleBackwardUnsupported) as raised:
        torch.autograd.grad(y.sum(), x, create_graph=True)
    place = raised.value.__traceback__
    looked_at = 0
    while place is not None:
        for value in list(place.tb_frame.f_locals.values()):
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, Tensor):
                    looked_at += 1
                    with contextlib.suppress(aot.errors.EscapedTensor):
                        repr(tensor)
        place = place.tb_next
    assert looked_at


@pytest.mark.parametrize("name", ["max", "min", "prod", "cumprod"])
def test_what_is_detached_in_place_after_the_operation_has_kept_it_is_not_given_back(name: str) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.cumprod(0) if name == "cumprod" else getattr(x, name)()
        x.detach_()
        return y

    for function in both(f):
        x = values(3).requires_grad_() * 1
        with pytest.raises(RuntimeError, match="has been detached in-place"):
            function(x).sum().backward()
        x = values(3).requires_grad_()
        function(x).sum().backward()
        assert x.grad is None


@pytest.mark.parametrize("name", ["max", "min", "prod", "cumprod"])
def test_an_argument_of_the_operation_that_is_multiplied_by_its_result_counts_as_written(name: str) -> None:
    def f(x: Tensor) -> None:
        x.mul_(x.cumprod(0) if name == "cumprod" else getattr(x, name)())

    written = []
    for function in both(f):
        x = values(3).requires_grad_() * 1
        function(x)
        written.append(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            x.sum().backward()
    assert_same(*written)


@pytest.mark.parametrize(
    "op", [torch.prod, torch.max, torch.min, torch.median, lambda x: x.prod(0), lambda x: x.cumprod(0)]
)
def test_no_gradient_comes_of_none(op: Callable[[Tensor], Tensor]) -> None:
    """Of two results with one node the other is differentiated: nothing comes to the operation."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch._foreach_neg([y, op(x)])[0]

    for function in (f, aot.aot_function(f, aot.nop)):
        x = leaf(4)
        result = function(x, torch.ones(2))
        assert torch.autograd.grad(result.sum(), x, allow_unused=True) == (None,)
