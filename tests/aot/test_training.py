"""Whole models trained for five steps: losses, weights, buffers and random state are those of eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agree import checking_nop
from torch import Tensor

import aot
from bench.models import HUB_MODELS, MODELS, Model

PARTITIONERS: dict[str, Callable[..., Any]] = {
    "default": aot.default_partition,
    "min-cut": aot.min_cut_rematerialization_partition,
    "recompute": functools.partial(aot.min_cut_rematerialization_partition, memory_budget=0),
}


def train(model: Model, step: Callable[..., Tensor]) -> list[Tensor]:
    """Everything that five steps of Adam leave behind."""
    torch.manual_seed(1)
    parameters, buffers = model.state()
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = step(parameters, buffers, *model.batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *parameters.values(), *buffers.values(), torch.get_rng_state()]


def assert_trains_as_eager(make: Callable[[], Model], partitioner: str) -> None:
    """Bit for bit, because the same kernels run."""
    torch.manual_seed(0)
    model = make()
    compiled = aot.aot_function(model.step, checking_nop, partition_fn=PARTITIONERS[partitioner])
    eager, ours = train(model, model.step), train(model, compiled)
    assert len({loss.item() for loss in eager[:5]}) == 5
    for expected, value in zip(eager, ours, strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
    (specialization,) = compiled.specializations
    assert specialization.backwards


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_in_eager(name: str, partitioner: str) -> None:
    assert_trains_as_eager(MODELS[name][0], partitioner)


@pytest.mark.nightly
@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("name", HUB_MODELS)
def test_models_of_transformers_train_as_in_eager(name: str, partitioner: str) -> None:
    assert_trains_as_eager(HUB_MODELS[name][0], partitioner)
