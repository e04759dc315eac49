"""Hooks and `retain_grad`: the caller's see eager's gradients in eager's order; the function's are kept or
refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agree import assert_agrees, both, checking_nop, leaf, non_leaf, values
from torch import Tensor

import aot


def test_a_hook_on_an_intermediate() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return y * y

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_several_hooks_on_an_intermediate_run_in_their_order() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 10)
        y.register_hook(lambda g: g + 1)
        y.mul_(x)
        y.register_hook(lambda g: g.sin())
        return y * y

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_a_hook_that_was_removed() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 10).remove()
        return y * y

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_a_hook_that_computes_with_the_functions_tensors() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        mask = y > 0
        z = x.sin()
        z.register_hook(lambda g: torch.where(mask, g, g * y))
        return z * x

    assert_agrees(f, lambda: [leaf(3), values(3, start=3)], grad=True)


def test_a_hook_on_a_node() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        assert y.grad_fn is not None
        y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 3,))
        return y * x

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def test_a_hook_in_a_gradient_that_is_taken_inside() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        y = x.detach().sin().requires_grad_()
        z = y * 1
        z.register_hook(seen.append)
        torch.autograd.grad((z * z).sum(), y)
        return x * 2, seen[0]

    assert_agrees(f, lambda: [leaf(3)], grad=True)


def _on_an_argument(x: Tensor) -> Tensor:
    x.register_hook(lambda g: g * 10)
    return x * 2


def _on_an_argument_before_a_write(x: Tensor) -> Tensor:
    x.register_hook(lambda g: g * 10)
    x.mul_(3)
    return x * 2


def _on_a_written_argument(x: Tensor) -> Tensor:
    x.mul_(3)
    x.register_hook(lambda g: g * 10)
    return x * 2


def _on_an_output(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y


def _on_an_output_that_is_a_view(x: Tensor) -> Tensor:
    y = (x * 2)[1:]
    y.register_hook(lambda g: g * 10)
    return y


def _for_its_side_effect(x: Tensor) -> Tensor:
    seen: list[Tensor] = []
    y = x * 2
    y.register_hook(seen.append)
    return y * y


REFUSED = [
    _on_an_argument,
    _on_an_argument_before_a_write,
    _on_a_written_argument,
    _on_an_output,
    _on_an_output_that_is_a_view,
    _for_its_side_effect,
]


@pytest.mark.parametrize("f", REFUSED)
def test_what_cannot_be_kept_is_refused(f: Callable[[Tensor], Tensor]) -> None:
    x = non_leaf(3)
    before, version = x.clone(), x._version
    with pytest.raises(aot.Unsupported, match="outside"):
        aot.aot_function(f, checking_nop)(x)
    assert torch.equal(x, before)
    assert x._version == version


def test_accumulation_hooks_of_the_functions_own_are_refused() -> None:
    def f(x: Tensor) -> Tensor:
        x.register_post_accumulate_grad_hook(lambda p: None)
        return x * 2

    x = leaf(3)
    with pytest.raises(aot.Unsupported, match="register it outside"):
        aot.aot_function(f, checking_nop)(x)
    assert x._post_accumulate_grad_hooks is None


def test_registering_is_as_ever_after_a_trace_and_in_other_threads() -> None:
    method = Tensor.register_hook
    aot.aot_function(torch.sin, checking_nop)(leaf(3))
    with pytest.raises(ValueError, match="not today"):
        aot.aot_function(_raising, checking_nop)(leaf(3))
    assert Tensor.register_hook is method


def _raising(x: Tensor) -> Tensor:
    raise ValueError("not today")


def test_the_callers_hooks_see_what_eager_shows_them_in_its_order() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x * w
        return y, y.sin() * x

    seen = []
    for function in both(f):
        x, w = non_leaf(3), leaf(3, start=3)
        events: list[tuple[str, Any]] = []

        def note(name: str, events: list[tuple[str, Any]] = events) -> Callable[[Tensor], None]:
            return lambda t: events.append((name, t.tolist() if t.grad is None else t.grad.tolist()))

        x.register_hook(note("x"))
        x.register_hook(lambda g: g * 2)
        x.register_hook(note("x again"))
        w.register_hook(note("w"))
        w.register_post_accumulate_grad_hook(note("w accumulated"))
        first, second = function(x, w)
        first.register_hook(note("first"))
        second.register_hook(note("second"))
        (first.sum() + second.sum()).backward()
        seen.append(events)
    assert seen[0] == seen[1]
    assert [name for name, _ in seen[0]].count("w accumulated") == 1


@pytest.mark.parametrize("written", [False, True])
def test_retain_grad_inside(written: bool) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x.retain_grad()
        if written:
            x.mul_(2)
        y = x.sin()
        y.retain_grad()
        return y, (y * 1)[1:]

    seen = []
    for function in both(f):
        x = non_leaf(3)
        first, second = function(x)
        (first * 3).sum().backward(retain_graph=True)
        second.sum().backward()
        seen.append((x.retains_grad, first.retains_grad, second.retains_grad, x.grad, first.grad))
    assert seen[0][:3] == seen[1][:3] == (True, True, False)
    assert all(torch.equal(a, b) for a, b in zip(seen[0][3:], seen[1][3:], strict=True))
