"""Programs after public reports that are about shared and written memory, each with its number."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agree import assert_agrees, assert_same_story, checking_nop, leaf, non_leaf, values
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import aot

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


BY_STRIDES: dict[str, Function] = {
    "copy": lambda x: torch.as_strided_copy(x, (2, 2), (3, 1)),
    "copy from an offset": lambda x: torch.as_strided_copy(x, (2,), (3,), 4),
    "write": lambda x: torch.as_strided_scatter(x, torch.full((2,), 7.0), (2,), (2,)),
    "write at an offset": lambda x: torch.as_strided_scatter(x, torch.full((2,), 7.0), (2,), (2,), 4),
}

LAYOUTS: dict[str, Function] = {
    "every other": lambda x: x.view(-1)[::2],
    "columns": lambda x: x[:, 1:3],
    "a column": lambda x: x[:, 2],
    "rows, transposed": lambda x: x[1:3].t(),
    "at an offset": lambda x: x.view(-1)[3:8],
}


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BY_STRIDES)
def test_what_is_written_lies_in_memory_as_before(name: str, layout: str, written: bool) -> None:
    """pytorch/pytorch#133512"""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        if written:
            x.add_(1)
        own = x + 3
        own.mul_(2)
        return BY_STRIDES[name](x), torch.as_strided_copy(own, (2,), (2,))

    assert_agrees(f, lambda: [LAYOUTS[layout](values(4, 5))])
    if name.startswith("copy"):  # (In eager, the others have no derivative there.)
        assert_agrees(f, lambda: [LAYOUTS[layout](non_leaf(4, 5))])


def test_a_write_by_strides_of_another_size() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.as_strided_scatter(x, torch.ones(1), (2,), (2,))

    for function in (f, aot.aot_function(f, checking_nop)):
        with pytest.raises(RuntimeError, match="size"):
            function(values(6))


@pytest.mark.parametrize("make", [values, non_leaf])
def test_an_element_of_an_argument_with_a_stride_of_zero_is_written(make: Function) -> None:
    """pytorch/pytorch#153861"""

    def f(x: Tensor) -> Tensor:
        x[0] = x[0] + 1
        return x

    assert_agrees(f, lambda: [make(2, 2).as_strided((2, 1), (1, 0))])


class WithRow(torch.autograd.Function):
    """Returns what it has made and a view of that, and saves a view of the view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x * 2
        row = whole[0]
        ctx.save_for_backward(row.unsqueeze(-1))
        return whole, row

    @staticmethod
    def backward(ctx: Any, whole: Tensor, row: Tensor) -> Tensor:
        (saved,) = ctx.saved_tensors
        return torch.cat([whole[:1] * 2 + row * saved.squeeze(-1), whole[1:] * 2])


class RowFirst(torch.autograd.Function):
    """The views come first, one of an alias of the memory; what they show is saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        whole = x.exp()
        part = whole[1:].detach()
        ctx.save_for_backward(whole, part[0])
        return part[0], whole[0], part, whole

    @staticmethod
    def backward(ctx: Any, row: Tensor, first: Tensor, part: Tensor, whole: Tensor) -> Tensor:
        saved, saved_row = ctx.saved_tensors
        rows = torch.stack([first, row * saved_row])
        return whole * saved + torch.cat([rows, part[1:]])


class AsAnotherDtype(torch.autograd.Function):
    """The same memory as complex and as real numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        pairs = torch.stack([x, x * 2], -1)
        return torch.view_as_complex(pairs), pairs

    @staticmethod
    def backward(ctx: Any, number: Tensor, pairs: Tensor) -> Tensor:
        return number.real + pairs.sum(-1)


RETURNING_VIEWS: dict[str, Function] = {
    "a row": WithRow.apply,
    "rows first": RowFirst.apply,
    "another dtype": AsAnotherDtype.apply,
}


@pytest.mark.parametrize("name", RETURNING_VIEWS)
@pytest.mark.parametrize("make", [leaf, non_leaf])
@pytest.mark.parametrize("differentiate", [None, (0,), (1,)])
def test_a_custom_function_that_returns_views_of_its_results(
    name: str, make: Function, differentiate: tuple[int, ...] | None
) -> None:
    """pytorch/pytorch#94990"""
    f = RETURNING_VIEWS[name]
    assert_agrees(f, lambda: [make(3, 2)], differentiate=differentiate)
    assert_agrees(lambda x: f(x)[0], lambda: [make(3, 2)])
    assert_agrees(lambda x: f(x)[1], lambda: [make(3, 2)])
    assert_agrees(lambda x: [y * 3 for y in f(x)], lambda: [make(3, 2)], differentiate=differentiate)
    assert_agrees(lambda x: [y[1:] for y in f(x)], lambda: [make(3, 2)])


class DirtyRow(torch.autograd.Function):
    """Writes to what it is given, and saves it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.relu_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x > 0)


def _writes_a_row(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    DirtyRow.apply(y[0])
    return y, y * 2


def _views_of_a_value(x: Tensor) -> tuple[Tensor, ...]:
    whole = x + x
    part = whole.split([1, 2])[1]
    row = part.unsqueeze(-1)
    return part, row * x.sum(), whole


LEAKING = {**RETURNING_VIEWS, "a row is written": _writes_a_row, "views of a value": _views_of_a_value}


@pytest.mark.parametrize("name", LEAKING)
def test_no_cycle_keeps_results_that_show_each_other(name: str) -> None:
    """pytorch/pytorch#94990, #160317: a forward without a backward."""
    compiled = aot.aot_function(LEAKING[name], checking_nop)
    x = leaf(3, 2)
    compiled(x)
    gc.collect()
    gc.disable()
    try:
        results = compiled(x)
        memory = [StorageWeakRef(result.untyped_storage()) for result in results]
        alive = [weakref.ref(result) for result in results]
        del results
        assert all(reference.expired() for reference in memory)
        assert all(reference() is None for reference in alive)
    finally:
        gc.enable()


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


def _flat_parameter(flat: Tensor, part: Tensor) -> Tensor:
    """pytorch/pytorch#110843"""
    with torch.no_grad():
        part.set_(flat[0:2])
    return flat


def _of_a_leaf() -> list[Tensor]:
    flat = leaf(4)
    return [flat, flat[0:2]]


def _as_another_dtype(x: Tensor) -> Tensor:
    """pytorch/pytorch#152162"""
    x.data = x.to(torch.bfloat16)
    return x * 2


def _read_before_and_after(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """pytorch/pytorch#132200"""
    before = x.sin()
    x.set_(x + 1)
    return before, x.sin(), w**2


def _viewed_before(x: Tensor) -> Tensor:
    """pytorch/pytorch#94773"""
    part = x[:]
    x.set_(torch.ones(3, 4).untyped_storage())
    return part


def _viewed_before_an_assignment(x: Tensor) -> Tensor:
    """pytorch/pytorch#94773"""
    part = x[:]
    x.data = torch.ones(3, 4)
    return part


def _as_its_own_dtype(x: Tensor, y: Tensor) -> None:
    """pytorch/pytorch#136064"""
    x.view(torch.float32).copy_(y)


def _caches(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """pytorch/pytorch#194747: parts of one buffer, of several dtypes."""
    second.mul_(2)
    first.add_(1)
    return first + 1, second + 1


def _buffer() -> list[Tensor]:
    buffer = torch.arange(64, dtype=torch.uint8)
    return [buffer[:32].view(torch.float32), buffer[16:48].view(torch.int16)]


def _shifts(x: Tensor) -> Tensor:
    """pytorch/pytorch#197829"""
    x[1:] = x[:-1].clone()
    return x * 1


def _parameter(x: Tensor) -> Tensor:
    """pytorch/pytorch#125284"""
    y = x + 1
    parameter = torch.nn.Parameter(y)
    with torch.no_grad():
        parameter.mul_(2)
    return y + parameter


def _complex_and_real(x: Tensor) -> tuple[Tensor, Tensor]:
    """pytorch/pytorch#122457"""
    z = torch.view_as_complex(x + 1)
    return torch.view_as_real(z) + 1, torch.view_as_real(z + 1)


def _expanded(x: Tensor) -> tuple[Tensor, Tensor]:
    """pytorch/pytorch#184519"""
    return x.sum(0).expand(5, 2), (x * 2).expand(3, 3, 2)


def _detached_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    """pytorch/pytorch#176854"""
    y = x * 2
    y.detach_()
    return y + 1, y


def _written_view(x: Tensor) -> Tensor:
    """pytorch/functorch#514"""
    return torch.relu_((x * 2).view(1, 3, 2))


SMALL: list[tuple[Function, Callable[[], list[Tensor]]]] = [
    (_flat_parameter, _of_a_leaf),
    (_as_another_dtype, lambda: [values(3)]),
    (_read_before_and_after, lambda: [values(3), leaf(3, start=5)]),
    (_viewed_before, lambda: [values(2, 3)]),
    (_viewed_before_an_assignment, lambda: [values(2, 3)]),
    (_as_its_own_dtype, lambda: [values(4, 4), values(4, 4, start=3)]),
    (_as_its_own_dtype, lambda: [non_leaf(4, 4), non_leaf(4, 4, start=3)]),
    (_caches, _buffer),
    (_shifts, lambda: [values(5)]),
    (_shifts, lambda: [non_leaf(5)]),
    (_parameter, lambda: [leaf(2)]),
    (_complex_and_real, lambda: [leaf(3, 2)]),
    (_expanded, lambda: [leaf(3, 2)]),
    (_detached_in_place, lambda: [leaf(3)]),
    (_written_view, lambda: [leaf(3, 2)]),
]


@pytest.mark.parametrize(("f", "make"), SMALL)
def test_small_programs(f: Function, make: Callable[[], list[Tensor]]) -> None:
    assert_agrees(f, make)
