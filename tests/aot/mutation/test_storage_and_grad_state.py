"""What a function changes about its arguments besides their data: storage, size, requires_grad, history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import assert_agrees, leaf, non_leaf, values

pytestmark = pytest.mark.clause("input-metadata", "autograd-metadata")


def _assign(x: Tensor, y: Tensor) -> None:
    x.data = y


def _without_grad(change: Callable[..., Any]) -> Callable[..., None]:
    def f(*tensors: Tensor) -> None:
        with torch.no_grad():
            change(*tensors)

    return f


CHANGES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "resize_ to fewer": lambda x, y: x.resize_(2),
    "resize_ to more, then filled": lambda x, y: x.resize_(3, 3).fill_(2),
    "resize_as_": lambda x, y: x.resize_as_(y).zero_(),
    "set_ to an argument": lambda x, y: x.set_(y),
    "set_ to a part of an argument": lambda x, y: x.set_(y.untyped_storage(), 1, (2, 2), (2, 1)),
    "set_ to a result": lambda x, y: x.set_(y * 2),
    "set_ to nothing": lambda x, y: x.set_(),
    ".data = an argument": _assign,
    ".data = a result": lambda x, y: _assign(x, y * 2),
    "requires_grad_": lambda x, y: x.requires_grad_(),
}


@pytest.mark.parametrize("change", CHANGES)
class TestChange:
    def test_alone(self, change: str) -> None:
        def f(x: Tensor, y: Tensor) -> Tensor:
            CHANGES[change](x, y)
            return y + 1

        assert_agrees(f, lambda: [values(4), values(6)])

    def test_after_a_write(self, change: str) -> None:
        def f(x: Tensor, y: Tensor) -> Tensor:
            x.mul_(2)
            CHANGES[change](x, y)
            return x.sum() + y.sum()

        assert_agrees(f, lambda: [values(4), values(6)])

    def test_before_a_write(self, change: str) -> None:
        def f(x: Tensor, y: Tensor) -> Tensor:
            CHANGES[change](x, y)
            with torch.no_grad():
                x.add_(3)
            return x * 1

        assert_agrees(f, lambda: [values(4), values(6)])

    def test_beside_an_alias(self, change: str) -> None:
        def f(x: Tensor, y: Tensor, alias: Tensor) -> tuple[Tensor, Tensor]:
            alias.add_(1)
            CHANGES[change](x, y)
            return alias * 1, x.detach()

        assert_agrees(f, lambda: [x := values(4), values(6), x.data[1:]])


@pytest.mark.parametrize("make", [leaf, non_leaf], ids=["leaf", "non_leaf"])
def test_data_of_a_tensor_with_a_history_is_exchanged(make: Callable[..., Tensor]) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        before = x * 2
        x.data = y.detach()
        return before + x.sum()

    assert_agrees(f, lambda: [make(4), values(6)[:4]])


def test_a_history_is_cut_off() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        before = x * 2
        x.detach_()
        return before, x * 3

    assert_agrees(f, lambda: [non_leaf(4)])


def test_a_leaf_no_longer_requires_grad() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        before = x * 2
        x.requires_grad_(False)
        return before, x * 3

    assert_agrees(f, lambda: [leaf(4)])


def test_a_result_is_a_leaf() -> None:
    assert_agrees(lambda x: (x * 2).requires_grad_(), lambda: [values(4)])


def _first(x: Tensor) -> Tensor:
    return x[:1]


def _product(x: Tensor) -> Tensor:
    return (x * 2)[:1]


def _of_view(x: Tensor) -> Tensor:
    return x[:1][:, :2]


def _one_of_many(x: Tensor) -> Tensor:
    return x.unbind(1)[0]


@pytest.mark.parametrize("take", [_first, _product, _of_view, _one_of_many])
@pytest.mark.parametrize("made", [leaf, non_leaf])
def test_a_view_of_what_requires_grad_is_made_a_leaf(
    made: Callable[..., Tensor], take: Callable[[Tensor], Tensor]
) -> None:
    """Taken without grad mode it says at once that it requires grad, and does once it has been asked to."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            view, other = take(x), take(x)
        return view.requires_grad_(), other

    assert_agrees(f, lambda: [made(2, 3)])
    for function in (f, aot.aot_function(f, aot.nop)):
        view, _ = function(made(2, 3))
        view.sum().backward()
        assert torch.equal(view.grad, torch.ones_like(view))


def test_elements_that_no_argument_shows_are_written() -> None:
    def f(x: Tensor) -> Tensor:
        x.as_strided((6,), (1,)).mul_(2)
        return x * 2

    assert_agrees(f, lambda: [values(6)[:3]])


def test_an_empty_argument_grows_through_a_view_that_is_written_in_grad_mode() -> None:
    def f(x: Tensor, empty: Tensor) -> None:
        view = empty.view_as(empty)
        view.resize_((2,))
        view.fill_(3)
        view.mul_(x)

    assert_agrees(f, lambda: [non_leaf(2), torch.zeros(0, 2)], backward_raises=True)


@pytest.mark.parametrize("detach", [lambda x: x.detach_(), torch.detach_], ids=["method", "torch"])
@pytest.mark.parametrize("base_requires_grad", [False, True])
def test_a_leaf_that_is_a_view_is_not_detached_in_place(
    detach: Callable[..., Any], base_requires_grad: bool
) -> None:
    def make() -> list[Tensor]:
        base = values(4)
        x = base[1:].requires_grad_()
        base.requires_grad_(base_requires_grad)
        return [x]

    assert_agrees(detach, make, raises=RuntimeError)


@pytest.mark.parametrize("put", [lambda y, x: y.set_(x), lambda y, x: setattr(y, "data", x.detach())])
@pytest.mark.parametrize("order", [1, -1])
def test_results_that_share_a_counter_and_no_memory_are_refused(
    put: Callable[[Tensor, Tensor], Any], order: int
) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        alias = y.detach()
        put(y, x)
        return (y, alias)[::order]

    def of_an_argument(x: Tensor) -> Tensor:
        alias = x.detach()
        put(alias, x * 2)
        return alias

    for function in (f, of_an_argument):
        x = values(3)
        with pytest.raises(aot.errors.StorageMutation, match="shares its version counter"):
            aot.aot_function(function, aot.nop)(x)
        assert torch.equal(x, values(3))
