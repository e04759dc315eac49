"""CUDA streams and events of a function: what it chooses, waits for and records, in the order of one stream.

Graphs run on the current stream of their caller, whatever streams the function has chosen for its parts: so
nothing is computed too early. What is left to do is to keep the order with what others do on those streams.
Before a call the current stream waits for them, and after it they wait for the current one. Events that live
longer than the call are waited for before it, and recorded after it; and where the function itself waits
for the device, so does the call, at its end.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aot.errors import DataDependentValue, UnsupportedOperation
from aot.torch_internals import patch_points


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """What a call has to do with other streams than the current one.

    Attributes:
        streams: those that the function has computed on, and those that it has named.
        awaited: events that it waits for, and that it has not recorded itself.
        recorded: events that it records.
        synchronizes: whether it waits until the device is done.
    """

    streams: tuple[Any, ...]
    awaited: tuple[Any, ...]
    recorded: tuple[Any, ...]
    synchronizes: bool

    def kept(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call in that order. While a CUDA graph is captured, streams are left alone: what is captured
        runs on one, and cannot wait for what is not."""

        @functools.wraps(call)
        def ordered(*arguments: Any) -> Any:
            now = torch.cuda.current_stream()
            others = () if torch.cuda.is_current_stream_capturing() else self.streams
            others = tuple(stream for stream in others if stream != now)
            for stream in others:
                now.wait_stream(stream)
            for event in self.awaited:
                now.wait_event(event)
            result = call(*arguments)
            for stream in others:
                stream.wait_stream(now)
            for event in self.recorded:
                event.record(now)
            if self.synchronizes:
                now.synchronize()
            return result

        return ordered


class Streams:
    """What is noted of one run of a function, in the thread that traces."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._devices = range(torch.cuda.device_count())
        self._first = self._current()
        self._streams: dict[Any, None] = {}
        self._awaited: dict[int, Any] = {}
        self._recorded: dict[int, Any] = {}
        self._synchronizes = False

    def stream_order(self) -> StreamOrder | None:
        """What a call has to do; None where that is nothing.

        Raises:
            UnsupportedOperation: another stream is the current one now.
        """
        if self._current() != self._first:
            for stream in self._first:
                torch.cuda.set_stream(stream)
            raise UnsupportedOperation(
                "the function leaves another CUDA stream as the current one (torch.cuda.set_stream); choose "
                "it by `with torch.cuda.stream(...)`, or outside of the function"
            )
        awaited, recorded = map(_of_others, (self._awaited, self._recorded))
        beside = any(stream not in self._first for stream in self._streams)
        if not (beside or awaited or recorded or self._synchronizes):
            return None
        return StreamOrder(tuple(self._streams), awaited, recorded, self._synchronizes)

    def look(self) -> None:
        """Something is computed, on the current stream."""
        self._streams.update(dict.fromkeys(self._current()))

    def named(self, stream: Any) -> None:
        """The function lets a stream wait, or be waited for."""
        self._streams[stream] = None

    def awaits(self, event: Any) -> None:
        if id(event) not in self._recorded:
            self._awaited[id(event)] = event

    def records(self, event: Any) -> None:
        self._recorded[id(event)] = event

    def synchronized(self) -> None:
        self._synchronizes = True

    def here(self) -> bool:
        """Whether this is the thread of the trace."""
        return threading.get_ident() == self._thread

    def _current(self) -> tuple[Any, ...]:
        return tuple(map(torch.cuda.current_stream, self._devices))


def _of_others(events: dict[int, Any]) -> tuple[Any, ...]:
    """Those that somebody holds besides `events`, and what goes through these here: an event of the
    function's own is gone with its names. (There are no weak references to events: torch 2.11 leaves them
    pointing at what it has freed.)"""
    return tuple(event for event in events.values() if sys.getrefcount(event) > _HELD_HERE)


_HELD_HERE = 3  # by the dict, the loop's name and the call


_now: Streams | None = None  # one thread traces at a time


def on_operation() -> None:
    """An operation is recorded."""
    if _now is not None and _now.here():
        _now.look()


@contextlib.contextmanager
def recording_streams() -> Iterator[Streams | None]:
    """Note what is done with streams as long as this lasts; None where CUDA is not in use.

    Raises:
        DataDependentValue: how far the device is, is asked for.
    """
    global _now
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield None
        return
    before, now = _now, Streams()
    _now = now
    try:
        with contextlib.ExitStack() as stack:
            for owner, name, noting in _replaced_stream_functions():
                stack.enter_context(_noting_stream_use(owner, name, noting))
            yield now
    finally:
        _now = before


@contextlib.contextmanager
def _noting_stream_use(owner: Any, name: str, note: Callable[..., None]) -> Iterator[None]:
    original = getattr(owner, name)

    @functools.wraps(original)
    def noted(*arguments: Any, **named: Any) -> Any:
        if _now is not None and _now.here():
            note(_now, *arguments, **named)
        return original(*arguments, **named)

    setattr(owner, name, noted)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _record(now: Streams, event: Any, stream: Any = None) -> None:
    now.named(torch.cuda.current_stream() if stream is None else stream)
    now.records(event)


def _wait(now: Streams, event: Any, stream: Any = None) -> None:
    now.named(torch.cuda.current_stream() if stream is None else stream)
    now.awaits(event)


def _synchronize(now: Streams, what: Any = None) -> None:
    if isinstance(what, torch.cuda.Stream):
        now.named(what)
    elif isinstance(what, torch.cuda.Event):
        now.awaits(what)
    now.synchronized()


def _ask(now: Streams, *what: Any) -> None:
    raise DataDependentValue(
        "the function asks how far the device is (query or elapsed_time of a CUDA stream or event), which is "
        "another answer at each call; ask outside of the function"
    )


def _replaced_stream_functions() -> tuple[tuple[Any, str, Callable[..., None]], ...]:
    """What all comes to that is done with streams and events: the owner, the name, and what notes it."""
    return (
        (torch.cuda.Event, "record", _record),
        (torch.cuda.Event, "wait", _wait),
        (torch.cuda.Event, "synchronize", _synchronize),
        (torch.cuda.Event, "query", _ask),
        (torch.cuda.Event, "elapsed_time", _ask),
        (torch.cuda.Stream, "synchronize", _synchronize),
        (torch.cuda.Stream, "query", _ask),
        (*patch_points.CUDA_SYNCHRONIZE, _synchronize),
    )
