"""Which gradients have a history, and which have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from tests.support.agreement import assert_same_story, leaf
from tests.support.aot.second_order import Scaled, told, weighted

pytestmark = pytest.mark.clause("double-backward")

Function = Callable[..., Any]
F64 = torch.float64


# They keep what they have written.
KEEPING: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh_": lambda t: t.tanh_(),
    "exp_": lambda t: t.exp_(),
    "sigmoid_": lambda t: t.sigmoid_(),
    "elu_": lambda t: functional.elu(t, inplace=True),
    "twice": lambda t: t.tanh_().mul_(2).sigmoid_(),
}

TAKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda t: t[...],
    "flat": lambda t: t.view(-1),
    "a part": lambda t: t[1:],
    "a view of a view": lambda t: t.t()[1],
}


def _let_go(write: Callable[[Tensor], Tensor], take: Callable[[Tensor], Tensor]) -> Function:
    def f(x: Tensor) -> None:
        write(take(x))

    return f


def _returned(write: Callable[[Tensor], Tensor], take: Callable[[Tensor], Tensor]) -> Function:
    def f(x: Tensor) -> Tensor:
        view = take(x)
        write(view)
        return view

    return f


def _used(write: Callable[[Tensor], Tensor], take: Callable[[Tensor], Tensor]) -> Function:
    def f(x: Tensor) -> Tensor:
        view = take(x)
        write(view)
        return view * 3

    return f


@pytest.mark.parametrize("shape", [_let_go, _returned, _used])
@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("write", KEEPING)
def test_what_a_write_to_a_view_keeps(write: str, taken: str, shape: Callable[..., Function]) -> None:
    """Autograd looks whether the view is still there: what was kept leads to what the view shows now, or to
    what it showed before, an edge of the argument that the first derivative does not go to."""

    def story(function: Function) -> Any:
        root = leaf(4, 3, dtype=F64)
        base = root * 1
        x = base[1:]
        before = get_gradient_edge(x)
        result = function(x)
        return told(weighted(base, result), [root, before])

    assert_same_story(shape(KEEPING[write], TAKEN[taken]), story)


# What is computed of a view, so that its history belongs to no result alone.
SHARED: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "two results": lambda v: (v.sin(), v * 2),
    "one from the other": lambda v: ((v + 2).sin(), v + 2, v.sin()),
    "of one node": lambda v: (*torch._foreach_sin([v]), v * 2),
    "of one node, and what goes there": lambda v: (*torch._foreach_sin([w := v * 2, v]), w),
    "beside what is returned": lambda v: (v.sin(), v),
    "a custom function's": lambda v: (w := Scaled.apply(v), *torch._foreach_sin([w, v])),
}


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("taken", ["all", "flat", "a part"])
@pytest.mark.parametrize("write", ["exp_", "sigmoid_"])
def test_what_several_results_lead_to_leads_to_what_was_written(write: str, taken: str, shared: str) -> None:
    """What a write keeps has the history of the view, which is that of the argument as it is now."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        view = TAKEN[taken](x)
        KEEPING[write](view)
        return SHARED[shared](view)

    def story(function: Function) -> Any:
        root = leaf(4, 3, dtype=F64)
        base = root * 1
        before = get_gradient_edge(base)
        results = function(base)
        targets = [root, before, get_gradient_edge(base)]
        return [told(weighted(one), targets) for one in (*results, base)]

    eager = story(f)
    assert any(one[-1] is not None for one in eager)  # (What goes to the argument as it is now.)
    assert_same_story(f, story)


# The gradient of what they have written is zeros, and has no history.
CONSTANT: dict[str, Callable[[Tensor], Tensor]] = {
    "geometric_": lambda t: t.geometric_(0.5),
    "zero_": lambda t: t.zero_(),
    "fill_": lambda t: t.fill_(2.0),
    "copy_": lambda t: t.copy_(torch.ones(())),
    "copy_ of its bits": lambda t: t.copy_(t.view(torch.int64)),
    "round_": lambda t: t.round_(),
    "eq_": lambda t: t.eq_(0.5),
}

# Not constant, although some of these gradients are zeros as well.
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sub_ of itself": lambda t: t.sub_(t),
    "masked_fill_ of all": lambda t: t.masked_fill_(torch.ones((), dtype=torch.bool), 1.0),
    "sin_": lambda t: t.sin_(),
}

Writes = Callable[[Callable[[Tensor], Tensor]], Function]


def _itself(write: Callable[[Tensor], Tensor]) -> Function:
    def f(x: Tensor, v: Tensor) -> Tensor:
        write(x)
        return functional.celu(v)

    return f


def _a_view(write: Callable[[Tensor], Tensor]) -> Function:
    def f(x: Tensor, v: Tensor) -> Tensor:
        write(v)
        return functional.celu(x)

    return f


def _itself_after_a_view(write: Callable[[Tensor], Tensor]) -> Function:
    def f(x: Tensor, v: Tensor) -> Tensor:
        v.sub_(v)
        write(x)
        return functional.celu(v)

    return f


def _a_view_after_itself(write: Callable[[Tensor], Tensor]) -> Function:
    def f(x: Tensor, v: Tensor) -> Tensor:
        x.mul_(x)
        write(v)
        return functional.celu(x)

    return f


def _a_view_after_that(write: Callable[[Tensor], Tensor]) -> Function:
    def f(x: Tensor, v: Tensor) -> None:
        write(x)
        v.add_(1)

    return f


ALIASES: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "all of it, flat": lambda base: (base, base.view(-1)),
    "all of it, transposed": lambda base: (base, base.t()),
    "a part": lambda base: (base, base[1]),
    "two views of a hidden base": lambda base: (base[...], base.view(-1)),
}


@pytest.mark.parametrize("aliases", ALIASES)
@pytest.mark.parametrize(
    "shape", [_itself, _a_view, _itself_after_a_view, _a_view_after_itself, _a_view_after_that]
)
@pytest.mark.parametrize("write", [*CONSTANT, *OTHERS])
def test_which_gradients_require_grad(write: str, shape: Writes, aliases: str) -> None:
    def story(function: Function) -> Any:
        torch.manual_seed(0)
        root = leaf(3, 2, dtype=F64)
        base = root * 1
        x, v = ALIASES[aliases](base)
        before = [get_gradient_edge(t) for t in (base, x, v)]
        result = function(x, v)
        return told(weighted(base, x, v, result), [root, *before])

    assert_same_story(shape((CONSTANT | OTHERS)[write]), story)


def test_a_single_element_and_a_view_of_it_without_dimensions() -> None:
    def f(x: Tensor, v: Tensor) -> Tensor:
        v.sub_(v)
        x.geometric_(0.5)
        return functional.celu(v)

    def story(function: Function) -> Any:
        root = leaf(1, dtype=F64)
        x = root * 1
        v = x.as_strided((), ())
        result = function(x, v)
        (gradient,) = torch.autograd.grad(result, root, create_graph=True)
        return gradient, gradient.requires_grad

    assert_same_story(f, story)
