"""Geometry: where a tensor's elements are in its storage, and how geometries relate.

In: a strided tensor. Out: a `Geometry` with size, strides, offset, dtype, conj and neg bit. Relations are
`overlap`, `covers` and lookup by interval. Sizes may be symbols; then comparisons add no guards.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aot.torch_internals import symbolic_shapes, tensor_impl


class Geometry(NamedTuple):
    """The place of a tensor in its storage. Strides and offset count elements of `dtype`.

    `conj` and `neg` say that the tensor shows the numbers there lazily conjugated or negated.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conj: bool = False
    neg: bool = False

    # Symbols are equal here if they have the same original expression. A comparison of their values would add
    # a guard. What is known of symbols grows during a trace, and keys must not change.

    def __hash__(self) -> int:
        try:
            return tuple.__hash__(self)
        except TypeError:
            return hash((len(self.size), self.dtype))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Geometry):
            return NotImplemented
        try:
            tuple.__hash__(self), tuple.__hash__(other)
        except TypeError:
            return bool(_as_made(self) == _as_made(other))
        return tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    @property
    def physical(self) -> Geometry:
        """The same elements without conj and neg bit."""
        return self._replace(conj=False, neg=False)

    @property
    def is_lazy(self) -> bool:
        """Whether the elements are shown lazily conjugated or negated."""
        return self.conj or self.neg

    @property
    def bytes(self) -> tuple[int, int]:
        """The first byte of the storage that the tensor can reach, and one past the last."""
        return self.offset * self.dtype.itemsize, self.stop * self.dtype.itemsize

    @property
    def stop(self) -> int:
        """One past the last element of the storage that the tensor can reach."""
        if 0 in self.size:
            return self.offset
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))

    @property
    def overlaps_itself(self) -> bool:
        """Whether a dimension of stride 0 shows one element several times."""
        return 0 not in self.size and any(
            s == 0 and n > 1 for n, s in zip(self.size, self.stride, strict=True)
        )

    @property
    def once(self) -> Geometry:
        """The same elements, with expanded dimensions (stride 0) reduced to size 1."""
        pairs = zip(self.size, self.stride, strict=True)
        return self._replace(size=tuple(1 if s == 0 and n > 1 else n for n, s in pairs))

    @property
    def overlaps_itself_somehow(self) -> bool:
        """Whether any element is shown several times, by stride 0 or by other strides."""
        if self.overlaps_itself or _strides_step_over(self) or 0 in self.size:
            return self.overlaps_itself
        return len(torch.unique(elements(self))) != len(elements(self))


def geometry(tensor: Tensor) -> Geometry:
    """The geometry of a strided tensor, fake or real."""
    offset: Any = tensor_impl.offset_of(tensor)  # an int, or a symbol
    return Geometry(
        tuple(tensor.shape), tensor.stride(), offset, tensor.dtype, tensor.is_conj(), tensor.is_neg()
    )


def known_equal(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two sequences of numbers are known to be equal in every call. Adds no guard."""
    try:
        hash((first, second))
    except TypeError:
        return _known(first) == _known(second)
    return first == second


def _known(numbers: Iterable[Any]) -> list[Any]:
    return [number.node.expr if isinstance(number, torch.SymInt) else number for number in numbers]


def _as_made(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_as_made, value))
    return symbolic_shapes.original_expression(value) if isinstance(value, torch.SymInt) else value


def same_interpretation(first: Geometry, second: Geometry) -> bool:
    """Whether dtype, conj and neg bit are equal, so that equal bytes are equal numbers."""
    return (first.dtype, first.conj, first.neg) == (second.dtype, second.conj, second.neg)


def is_dense(where: Geometry) -> bool:
    """Whether the elements fill one span of storage without gaps or overlaps, in some dimension order."""
    expected = 1
    for s, n in sorted((s, n) for n, s in zip(where.size, where.stride, strict=True) if n != 1):
        if s != expected:
            return False
        expected *= n
    return 0 not in where.size


def _strides_step_over(where: Geometry) -> bool:
    """Whether each stride is at least the reach of the inner dimensions, so no element is shown twice."""
    reach = 1
    for s, n in sorted((s, n) for n, s in zip(where.size, where.stride, strict=True) if n != 1):
        if s < reach:
            return False
        reach += (n - 1) * s
    return True


def covers(outer: Geometry, inner: Geometry) -> bool:
    """Whether `outer` shows every element that `inner` shows.

    The answer is exact for equal dtypes. For different dtypes it is true only if `outer` has no gaps.
    """
    if inner == outer or 0 in inner.size:
        return True
    if 0 in outer.size:
        return False
    if inner.dtype != outer.dtype:
        (ours, until), (theirs, up_to) = outer.bytes, inner.bytes
        return ours <= theirs and up_to <= until and is_gapless(outer)
    if inner.offset < outer.offset or inner.stop > outer.stop:
        return False
    if is_gapless(outer):
        return True
    return bool(torch.isin(elements(inner), elements(outer)).all())


def overlap(first: Geometry, second: Geometry) -> bool:
    """Whether two tensors on one storage have an element in common.

    The answer is exact for equal dtypes. For different dtypes the gaps of both count as elements.
    """
    (start, stop), (begin, end) = first.bytes, second.bytes
    if start >= end or begin >= stop:
        return False
    if first.dtype != second.dtype or (is_gapless(first) and is_gapless(second)):
        return True
    return bool(torch.isin(elements(first), elements(second)).any())


class IntervalIndex:
    """An index of geometries on one storage, to find those that contain or overlap a span of bytes.

    Example:
        >>> whole, part = geometry(torch.ones(4)), geometry(torch.ones(4)[2:])
        >>> list(IntervalIndex([part, whole]).around(whole))
        [1]
    """

    def __init__(self, wheres: Iterable[Geometry]) -> None:
        found = sorted((*where.bytes, i) for i, where in enumerate(wheres))
        self._starts = [start for start, _, _ in found]
        self._stops = [stop for _, stop, _ in found]
        self._numbers = [i for _, _, i in found]
        self._furthest = list(itertools.accumulate(self._stops, max))

    def around(self, where: Geometry) -> Iterator[int]:
        """The positions of geometries whose span contains that of `where`, in no order.

        If `where` has no elements, all positions.
        """
        if 0 in where.size:
            yield from self._numbers
            return
        start, stop = where.bytes
        for k in reversed(range(bisect.bisect_right(self._starts, start))):
            if self._furthest[k] < stop:
                return
            if self._stops[k] >= stop:
                yield self._numbers[k]

    def meeting(self, where: Geometry) -> Iterator[int]:
        """The positions of geometries whose span overlaps that of `where`, in no order."""
        start, stop = where.bytes
        for k in reversed(range(bisect.bisect_left(self._starts, stop))):
            if self._furthest[k] <= start:
                return
            if self._stops[k] > start:
                yield self._numbers[k]


def is_gapless(where: Geometry) -> bool:
    """Whether the elements fill one span of storage without gaps; elements may be shown several times."""
    count = len(torch.unique(elements(where))) if where.overlaps_itself else None
    reach = where.stop - where.offset
    if count is not None:
        return count == reach
    total = 1
    for n in where.size:
        total *= n
    return total == reach


def elements(where: Geometry) -> Tensor:
    """The storage offsets of all elements, as an int64 tensor of one dimension.

    Symbols get their values of this call, which adds guards.
    """
    offsets = torch.full((), int(where.offset), dtype=torch.int64)
    for n, s in zip(where.size, where.stride, strict=True):
        # `int`, because torch multiplies a tensor with 7777777 if it is given a symbol.
        offsets = offsets.unsqueeze(-1) + torch.arange(int(n), dtype=torch.int64) * int(s)
    return offsets.reshape(-1)
