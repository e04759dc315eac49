"""Functions that make wrapper subclasses of plain tensors, and take wrapper subclasses apart."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from tests.support.agreement import assert_agrees, both, leaf, non_leaf, values


class Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return TwoTensor(x.detach(), x * 2)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return gradient.a + 2 * gradient.b


class Unwrap(torch.autograd.Function):
    """The first part, itself, with a history of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.a.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return TwoTensor(gradient, torch.zeros_like(gradient))


class Itself(torch.autograd.Function):
    """Another tensor on the same memory that is no view for autograd, and shares the version counter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return gradient * 3


def wrapped(x: Tensor) -> Any:
    return Wrap.apply(x)


def unwrapped(x: Any) -> Any:
    return Unwrap.apply(x)


def _part_first(x: Tensor) -> Any:
    whole = wrapped(x) * 2
    return unwrapped(whole), whole


def _whole_first(x: Tensor) -> Any:
    return _part_first(x)[::-1]


def _part_written(x: Tensor) -> Any:
    whole = wrapped(x * 2)
    part = unwrapped(whole)
    part.tanh_()
    return whole, part, x


def _whole_written(x: Tensor) -> Any:
    part = x * 2
    whole = wrapped(part)
    whole.tanh_()
    return part, whole


def _view_of_a_part(x: Tensor) -> Any:
    whole = wrapped(x) * 2
    part = unwrapped(whole)
    return part.t(), whole.t(), part


def _part_of_a_view(x: Tensor) -> Any:
    whole = wrapped(x) * 2
    return unwrapped(whole.t()), whole


def _part_of_an_argument(x: Tensor) -> Any:
    whole = wrapped(x)
    part = unwrapped(whole)
    part.mul_(2)
    return part, whole, x.sin()


def _without_grad(x: Tensor) -> Any:
    with torch.no_grad():
        whole = wrapped(x)
    whole.mul_(2)
    return unwrapped(whole), whole


FUNCTIONS = {
    f.__name__[1:].replace("_", " "): f
    for f in (
        _part_first,
        _whole_first,
        _part_written,
        _whole_written,
        _view_of_a_part,
        _part_of_a_view,
        _part_of_an_argument,
        _without_grad,
    )
}


@pytest.mark.parametrize("make", [leaf, non_leaf, values])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_like_eager(name: str, make: Callable[..., Tensor]) -> None:
    assert_agrees(FUNCTIONS[name], lambda: [make(2, 3)])


def _tied(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return Itself.apply(y), y  # type: ignore[no-any-return]


def _tied_in_a_larger_one(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x.expand(2, 3) * 2)[0].detach()
    y.mul_(x)
    return Itself.apply(y), y  # type: ignore[no-any-return]


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("f", [_tied, lambda x: _tied(x)[::-1], _tied_in_a_larger_one])
def test_results_on_one_memory_share_a_counter(f: Callable[[Tensor], Any], kept: int) -> None:
    """What a backward keeps of the one is found changed where the other is written to."""
    for function in both(f):
        results = function(non_leaf(3))
        loss = (results[kept] * results[kept]).sum()
        with torch.no_grad():
            results[1 - kept].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_what_is_a_view_for_nobody_is_written_to() -> None:
    """A view as integers of one of several views, which autograd does not let anybody use from then on."""

    def f(x: Tensor) -> None:
        x.view(torch.int16).add_(1)

    for function in both(f):
        x = wrapped(leaf(2, 4)).chunk(2)[0]
        function(x)
        assert x._version == 1
        with pytest.raises(RuntimeError, match="is a view and its base"):
            x.sin()


def _tied_to_what_is_kept(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return Itself.apply(y), y  # type: ignore[no-any-return]


def _tied_to_what_a_graph_keeps(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.cumprod(0)
    return Itself.apply(y), y  # type: ignore[no-any-return]


@pytest.mark.parametrize("picked", [0, 1])
@pytest.mark.parametrize("f", [_tied, _tied_to_what_is_kept, _tied_to_what_a_graph_keeps])
def test_a_result_that_an_earlier_node_keeps_does_not_keep_itself_alive(
    f: Callable[[Tensor], Any], picked: int
) -> None:
    for function in both(f):
        x = non_leaf(3)
        results = function(x)
        torch.autograd.grad(results[picked].sum(), x, retain_graph=True)
        memory = weakref.ref(x.untyped_storage()), weakref.ref(results[0].untyped_storage())
        del x, results
        gc.collect()
        assert [one() for one in memory] == [None, None]


def _tied_parts_of_an_argument(x: Tensor) -> tuple[Tensor, ...]:
    first, _ = x.unsafe_chunk(2)
    return Itself.apply(first), first, first.detach(), Itself.apply(first)


def _tied_and_wrapped(x: Tensor) -> tuple[Any, ...]:
    first, _ = x.unsafe_chunk(2)
    whole = InPlace.apply(first)
    return unwrapped(whole), whole, Itself.apply(first)


class InPlace(torch.autograd.Function):
    """A wrapper of the tensor itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return TwoTensor(x.detach(), x.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return gradient.a + gradient.b


@pytest.mark.parametrize("f", [_tied_parts_of_an_argument, _tied_and_wrapped])
def test_results_on_the_memory_of_an_argument_share_a_counter_of_their_own(f: Callable[..., Any]) -> None:
    assert_agrees(f, lambda: [non_leaf(4)])
    for function in both(f):
        x = non_leaf(4)
        results = [one for one in function(x) if type(one) is Tensor]
        before = [one._version for one in results]
        with torch.no_grad():
            results[0].mul_(2)
        assert [one._version for one in results] == [version + 1 for version in before]
        assert x._version == 0
        results[-1].sum().backward()


def test_a_view_as_integers_counts_with_what_it_shows() -> None:
    """Autograd knows no derivative of it, and has it detached at once."""
    for function in both(lambda x: x.view(torch.int16)):
        x = TwoTensor(values(2, 2), values(2, 2))
        shown = function(x)
        assert not shown._is_view()
        x.mul_(2)
        assert (x._version, shown._version) == (1, 1)


def test_what_is_kept_after_a_write_through_an_alias_is_not_found_changed() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.outer(x, x)
        shown = y.view(torch.int16)[...]
        shown.tril_(-1)
        return y.sinh(), y, shown

    assert_agrees(f, lambda: [non_leaf(2)])
    for function in both(f):
        x = non_leaf(2)
        result = function(x)[0]
        torch.autograd.grad(result.sum(), x)
