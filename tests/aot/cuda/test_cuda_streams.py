"""Streams and events of a CUDA device that the function chooses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import aot
from tests.support.agreement import values
from tests.support.aot.cuda_tensors import gpu_leaf, gpu_values

pytestmark = pytest.mark.cuda


LONG = 50_000_000  # cycles: some 30 ms


def slowly(x: Tensor) -> Tensor:
    """Twice that, and long after this returns."""
    torch.cuda._sleep(LONG)
    return x.mul_(2)


class Beside:
    """A program that computes on a stream of its own, and its caller, who does so as well."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.ready, self.done = torch.cuda.Event(), torch.cuda.Event()

    def forks(self, x: Tensor) -> Tensor:
        now = torch.cuda.current_stream()
        self.stream.wait_stream(now)
        with torch.cuda.stream(self.stream):
            y = x * 3
        now.wait_stream(self.stream)
        return y + 1

    def takes_up(self, x: Tensor) -> Tensor:
        with torch.cuda.stream(self.stream):
            y = x * 3
        torch.cuda.current_stream().wait_stream(self.stream)
        return y + 1

    def leaves_there(self, x: Tensor) -> Tensor:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            return x * 3

    def awaits(self, x: Tensor) -> Tensor:
        torch.cuda.current_stream().wait_event(self.ready)
        return x * 3

    def records(self, x: Tensor) -> Tensor:
        y = x * 3
        self.done.record()
        return y

    def enters_it(self, x: Tensor) -> Tensor:
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.ready)
            y = x * 3
            self.done.record(self.stream)
        return y


@pytest.mark.parametrize("name", ["forks", "takes_up", "leaves_there", "awaits", "records", "enters_it"])
@pytest.mark.parametrize("train", [False, True])
def test_work_on_other_streams_is_in_order(name: str, train: bool) -> None:
    told = []
    for compiles in (False, True):
        beside, aside = Beside(), torch.cuda.Stream()
        function = getattr(beside, name)
        if compiles:
            function = aot.aot_function(function, aot.nop)
        for _ in range(3):
            torch.cuda.synchronize()
            x = gpu_values(1000)
            w = gpu_leaf(1000) if train else gpu_values(1000)
            torch.cuda.synchronize()
            if name in ("takes_up", "enters_it", "awaits"):  # what comes before, on another stream
                source = beside.stream if name == "takes_up" else aside
                with torch.cuda.stream(source):
                    slowly(x)
                beside.ready.record(source)
            else:
                slowly(x)
            y = function(x * w if name == "forks" else x)
            last = {"records": aside, "enters_it": aside, "leaves_there": beside.stream}.get(name)
            if last is None:
                z = y * 5
            else:
                if last is aside:
                    last.wait_event(beside.done)
                with torch.cuda.stream(last):
                    z = y * 5
            torch.cuda.synchronize()
            gradients = torch.autograd.grad(z.sum(), w) if train and name == "forks" else ()
            told.append([z.tolist(), *(g.tolist() for g in gradients)])
    assert all(one == told[0] for one in told)


@pytest.mark.parametrize("wait", ["device", "stream", "event"])
def test_a_function_that_waits_is_waited_in(wait: str) -> None:
    beside = Beside()

    def f(x: Tensor, there: Tensor) -> Tensor:
        there.copy_(x * 2, non_blocking=True)
        if wait == "device":
            torch.cuda.synchronize()
        elif wait == "stream":
            torch.cuda.current_stream().synchronize()
        else:
            beside.done.record()
            beside.done.synchronize()
        return x + 1

    compiled = aot.aot_function(f, aot.nop)
    for function in (f, compiled, compiled):
        there = torch.zeros(1000).pin_memory()
        x = gpu_values(1000)
        torch.cuda.synchronize()
        function(slowly(x), there)
        assert torch.equal(there, values(1000) * 4)


def test_another_event_is_another_call() -> None:
    beside = Beside()
    compiled = aot.aot_function(beside.records, aot.nop)
    for _ in range(2):
        compiled(gpu_values(3))
        beside.done.synchronize()
    torch.cuda.synchronize()
    beside.done = torch.cuda.Event()
    compiled(gpu_values(3))  # which takes longer than the device is kept busy
    slowly(x := gpu_values(3))
    compiled(x)
    assert not beside.done.query()
    torch.cuda.synchronize()
    assert beside.done.query()


def test_what_cannot_be_kept_in_order_is_refused() -> None:
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)

    def stays(x: Tensor) -> Tensor:
        torch.cuda.set_stream(stream)
        return x * 2

    def asks(x: Tensor) -> Tensor:
        return x * 2 if stream.query() else x

    def times(x: Tensor) -> Tensor:
        return x * event.elapsed_time(event)

    before = torch.cuda.current_stream()
    for function, error in ((stays, "current one"), (asks, "how far"), (times, "how far")):
        with pytest.raises(aot.Unsupported, match=error):
            aot.aot_function(function, aot.nop)(gpu_values(3))
        assert torch.cuda.current_stream() == before


def test_a_call_that_forks_is_captured_in_a_cuda_graph() -> None:
    beside = Beside()
    told = []
    for function in (beside.forks, aot.aot_function(beside.forks, aot.nop)):
        x = gpu_values(3)
        function(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = function(x)
        x.add_(1)
        graph.replay()
        told.append(result.tolist())
    assert told[0] == told[1]
