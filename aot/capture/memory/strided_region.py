"""Tensors that lie with gaps, without their gaps: columns of a matrix are apart, and each is dense in itself.

A `DenseIndexing` counts the elements of one tensor, *whole*, in the order in which they lie in the storage,
and no others. What shows some of them has a geometry in that count as well, as every step that it takes is a
fixed number of steps along each dimension of `whole`.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from aot.capture.memory.region import InputRegion, MakeSpanInput, RegionValue
from aot.capture.memory.view_ops import ViewOp, same_layout
from aot.graph.builder import GraphBuilder
from aot.tensors.geometry import Geometry, is_dense

_PERIODS = 8  # how many are tried, so that work stays linear for tensors that all step otherwise


@dataclass(frozen=True, slots=True)
class DenseIndexing:
    """The elements of `whole`, counted without the gaps between them.

    Attributes:
        whole: the tensor whose elements these are.
        dims: its dimensions of more than one element, (size, stride), the outermost first; those that lie one
            after the other without a gap between are one.

    Example:
        >>> columns = DenseIndexing.of(Geometry((3, 2), (10, 1), 4, torch.float32))
        >>> second = Geometry((2,), (10,), 15, torch.float32)  # from the second row on
        >>> columns.dense_geometry(second)
        Geometry(size=(2,), stride=(2,), offset=3, dtype=torch.float32, conj=False, neg=False)
        >>> gap = Geometry((2,), (1,), 5, torch.float32)  # the first row's second, and a gap
        >>> columns.dense_geometry(gap) is None
        True
    """

    whole: Geometry
    dims: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, whole: Geometry) -> DenseIndexing | None:
        """The packing of a tensor whose dimensions lie one within the other; None for others."""
        if 0 in whole.size:
            return None
        dims: list[tuple[int, int]] = []
        for s, n in sorted((s, n) for n, s in zip(whole.size, whole.stride, strict=True) if n > 1):
            if (dims and s < dims[0][0] * dims[0][1]) or s == 0:
                return None
            if dims and s == dims[0][0] * dims[0][1]:
                dims[0] = (dims[0][0] * n, dims[0][1])
            else:
                dims.insert(0, (n, s))
        return cls(whole, tuple(dims))

    def dense_geometry(self, where: Geometry) -> Geometry | None:
        """What lies as `where` in the storage, in this count; None if it shows other elements as well. (What
        shows none stays as it is.)"""
        if 0 in where.size:
            return where
        if where.dtype.itemsize != self.whole.dtype.itemsize:
            return None
        first = self._steps(where.offset - self.whole.offset)
        if first is None:
            return None
        last, strides = list(first), []
        for n, s in zip(where.size, where.stride, strict=True):
            steps = self._steps(s) if n > 1 else (0,) * len(self.dims)
            if steps is None:
                return None
            last = [a + (n - 1) * b for a, b in zip(last, steps, strict=True)]
            strides.append(self._count(steps) if n > 1 else s)
        if any(a >= n for a, (n, _) in zip(last, self.dims, strict=True)):
            return None
        return where._replace(stride=tuple(strides), offset=self._count(first))

    def _steps(self, distance: int) -> tuple[int, ...] | None:
        """How many steps along each dimension lead that far."""
        steps = []
        for _, stride in self.dims:
            step, distance = distance // stride, distance % stride  # (Symbols have no divmod.)
            steps.append(step)
        return None if distance or min(steps, default=0) < 0 else tuple(steps)

    def _count(self, steps: Sequence[int]) -> int:
        count = 0
        for step, (n, _) in zip(steps, self.dims, strict=True):
            count = count * n + step
        return count


class StridedRegion:
    """The current value of the elements that a `DenseIndexing` counts: a `RegionValue` in that count.

    Args:
        entries: the caller's arguments that show these elements, some or all.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        storage: torch.UntypedStorage,
        packing: DenseIndexing,
        entries: Sequence[InputRegion],
    ) -> None:
        self.packing = packing
        self._builder = builder
        self._lying: dict[Geometry, Geometry] = {}
        counted = [InputRegion(self._counted(entry.geometry), entry.node) for entry in entries]
        self._contents = RegionValue(builder, storage, counted)

    @property
    def changed(self) -> bool:
        """Whether it is not simply what the arguments show any more."""
        return self._contents.changed

    def holding(self, where: Geometry) -> StridedRegion | None:
        """Itself, if it holds all of what lies as `where`."""
        return None if self.packing.dense_geometry(where) is None else self

    def write_to(self, contents: RegionValue) -> None:
        """Write to the stretch of storage that it lies in what has changed."""
        if self.changed:
            contents.write(self.packing.whole, self.read(self.packing.whole))

    def view(self, parent: Geometry, where: Geometry, step: ViewOp) -> None:
        """As `RegionValue.view`."""
        self._contents.view(self._counted(parent), self._counted(where), step)

    def read(self, where: Geometry) -> fx.Node:
        """As `RegionValue.read`."""
        return self._contents.read(self._counted(where))

    def write(self, where: Geometry, value: fx.Node) -> None:
        """As `RegionValue.write`."""
        self._contents.write(self._counted(where), value)

    def current(self) -> dict[Geometry, fx.Node]:
        """As `RegionValue.current`, without the values that lie otherwise than in the storage."""
        found = {}
        for counted, node in self._contents.current().items():
            where = self._lying.get(counted)
            if where is not None and same_layout(self._builder.meta(node), where):
                found[where] = node
        return found

    def _counted(self, where: Geometry) -> Geometry:
        counted = self.packing.dense_geometry(where)
        assert counted is not None
        self._lying.setdefault(counted, where)
        return counted


@dataclass(frozen=True, slots=True)
class PeriodicGroups:
    """Tensors in groups that show no element both.

    Attributes:
        origin, period: where in the storage periods begin, and how many elements one has.
        starts: where in a period each group begins.
        groups: the numbers of its members.
        parts: what each group shows together, or how its members are apart in turn.
    """

    origin: int
    period: int
    starts: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    parts: tuple[DenseIndexing | PeriodicGroups, ...]

    def near(self, where: Geometry) -> int | None:
        """The one group that may show all of `where`."""
        k = bisect.bisect_right(self.starts, (where.offset - self.origin) % self.period) - 1
        return None if k < 0 else k


class InterleavedRegions:
    """The current value of a stretch of storage in which arguments lie apart, but not one after the other.

    Args:
        entries: the caller's arguments that lie in it.
        columns: how they lie apart.
        stretch: makes a graph input of the caller's elements of a dtype from one to another.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        storage: torch.UntypedStorage,
        entries: Sequence[InputRegion],
        columns: PeriodicGroups,
        stretch: MakeSpanInput | None,
    ) -> None:
        self._together = RegionValue(builder, storage, entries, stretch)
        self._columns = columns
        self._parts: list[StridedRegion | InterleavedRegions] = []
        for part, group in zip(columns.parts, columns.groups, strict=True):
            members = [entries[i] for i in group]
            if isinstance(part, DenseIndexing):
                self._parts.append(StridedRegion(builder, storage, part, members))
            else:
                self._parts.append(InterleavedRegions(builder, storage, members, part, stretch))

    @property
    def bytes(self) -> tuple[int, int]:
        """Which bytes of the storage it has."""
        return self._together.bytes

    @property
    def dtypes(self) -> set[torch.dtype]:
        """Of the arguments."""
        return self._together.dtypes

    @property
    def changed(self) -> bool:
        """Whether it is not simply what the arguments show any more."""
        return any(part.changed for part in self._parts)

    def holding(self, where: Geometry) -> StridedRegion | None:
        """The part that all of `where` lies in."""
        k = self._columns.near(where)
        return None if k is None else self._parts[k].holding(where)

    def current(self) -> dict[Geometry, fx.Node]:
        """The nodes that hold the current value, or a part of it, by its geometry."""
        return {where: node for part in self._parts for where, node in part.current().items()}

    def region_as_row(self, dtype: torch.dtype) -> tuple[int, int, fx.Node]:
        """The whole current value as one row of `dtype`, its own or uint8, and where it begins and ends, in
        elements of that. Called once: the value is this row's from then on."""
        self.write_to(self._together)
        return self._together.region_as_row(dtype)

    def write_to(self, contents: RegionValue) -> None:
        """As `StridedRegion.write_to`."""
        for part in self._parts:
            part.write_to(contents)


def disjoint_groups(wheres: Sequence[Geometry]) -> PeriodicGroups | None:
    """The tensors in groups, of which one member shows all that the others show; None where there are no such
    groups, or one tensor shows all of a stretch of storage.

    Tensors that step through a storage by one period (the rows of a matrix) are apart when they lie apart
    within it.
    """
    if len({where.dtype.itemsize for where in wheres}) > 1:
        return None
    start, stop = min(where.offset for where in wheres), max(where.stop for where in wheres)
    if any((where.offset, where.stop) == (start, stop) and is_dense(where) for where in wheres):
        return None
    periods = sorted(
        s for where in wheres for n, s in zip(where.size, where.stride, strict=True) if n > 1 and s > 1
    )
    for period in [period for period, _ in itertools.groupby(periods)][:_PERIODS]:
        within = _groups_within_period(wheres, start, period)
        if within is None:
            continue
        parts: list[DenseIndexing | PeriodicGroups] = []
        for _, group in within:
            members = [wheres[i] for i in group]
            part = _packing(members) or (disjoint_groups(members) if len(within) > 1 else None)
            if part is None:
                break
            parts.append(part)
        else:
            starts, groups = zip(*within, strict=True)
            return PeriodicGroups(start, period, starts, groups, tuple(parts))
    return None


def _groups_within_period(
    wheres: Sequence[Geometry], origin: int, period: int
) -> list[tuple[int, tuple[int, ...]]] | None:
    """The tensors in groups by where they lie within a period; None if one reaches from one into the next."""
    places: list[tuple[int, int, int]] = []
    for i, where in enumerate(wheres):
        start = (where.offset - origin) % period
        steps = zip(where.size, where.stride, strict=True)
        stop = start + 1 + sum((n - 1) * s for n, s in steps if s % period)
        if stop > period:
            return None
        places.append((start, stop, i))
    groups: list[tuple[int, list[int]]] = []
    reached = 0
    for start, stop, i in sorted(places):
        if start >= reached:
            groups.append((start, []))
        groups[-1][1].append(i)
        reached = max(reached, stop)
    return [(start, tuple(sorted(group))) for start, group in groups]


def _packing(wheres: Sequence[Geometry]) -> DenseIndexing | None:
    """The packing of the one that shows all that the others show."""
    packing = DenseIndexing.of(max(wheres, key=lambda where: where.stop - where.offset))
    if packing is None or any(packing.dense_geometry(where) is None for where in wheres):
        return None
    return packing
