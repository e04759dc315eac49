"""The backward in parts: results that are differentiated one by one, through each other, and with respect to
each other, as in eager's graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import assert_same_story, checking_nop, leaf, non_leaf, values

pytestmark = pytest.mark.clause("gradients")

Function = Callable[..., Any]


def _chain(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * w
    z = y.sin()
    return y, z * 2, (z + x).exp()


def _views(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = (x * w).view(3, 1)
    return y, y.t().sin(), x[1:] * 2


def _view_of_an_argument(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x[1:]
    return y, y * w[1:], (y + x[:2]).sin()


def _written(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 3
    x.mul_(w)
    z = x * y
    return z, x.sin(), x[:2]


def _written_twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x.mul_(w)
    y = x * 2
    x.mul_(y)
    return y, x, x * y


def _written_through_a_view(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    part = x[1:]
    part.mul_(w[1:])
    return part, x * 2, part.sin()


def _views_of_views(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x.expand(2, 3)
    z = (x * w).view(3, 1)
    return y.narrow(1, 1, 2), y, z[1:], z.squeeze()[1:].sin(), z, y.t()[0] * w[0]


def _one_node(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    first, second, third = (x * w).unbind()
    return first * 1, second * first, third.sin() + second


def _in_an_order_of_its_own(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    part = x[1]
    part.mul_(w[0])
    y = x + part * 0.5
    return y, x[0], y.exp()


PROGRAMS: list[Function] = [
    _chain,
    _views,
    _view_of_an_argument,
    _written,
    _written_twice,
    _written_through_a_view,
    _views_of_views,
    _one_node,
    _in_an_order_of_its_own,
]


def _made() -> tuple[Tensor, Tensor]:
    return non_leaf(3), leaf(3, start=3)


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("of", range(3))
@pytest.mark.parametrize("to", range(3))
def test_the_gradient_of_one_result_with_respect_to_another(f: Function, of: int, to: int) -> None:
    def story(function: Function) -> Any:
        results = function(*_made())
        return torch.autograd.grad(results[of].sum(), results[to], allow_unused=True)

    assert_same_story(f, story)


@pytest.mark.parametrize("f", PROGRAMS)
def test_a_gradient_with_respect_to_a_written_argument(f: Function) -> None:
    def story(function: Function) -> Any:
        x, w = _made()
        results = function(x, w)
        return [torch.autograd.grad(r.sum(), [x, w], allow_unused=True, retain_graph=True) for r in results]

    assert_same_story(f, story)


@pytest.mark.parametrize("f", PROGRAMS)
def test_hooks_on_results_see_what_comes_through_them(f: Function) -> None:
    def story(function: Function) -> Any:
        x, w = _made()
        seen: list[Any] = []
        results = function(x, w)
        for number, result in enumerate([*results, x, w]):
            if not result.is_leaf:
                result.retain_grad()
            result.register_hook(lambda g, number=number: seen.append((number, g.clone())))
        sum(r.sum() * (k + 1) for k, r in enumerate(results)).backward()
        return sorted(seen, key=lambda event: event[0]), [r.grad for r in [*results, x, w]]

    assert_same_story(f, story)


@pytest.mark.parametrize("f", PROGRAMS)
def test_a_hook_on_one_result_changes_the_gradients_of_others(f: Function) -> None:
    def story(function: Function) -> Any:
        x, w = _made()
        x.retain_grad()
        results = function(x, w)
        results[0].register_hook(lambda g: g * 10)
        results[2].sum().backward(retain_graph=True)
        return x.grad, w.grad

    assert_same_story(f, story)


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 1), (0, 2), (2, 2)])
def test_backwards_one_by_one_free_what_eager_frees(f: Function, order: tuple[int, ...]) -> None:
    def story(function: Function) -> Any:
        x, w = _made()
        results = function(x, w)
        told = []
        for number in order:
            try:
                results[number].sum().backward()
            except RuntimeError as error:
                told.append("second time" in str(error))
            told.append(None if w.grad is None else w.grad.clone())
        return told

    assert_same_story(f, story)


def test_a_gradient_with_respect_to_the_base_of_a_written_view() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        part = x[1]
        part.mul_(w[0])
        return x + part * 0.5

    def story(function: Function) -> Any:
        base, w = non_leaf(5), leaf(3)
        result = function(base[1:4], w)
        return torch.autograd.grad(result.sum(), [base, w], retain_graph=True), base.grad_fn is not None

    assert_same_story(f, story)


def test_between_results_that_lead_to_no_argument() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, _ = x.chunk(2, 1)
        return first.sum(), first, first.exp()

    def story(function: Function) -> Any:
        base = non_leaf(2, 2)
        with torch.no_grad():
            x = base.as_strided((2, 2), (2, 1), 0)
        results = function(x)
        return [
            torch.autograd.grad(r.sum(), results[1], retain_graph=True, allow_unused=True) for r in results
        ]

    assert_same_story(f, story)


def test_a_loss_and_its_logits() -> None:
    def f(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = x @ w
        return torch.nn.functional.cross_entropy(logits, y), logits

    def story(function: Function) -> Any:
        x, w = leaf(4, 3), leaf(3, 5, start=2)
        loss, logits = function(x, w, torch.tensor([0, 2, 1, 4]))
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        loss.backward()
        return gradient, x.grad, w.grad

    assert_same_story(f, story)


def test_what_a_result_does_not_need_is_not_walked_through() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x * 2
        return z, z * y

    def story(function: Function) -> Any:
        x, hidden = leaf(3), leaf(3)
        y = hidden.exp()
        walked: list[Any] = []
        y.grad_fn.register_hook(lambda inputs, outputs: walked.append(inputs))
        first, second = function(x, y)
        first.sum().backward(retain_graph=True)
        before = len(walked)
        second.sum().backward()
        return before, len(walked), x.grad, hidden.grad

    assert_same_story(f, story)


def test_an_unused_heads_parameters_are_left_alone_by_the_optimizer() -> None:
    def f(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        hidden = x.tanh()
        return hidden @ first, hidden @ second

    def story(function: Function) -> Any:
        first, second = leaf(3, 2), leaf(3, 2, start=4)
        optimizer = torch.optim.AdamW([first, second], lr=0.1, weight_decay=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            function(values(4, 3), first, second)[0].sum().backward()
            optimizer.step()
        return first, second, second.grad

    assert_same_story(f, story)


def test_a_program_with_one_result_has_one_backward() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).sin() * w).sum()

    compiled = aot.aot_function(f, aot.nop)
    compiled(leaf(3, 3), leaf(3, 3))
    assert len(compiled.specializations[0].backwards) == 1


def test_the_memory_of_what_lies_between_two_parts_is_not_kept() -> None:
    """An edge between two parts of the backward is not a tensor of the forward."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = x * 2
        return hidden + 1, hidden + 2

    compiled = aot.aot_function(f, aot.nop)
    first, second = compiled(leaf(100, 100))
    (first.sum() + second.sum()).backward()
    text = compiled.specializations[0].wrapper
    assert "nothing((100, 100)" in text
    edges = {n for r in (first, second) for n, _ in r.grad_fn.next_functions}
    assert len(edges) == 1


def _partly_scaled(x: Tensor) -> Tensor:
    y = x + 1
    y[0].mul_(2)
    return y


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * 2,
        lambda x: x + 1,
        lambda x: (x + 1).t(),
        lambda x: (x + 1) / 4,
        _partly_scaled,
        torch.sin,
    ],
)
def test_a_second_backward_raises_where_eagers_does(f: Function) -> None:
    """It does where a node has saved something, if only a number."""

    def story(function: Function) -> Any:
        x = leaf(3, 3)
        y = function(x)
        y.sum().backward()
        y.sum().backward()
        return x.grad

    assert_same_story(f, story)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_gradients_are_added_up_in_the_order_of_eager(order: tuple[int, ...], written: bool) -> None:
    """To the last digit: a sum of four in another order is another one."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x.mul_(3) if written else x * 3
        results = (y / 3, y.exp(), y.to(torch.float64), y.sin())
        return tuple(results[i] for i in order)

    def gradient(function: Function) -> Tensor:
        torch.manual_seed(1)
        x = torch.rand(200).requires_grad_()
        results = function(x * 1)
        torch.autograd.backward(results, [torch.rand_like(result) for result in results])
        assert x.grad is not None
        return x.grad

    assert torch.equal(gradient(aot.aot_function(f, checking_nop)), gradient(f))
