"""What a call does with CUDA streams and events, of stand-ins; `tests/aot/cuda` has a device."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot.torch_internals import patch_points
from tests.support.agreement import values


class Device:
    """One that notes what it is told."""

    def __init__(self) -> None:
        self.said = _Said()
        self.stream = self.default = _Stream("default", self)
        self.capturing = False

    def synchronize(self) -> None:
        self.said.append(("device", "synchronize", ""))


class _Said:
    """What was said to a device, as text: a compiled call repeats what is put into a list."""

    def __init__(self) -> None:
        self._text = io.StringIO()

    def append(self, words: tuple[str, str, str]) -> None:
        self._text.write(f"{words!r}\n")

    def clear(self) -> None:
        self._text.seek(0)
        self._text.truncate()

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        return map(ast.literal_eval, self._text.getvalue().splitlines())


class _Stream:
    def __init__(self, name: str, device: Device) -> None:
        self.name, self.device = name, device

    def wait_event(self, event: _Event) -> None:
        event.wait(self)

    def wait_stream(self, other: _Stream) -> None:
        event = _Event(f"end of {other.name}", self.device)
        event.record(other)
        event.wait(self)

    def synchronize(self) -> None:
        self.device.said.append((self.name, "synchronize", ""))

    def query(self) -> bool:
        return True

    def __enter__(self) -> None:
        self.device.stream = self

    def __exit__(self, *_: object) -> None:
        self.device.stream = self.device.default


class _Event:
    def __init__(self, name: str, device: Device) -> None:
        self.name, self.device = name, device

    def record(self, stream: _Stream | None = None) -> None:
        self.device.said.append(((stream or self.device.stream).name, "records", self.name))

    def wait(self, stream: _Stream | None = None) -> None:
        self.device.said.append(((stream or self.device.stream).name, "awaits", self.name))

    def synchronize(self) -> None:
        self.device.said.append((self.name, "synchronize", ""))

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: _Event) -> float:
        return 1.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(patch_points, "CUDA_SYNCHRONIZE", (SimpleNamespace(wait=device.synchronize), "wait"))
    for name, value in {
        "Stream": _Stream,
        "Event": _Event,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_stream": lambda *_: device.stream,
        "set_stream": lambda stream: setattr(device, "stream", stream),
        "is_current_stream_capturing": lambda: device.capturing,
        "default_generators": (),
        "get_rng_state_all": list,
        "memory_allocated": lambda _: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return device


def _said(device: Device, function: Callable[[Tensor], Any]) -> list[tuple[str, str, str]]:
    """What a second call of the compiled function says to the device."""
    compiled = aot.aot_function(function, aot.nop)
    compiled(values(3))
    device.said.clear()
    assert torch.equal(compiled(values(3)), values(3) * 3)
    assert len(compiled.specializations) == 1
    return list(device.said)


def test_a_function_that_stays_where_it_is_says_nothing(device: Device) -> None:
    assert _said(device, lambda x: x * 3) == []


def test_a_stream_is_waited_for_and_waits(device: Device) -> None:
    side = _Stream("side", device)

    def f(x: Tensor) -> Tensor:
        with side:
            return x * 3

    around = [
        ("side", "records", "end of side"),
        ("default", "awaits", "end of side"),
        ("default", "records", "end of default"),
        ("side", "awaits", "end of default"),
    ]
    assert _said(device, f) == around
    device.capturing = True
    assert _said(device, f) == []


def test_an_event_of_somebody_elses_is_awaited_before_and_recorded_after(device: Device) -> None:
    ready, done = _Event("ready", device), _Event("done", device)

    def f(x: Tensor) -> Tensor:
        own = _Event("own", device)
        own.record()
        own.wait()
        ready.wait()
        y = x * 3
        done.record()
        done.wait()
        return y

    assert _said(device, f) == [("default", "awaits", "ready"), ("default", "records", "done")]


def test_another_event_is_another_call(device: Device) -> None:
    class Holder:
        def __init__(self) -> None:
            self.done = _Event("first", device)

        def f(self, x: Tensor) -> Tensor:
            self.done.record()
            return x * 3

    holder = Holder()
    compiled = aot.aot_function(holder.f, aot.nop)
    for name in ("first", "second"):
        holder.done = _Event(name, device)
        for _ in range(2):
            device.said.clear()
            compiled(values(3))
            assert list(device.said)[-1:] == [("default", "records", name)]


def test_who_waits_waits_at_the_end(device: Device) -> None:
    side, done = _Stream("side", device), _Event("done", device)
    owner, name = patch_points.CUDA_SYNCHRONIZE

    def waits(x: Tensor) -> Tensor:
        getattr(owner, name)()
        return x * 3

    def waits_for_a_stream(x: Tensor) -> Tensor:
        side.synchronize()
        return x * 3

    def waits_for_an_event(x: Tensor) -> Tensor:
        done.synchronize()
        return x * 3

    end = ("default", "synchronize", "")
    assert _said(device, waits) == [end]
    assert _said(device, waits_for_a_stream)[-1] == end
    assert _said(device, waits_for_an_event) == [("default", "awaits", "done"), end]


def test_what_cannot_be_said_beforehand_is_refused(device: Device) -> None:
    side, event = _Stream("side", device), _Event("event", device)

    def stays(x: Tensor) -> Tensor:
        torch.cuda.set_stream(side)
        return x * 3

    for function, match in (
        (stays, "current one"),
        (lambda x: x * side.query(), "how far"),
        (lambda x: x * event.query(), "how far"),
        (lambda x: x * event.elapsed_time(event), "how far"),
    ):
        with pytest.raises(aot.Unsupported, match=match):
            aot.aot_function(function, aot.nop)(values(3))
        assert device.stream.name == "default"


def test_what_was_replaced_is_put_back(device: Device) -> None:
    before = dict(vars(_Event)), dict(vars(_Stream))
    aot.aot_function(lambda x: x * 3, aot.nop)(values(3))
    assert (dict(vars(_Event)), dict(vars(_Stream))) == before
