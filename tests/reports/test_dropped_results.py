"""Results of reports that show each other: nothing of them stays alive when they are dropped."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import aot
from tests.reports.programs.aliasing import views_of_a_value
from tests.reports.programs.custom_functions import RETURNING_VIEWS
from tests.support.agreement import checking_nop, leaf


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


LEAKING = {**RETURNING_VIEWS, "a row is written": _writes_a_row, "views of a value": views_of_a_value}


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
