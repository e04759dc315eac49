"""Programs after public reports that are about shared and written memory, each with its number."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agree import assert_agrees, checking_nop, leaf, non_leaf
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import aot

Function = Callable[..., Any]


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
