"""Python's collector, while something is compiled."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from aot.guards.reachable import ReachableObjects
from aot.pipeline.gc_pause import no_full_collections
from tests.support.aot.programs import KeepsByAttribute

DATA: list[Any] = []


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
    with no_full_collections(), no_full_collections():
        young, middle, _ = gc.get_threshold()
        assert young > before[0] and middle == before[1]
    assert gc.get_threshold() == before


def test_what_somebody_sets_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with no_full_collections():
            gc.set_threshold(500, 5, 5)
        assert gc.get_threshold() == (500, 5, 5)
    finally:
        gc.set_threshold(*before)


def two_operations(x: Tensor) -> Tensor:
    return x.sin() * 2


def writes_and_views(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x * 1
    y = x[1:]
    y.mul_(2)
    x.add_(1)
    return y, x.exp()


def random_and_several(x: Tensor) -> list[Tensor]:
    x = torch.dropout(x, 0.5, True)
    return [x, x.softmax(0), x.cumsum(0).detach(), x]


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "two operations": two_operations,
    "writes": writes_and_views,
    "random": random_and_several,
    "normalized": lambda x: torch.nn.functional.layer_norm(x, (4,)),
}
FRONT_DOORS: dict[str, Callable[[Callable[[Tensor], Any]], Callable[[Tensor], Any]]] = {
    "function": lambda f: aot.aot_function(f, aot.nop),
    "sizes": lambda f: aot.aot_function(f, aot.nop, dynamic=True),
    "module": lambda f: aot.aot_module(Calling(f), aot.nop),
    "torch.compile": lambda f: torch.compile(f, backend="aotfuzz"),
}


class Calling(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        return self.function(x * self.scale)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What looks at more than the compile has made: collections, and searches for tensors."""
    found: list[object] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            found.append(info["generation"])

    def search(self: ReachableObjects, tensors: object) -> None:
        found.append(tensors)

    monkeypatch.setattr(ReachableObjects, "find_stored", search)
    enabled = gc.isenabled()
    gc.disable()  # so that there are none but those that are asked for
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    if enabled:
        gc.enable()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("door", FRONT_DOORS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_compile_looks_at_nothing_but_its_own_objects(
    function: str, door: str, grad: bool, asked: list[object]
) -> None:
    torch._dynamo.reset()
    compiled = FRONT_DOORS[door](FUNCTIONS[function])
    with torch._dynamo.config.patch(run_gc_after_compile=False):  # Dynamo's own
        compiled(torch.ones(3, 4, requires_grad=grad))
        compiled(torch.ones(2, 4, requires_grad=grad))
    assert asked == []


def test_nor_does_the_first_one_of_a_process() -> None:
    """Torch keeps the errors of what it cannot import, and so all frames that there are when it tries."""
    program = """
import gc, torch, aot
f = aot.aot_function(lambda x: x.sin() * 2, aot.nop)
gc.disable()
gc.callbacks.append(lambda phase, info: print(phase, info["generation"]))
f(torch.ones(3))
gc.callbacks.clear()
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == ""


def knot(x: Tensor) -> Tensor:
    def again(n: int) -> Tensor:
        return y if n == 0 else again(n - 1)

    y = x.exp()
    return again(2).sin()


def keeps_an_error(x: Tensor) -> Tensor:
    y = x.exp()
    try:
        y.view(7)
    except RuntimeError as error:
        kept = error
    return y.sin() * len(kept.args)


def holds_itself(x: Tensor) -> Tensor:
    ring: list[Any] = [x.exp()]
    ring.append(ring)
    return ring[0].sin()


def grows_old(x: Tensor) -> Tensor:
    ring: list[Any] = [x.exp()]
    ring.append(ring)
    gc.collect()
    return ring[0].sin()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [knot, keeps_an_error, holds_itself, grows_old])
def test_garbage_of_the_function_is_no_escape(
    function: Callable[[Tensor], Tensor], grad: bool, asked: list[object]
) -> None:
    x = torch.ones(3, requires_grad=grad)
    compiled = aot.aot_function(function, aot.nop)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), torch.ones(3).exp().sin())
    assert len(compiled.specializations) == 1
    collections = [one for one in asked if isinstance(one, int)]
    if function is grows_old:  # (one of them is its own)
        assert collections.count(2) == (1 if grad else 2)
    else:
        assert collections == [1]


class Instance:
    pass


DATAS: dict[str, Callable[[int], list[Any]]] = {
    "tuples": lambda count: [(i,) for i in range(count)],
    "nested": lambda count: [[{"x": (i, [])}] for i in range(count)],
    "dicts": lambda count: [{i: [i] for i in range(count)}],
    "objects": lambda count: [object() for _ in range(count)],
    "instances": lambda count: [Instance() for _ in range(count)],
}


@pytest.mark.parametrize("data", DATAS)
@pytest.mark.parametrize("keeps", [False, True])
def test_how_many_objects_there_are_in_globals_does_not_matter(keeps: bool, data: str) -> None:
    def f(x: Tensor) -> Tensor:
        return KeepsByAttribute.apply(x) if keeps else x.sin() * 2  # type: ignore[no-untyped-call,no-any-return]

    counts = []
    for count in (1, 1, 2000):  # (the first one does what is needed once)
        DATA[:] = DATAS[data](count)
        counts.append(calls_of(lambda: aot.aot_function(f, aot.nop)(torch.ones(3, requires_grad=True))))
    DATA.clear()
    assert counts[2] - counts[1] < 1000


def calls_of(run: Callable[[], object]) -> int:
    """How many functions are called, those in C among them."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count
