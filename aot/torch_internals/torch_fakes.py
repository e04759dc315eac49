"""Torch's `FakeTensor`: its mode, the errors that it raises, and how to make one fast."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from aot.torch_internals import tensor_impl

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "UnsupportedOperatorException",
    "are_given",
    "fake_mode_of",
    "fake_tensor",
    "preload",
    "without_error_logs",
]

_PYTHON_DISPATCHER = torch._C.DispatchKeySet(torch._C.DispatchKey.PythonDispatcher)
_ATTRIBUTES = {
    "constant": None,
    "pytype": None,
    "dispatch_keys": None,
    "real_tensor": None,
    "_nonzero_memo": None,
    "_item_memo": None,
    "_unique_memo": None,
    "_unique_consecutive_memo": None,
    "_nested_int_memo": None,
}


@functools.cache
def preload() -> None:
    """Have torch load what its first fake tensor mode needs. It keeps errors of what cannot be imported, and
    with them the frames that led there: the trace must not be among these."""
    FakeTensorMode()


_quiet = threading.local()
logging.getLogger(FakeTensorMode.__module__).addFilter(lambda _: not getattr(_quiet, "on", False))


@contextlib.contextmanager
def without_error_logs() -> Iterator[None]:
    """While this lasts, what fake tensors raise in this thread is not logged as well: it is either the user's
    own error, or not even an error."""
    before = getattr(_quiet, "on", False)
    _quiet.on = True
    try:
        yield
    finally:
        _quiet.on = before


def fake_tensor(
    mode: FakeTensorMode,
    nbytes: int,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> FakeTensor:
    """A fake tensor with the given geometry on a storage of `nbytes` bytes, outside autograd.

    The same that `FakeTensor(mode, meta, device)` makes, without its checks, which are several microseconds
    each.
    """
    with torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(_PYTHON_DISPATCHER):
        storage = torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()
        meta = torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, size, stride)
        fake: FakeTensor = Tensor._make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
    fake.fake_device = device
    fake.__dict__.update(_ATTRIBUTES)
    fake.fake_mode = mode
    if not fake.is_inference():
        tensor_impl.set_version_counters((fake,), (0,))  # set_ has moved it
    return fake


def fake_mode_of(inputs: Sequence[Any]) -> FakeTensorMode:
    return next((value.fake_mode for value in inputs if isinstance(value, FakeTensor)), FakeTensorMode())


def are_given(values: Sequence[Any]) -> bool:
    """Whether some of a call's arguments are fake tensors: another compiler traces it, or asks for shapes."""
    return FakeTensor in map(type, values)
