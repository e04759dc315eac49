"""Which operations may be asked what they return by running their kernels on zeros.

A kernel is right about its results by definition, and on a few elements some ten times faster than fake
tensors, of which most operations' rules are written in Python. It may be run where that is soon done, where
nobody notices (it draws no numbers, and is ATen's own), and where no values are taken on trust: zero is an
index wherever there is one, but no pivot.

In: an operation, its arguments and their metadata. Out: whether. What it raises for zeros says something only
if it raises for ones as well: it may divide by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from aot.torch_internals import OpOverload

# Elements that the result may have, as far as sizes tell: less than a millisecond's work for most operations.
_MOST = 1 << 24
_LARGEST = 1 << 12  # of one argument, and of a number

_UNASKED = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
)
_TAKE_INDICES = (torch.Tag.core, torch.Tag.pointwise)


class Meta(Protocol):
    """What is known of an argument."""

    @property
    def size(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...


def may_be_run(op: Any, given: Sequence[Meta], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ``op(*args, **kwargs)`` may be run on zeros instead of the tensors, which are `given`."""
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return False
    if not given and not isinstance(kwargs.get("device"), torch.device):
        return False
    if any(tag in op.tags for tag in _UNASKED):
        return False
    if not any(tag in op.tags for tag in _TAKE_INDICES) and not all(map(_holds_no_indices, given)):
        return False
    elements = [math.prod(meta.size) for meta in given]
    if max(elements, default=0) > _LARGEST or any(meta.device.type != "cpu" for meta in given):
        return False
    # (Of a list of tensors the result is made one by one or one after the other.)
    count = sum(elements) if any(isinstance(a, (list, tuple)) for a in args) else math.prod(elements)
    for value in (*args, *kwargs.values()):
        factor = _factor(value)
        if factor is None:
            return False
        count *= factor
    return count <= _MOST


def _holds_no_indices(meta: Meta) -> bool:
    return meta.dtype.is_floating_point or meta.dtype.is_complex or meta.dtype is torch.bool


def _factor(value: Any) -> int | None:
    """By how much an argument that is no tensor may enlarge the result; None if by too much."""
    if isinstance(value, torch.device):
        return 1 if value.type == "cpu" else None
    if isinstance(value, (list, tuple)):
        return _product(item for item in value if type(item) is int)
    if type(value) is int and abs(value) > _LARGEST:
        return None
    return 1


def _product(numbers: Iterable[int]) -> int | None:
    found = math.prod(max(abs(number), 1) for number in numbers)
    return found if found <= _MOST else None
