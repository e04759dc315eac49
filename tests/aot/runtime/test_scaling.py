"""Growth: compiling takes work in proportion to the arguments and results, however they share storage.

What is counted is calls of functions, Python's and C's, so that the machine's speed does not matter.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot.tensors.version_counters import counter_groups
from bench.compiler.scaling import PROGRAMS
from tests.support.agreement import values


def work(function: Callable[..., Any], *arguments: Any) -> int:
    """How many functions are called."""
    count = 0

    def counting(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(counting)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_work_grows_linearly(name: str) -> None:
    function, make = PROGRAMS[name]
    compiled = aot.aot_function(function, aot.nop)
    sizes = (48, 96, 192)
    compiled(make(sizes[-1] + 2))  # so that nothing is done for the first time below
    compiling = [work(compiled, make(size)) for size in sizes]
    calling = [work(compiled, make(size)) for size in sizes]
    assert len(compiled.specializations) == 1 + len(sizes)
    for small, medium, large in (compiling, calling):
        assert large - medium < 2.3 * (medium - small), (small, medium, large)
    assert calling[-1] < compiling[-1] / 5


def test_the_count_tells_quadratic_work() -> None:
    def pairs(count: int) -> None:
        for _ in range(count):
            for _ in range(count):
                len("")

    small, medium, large = (work(pairs, size) for size in (48, 96, 192))
    assert large - medium > 3.9 * (medium - small)


@pytest.mark.parametrize("shared", ["slices, read", "flat parameters, read", "groups of two, read"])
def test_sharing_costs_no_line_of_the_wrapper(shared: str) -> None:
    """Where nothing is written, a call does with arguments on one storage what it does with others."""
    wrappers = []
    for name in (shared, "separate, read"):
        function, make = PROGRAMS[name]
        compiled = aot.aot_function(function, aot.nop)
        with torch.no_grad():
            compiled(make(20))
        wrappers.append(compiled.specializations[0].wrapper)
    assert wrappers[0] == wrappers[1]


@pytest.mark.parametrize("count", [2, 3, 40])
def test_counters_are_told_apart_and_left_as_they_were(count: int) -> None:
    whole = values(count)
    own = [whole.data for _ in range(count)]
    shared = [tensor.detach() for tensor in own]
    for i, tensor in enumerate(own):
        for _ in range(i % 3):
            tensor.add_(1)
    with torch.inference_mode():
        inference = values(3)
    tensors: list[Tensor] = [*own, whole, inference, *shared, whole.detach()]
    versions = [t._version for t in tensors if not t.is_inference()]
    expected = (*range(count), count, count + 1, *range(count), count)
    assert counter_groups(tensors) == expected
    assert [t._version for t in tensors if not t.is_inference()] == versions
    assert counter_groups([]) == ()
