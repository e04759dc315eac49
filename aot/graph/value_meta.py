"""Metadata of values: interned to small integers, and as what an operation returns.

These integers stand in keys of what is remembered across traces. Metadata with symbols in it belong to one
trace, and are like no others.
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
    """What is known of a value in the graph; its storage offset is 0 unless it is a placeholder."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Number:
    """A result that is no tensor: what custom operators return beside them, or a size, as attention does."""

    value: Any


@dataclass(frozen=True, slots=True)
class ResultMeta:
    """What an operation returns for arguments of given metadata: one result or several (None where an
    optional one is absent, a tuple for a list among them), and whether one of them lies in an argument's
    storage although the operation's schema does not say so."""

    many: bool
    metas: tuple[Any, ...]
    aliases: bool = False

    @property
    def device(self) -> torch.device:
        """Where it computes: that of the first result, and the CPU if there is none."""
        first = next((meta for meta in self.metas if meta is not None), None)
        while isinstance(first, tuple):
            first = next(iter(first), None)
        return torch.device("cpu") if first is None else lookup(first).device


_IDS: dict[ValueMeta, int] = {}
_METAS: list[ValueMeta] = []
_numbers = itertools.count(-1, -1)


class Symbolic(int):
    """What stands for metadata with symbols in it, which belong to one trace: unlike any other."""

    meta: ValueMeta


class UnbackedRows(Symbolic):
    """What stands for the metadata of a contiguous value of which it is known when it has been computed how
    many rows it has. It counts as one row, and graph compilers are told that there are `count`."""

    count: torch.SymInt


def intern(meta: ValueMeta) -> int:
    """The small integer that stands for `meta` in keys."""
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
    """What stands for the metadata of so many rows, each of which is contiguous and has the size, dtype and
    device of `meta`."""
    own = UnbackedRows(next(_numbers))
    own.meta = meta._replace(
        size=(1, *meta.size), stride=torch.empty((1, *meta.size), device="meta").stride()
    )
    own.count = count
    return own


def meta_of(tensor: Tensor) -> int:
    """The interned metadata of a tensor's memory; refuses what a graph value cannot describe."""
    if tensor.layout is not torch.strided:
        raise errors.UnsupportedOperation(
            f"an operation made a tensor with layout {tensor.layout}; only strided tensors can be recorded"
        )
    return intern(ValueMeta(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device))


def lookup(meta: int) -> ValueMeta:
    """The metadata that `meta` stands for."""
    return _METAS[meta] if meta >= 0 else meta.meta  # type: ignore[attr-defined]


def result_meta_of(result: Any, storages: Collection[int] = (), numbers: bool = False) -> ResultMeta:
    """The metadata of an operation's result, for arguments on `storages`; refuses results that are not
    tensors, but for lists of such and, if so allowed, `numbers` among them, which may be symbols."""
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
            return Number(value)  # Of the arguments' sizes: what an operation counts has a symbol of its own.
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
    """Whether two results' metadata are the same but for the device."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same_but_for_device, one, other))
    if not (isinstance(one, int) and isinstance(other, int)):
        return bool(one == other)
    mine, its = lookup(one), lookup(other)
    return (mine.size, mine.dtype) == (its.size, its.dtype) and (0 in mine.size or mine.stride == its.stride)


def dtypes_of(meta: Any) -> Any:
    """The dtypes of results, of which a recipe has such metadata."""
    if isinstance(meta, tuple):
        return tuple(map(dtypes_of, meta))
    return lookup(meta).dtype if isinstance(meta, int) else None


def strides_in_order(size: tuple[Any, ...], stride: tuple[int, ...]) -> tuple[Any, ...]:
    """The strides of a tensor whose size may have symbols, and which lies as one with strides that are known
    for what these stand for. A dimension of one element keeps its stride where no symbol says it.

    Raises:
        UnsupportedOperation: its elements do not lie side by side, so that nothing says what the strides are
            for other sizes.

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
    """Whether a value lies in row-major order."""
    expected = 1
    for n, s in zip(reversed(meta.size), reversed(meta.stride), strict=True):
        if n != 1 and s != expected:
            return False
        expected *= n
    return True


def has_odd_unit_stride(meta: ValueMeta) -> bool:
    """Whether a dimension of one element has another stride than in row-major order."""
    size, stride = with_hints(meta.size), with_hints(meta.stride)
    if None in size:  # it depends on values
        return False
    expected = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if n == 1 and s != expected:
            return True
        expected *= n
    return False
