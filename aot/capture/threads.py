"""Threads that a function starts, or gives work to: they may not compute with tensors of the trace.

The recorder sees the operations of its own thread alone. But the tensors of a trace carry a dispatch key
(`torch_internals.memoryless`) that only threads which trace exclude; in any other thread, whatever it is and
however it got the tensor, each operation on one comes here first. It is recorded nevertheless, since the
function may wait for what the other thread makes of it, and the trace is refused when the function has
returned: what else that thread reads is not known.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from aot import torch_internals as internals
from aot.errors import UnsupportedOperation

# One thread traces at a time: what it draws from, the default generators, there is once.
TRACING = threading.RLock()

_RECORDING: list[Threads] = []


class Threads:
    """What happens in other threads during one trace.

    Args:
        storages: the storages of the trace, by `torch_internals.storage_key`.
        recording: the mode that records the trace.
    """

    def __init__(self, storages: dict[int, Any], recording: internals.TorchDispatchMode) -> None:
        self.storages = storages
        self.recording = recording
        self.refusal: UnsupportedOperation | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Refuse the trace if, while this lasts, another thread computes with its tensors.

        Raises:
            UnsupportedOperation: one has.
        """
        _RECORDING.append(self)
        try:
            yield
        except Exception as error:
            self._check(error)
            raise
        finally:
            _RECORDING.remove(self)
        self._check(None)

    def _check(self, cause: Exception | None) -> None:
        if self.refusal is not None and cause is not self.refusal:
            raise self.refusal from cause


def _elsewhere(op: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation on tensors of a trace, in a thread that does not trace."""
    leaves, _ = internals.tree_flatten((args, kwargs))
    keys = {internals.storage_key(leaf) for leaf in leaves if internals.is_memoryless(leaf)}
    for trace in tuple(_RECORDING):
        if not keys.isdisjoint(trace.storages):
            trace.refusal = UnsupportedOperation(
                f"a thread that the function uses runs {op} on one of its tensors; compute in the thread "
                f"that calls the function"
            )
            with internals.with_memoryless(), internals.with_own_kernels(), trace.recording:
                return op(*args, **kwargs)
    raise internals.escaped()


internals.refuse_memoryless(_elsewhere)
