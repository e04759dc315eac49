"""Where second derivatives go besides leaves."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import aot
from tests.support.agreement import assert_same_story, leaf
from tests.support.aot.second_order import Scaled, told, weighted
from tests.support.versions import needs_torch

pytestmark = pytest.mark.clause("double-backward")

Function = Callable[..., Any]
F64 = torch.float64


class Exp(torch.autograd.Function):
    """`torch.exp`, which keeps its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return gradient * result  # type: ignore[no-any-return]


def _a_result(x: Tensor) -> Tensor:
    return x.exp()


def _a_result_of_a_custom_function(x: Tensor) -> Tensor:
    return Exp.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def _a_result_beside_another(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y, functional.hardswish(y)


def _what_two_results_come_from(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return functional.hardswish(y), y * 3


def _all_of_an_argument(x: Tensor) -> None:
    x.exp_()


def _an_argument_beside_a_result(x: Tensor) -> Tensor:
    x.exp_()
    return functional.hardswish(x)


def _a_part_of_an_argument(x: Tensor) -> Tensor:
    x[1].mul_(2)
    view = x[0]
    view.exp_()
    return functional.hardswish(x)


def _an_argument_that_was_turned(x: Tensor) -> None:
    x.unsqueeze_(0)
    x.exp_()


KEPT = (
    _a_result,
    _a_result_of_a_custom_function,
    _a_result_beside_another,
    _what_two_results_come_from,
    _all_of_an_argument,
    _an_argument_beside_a_result,
    _a_part_of_an_argument,
    _an_argument_that_was_turned,
)


def _with_results(function: Function, start: Tensor) -> list[Tensor]:
    """What a function gives, and its argument as it is then."""
    x = start * 1
    return [x, *(r for r in tree_leaves(function(x)) if r is not None)]


@pytest.mark.parametrize("f", KEPT)
def test_second_derivatives_go_to_what_the_first_has_kept(f: Function) -> None:
    """A result that is kept has its place in the caller's graph: hooks on it see them, and it can be
    differentiated with respect to."""

    def story(function: Function) -> Any:
        start = leaf(2, 3, dtype=F64)
        results = _with_results(function, start)
        (first,) = torch.autograd.grad(weighted(*results), start, create_graph=True)
        told: list[Any] = []
        for number, result in enumerate(results):
            result.retain_grad()
            result.register_hook(lambda gradient, n=number: told.append((n, gradient.clone())))
        told += torch.autograd.grad(
            first.pow(2).sum(), [start, *results], retain_graph=True, allow_unused=True
        )
        (first.sum() + weighted(*results)).backward()
        seen = sorted((t for t in told if isinstance(t, tuple)), key=lambda t: t[0])
        others = [t for t in told if not isinstance(t, tuple)]
        return others, seen, start.grad, [result.grad for result in results]

    assert_same_story(f, story)


@pytest.mark.parametrize(
    "f", [_a_result_beside_another, _what_two_results_come_from, _an_argument_beside_a_result]
)
def test_what_comes_to_an_infinite_result_is_added_up_before_it_is_multiplied(f: Function) -> None:
    """Of 0 and 1, of which only the sum does not become NaN."""
    for function in (f, aot.aot_function(f, aot.nop)):
        start = torch.full((2, 3), 800.0, dtype=F64, requires_grad=True)
        _, *results = _with_results(function, start)
        (first,) = torch.autograd.grad([r.sum() for r in results], start, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), start)
        assert second.isposinf().all()


@pytest.mark.parametrize("f", KEPT)
def test_third_derivatives_go_to_what_was_kept_as_well(f: Function) -> None:
    def story(function: Function) -> Any:
        start = leaf(2, 3, dtype=F64)
        results = _with_results(function, start)
        loss = weighted(*results)
        told = []
        for _ in range(3):
            gradients = torch.autograd.grad(loss, [start, *results], create_graph=True, allow_unused=True)
            told.append([None if g is None else g.detach() for g in gradients])
            loss = weighted(gradients[0])
        return told

    assert_same_story(f, story)


def _by_an_outer_product(x: Tensor, v: Tensor) -> Tensor:
    x.addr_(v, v)
    return x.clone()


def _twice_by_the_view(x: Tensor, v: Tensor) -> Tensor:
    x.mul_(v).mul_(v)
    return x.clone()


def _by_a_view_within(x: Tensor, v: Tensor) -> Tensor:
    w = v.exp().view(3)
    x.mul_(w).mul_(w)
    return x.clone()


@pytest.mark.parametrize("whole", [True, False], ids=["no view", "a view"])
@pytest.mark.parametrize("f", [_by_an_outer_product, _twice_by_the_view, _by_a_view_within])
def test_derivatives_go_to_a_view_that_another_view_was_written_with(f: Function, whole: bool) -> None:
    """What the formula inside a CopySlices node keeps can only be asked for by moving version counters, and
    autograd makes the edge of a view anew when it finds its counter moved."""

    def story(function: Function) -> Any:
        starts = [leaf(3, 3, dtype=F64), leaf(3, dtype=F64)]
        base, other = (start * 1 for start in starts)
        x, v = base.view(3, 3), other if whole else other.view(3)
        results = [r for r in tree_leaves(function(x, v)) if r is not None]
        loss = weighted(*results)
        told = []
        for _ in range(3):
            gradients = torch.autograd.grad(
                loss, [*starts, v, base, other, x, *results], create_graph=True, allow_unused=True
            )
            told.append([None if g is None else g.detach() for g in gradients])
            loss = weighted(*gradients[:3])
        return told

    assert_same_story(f, story)


@pytest.mark.parametrize("turn", [Tensor.squeeze_, Tensor.t_, lambda x: x.unsqueeze_(0).exp_()])
def test_second_derivatives_go_to_the_base_of_what_was_turned_and_written(turn: Function) -> None:
    """The call counts the turn after the write, which is what the node keeps."""

    def f(x: Tensor) -> None:
        turn(x)
        x.tanh_()

    def story(function: Function) -> Any:
        start = leaf(2, 3, dtype=F64)
        base = start * 1
        x = base.as_strided((2, 1), (3, 1), 1)  # (as long as it is there)
        function(x)
        loss = weighted(base)
        told = []
        for _ in range(3):
            gradients = torch.autograd.grad(loss, [start, base], create_graph=True, allow_unused=True)
            told.append([None if g is None else g.detach() for g in gradients])
            loss = weighted(gradients[0])
        return told

    assert_same_story(f, story)


@pytest.mark.parametrize(
    "turns", [(True, False), (False, True), (True, False, True), (False, False), (True, True)]
)
@pytest.mark.parametrize("write", [Tensor.reciprocal_, Tensor.exp_, lambda x: x.mul_(x.clone())])
@pytest.mark.parametrize("again", [False, True])
def test_second_derivatives_go_to_what_was_turned_with_and_without_grad(
    turns: tuple[bool, ...], write: Function, again: bool
) -> None:
    """All turns come before the first write, whether autograd takes note of them or not."""

    def f(x: Tensor) -> None:
        for number, followed in enumerate(turns):
            with torch.set_grad_enabled(followed):
                x.transpose_(number % 2, 2)
        write(x)
        if again:
            x.mul_(3)

    def story(function: Function) -> Any:
        start = leaf(2, 3, 4, dtype=F64)
        x = start * 1
        before = get_gradient_edge(x)
        function(x)
        return x.stride(), told(weighted(x), [start, before, get_gradient_edge(x)])

    assert_same_story(f, story)


_STEPS: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda x: x.mul_(2),
    "tanh_": lambda x: x.tanh_(),
    "a part's exp_": lambda x: x[0].exp_(),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "unsqueeze_ without grad": torch.no_grad()(lambda x: x.unsqueeze_(0)),
    "transpose_ without grad": torch.no_grad()(lambda x: x.transpose_(0, x.dim() - 1)),
}


@pytest.mark.parametrize(
    "steps",
    [
        ("tanh_",),
        ("mul_", "tanh_"),
        ("mul_", "a part's exp_"),
        ("unsqueeze_", "mul_", "transpose_ without grad", "tanh_"),
        ("mul_", "unsqueeze_", "transpose_ without grad", "tanh_"),
        ("mul_", "unsqueeze_ without grad", "tanh_"),
        ("mul_", "unsqueeze_ without grad", "mul_"),
        ("tanh_", "unsqueeze_ without grad", "a part's exp_"),
        ("unsqueeze_ without grad", "mul_", "unsqueeze_ without grad", "tanh_"),
        ("tanh_", "transpose_ without grad", "unsqueeze_"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("of", ["a result", "a view", "a result with a view"])
def test_second_derivatives_go_to_an_argument_as_it_is_after_turns_and_writes(
    steps: tuple[str, ...], of: str
) -> None:
    """Autograd makes the history of what is a view, or is turned after it was written to: no value has it."""

    def f(x: Tensor) -> None:
        for step in steps:
            _STEPS[step](x)

    def story(function: Function) -> Any:
        start = leaf(2, 2, 2, dtype=F64)
        base = start * 0.1
        x = base[0] if of == "a view" else base.sum(0)
        views = [x[1]] if of == "a result with a view" else []
        function(x)
        return x, told(weighted(x, *views), [start, x, base, *views])

    assert_same_story(f, story)


@pytest.mark.parametrize("then", ["a write", "detach_"])
def test_second_derivatives_do_not_go_to_a_written_view_that_has_changed_since(then: str) -> None:
    def f(x: Tensor) -> Tensor:
        x.tanh_()
        return x * x

    def story(function: Function) -> Any:
        start = leaf(2, 2, dtype=F64)
        base = start * 0.1
        x = base[0]
        result = function(x)
        (first,) = torch.autograd.grad(result.sum(), start, create_graph=True)
        if then == "a write":
            x.mul_(2)
        else:
            base.detach_()
        return torch.autograd.grad(first.pow(2).sum(), [start, x], allow_unused=True)

    assert_same_story(f, story)


def test_a_written_view_that_a_backward_keeps_is_let_go() -> None:
    def f(x: Tensor) -> Tensor:
        x.tanh_()
        return x.sum()

    compiled = aot.aot_function(f, lambda graph, _: graph)
    x = (leaf(2, 2, dtype=F64) * 0.1)[0]
    gone = weakref.ref(x)
    result = compiled(x)
    del x
    assert gone() is None
    result.backward()


def test_second_derivatives_go_to_what_was_written_by_way_of_what_a_view_of_it_was_put_into() -> None:
    """The view is gone, and a result was computed from it."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        view = x[0]
        view.sigmoid_()
        return x[1], view.sum()

    def story(function: Function) -> Any:
        start = leaf(2, 3, dtype=F64)
        base = start * 1
        _, total = function(base)
        (first,) = torch.autograd.grad(total, start, create_graph=True)
        return torch.autograd.grad(weighted(first), [start, base], allow_unused=True)

    assert_same_story(f, story)


def test_second_derivatives_of_complex_numbers_go_to_what_was_written() -> None:
    """The formula reads the conjugate of what was kept."""

    def f(x: Tensor) -> Tensor:
        view = x[0]
        view.exp_()
        return view

    def story(function: Function) -> Any:
        start = leaf(2, 3, dtype=torch.complex128)
        base = start * 1
        view = function(base)
        (first,) = torch.autograd.grad(view.abs().sum(), start, create_graph=True)
        return torch.autograd.grad(first.abs().sum(), [start, base], allow_unused=True)

    assert_same_story(f, story)


def test_a_custom_function_beside_another_operation_has_a_backward_of_its_own() -> None:
    """It makes zeros of a gradient that it does not get, where it is run: the first backward comes by both,
    the second by one."""

    def f(x: Tensor, y: Tensor) -> Any:
        one, other = x.cos(), Scaled.apply(y)
        return *torch._foreach_sin([one, other]), one + other

    def story(function: Function) -> Any:
        starts = [leaf(3, dtype=F64), leaf(3, dtype=F64)]
        told = []
        for number in range(3):
            result = function(*starts)[number]
            gradients = torch.autograd.grad(result.sum(), starts, create_graph=True, allow_unused=True)
            followed = [g.sum() for g in gradients if g is not None and g.requires_grad]
            told += [*gradients, *torch.autograd.grad(followed, starts, allow_unused=True)]
        return told

    assert_same_story(f, story)


@pytest.mark.parametrize("f", KEPT)
def test_what_is_kept_for_second_derivatives_is_let_go(f: Function) -> None:
    compiled = aot.aot_function(f, aot.nop)
    for derivatives in range(3):
        start = leaf(2, 3)
        results = _with_results(compiled, start)
        watched = [weakref.ref(t.untyped_storage()) for t in (start, *results)]
        if derivatives:
            (first,) = torch.autograd.grad(results[-1].sum(), start, create_graph=True)
            if derivatives > 1:
                first.sum().backward()
            del first
        del results, start
        assert all(storage() is None for storage in watched)


@pytest.mark.parametrize("f", [_a_result, _what_two_results_come_from, _all_of_an_argument])
def test_pack_hooks_get_nothing_more_than_in_eager(f: Function) -> None:
    def story(function: Function) -> Any:
        packed: list[Tensor] = []

        def pack(tensor: Tensor) -> Tensor:
            packed.append(tensor.detach().clone())
            return tensor

        start = leaf(2, 3, dtype=F64)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            results = _with_results(function, start)
        (first,) = torch.autograd.grad(results[-1].sum(), start, create_graph=True)
        return len(packed), torch.autograd.grad(first.pow(2).sum(), start)

    assert_same_story(f, story)


class _Doubled(torch.autograd.Function):
    """Makes zeros of a gradient that it does not get, as custom functions do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 2


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x * y,
        lambda x, y: (x * y, x.exp()),
        lambda x, y: (x * 1).mul_(y),
        lambda x, y: x * 2 + y,
        # Whose second derivative leads to its argument, and passes nothing on.
        lambda x, y: functional.batch_norm(x, y.detach(), y.detach().abs() + 0.5, training=False),
    ],
)
@pytest.mark.parametrize("second", ["leaf", "view", "constant", "function"])
def test_custom_functions_above_get_nothing_where_eagers_get_nothing(f: Function, second: str) -> None:
    def story(function: Function) -> Any:
        start, other = leaf(2, 2, dtype=F64), leaf(2, dtype=F64, start=7)
        x, y = _Doubled.apply(start), other
        if second == "view":  # of a leaf, which no gradient goes to
            with torch.no_grad():
                y = other.as_strided((2,), (1,))
        elif second == "constant":
            y = other.detach()
        elif second == "function":
            y = _Doubled.apply(other)
        results = function(x, y)
        first = results[0] if isinstance(results, tuple) else results
        targets = [t for t in (start, x, other, y) if t.requires_grad]
        return told(first.sum(), targets)

    assert_same_story(f, story)


@pytest.mark.parametrize("above", [lambda x: x, lambda x: x * 1, _Doubled.apply])
@pytest.mark.parametrize(
    "f",
    [
        functional.hardsigmoid,
        pytest.param(
            lambda x: torch.cdist(x, x.flip(0)),
            marks=needs_torch("<2.15", "cdist has one from 2.15 on"),
        ),
        lambda x: functional.hardsigmoid(x) * x,
        lambda x: (x * x, functional.hardsigmoid(x)),
    ],
)
def test_a_second_derivative_that_eager_does_not_have_raises(f: Function, above: Function) -> None:
    def story(function: Function) -> Any:
        start = leaf(2, 3, dtype=F64)
        results = function(above(start))
        results = results if isinstance(results, tuple) else (results,)
        (first,) = torch.autograd.grad([r.sum() for r in results], start, create_graph=True)
        return torch.autograd.grad(first.sum(), start, allow_unused=True)

    with pytest.raises(RuntimeError, match="not implemented"):
        story(f)
    assert_same_story(f, story)
