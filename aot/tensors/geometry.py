"""How tensors lie in their storages, and which elements they show."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aot.torch_internals import symbolic_shapes, tensor_impl


class Geometry(NamedTuple):
    """How a tensor lies in its storage: element counts, and offset in elements of `dtype`; and whether it
    shows the numbers there lazily conjugated or negated."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conj: bool = False
    neg: bool = False

    # Symbols are equal here if they were made alike: to ask would be to assume something of every call, and
    # what is known of them grows, while geometries are keys.

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
        """The same elements as they are in memory."""
        return self._replace(conj=False, neg=False)

    @property
    def is_lazy(self) -> bool:
        """Whether the elements are lazily conjugated or negated."""
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
        """The same elements, without showing one several times by a dimension of stride 0."""
        pairs = zip(self.size, self.stride, strict=True)
        return self._replace(size=tuple(1 if s == 0 and n > 1 else n for n, s in pairs))

    @property
    def overlaps_itself_somehow(self) -> bool:
        """Whether any element is shown several times."""
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
    """Whether two sequences of numbers are equal in every call, as far as that is known of symbols by now."""
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
    """Whether two tensors show the same number where they show the same element."""
    return (first.dtype, first.conj, first.neg) == (second.dtype, second.conj, second.neg)


def is_dense(where: Geometry) -> bool:
    """Whether the elements fill one stretch of storage without gaps or overlaps, in some dimension order."""
    expected = 1
    for s, n in sorted((s, n) for n, s in zip(where.size, where.stride, strict=True) if n != 1):
        if s != expected:
            return False
        expected *= n
    return 0 not in where.size


def _strides_step_over(where: Geometry) -> bool:
    """Whether each dimension steps over all that the ones further in reach, so that no element is shown
    twice."""
    reach = 1
    for s, n in sorted((s, n) for n, s in zip(where.size, where.stride, strict=True) if n != 1):
        if s < reach:
            return False
        reach += (n - 1) * s
    return True


def covers(outer: Geometry, inner: Geometry) -> bool:
    """Whether every element that `inner` shows is shown by `outer`. Exact, unless the dtypes differ: then
    only an `outer` without gaps is known to cover."""
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
    """Whether two tensors on a storage show any element both. Exact, unless the dtypes differ: then both
    count without their gaps."""
    (start, stop), (begin, end) = first.bytes, second.bytes
    if start >= end or begin >= stop:
        return False
    if first.dtype != second.dtype or (is_gapless(first) and is_gapless(second)):
        return True
    return bool(torch.isin(elements(first), elements(second)).any())


class IntervalIndex:
    """Geometries on one storage, in an order in which those near another one are found at once.

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
        """The numbers of those whose stretch of the storage contains that of `where`, in no order; of all,
        where that is empty."""
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
        """The numbers of those whose stretch of the storage overlaps that of `where`, in no order."""
        start, stop = where.bytes
        for k in reversed(range(bisect.bisect_left(self._starts, stop))):
            if self._furthest[k] <= start:
                return
            if self._stops[k] > start:
                yield self._numbers[k]


def is_gapless(where: Geometry) -> bool:
    """Whether the elements fill one stretch of storage without gaps."""
    count = len(torch.unique(elements(where))) if where.overlaps_itself else None
    reach = where.stop - where.offset
    if count is not None:
        return count == reach
    total = 1
    for n in where.size:
        total *= n
    return total == reach


def elements(where: Geometry) -> Tensor:
    """The storage offsets of all elements, int64, flat. Of symbols it is asked what they are in this call."""
    offsets = torch.full((), int(where.offset), dtype=torch.int64)
    for n, s in zip(where.size, where.stride, strict=True):
        # (Torch takes a symbol that a tensor is multiplied by for 7777777.)
        offsets = offsets.unsqueeze(-1) + torch.arange(int(n), dtype=torch.int64) * int(s)
    return offsets.reshape(-1)
