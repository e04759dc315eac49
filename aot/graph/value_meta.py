"""Value metadata: size, strides, dtype and device of a graph's values, interned to small integers.

The integers are parts of keys that are remembered across traces. Metadata with symbols belongs to one trace,
and equals no other.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aot import errors
from aot.tensors.symbolic_sizes import has_symbols, specialize_sizes, with_hints
from aot.torch_internals import script_objects, tensor_impl


class ValueMeta(NamedTuple):
    """The metadata of a value. Its storage offset is 0 unless the value is a placeholder."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Number:
    """A result that is no tensor: a number of a custom operator, or a size, as attention returns."""

    value: Any


@dataclass(frozen=True, slots=True)
class ResultMeta:
    """The metadata of what an operation returns.

    Attributes:
        many: the operation returns a tuple or list.
        metas: one entry for each result: interned metadata, a `Number`, None for an absent optional result,
            or a tuple for a list.
        aliases: a result shares the storage of an argument, although the operation's schema does not say so.
    """

    many: bool
    metas: tuple[Any, ...]
    aliases: bool = False

    @property
    def device(self) -> torch.device:
        """The device of the first result; the CPU if there is none."""
        first = next((meta for meta in self.metas if meta is not None), None)
        while isinstance(first, tuple):
            first = next(iter(first), None)
        return torch.device("cpu") if first is None else lookup(first).device


_IDS: dict[ValueMeta, int] = {}
_METAS: list[ValueMeta] = []
_numbers = itertools.count(-1, -1)


class Symbolic(int):
    """The integer of metadata with symbols. It equals no other, because symbols belong to one trace."""

    meta: ValueMeta


class UnbackedRows(Symbolic):
    """The integer of metadata of a contiguous value whose number of rows depends on values.

    Its metadata has one row, and graph compilers are told that there are `count` rows.
    """

    count: torch.SymInt


def intern(meta: ValueMeta) -> int:
    """The integer for `meta`: the same for equal metadata without symbols."""
    try:
        known = _IDS.get(meta)
    except TypeError:
        own = Symbolic(next(_numbers))
        own.meta = meta
        return own
    if known is None:
        known = _IDS[meta] = len(_METAS)
        _METAS.append(meta)
    return known


def rows_of(meta: ValueMeta, count: torch.SymInt) -> int:
    """The integer for `count` rows, each of them contiguous with the size, dtype and device of `meta`."""
    own = UnbackedRows(next(_numbers))
    own.meta = meta._replace(
        size=(1, *meta.size), stride=torch.empty((1, *meta.size), device="meta").stride()
    )
    own.count = count
    return own


def meta_of(tensor: Tensor) -> int:
    """The interned metadata of a tensor.

    Raises:
        UnsupportedOperation: the tensor is not strided.
    """
    if tensor.layout is not torch.strided:
        raise errors.UnsupportedOperation(
            f"an operation made a tensor with layout {tensor.layout}; only strided tensors can be recorded"
        )
    return intern(ValueMeta(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device))


def lookup(meta: int) -> ValueMeta:
    """The metadata for an integer of `intern`."""
    return _METAS[meta] if meta >= 0 else meta.meta  # type: ignore[attr-defined]


def result_meta_of(result: Any, storages: Collection[int] = (), numbers: bool = False) -> ResultMeta:
    """The metadata of an operation's result. `storages` has the storages of its arguments.

    Raises:
        UnsupportedOperation: a result is a ScriptObject, or not strided.
        DataDependentValue: a result is no tensor and no list of tensors. Numbers and symbols are allowed if
            `numbers`.
    """
    if result is None:
        return ResultMeta(True, ())
    many = isinstance(result, (tuple, list))
    found: list[Tensor] = []

    def of(value: Any, nested: bool) -> Any:
        if isinstance(value, Tensor):
            found.append(value)
            return meta_of(value)
        if nested and value is None:
            return None
        if nested and isinstance(value, (tuple, list)):
            return tuple([of(one, True) for one in value])
        if script_objects.is_script_object(value):
            raise errors.UnsupportedOperation(
                f"an operation returned a ScriptObject of class {value._type().name()}, which no graph "
                f"holds; call it outside of the function"
            )
        if numbers and isinstance(value, torch.SymInt) and value.node.has_hint():
            return Number(value)  # it follows from sizes; a number that is counted from values has no hint
        value = specialize_sizes(value)
        if numbers and isinstance(value, (int, float, complex, str)):
            return Number(value)
        raise errors.DataDependentValue(
            f"an operation returned {type(value).__name__} where a tensor was expected: it asks "
            f"tensors for a value, or for their memory; compute with the tensor instead"
        )

    metas = tuple([of(one, many) for one in (result if many else (result,))])
    aliases = bool(storages) and any(tensor_impl.storage_key(tensor) in storages for tensor in found)
    return ResultMeta(many, metas, aliases)


def same_but_for_device(one: Any, other: Any) -> bool:
    """Whether the metadata of two results differ at most in the device."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same_but_for_device, one, other))
    if not (isinstance(one, int) and isinstance(other, int)):
        return bool(one == other)
    mine, its = lookup(one), lookup(other)
    return (mine.size, mine.dtype) == (its.size, its.dtype) and (0 in mine.size or mine.stride == its.stride)


def dtypes_of(meta: Any) -> Any:
    """The dtypes of results with this metadata."""
    if isinstance(meta, tuple):
        return tuple(map(dtypes_of, meta))
    return lookup(meta).dtype if isinstance(meta, int) else None


def strides_in_order(size: tuple[Any, ...], stride: tuple[int, ...]) -> tuple[Any, ...]:
    """The strides of a dense tensor with symbols in its size, in the order of the known strides.

    Args:
        size: the size, which may have symbols.
        stride: the strides for the values of the symbols in this call.

    A dimension of one element keeps its stride, unless the expression of the sizes gives the same.

    Raises:
        UnsupportedOperation: the elements do not lie side by side, so the strides for other sizes are
            unknown.

    Example:
        >>> strides_in_order((2, 3), (1, 2))
        (1, 2)
    """
    if not has_symbols(size):
        return stride
    made: list[Any] = list(stride)
    expected: Any = 1
    for d in sorted(range(len(size)), key=lambda d: (stride[d], with_hints(size[d]))):
        if with_hints(size[d]) != 1 or with_hints(expected) == stride[d]:
            made[d] = expected
        expected = expected * size[d]
    if with_hints(tuple(made)) != stride:
        raise errors.UnsupportedOperation(
            f"a result whose sizes are symbols has the strides {stride} in this call, and nothing says which "
            f"it has in others"
        )
    return tuple(made)


def is_contiguous(meta: ValueMeta) -> bool:
    """Whether a value is contiguous (row-major)."""
    expected = 1
    for n, s in zip(reversed(meta.size), reversed(meta.stride), strict=True):
        if n != 1 and s != expected:
            return False
        expected *= n
    return True


def has_odd_unit_stride(meta: ValueMeta) -> bool:
    """Whether a dimension of one element has another stride than in a contiguous tensor."""
    size, stride = with_hints(meta.size), with_hints(meta.stride)
    if None in size:  # it depends on values
        return False
    expected = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if n == 1 and s != expected:
            return True
        expected *= n
    return False
