"""Legacy types: make `isinstance` checks against ``torch.FloatTensor`` and its like work for fakes.

``isinstance(x, torch.FloatTensor)`` looks at the highest dispatch key of `x`. The highest key of a fake
belongs to no device (`plain_fakes.make_tensor`), so the check would fail. The metaclass of these classes
cannot be changed. So Python's `isinstance` is replaced while a function is traced whose code names one of
them.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from aot.torch_internals import plain_fakes, tensor_impl

_lock = threading.Lock()
_checking = 0


@contextlib.contextmanager
def checking_legacy_types() -> Iterator[None]:
    """While it lasts, in every thread, fakes count as instances of ``torch.FloatTensor`` and its like."""
    global _checking
    with _lock:
        _checking += 1
        if _checking == 1:
            builtins.isinstance = _checking_legacy_instances(builtins.isinstance)
    try:
        yield
    finally:
        with _lock:
            _checking -= 1
            if _checking == 0:
                builtins.isinstance = builtins.isinstance.__wrapped__  # type: ignore[attr-defined]


def _checking_legacy_instances(original: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    @functools.wraps(original)
    def check(value: Any, classes: Any, /) -> bool:
        if original(value, classes):
            return True
        if not (original(value, Tensor) and plain_fakes.is_fake(value)):
            return False
        return original(tensor_impl.empty_real_tensor(value.dtype, value.device), classes)

    return check
