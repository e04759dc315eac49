"""What a part of a backward checks before it runs, and what leads nowhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import aot
from tests.support.agreement import assert_same_story, checking_nop, leaf

pytestmark = pytest.mark.clause("versions", "gradients")

Function = Callable[..., Any]


def _read_in_vain(x: Tensor, view: Tensor) -> tuple[Tensor, Tensor]:
    seen = view * 2
    return x * torch.nn.functional.logsigmoid(seen), seen


def _written_in_vain(x: Tensor, view: Tensor) -> tuple[Tensor, Tensor]:
    seen = view * 2
    other = x * 3
    other[0].mul_(seen[0])
    return other, seen


@pytest.mark.parametrize("how", ["some", "all", "accumulate"])
@pytest.mark.parametrize("f", [_read_in_vain, _written_in_vain])
def test_what_leads_nowhere_is_checked_where_it_runs(f: Callable[..., Any], how: str) -> None:
    """A view of a leaf that was taken without grad mode requires grad, and leads nowhere. A backward that is
    asked for some gradients does not run what comes from it, and one that accumulates does."""

    def story(function: Callable[..., Any]) -> Any:
        x = leaf(2, 2)
        with torch.no_grad():
            view = x.as_strided((2, 2), (1, 2))
        result, seen = function(x, view)
        with torch.no_grad():
            seen.mul_(2)
        if how == "accumulate":
            result.sum().backward()
            return x.grad, view.grad
        wanted = [x] if how == "some" else [x, view]
        return torch.autograd.grad(result.sum(), wanted, allow_unused=True)

    assert_same_story(f, story)


def _below_one_node(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    x, y = a.sin(), b.exp()
    return (*torch._foreach_neg([x, y]), y)


def _above_that(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    x, y = a.sin(), b.exp()
    u, v = torch._foreach_neg([x, y])
    return u.exp(), v.exp(), y


def _of_one_node(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    x = a * b
    return tuple(torch._foreach_exp([x, x]))


def _apart(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    x, y = a.exp(), b.exp()
    return x, y, x * y


@pytest.mark.parametrize("function", [_below_one_node, _above_that, _of_one_node, _apart])
def test_a_write_is_noticed_wherever_a_node_runs(function: Function) -> None:
    """Also below results that no gradient comes to: autograd runs all that leads on from a node."""
    count = len(function(leaf(3), leaf(3)))
    raised = set()
    for written, root in itertools.product(range(count), range(count)):
        told = []
        for f in (function, aot.aot_function(function, aot.nop)):
            given = (leaf(3), leaf(3))
            results = f(*given)
            with torch.no_grad():
                results[written].mul_(2)
            try:
                results[root].sum().backward()
                told.append([x.grad for x in given])
            except RuntimeError as error:
                told.append(str(error).split(":")[0])
        raised.add(isinstance(told[0], str))
        assert isinstance(told[0], str) == isinstance(told[1], str), (written, root)
        if isinstance(told[0], list):
            pairs = zip(told[0], told[1], strict=True)
            assert all((x is None) == (y is None) and (x is None or torch.equal(x, y)) for x, y in pairs)
    assert True in raised


def _products(*given: Tensor) -> list[Tensor]:
    return torch._foreach_mul(given[:2], given[2:])


def _one_exponential(*given: Tensor) -> list[Tensor]:
    return [torch._foreach_exp([given[0], given[0]])[1]]


def _powers(*given: Tensor) -> list[Tensor]:
    return torch._foreach_pow(given[:2], given[2:])


def _negatives(*given: Tensor) -> list[Tensor]:
    return torch._foreach_neg(given[:2])


@pytest.mark.parametrize("grads", [(0,), (1, 2), (3,), (0, 1, 2, 3)])
@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("function", [_products, _one_exponential, _powers, _negatives])
def test_operators_on_lists_check_all_that_they_keep(
    function: Callable[..., Any], idle: bool, grads: tuple[int, ...]
) -> None:
    """Whatever is needed of it, and where nothing is: a view of a leaf taken without grad leads nowhere."""

    def story(f: Callable[..., Any], written: int | None) -> Any:
        given = [torch.arange(1.0, 4.0) + i for i in range(4)]
        for i in grads:
            given[i].requires_grad_()
        with torch.no_grad():
            shown = [x.as_strided((3,), (1,)) for x in given] if idle else given
        results = f(*shown)
        with torch.no_grad():
            if written is not None:
                [*shown, results[0]][written].mul_(2)
        try:
            results[-1].sum().backward()
            if written is None:
                results[0].sum().backward()
        except RuntimeError as error:
            return str(error)[:60]
        return [None if x.grad is None else x.grad.tolist() for x in given]

    compiled = aot.aot_function(function, checking_nop)
    for written in (None, *range(5)):
        assert story(compiled, written) == story(function, written), written


def _written_before_and_after(a: Tensor, b: Tensor) -> list[Tensor]:
    a.mul_(2)
    results = torch._foreach_neg([b, a])
    a.mul_(2)
    return results


def _in_a_sum(a: Tensor, b: Tensor) -> list[Tensor]:
    results = torch._foreach_neg([b, a.as_strided((0,), (1,))])
    return [results[0] + a.sum(), results[1]]


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("function", [_written_before_and_after, _in_a_sum])
def test_gradients_without_elements_are_missing_too(function: Callable[..., Any], count: int) -> None:
    """The formula of a view without elements makes zeros, which depend on no gradient in the graph."""

    def story(f: Callable[..., Any]) -> list[Any]:
        whole = torch.ones(count, requires_grad=True)
        view = (whole * 1).as_strided((count,), (1,))
        results = f(view, torch.ones(count, requires_grad=True))
        found = []
        for result in results:
            (gradient,) = torch.autograd.grad(result.sum(), whole, retain_graph=True, allow_unused=True)
            found.append(None if gradient is None else gradient.tolist())
        return found

    assert_same_story(function, story)


def test_zeros_that_no_sum_shows_are_a_gradient() -> None:
    """The formula of `sgn` makes zeros that ATen leaves out of a sum."""

    def function(a: Tensor) -> list[Tensor]:
        return torch._foreach_exp([a, a.sgn()])

    def story(f: Callable[..., Any]) -> list[Any]:
        a = torch.ones(2, requires_grad=True)
        results = f(a)
        found = []
        for chosen in ((0,), (1,), (0, 1)):
            (gradient,) = torch.autograd.grad(
                [results[i].sum() for i in chosen], a, retain_graph=True, allow_unused=True
            )
            found.append(None if gradient is None else gradient.tolist())
        return found

    assert_same_story(function, story)


@pytest.mark.parametrize("returned", ["one", "both", "both, and what counts for the written one"])
def test_a_write_to_a_view_checks_nothing_where_no_gradient_comes(returned: str) -> None:
    def function(a: Tensor) -> list[Tensor]:
        a = a.clone() if "counts" in returned else a
        view = a[...]
        view.exp_()
        results = torch._foreach_neg([view.detach(), view])
        return [a.detach() if "counts" in returned else a, *results[: 1 if returned == "one" else 2]]

    def story(f: Callable[..., Any]) -> list[Any]:
        found: list[Any] = []
        for one in range(1, 2 if returned == "one" else 3):
            whole = torch.ones(2, requires_grad=True)
            results = f(whole * 1)
            with torch.no_grad():
                results[0].mul_(2)
            try:
                found += torch.autograd.grad(results[one].sum(), whole, allow_unused=True)
            except RuntimeError as error:
                found.append("modified by an inplace operation" in str(error))
        return found

    assert_same_story(function, story)


@pytest.mark.parametrize("number", [2.0, 2, 2j])
def test_zeros_without_memory_take_the_dtype_of_a_number(number: complex) -> None:
    def function(a: Tensor) -> Tensor:
        total = a.sum()
        # The derivative of `sgn` begins with such zeros. Of no dimensions, they become what the number is.
        total.register_hook(lambda gradient: gradient * number)
        return total.sgn()

    def story(f: Callable[..., Any]) -> list[Any]:
        a = torch.ones(2, requires_grad=True)
        try:
            return list(torch.autograd.grad(f(a), a))
        except RuntimeError as error:
            return ["has changed the type of value" in str(error)]

    assert_same_story(function, story)


def test_others_are_added_to_zeros_without_memory() -> None:
    """Where a part of the backward is entered, the one part above brings such zeros and another does not."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        part = x[1:2]
        return part * x, part.sgn()

    def story(function: Function) -> Any:
        x = leaf(3)
        results = function(x)
        return torch.autograd.grad([r.sum() for r in results], x)

    assert_same_story(f, story)


def test_what_a_list_keeps_is_checked_beside_a_checkpoint() -> None:
    """The hooks of which do not stand before other nodes."""

    def function(a: Tensor) -> list[Tensor]:
        first, second = torch._foreach_exp([a, a])
        third, _ = torch._foreach_neg([a, second])
        return [first, third, checkpoint(lambda b: b * b, a, use_reentrant=False)]

    def story(f: Callable[..., Any]) -> list[Any]:
        found: list[Any] = []
        for one in range(3):
            a = torch.ones(2, requires_grad=True)
            results = f(a * 1)
            with torch.no_grad():
                results[0].mul_(2)
            try:
                found += torch.autograd.grad(results[one].sum(), a)
            except RuntimeError as error:
                found.append("modified by an inplace operation" in str(error))
        return found

    assert_same_story(function, story)


def test_a_complex_gradient_comes_to_a_value_that_leads_nowhere() -> None:
    def function(a: Tensor) -> list[Tensor]:
        first, second = torch._foreach_sin([a, a])
        return [first, second.masked_fill(second.logical_not(), 2.0)]

    def story(f: Callable[..., Any]) -> list[Any]:
        base = torch.ones(2, dtype=torch.complex64, requires_grad=True)
        with torch.no_grad():
            a = base[:]
        results = f(a)
        torch.autograd.backward(results, [torch.ones_like(one) for one in results])
        return [base.grad, *(one.requires_grad for one in results)]

    assert_same_story(function, story)


def test_a_write_to_a_view_does_not_ask_for_what_was_freed_where_no_gradient_comes() -> None:
    def function(a: Tensor) -> list[Tensor]:
        view = a[...]
        view.exp_()
        return [torch._foreach_neg([view.detach(), view])[0], view.neg()]

    def story(f: Callable[..., Any]) -> list[Any]:
        whole = torch.ones(2, requires_grad=True)
        without, through = f(whole.clone())
        found = list(torch.autograd.grad(through.sum(), whole))  # which frees what the write has kept
        found += torch.autograd.grad(without.sum(), whole, allow_unused=True)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(through.sum(), whole)
        return found

    assert_same_story(function, story)


@pytest.mark.parametrize("first", [0, 1])
def test_backwards_that_meet_and_lead_nowhere_free_what_they_share(first: int) -> None:
    """A view that was taken of a leaf without grad mode requires grad, and no gradient goes on from it."""

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.sin()
        return y + 1, y.sum(), x * 3

    def told(f: Function) -> list[bool]:
        root = leaf(2, 3)
        with torch.no_grad():
            view = root[0]
        results = f(view)
        told = []
        for one in (results[first], results[1 - first], results[2]):
            try:
                one.backward(torch.ones_like(one))
            except RuntimeError as error:
                told.append("second time" in str(error))
            else:
                told.append(False)
        assert root.grad is None
        return told

    assert told(f) == [False, True, False]
    assert told(aot.aot_function(f, fw_compiler=checking_nop)) == [False, True, False]
