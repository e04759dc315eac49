"""Arguments that are views of wrapper subclasses: of one that is given, too, or that nobody sees, and of each
other's memory; written to in grad mode, and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import aot
from oracles.observation.tensor_state import leaf_and_grad_fn
from tests.support.agreement import checking_nop
from tests.support.agreement import values as small_values
from tests.support.aot.subclasses import seen

pytestmark = pytest.mark.clause("aliasing", "autograd-metadata")


def values(*shape: int, start: int = 0) -> Tensor:
    """Numbers of which sums and products are exact, in whatever order they are taken."""
    return small_values(*shape, start=start).double()


VIEWS: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "the whole and a row": lambda x: [x, x[0]],
    "a row and the whole": lambda x: [x[0], x],
    "two rows": lambda x: [x[0], x[2]],
    "a row and a column": lambda x: [x[0], x[:, 1]],
    "a view of a view": lambda x: [x.t()[1:], x.t()[1:][0]],
    "the same elements": lambda x: [x.view(-1), x.view(9)],
    "one that shows elements twice": lambda x: [x[0], x[0].expand(2, 3)],
}


def _write_the_first(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    x.mul_(w)
    return y * 3


def _write_the_second(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    before = x * 5
    y.select(0, 0).add_(w)
    return before + x * w


def _write_both(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    x.mul_(w)
    y.select(0, 0).mul_(x.sum())
    return x, y * y


def _write_around_a_view(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    before = y.view_as(y)
    x.add_(w)
    return before, before * 2, y[:1]


def _write_without_grad(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    saved = y * 7
    with torch.no_grad():
        x.mul_(2)
    return saved, y * w, x


def _only_read(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x * w, x.sum() * y, y[:1]


FUNCTIONS = [
    _write_the_first,
    _write_the_second,
    _write_both,
    _write_around_a_view,
    _write_without_grad,
    _only_read,
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("grad", [False, True], ids=["of no leaf", "of what requires grad"])
@pytest.mark.parametrize("nested", [False, True])
def test_two_views_of_what_was_computed(
    function: Callable[..., Any], views: str, grad: bool, nested: bool
) -> None:
    """What is written to the one is what the other shows, and its gradients go where eager's do."""
    if views == "one that shows elements twice" and function in (_write_the_second, _write_both):
        function = _write_the_first  # (The others write to the second one, which eager forbids.)

    def told(function: Callable[..., Any]) -> Any:
        x = TwoTensor(values(3, 3), values(3, 3, start=5))
        x = (TwoTensor(x, x * 2) if nested else x).requires_grad_(grad)
        base = x * 1
        first, second = VIEWS[views](base)
        w = values(start=7).requires_grad_()
        results = pytree.tree_leaves(function(first, second, w))
        everything = [one for one in (base, first, second, *results) if one.requires_grad]
        total = sum((one * one).sum() * (i + 1) for i, one in enumerate(everything))
        gradients = torch.autograd.grad(total, [x, w] if grad else [w], allow_unused=True)  # type: ignore[arg-type]
        moved = [one._version > 0 for one in (base, first, second)]
        return seen([base, first, second, *results]), seen(list(gradients), True), moved

    compiled = aot.aot_function(function, checking_nop)
    assert told(function) == told(compiled) == told(compiled)
    assert len(compiled.specializations) == 1


def test_a_gradient_of_each_of_two_views_by_itself() -> None:
    """Each goes on to the whole by the way that it has in eager, and only once."""

    def told(function: Callable[..., Any]) -> Any:
        x = TwoTensor(values(3, 3), values(3, 3, start=5)).requires_grad_()
        base = x * x
        first, second = base[0], base[:, 0]
        result = function(first, second)
        found = [torch.autograd.grad(result.sum(), one, retain_graph=True) for one in (first, second, base)]
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        return seen([*found, gradient, *torch.autograd.grad((gradient * gradient).sum(), x)], True)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * y + y

    assert told(aot.aot_function(f, checking_nop)) == told(f)


def test_second_derivatives_through_a_write_to_one_of_two_views() -> None:
    def told(function: Callable[..., Any]) -> Any:
        x = TwoTensor(values(3, 3), values(3, 3, start=5)).requires_grad_()
        base = x * x
        result = function(base[0], base[:, 0])
        (gradient,) = torch.autograd.grad((base * base).sum() + result.sum(), x, create_graph=True)
        return seen([gradient, *torch.autograd.grad((gradient * gradient).sum(), x)], True)

    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x * y

    assert told(aot.aot_function(f, checking_nop)) == told(f)


def test_bases_that_lie_otherwise_are_told_apart() -> None:
    """Two views may look alike, on memory that does, and be views of what has another shape."""
    compiled = aot.aot_function(lambda x, w: x.mul_(w), checking_nop)
    for shape in ((2, 3), (6,)):
        w = values(start=7).requires_grad_()
        base = TwoTensor(values(*shape), values(*shape, start=5)) * 1
        compiled(base[0] if len(shape) == 2 else base[:3], w)
        assert base.requires_grad
        (base * base).sum().backward()
    assert len(compiled.specializations) == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_a_leaf(dynamic: bool) -> None:
    """Whoever is asked for its gradient, the leaf gets it once; a write without grad mode is seen by all."""

    def told(function: Callable[..., Any]) -> Any:
        leaf = TwoTensor(values(3, 3), values(3, 3, start=5)).requires_grad_()
        first, second = leaf[0], leaf[:, 1]
        result = function(first, second, leaf)
        total = result.sum() + (first * first).sum() + second.sum()
        gradients = torch.autograd.grad(total, [leaf, first, second], retain_graph=True)
        total.backward()
        return seen([result, leaf, first, second]), seen([*gradients, leaf.grad], True)

    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        saved = x * 3
        with torch.no_grad():
            y.detach().mul_(2)
        return saved + x.sum() * y + z

    compiled = aot.aot_function(f, checking_nop, dynamic=dynamic)
    assert told(f) == told(compiled) == told(compiled)


def _without_grad(base: Tensor) -> Tensor:
    with torch.no_grad():
        return base[0]


FORBIDDEN: dict[str, tuple[Callable[..., Any], Callable[[Tensor], list[Any]], bool]] = {
    "view of a leaf": (lambda x: x.mul_(2), lambda leaf: [leaf[0]], False),
    "the whole, a leaf, and a view": (lambda x, y: x.mul_(2), lambda leaf: [leaf, leaf[0]], False),
    "taken without grad mode": (lambda x: x.mul_(2), lambda leaf: [_without_grad(leaf * 1)], False),
    "one of several": (lambda x: x.mul_(2), lambda leaf: [(leaf * 1).unbind()[1]], False),
    "a view, after one to a view of that": (
        lambda x, w: (x.view(-1).mul_(w), x.mul_(2)),
        lambda leaf: [(leaf.detach() * 1)[0], values().requires_grad_()],
        True,
    ),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_writes_that_eager_forbids(case: str) -> None:
    function, make, partly = FORBIDDEN[case]

    def told(function: Callable[..., Any]) -> Any:
        leaf = TwoTensor(values(3, 3), values(3, 3, start=5)).requires_grad_()
        args = make(leaf)
        with pytest.raises(RuntimeError) as caught:
            function(*args)
        return str(caught.value), None if partly else seen([leaf, *args])

    assert told(aot.aot_function(function, aot.nop)) == told(function)


def test_a_view_that_eager_lets_nobody_use_any_more() -> None:
    """The call goes well, and what uses the view afterwards raises."""

    def told(function: Callable[..., Any]) -> Any:
        base = TwoTensor(values(3, 3), values(3, 3, start=5)).requires_grad_() * 1
        view = _without_grad(base)
        function(base[:, 0], view)
        with pytest.raises(RuntimeError) as caught:
            view.grad_fn  # noqa: B018
        return str(caught.value), seen(base), base._version > 0

    def f(x: Tensor, y: Tensor) -> None:
        x.mul_(2)

    compiled = aot.aot_function(f, checking_nop)
    assert told(f) == told(compiled) == told(compiled)


def _nested_first(n: Tensor, v: Tensor, u: Tensor, w: Tensor) -> Tensor:
    n.mul_(w)
    return (n * 2).values() * v + u.sum()  # type: ignore[no-any-return, operator]


def _values_first(n: Tensor, v: Tensor, u: Tensor, w: Tensor) -> Tensor:
    v.mul_(w)
    return (n * 2).values() * v + u.sum()  # type: ignore[no-any-return, operator]


def _some_rows_first(n: Tensor, v: Tensor, u: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    u.mul_(w)
    n.mul_(2)
    return (n * 2).values().clone(), u * 2  # type: ignore[operator]


@pytest.mark.parametrize("function", [_nested_first, _values_first, _some_rows_first])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("given", [False, True], ids=["by itself", "with its values"])
@pytest.mark.parametrize("grad", [False, True], ids=["of no leaf", "of what requires grad"])
def test_a_nested_tensor_is_a_view_of_its_values(
    function: Callable[..., Any], dynamic: bool, given: bool, grad: bool
) -> None:
    """Whichever of the two is written to, the other one shows it, and has its history."""

    def told(function: Callable[..., Any]) -> Any:
        x = values(5, 2).requires_grad_(grad)
        inner = x * 1
        nested = torch.nested.nested_tensor_from_jagged(inner, torch.tensor([0, 2, 5]))
        w = values(start=7).requires_grad_()
        others = (inner, inner[1:3]) if given else (values(5, 2), values(2, 2))
        try:
            results = pytree.tree_leaves(function(nested, *others, w))
        except RuntimeError as error:  # (Eager takes one for a leaf of which the values have got a history.)
            return str(error)
        total = sum((one * one).sum() for one in (inner, nested.values(), *results))
        gradients = torch.autograd.grad(total, [x, w] if grad else [w])  # type: ignore[arg-type]
        return seen([inner, *results]), nested.requires_grad, seen(list(gradients), True)

    compiled = aot.aot_function(function, checking_nop, dynamic=dynamic)
    assert told(function) == told(compiled) == told(compiled)


def test_with_symbols_a_write_to_a_view_is_compiled_for_each_size() -> None:
    compiled = aot.aot_function(lambda x, w: x.mul_(w).sum(), checking_nop, dynamic=True)
    for rows in (3, 4, 5):
        x = TwoTensor(values(rows, 3), values(rows, 3, start=5)).requires_grad_()
        w = values(start=7).requires_grad_()
        compiled((x * 1)[1:], w).backward()
        (expected,) = torch.autograd.grad(((x * 1)[1:] * w).sum(), w)
        assert w.grad is not None
        assert torch.equal(w.grad, expected) or seen(w.grad) == seen(expected)
    assert len(compiled.specializations) == 3


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
@pytest.mark.parametrize("made", [False, True], ids=["of an argument", "of a result"])
def test_a_view_from_before_a_write_gets_a_history_when_what_it_is_of_comes_to_require_grad(
    order: tuple[int, ...], made: bool
) -> None:
    """And one from after the write gets none: autograd looks whether the counter has moved since."""

    def f(x: Any) -> Any:
        whole = x * 2 if made else x
        before = whole[1:]
        whole.mul_(2)
        results = before, whole[:1], whole
        return tuple(results[i] for i in order)

    def seen_of(f: Callable[..., Any]) -> list[bool]:
        results = f(TwoTensor(values(3, 3), values(3, 3, start=5)))
        results[2].requires_grad_()
        return [one.grad_fn is not None for one in results]

    expected = [(True, False, False)[i] for i in order]
    assert seen_of(f) == expected
    assert seen_of(aot.aot_function(f, fw_compiler=checking_nop)) == expected


def test_a_view_that_autograd_cannot_take_anew_has_no_history_to_tell() -> None:
    """What it is a view of is smaller by now: eager raises an IndexError on being asked."""

    def f(x: Any) -> Any:
        view = x.select(0, 5)
        x.as_strided_((1,), (2,), 0)
        return view, x

    for function in (f, aot.aot_function(f, fw_compiler=checking_nop)):
        leaf = TwoTensor(values(12), values(12, start=5)).requires_grad_()
        view, _ = function(leaf * 1)
        with pytest.raises(IndexError, match="out of range"):
            view.grad_fn  # noqa: B018
        assert leaf_and_grad_fn(view) == (None, None)
