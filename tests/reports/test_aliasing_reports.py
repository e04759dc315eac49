"""Programs after public reports that are about shared and written memory, each with its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import assert_same_story, checking_nop, leaf, non_leaf, values

pytestmark = pytest.mark.both_devices

Function = Callable[..., Any]


def _aligning(module: Any, example_inputs: Any) -> Callable[..., Any]:
    """A backend that runs on clones of what does not begin at a multiple of 16 bytes."""
    run = checking_nop(module, example_inputs)

    def aligned(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) and value.data_ptr() % 16 else value

    return lambda *arguments: run(*map(aligned, arguments))


def _shifted(tokens: Tensor) -> list[Tensor]:
    return [tokens[:, :-1], tokens[:, 1:]]


def _parts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x[1:], y.view(-1), x.detach(), y, (x * y).exp()


def _written_parts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2)
    return x[1:], y[0], x * y


@pytest.mark.parametrize(("f", "views"), [(_shifted, 1), (_parts, 2), (_written_parts, 2)])
@pytest.mark.parametrize("make", [values, leaf, non_leaf])
def test_a_backend_that_clones_what_it_is_given(f: Function, views: int, make: Function) -> None:
    """pytorch/pytorch#191002, #151799: results that show an argument show the caller's."""
    if f is _written_parts and make is leaf:
        make = non_leaf

    def story(function: Function) -> Any:
        base = make(4, 5)
        arguments = [base.view(-1)[1 + k : 13 + k].view(3, 4) for k in range(views)]
        results = function(*arguments)
        version = [r._version for r in results]
        told = [(r.clone(), r.stride(), r.storage_offset(), r.requires_grad) for r in results]
        shared = [r.untyped_storage().data_ptr() == base.untyped_storage().data_ptr() for r in results]
        with torch.no_grad():
            results[0].mul_(3)
        return version, told, shared, base.clone(), [r.clone() for r in results]

    expected = story(f)
    compiled = aot.aot_function(f, _aligning)
    for _ in range(2):
        assert str(story(compiled)) == str(expected)


def test_a_backend_that_clones_what_a_backward_keeps() -> None:
    """pytorch/pytorch#191002: a write to the caller's tensor is noticed."""
    for function in (torch.square, aot.aot_function(torch.square, _aligning)):
        part = non_leaf(5)[1:]
        result = function(part)
        with torch.no_grad():
            part.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


class Boxed(Tensor):
    """A tensor subclass around another tensor."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Boxed:
        made: Boxed = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*(a.inner if isinstance(a, Boxed) else a for a in args), **(kwargs or {}))


def test_subclasses_that_share_what_is_inside_are_refused() -> None:
    """pytorch/pytorch#186517"""

    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    inner = values(4)
    with pytest.raises(aot.errors.UnsupportedArgument, match="Boxed"):
        aot.aot_function(f, checking_nop)(Boxed(inner), Boxed(inner[1:]))
    assert torch.equal(inner, values(4))
    assert inner._version == 0


def test_a_write_by_strides_of_another_size() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.as_strided_scatter(x, torch.ones(1), (2,), (2,))

    for function in (f, aot.aot_function(f, checking_nop)):
        with pytest.raises(RuntimeError, match="size"):
            function(values(6))


def _overwrites(x: Tensor, w: Tensor, buffer: Tensor) -> Tensor:
    result = x @ w
    buffer.copy_(w.sum(0))
    return result


def _averages(x: Tensor, w: Tensor, buffer: Tensor) -> Tensor:
    result = x @ w
    buffer.detach().mul_(0.5)
    with torch.no_grad():
        buffer.add_(result.sum(0) * 0.5)
    return result + buffer


def _accumulates(x: Tensor, w: Tensor, buffer: Tensor) -> Tensor:
    buffer.mul_(0.5).add_(w.sum(0))
    return x @ w


@pytest.mark.parametrize("f", [_overwrites, _averages, _accumulates])
def test_a_buffer_that_is_given_again_after_a_backward(f: Function) -> None:
    """pytorch/pytorch#140707: what it was written with has a history by then, whose backward is over."""

    def story(function: Function) -> Any:
        buffer, w = torch.zeros(2), leaf(3, 2)
        told = []
        for step in range(3):
            function(values(4, 3, start=step), w, buffer).square().sum().backward()
            assert w.grad is not None
            told.append((buffer.clone(), buffer.requires_grad, w.grad.clone()))
        return told

    assert_same_story(f, story)
