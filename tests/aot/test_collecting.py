"""Python's collector, while something is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot.collecting import young_garbage_only


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations that are collected meanwhile, where all that was there before is put aside."""
    found: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.collect()
    gc.freeze()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.unfreeze()


def test_a_compile_does_not_look_at_its_objects_again_and_again(collections: list[int]) -> None:
    def chain(x: Tensor) -> Tensor:
        for _ in range(200):
            x = x.sin() * 2
        return x

    aot.aot_function(chain, aot.nop)(torch.ones(2, requires_grad=True)).sum().backward()
    assert 0 < len(collections) < 50
    assert collections.count(2) == 0


def test_all_is_as_before_afterwards() -> None:
    before = gc.get_threshold()

    def raises(x: Tensor) -> Tensor:
        assert gc.get_threshold()[2] > before[2]
        raise ValueError("not today")

    with pytest.raises(ValueError, match="today"):
        aot.aot_function(raises, aot.nop)(torch.ones(2))
    assert gc.get_threshold() == before
    with young_garbage_only(), young_garbage_only():
        young, middle, _ = gc.get_threshold()
        assert young > before[0] and middle == before[1]
    assert gc.get_threshold() == before


def test_what_somebody_sets_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with young_garbage_only():
            gc.set_threshold(500, 5, 5)
        assert gc.get_threshold() == (500, 5, 5)
    finally:
        gc.set_threshold(*before)
