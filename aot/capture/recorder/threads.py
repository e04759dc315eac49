"""Threads that a function starts, or gives work to: they may not compute with tensors of the trace.

The recorder sees the operations of its own thread alone. But the tensors of a trace carry a dispatch key
(`plain_fakes.make_tensor`) that only threads which trace exclude; in any other thread, whatever it is and
however it got the tensor, each operation on one comes here first. It is recorded nevertheless, or answered
by its value (`thread_values`), since the function may wait for what the other thread makes of it; and the
trace is refused when the function has returned: what else that thread reads is not known.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx

from aot.capture.intercept import metadata_reads
from aot.capture.intercept.number_calls import value_refusal
from aot.capture.intercept.patches import patched, replace
from aot.capture.recorder.escapes import escape_error
from aot.capture.recorder.thread_values import ConcreteValues
from aot.errors import DataDependentValue, UnsupportedOperation
from aot.graph.builder import GraphBuilder
from aot.tensors.symbolic_sizes import SYMBOLIC
from aot.torch_internals import dispatcher, higher_order_ops, mode_stacks, plain_fakes, pytree, tensor_impl

_RECORDING: list[OtherThreads] = []


class OtherThreads:
    """What happens in other threads during one trace.

    Args:
        storages: the storages of the trace, by `tensor_impl.storage_key`.
        recording: the mode that records the trace.
        builder: its graph.
        read: the node for what a tensor of the trace shows now.
    """

    def __init__(
        self,
        storages: Mapping[int, Any],
        recording: mode_stacks.TorchDispatchMode,
        builder: GraphBuilder,
        read: Callable[[Tensor], fx.Node],
    ) -> None:
        self.storages = storages
        self._recording = recording
        self._answers: Callable[[], ConcreteValues]
        self._builder = builder
        self._read = read
        self._read_from: list[Tensor] = []
        self._refusal: UnsupportedOperation | None = None

    @contextlib.contextmanager
    def other_threads_watched(self, given: Callable[[], Mapping[fx.Node, Tensor]] = dict) -> Iterator[None]:
        """Refuse the trace if, while this lasts, another thread computes with its tensors; `given` tells the
        values of those that are graph inputs, as far as they are known.

        Raises:
            UnsupportedOperation: one has.
        """
        self._answers = functools.cache(lambda: ConcreteValues(self._builder, self._read, given()))
        _RECORDING.append(self)
        try:
            with patched():
                yield
        except Exception as error:
            self._check(error)
            raise
        finally:
            _RECORDING.remove(self)
            del self._answers
            self._read_from.clear()
        self._check(None)

    def _check(self, cause: Exception | None) -> None:
        if self._refusal is not None and cause is not self._refusal:
            raise self._refusal from cause

    def run_of_other_thread(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation of another thread."""
        self._refuse(str(op))
        try:
            with plain_fakes.fakes_allowed(), dispatcher.trace_kernels_on(), self._recording:
                return op(*args, **kwargs)
        except Exception:
            return self.run_other_thread_on_values(str(op), op, args, kwargs)

    def run_other_thread_on_values(
        self, what: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Run what cannot be recorded, in another thread."""
        self._refuse(what)
        with plain_fakes.fakes_allowed():
            result, written = self._answers().run_on_concrete_values(run, args, kwargs)
            with self._recording, torch.no_grad(), contextlib.suppress(Exception):  # it is refused anyway
                for target, value in written:
                    if plain_fakes.is_fake(target):
                        target.copy_(torch.ops.aten.lift_fresh(value))
            return result

    def value(self, tensor: Tensor, what: str) -> Tensor:
        """What a tensor shows, for another thread that reads its memory until the trace is over."""
        self._refuse(what)
        with plain_fakes.fakes_allowed():
            self._read_from.append(self._answers().value(tensor))
        return self._read_from[-1]

    def _refuse(self, what: str) -> None:
        self._refusal = UnsupportedOperation(
            f"a thread that the function uses runs {what} on one of its tensors; compute in the thread that "
            f"calls the function"
        )


def _trace_of(*tensors: Tensor) -> OtherThreads:
    keys = {tensor_impl.storage_key(tensor) for tensor in tensors}
    for trace in tuple(_RECORDING):
        if not keys.isdisjoint(trace.storages):
            return trace
    raise escape_error()


def _elsewhere(op: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation on tensors of a trace, in a thread that does not trace."""
    leaves, _ = pytree.tree_flatten((args, kwargs))
    return _trace_of(*filter(plain_fakes.is_fake, leaves)).run_of_other_thread(op, args, kwargs)


plain_fakes.register_fallback(_elsewhere)


def _thread_aware_reader(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that reads the memory of a tensor, of which there is none in a thread that traces."""

    @functools.wraps(original)
    def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not plain_fakes.is_fake(self):
            metadata_reads.record_metadata_read(self)
            return original(self, *args, **kwargs)
        if not plain_fakes.are_fakes_allowed():
            metadata_reads.record_metadata_read(self)
            value = _trace_of(self).value(self, original.__name__)
            return original(value, *args, **kwargs)
        if original.__name__ in _STORAGES:
            metadata_reads.record_metadata_read(self)
            return original(self, *args, **kwargs)
        if original.__name__ == "tolist" and self.numel() <= _LISTED:
            return _items(self)
        cause: RuntimeError | None = None
        try:
            result = original(self, *args, **kwargs)
            if original.__name__ not in _READING_LATER:
                return result
        except RuntimeError as error:
            if not plain_fakes.is_missing_memory_error(error):
                raise
            cause = error
        raise DataDependentValue(
            f"the function reads the memory of a tensor ({original.__name__}); compute with the tensor "
            f"instead"
        ) from cause

    return read


def _items(tensor: Tensor) -> Any:
    """`tolist`, by asking for one element after the other."""
    return [_items(row) for row in tensor.unbind()] if tensor.dim() else tensor.item()


_LISTED = 64  # elements of a tensor that is made a list: each is an operation of the graph
_STORAGES = ("untyped_storage", "_typed_storage", "storage")  # which have their own errors
# What is pickled is the storage that the first returns, and the second returns 0 where there is no memory.
_READING_LATER = ("__reduce_ex__", "const_data_ptr")
for _name in ("numpy", "tolist", "data_ptr", "__dlpack__", "__deepcopy__", *_READING_LATER, *_STORAGES):
    if hasattr(Tensor, _name):
        replace(Tensor, _name, _thread_aware_reader)


def _conversion_to_number(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method by which Python takes a tensor for a number, and may then go one way or another."""

    @functools.wraps(original)
    def convert(self: Tensor) -> Any:
        if plain_fakes.is_fake(self) and plain_fakes.are_fakes_allowed():
            value = self.item()
            if isinstance(value, SYMBOLIC):
                raise value_refusal(
                    sys._getframe(1),
                    original.__name__,
                    f"the function asks what a tensor is as a number ({original.__name__}); compute with the "
                    f"tensor instead (torch.where), or with item()",
                )
        return original(self)

    return convert


for _name in ("__bool__", "__int__", "__index__", "__float__"):
    replace(Tensor, _name, _conversion_to_number)


def _thread_aware_higher_order(original: Callable[..., Any]) -> Callable[..., Any]:
    """The call of an operator that takes functions, to which no dispatch key leads that it does not know."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not plain_fakes.are_fakes_allowed():
            leaves, _ = pytree.tree_flatten((args, kwargs))
            tensors = [leaf for leaf in leaves if plain_fakes.is_fake(leaf)]
            if tensors:
                run = functools.partial(original, self)
                return _trace_of(*tensors).run_other_thread_on_values(str(self), run, args, kwargs)
        return original(self, *args, **kwargs)

    return call


replace(higher_order_ops.HigherOrderOperator, "__call__", _thread_aware_higher_order)


# One thread traces at a time: what it draws from, the default generators, there is once.
_TRACING = threading.RLock()
_tracer = 0  # the identity of the thread that does
_PATIENCE = 0.5, 60  # seconds between looks at that thread, and at how many of these it may stand still


@contextlib.contextmanager
def trace_lock() -> Iterator[None]:
    """Trace, when no other thread does.

    Raises:
        UnsupportedOperation: another thread does, and its function stands still: it may wait for this one.
    """
    global _tracer
    seconds, looks = _PATIENCE
    still, seen = 0, None
    while not _TRACING.acquire(timeout=seconds):
        now = _place(_tracer) if _RECORDING else None
        still, seen = (still + 1 if now and now == seen else 0), now
        if still >= looks:
            raise UnsupportedOperation(
                f"another thread traces a function, which has not gone on for {seconds * looks:.0f} s at "
                f"{now}; if that waits for this call, make this call once before"
            )
    before, _tracer = _tracer, threading.get_ident()
    try:
        yield
    finally:
        _tracer = before
        _TRACING.release()


def _place(thread: int) -> str | None:
    """Where a thread is, to the instruction."""
    frame: FrameType | None = sys._current_frames().get(thread)
    if frame is None:
        return None
    code = frame.f_code
    return f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno}, instruction {frame.f_lasti})"
