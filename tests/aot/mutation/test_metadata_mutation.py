"""Mutations of the shape and strides of arguments, alone and with mutations of their data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import KINDS, assert_agrees, leaf, non_leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("input-metadata")]

METADATA: dict[str, Callable[[Tensor], Tensor]] = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "squeeze_": lambda x: x.squeeze_(),
    "squeeze_(dim)": lambda x: x.squeeze_(1),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "swapaxes_": lambda x: x.swapaxes_(-1, 0),
    "as_strided_": lambda x: x.as_strided_((2, 2), (1, 3), 1),
    "t_ twice": lambda x: x.t_().t_(),
    "t_ and unsqueeze_": lambda x: x.t_().unsqueeze_(0),
}
SIZES = {"squeeze_": (1, 3), "squeeze_(dim)": (3, 1), "unsqueeze_": (3,)}


@pytest.mark.parametrize("change", METADATA)
class TestMetadata:
    """In-place changes of shape and strides."""

    def check(self, change: str, kind: str, f: Callable[[Tensor], Any], refusable: bool = False) -> None:
        assert_agrees(f, lambda: [KINDS[kind](*SIZES.get(change, (2, 3)))], refusable=refusable)

    @pytest.mark.parametrize("kind", ["plain", "non_leaf"])
    def test_alone(self, change: str, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            METADATA[change](x)
            return x * 2

        self.check(change, kind, f)

    @pytest.mark.parametrize("kind", ["plain", "non_leaf"])
    def test_and_returned(self, change: str, kind: str) -> None:
        self.check(change, kind, METADATA[change])

    @pytest.mark.parametrize("kind", ["plain", "non_leaf"])
    def test_and_nothing_else_read(self, change: str, kind: str) -> None:
        def f(x: Tensor) -> None:
            METADATA[change](x)

        self.check(change, kind, f)

    @pytest.mark.parametrize("kind", KINDS)
    def test_of_a_detached_alias(self, change: str, kind: str) -> None:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.detach()
            METADATA[change](y)
            return y, x * 2

        self.check(change, kind, f)

    def test_before_a_write(self, change: str) -> None:
        def f(x: Tensor) -> Tensor:
            METADATA[change](x)
            x.mul_(2)
            return x + 1

        self.check(change, "plain", f)

    @pytest.mark.parametrize("kind", ["plain", "non_leaf"])
    def test_after_a_write(self, change: str, kind: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.mul_(2)
            METADATA[change](x)
            return x + 1

        # What as_strided_ hides of an argument that carries gradients cannot be written any more.
        self.check(change, kind, f, refusable=change == "as_strided_" and kind == "non_leaf")

    def test_between_writes(self, change: str) -> None:
        def f(x: Tensor) -> Tensor:
            x.mul_(2)
            METADATA[change](x)
            x[0].add_(1)
            return x + 1

        self.check(change, "plain", f)

    @pytest.mark.parametrize("kind", ["plain", "non_leaf"])
    def test_on_a_tensor_made_inside(self, change: str, kind: str) -> None:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x * 2
            METADATA[change](y)
            return y, y.cos()

        self.check(change, kind, f)


def test_a_leaf_may_be_reshaped_under_no_grad() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.t_()
        return x * 2

    assert_agrees(f, lambda: [leaf(2, 3)], backward_raises=True)


@pytest.mark.parametrize("kind", ["plain", "non_leaf"])
def test_reshaped_so_that_elements_are_shown_twice(kind: str) -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        x.as_strided_((2, 2), (1, 1), 1)
        return x + 1

    assert_agrees(f, lambda: [KINDS[kind](2, 3)], refusable=kind == "non_leaf")


def test_a_result_that_shows_elements_twice() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        return y.as_strided_((2, 2), (1, 1), 1)

    assert_agrees(f, lambda: [leaf(2, 3)])


def test_two_arguments_are_reshaped() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.t_()
        y.unsqueeze_(0)
        return x @ y[0]

    assert_agrees(f, lambda: [values(2, 3), values(2, 3, start=6)])


def test_a_view_argument_is_reshaped() -> None:
    def f(view: Tensor) -> Tensor:
        view.t_()
        return view * 2

    assert_agrees(f, lambda: [values(4, 4)[1:3]])


def test_a_reshaped_argument_written_through_a_view_of_it() -> None:
    def f(x: Tensor) -> Tensor:
        x.transpose_(0, 1)
        x[0].mul_(2)
        return x

    assert_agrees(f, lambda: [values(2, 3)])
    assert_agrees(f, lambda: [values(6, 4)[::3, 1:]])


@pytest.mark.parametrize("result", [lambda x: x, lambda x: x * 3, lambda x: x[:1]])
def test_a_change_that_autograd_does_not_see_after_a_write_that_it_does(
    result: Callable[[Tensor], Tensor],
) -> None:
    """A gradient stays at its index, whichever element is shown there since."""

    def f(x: Tensor) -> Tensor:
        x.mul_(torch.arange(1.0, 10.0).view(3, 3))
        with torch.no_grad():
            x.t_()
        return result(x)

    assert_agrees(f, lambda: [non_leaf(3, 3)])


def test_a_view_of_a_detached_alias_leaves_the_history_of_an_argument_alone() -> None:
    """It was taken before the argument's metadata changed, and moves no counter once more."""

    def f(x: Tensor) -> Tensor:
        view = x.detach()[...]
        x.squeeze_(-1)
        return view

    def told(function: Callable[..., Any]) -> Any:
        whole = leaf(2, 2) * 1
        x = whole.as_strided((2, 2), (2, 1), 0)
        view = function(x)
        assert x.grad_fn is not None
        return x._version, type(x.grad_fn).__name__, view._version, view._is_view()

    assert told(aot.aot_function(f, aot.nop)) == told(f)


def _beyond_the_argument(x: Tensor) -> Tensor:
    x.mul_(2)
    view = x.as_strided((9,), (1,), 0)
    view.mul_(2)
    return view.transpose_(0, 0)


def _beyond_and_turned_twice(x: Tensor) -> Tensor:
    x.mul_(2)
    view = x.as_strided((3, 3), (3, 1), 0).t_()
    view.mul_(2)
    return view.t_()


@pytest.mark.parametrize("f", [_beyond_the_argument, _beyond_and_turned_twice])
def test_what_shows_more_than_its_argument_is_written_and_turned(f: Callable[..., Any]) -> None:
    """Its history is derived from the base by then, so that gradients of all elements get there."""

    def told(function: Callable[..., Any]) -> Any:
        source = leaf(3, 3)
        whole = source * 1
        result = function(whole.as_strided((3, 2), (3, 2), 0))
        sums = (result.sum(), (whole * whole).sum())
        return [torch.autograd.grad(one, source, retain_graph=True)[0].tolist() for one in sums]

    assert told(aot.aot_function(f, aot.nop)) == told(f)


def test_an_output_that_is_put_elsewhere_moves_the_counter_once() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        result, view = x.exp(), y[...]
        return result, view.set_()  # type: ignore[no-untyped-call]

    def told(function: Callable[..., Any]) -> Any:
        source = leaf(2)
        x, y = source[:], source.detach()[1:]
        before = torch.autograd.graph.get_gradient_edge(x)
        result, view = function(x, y)
        (gradient,) = torch.autograd.grad(result.sum(), before)  # type: ignore[arg-type]
        return gradient.tolist(), x._version, y._version, view._version, view.shape

    assert told(aot.aot_function(f, aot.nop)) == told(f)
