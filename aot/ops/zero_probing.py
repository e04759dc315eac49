"""Which operations may be asked what they return by running their kernels on zeros.

A kernel is right about its results by definition, and on a few elements some ten times faster than fake
tensors, of which most operations' rules are written in Python. It may be run where that is soon done, where
nobody notices (it is ATen's own, and what it draws is taken back), and where no values are taken on trust:
zero is an index wherever there is one, but no pivot.

In: an operation, its arguments and their metadata. Out: whether. What it raises for zeros says something only
if it raises for ones as well: it may divide by them. Nor does it where whole numbers may be anything but
indices: targets that are no class may all be ignored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from aot.torch_internals.op_queries import OpOverload

# Elements that the result may have, as far as sizes tell: less than a millisecond's work for most operations.
_MOST = 1 << 24
_LARGEST = 1 << 12  # of one argument, and of a number

_META = torch.device("meta")
_UNASKED = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_TAKE_INDICES = (torch.Tag.core, torch.Tag.pointwise)
# Of the others, those that look at whole numbers as numbers, or as indices that they check.
_CHECK_INDICES = frozenset(
    (
        *("index_add", "index_copy", "index_fill", "index_put", "index_reduce", "put", "take"),
        *("scatter", "scatter_add", "scatter_reduce", "masked_scatter"),
        *("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
        *("fill", "zero", "ones_like", "zeros_like", "full_like", "stack", "tril", "triu", "searchsorted"),
        *("rand_like", "randn_like", "randint_like", "random", "bernoulli", "geometric"),
    )
)


# Operations that take pivots, which count from one (torch 2.11 does not look whether they do).
PIVOTED = frozenset({torch.ops.aten.linalg_ldl_solve.default})


def as_pivots(value: Any) -> Any:
    """An argument of such an operation, with ones where whole numbers are zeros."""
    whole = isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()
    return value.fill_(1) if whole else value


class Meta(Protocol):
    """What is known of an argument."""

    @property
    def size(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...


def can_probe(op: Any, given: Sequence[Meta], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ``op(*args, **kwargs)`` may be run on zeros instead of the tensors, which are `given`."""
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return False
    if not given and not isinstance(kwargs.get("device"), torch.device):
        return False
    if not (_asked_with_indices(op) or (_asked(op) and all(map(_holds_no_indices, given)))):
        return False
    elements = [math.prod(meta.size) for meta in given]
    if max(elements, default=0) > _LARGEST or any(meta.device.type != "cpu" for meta in given):
        return False
    # (Of a list of tensors the result is made one by one or one after the other.)
    count = sum(elements) if any(isinstance(a, (list, tuple)) for a in args) else math.prod(elements)
    for value in (*args, *kwargs.values()):
        # (A number that is copied to the meta device has no values there, and the kernel's dtype.)
        factor = 1 if value == _META and not given else _zero_probe_growth(value)
        if factor is None:
            return False
        count *= factor
    return count <= _MOST


@functools.cache
def _asked(op: OpOverload) -> bool:
    return not any(tag in op.tags for tag in _UNASKED)


@functools.cache
def _asked_with_indices(op: OpOverload) -> bool:
    return _asked(op) and (_is_core(op) or op._opname.removesuffix("_") in _CHECK_INDICES)


def _is_core(op: OpOverload) -> bool:
    return any(tag in op.tags for tag in _TAKE_INDICES)


def error_is_conclusive(op: Any, given: Iterable[Meta]) -> bool:
    """Whether an operation that raises for zeros, and for ones, does for the tensors, which are `given`."""
    if "index" in op._opname and any(meta.dtype is torch.bool for meta in given):
        return False  # masks of which none is set, or every one, take as many values
    return _is_core(op) or all(map(_holds_no_indices, given))


def error_is_conclusive_anywhere(op: OpOverload, given: Iterable[Meta]) -> bool:
    """Whether it may also be asked on a device where nothing works any more after an assertion has failed: it
    checks no values."""
    return op not in _ASSERTING and all(map(_holds_no_indices, given))


_ASSERTING = {torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg}


def _holds_no_indices(meta: Meta) -> bool:
    return meta.dtype.is_floating_point or meta.dtype.is_complex or meta.dtype is torch.bool


def _zero_probe_growth(value: Any) -> int | None:
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
