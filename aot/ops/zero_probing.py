"""Zero probing: decide if the kernel of an operation may run on zeros to find the metadata of its results.

In: an operation, its arguments and their metadata. Out: a boolean. A kernel gives right metadata by
definition. For few elements it is about ten times faster than fake tensors, because most of their rules are
written in Python.

A kernel may run under three conditions. It is fast for these sizes. Nobody notices the run: the operation is
ATen's own, and its draws are undone. And zeros are valid values: zero is a valid index, but no valid pivot.

An error for zeros is conclusive only if the kernel raises for ones too, because it may divide by zero. It is
not conclusive if integers may be something else than indices, such as classes of a loss that may all be
ignored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from aot.torch_internals.op_queries import OpOverload

# Elements that the result may have, judged by the sizes. Most operations need less than a millisecond for
# them.
_MOST = 1 << 24
_LARGEST = 1 << 12  # elements of one argument; also the largest absolute value of a number

_META = torch.device("meta")
_UNASKED = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_TAKE_INDICES = (torch.Tag.core, torch.Tag.pointwise)
# Further operations that use integers as numbers, or as indices that they check.
_CHECK_INDICES = frozenset(
    (
        *("index_add", "index_copy", "index_fill", "index_put", "index_reduce", "put", "take"),
        *("scatter", "scatter_add", "scatter_reduce", "masked_scatter"),
        *("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
        *("fill", "zero", "ones_like", "zeros_like", "full_like", "stack", "tril", "triu", "searchsorted"),
        *("rand_like", "randn_like", "randint_like", "random", "bernoulli", "geometric"),
    )
)


# Operations that take pivots, which count from one (torch 2.11 does not check them).
PIVOTED = frozenset({torch.ops.aten.linalg_ldl_solve.default})


def as_pivots(value: Any) -> Any:
    """An argument of an operation of `PIVOTED`, filled with ones if it is a tensor of integers."""
    whole = isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()
    return value.fill_(1) if whole else value


class Meta(Protocol):
    """The metadata of an argument."""

    @property
    def size(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...


def can_probe(op: Any, given: Sequence[Meta], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ``op(*args, **kwargs)`` may run on zeros. `given` has the metadata of its tensors."""
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return False
    if not given and not isinstance(kwargs.get("device"), torch.device):
        return False
    if not (_asked_with_indices(op) or (_asked(op) and all(map(_holds_no_indices, given)))):
        return False
    elements = [math.prod(meta.size) for meta in given]
    if max(elements, default=0) > _LARGEST or any(meta.device.type != "cpu" for meta in given):
        return False
    # An operation on a list of tensors handles them one by one, or joins them.
    count = sum(elements) if any(isinstance(a, (list, tuple)) for a in args) else math.prod(elements)
    for value in (*args, *kwargs.values()):
        # Without tensor arguments, a result on the meta device has the kernel's dtype and no values to
        # compute.
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
    """Whether an operation that raises for zeros and for ones raises for all tensors with this metadata."""
    if "index" in op._opname and any(meta.dtype is torch.bool for meta in given):
        return False  # a mask with no element set, or with all set, needs a certain number of values
    return _is_core(op) or all(map(_holds_no_indices, given))


def error_is_conclusive_anywhere(op: OpOverload, given: Iterable[Meta]) -> bool:
    """Whether an operation checks no values, so that its kernel may also run on CUDA.

    There a failed device-side assertion makes every later operation fail.
    """
    return op not in _ASSERTING and all(map(_holds_no_indices, given))


_ASSERTING = {torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg}


def _holds_no_indices(meta: Meta) -> bool:
    return meta.dtype.is_floating_point or meta.dtype.is_complex or meta.dtype is torch.bool


def _zero_probe_growth(value: Any) -> int | None:
    """The factor by which an argument that is no tensor may enlarge the result; None if it is too large."""
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
