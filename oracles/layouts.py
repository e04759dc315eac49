"""Eager once more, with dense operands for each operation: what depends on how tensors lie, and on that only.

ATen has several loops for one operation, for tensors that are dense and for those with gaps or in another
order, and these need not compute the same: `erf` and functions that are made of it (`gelu`) differ in the
last digit, which is many digits after cancellation; and gradients of NaN and infinities are others in one of
them than in the other (`hardtanh`, `hardshrink`, `elu`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_asked = ContextVar("_asked", default=False)


@contextmanager
def lying_densely(on: bool) -> Iterator[None]:
    """Whether what `as_asked` is put around has dense operands, for as long as it lasts."""
    token = _asked.set(on)
    try:
        yield
    finally:
        _asked.reset(token)


def as_asked() -> AbstractContextManager[object]:
    """Put around the call and each backward: runs operations on dense operands if `lying_densely` says so."""
    return Densely() if _asked.get() else nullcontext()  # type: ignore[no-untyped-call]


class Densely(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives each operation, instead of its operands, dense tensors of the same elements; all else (strides,
    aliases, version counters) is as without it. Operations that draw, or that are about how tensors lie, are
    left as they are.

        with Densely():
            torch.erf(x[::2])    # equal to torch.erf(x[::2].contiguous()), bit for bit
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        has_gaps = any(not operand.is_contiguous() for operand in _tensors((args, kwargs)))
        left = func.is_view or func in _BY_STRIDES or not _LEFT.isdisjoint(func.tags)
        if left or not has_gaps:
            return func(*args, **kwargs)
        dense_args, dense_kwargs = _dense((args, kwargs))
        results = func(*args, **kwargs)
        others = func(*dense_args, **dense_kwargs)
        for result, other in zip(_tensors(results), _tensors(others), strict=True):
            if not _repeats(result):
                result.data.copy_(other)  # which moves no version counter
        return results


_BY_STRIDES = {torch.ops.aten.as_strided_copy.default, torch.ops.aten.as_strided_scatter.default}
_LEFT = {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}


def _repeats(tensor: torch.Tensor) -> bool:
    return any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _dense(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone(memory_format=torch.contiguous_format)
    if isinstance(value, dict):
        return {key: _dense(part) for key, part in value.items()}
    return type(value)(map(_dense, value)) if isinstance(value, (list, tuple)) else value
