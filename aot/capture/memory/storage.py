"""What a mutating, aliasing program does to each storage: its value, and who wrote to it.

A tensor is a storage and a geometry, nothing more, so aliasing is exact by construction, whatever the views
are. Arguments that lie apart in one storage (slices of a flat buffer, columns of a matrix) have each a value
of their own, until something reads or writes across them.
"""

from __future__ import annotations

import bisect

import torch
from torch import Tensor, fx

from aot.capture.memory.region import InputRegion, MakeSpanInput, RegionValue
from aot.capture.memory.strided_region import InterleavedRegions, StridedRegion, disjoint_groups
from aot.capture.memory.view_ops import ViewOp
from aot.graph.builder import GraphBuilder
from aot.tensors.geometry import Geometry, geometry

aten = torch.ops.aten

AnyRegion = RegionValue | InterleavedRegions


class Storage:
    """The current value of one storage.

    Attributes:
        inference: whether tensors on it are inference tensors.
        entries: the caller's arguments on this storage; empty for a storage that the function made.
        members: the arguments on this storage.
        of_backward: whether the storage was made while a backward was recorded.
        has_room: whether the kernel that made it has left room behind its result.
        pinned: whether the function made it page-locked.
        held: whether it is that of a gradient that comes into a segment of the backward, or leaves one.
        writes: the tensors that were written to, by geometry and by the tensor that they are views of.
        written_in_grad_mode: the names of those roots that were written to in grad mode.
        version_bumped: the tensors whose version counter a write moved.
        reshaped: differentiable views whose metadata was changed in place.
        roots_with_rebound_views: the names of roots of which a view that is no argument was put onto another
            storage by `set_`.
        make_span_input: makes a graph input of the caller's elements of a dtype from one to another.
        grown: larger storages that stand for it, since it has grown.
    """

    def __init__(self, builder: GraphBuilder, storage: torch.UntypedStorage, inference: bool) -> None:
        self.storage = storage  # kept alive: its address is its name
        self.inference = inference
        self.grown: list[torch.UntypedStorage] = []
        self.entries: list[InputRegion] = []
        self.members: list[Tensor] = []
        self.of_backward = False
        self.has_room = False
        self.pinned = False
        self.held = False
        self.writes: dict[tuple[Geometry, int], Tensor] = {}
        self.version_bumped: list[Tensor] = []
        self.written_in_grad_mode: set[int] = set()
        self.reshaped: list[Tensor] = []
        self.roots_with_rebound_views: set[int] = set()
        self._builder = builder
        self.make_span_input: MakeSpanInput | None = None
        self._views: list[tuple[Geometry, Geometry, ViewOp]] = []
        self._parts: list[AnyRegion] = []
        self._starts: list[int] = []
        self._entered: tuple[list[AnyRegion], list[int]] = [], []

    @property
    def nbytes(self) -> int:
        """Its size in bytes now."""
        return (self.grown[-1] if self.grown else self.storage).nbytes()

    def define(self, where: Geometry, node: fx.Node) -> None:
        """The storage was just made by the operation `node`, whose result has the geometry `where`."""
        self._join_storage_part().define(where, node)

    def enter(self, fake: Tensor, where: Geometry, node: fx.Node) -> None:
        """An argument lies on this storage; `node` is what is in memory there."""
        self.members.append(fake)
        self.entries.append(InputRegion(where.physical, node))

    def grow(self, storage: torch.UntypedStorage) -> None:
        """The storage now has as many bytes as `storage`, those at the end undefined."""
        before = self.nbytes
        self.grown.append(storage)
        self._join_storage_part().grow_region(before, storage.nbytes())

    def view(self, parent: Geometry, where: Geometry, step: ViewOp) -> None:
        """A view operation gave a tensor with the geometry `where`; its node is made when it is read."""
        self._views.append((parent, where, step))
        part = self._part_of(parent)
        if part is not None and part is self._part_of(where):
            part.view(parent, where, step)

    def read(self, where: Geometry) -> fx.Node:
        """The node whose value is what a tensor with the geometry `where` shows now."""
        return self.region(where).read(where)

    def write(self, target: Tensor, value: fx.Node, counted: bool = True, noticed: bool = True) -> None:
        """The tensor `target` now shows `value` (same size and dtype); `counted` writes move its version,
        if autograd has `noticed`."""
        where = geometry(target)
        root = target._base if target._is_view() else target
        self.writes.setdefault((where, id(root)), target)
        if noticed and torch.is_grad_enabled():
            self.written_in_grad_mode.add(id(root))
        if noticed and counted:
            self.version_bumped.append(target)
        self.region(where).write(where, value)

    def region(self, where: Geometry) -> RegionValue | StridedRegion:
        """What has the value of all that lies as `where`."""
        return self._part_of(where) or self._join_storage_part()

    def let_go(self) -> None:
        """Forget which tensors were written to."""
        self.writes.clear()
        self.version_bumped.clear()
        self.reshaped.clear()

    def current(self) -> dict[Geometry, fx.Node]:
        """The nodes that hold the current value, or a part of it, by its geometry."""
        return {where: node for part in self._split_storage() for where, node in part.current().items()}

    def base(self) -> tuple[Geometry, fx.Node]:
        """The geometry and node of the whole current value."""
        return self._join_storage_part().base()

    # ---- parts

    def _split_storage(self) -> list[AnyRegion]:
        """The parts, each a stretch of storage that arguments show together, in order."""
        if not self._parts:
            groups: list[list[int]] = []
            stop = -1
            for i in sorted(range(len(self.entries)), key=lambda i: self.entries[i].geometry.bytes):
                first, last = self.entries[i].geometry.bytes
                if first >= stop or not groups:
                    groups.append([])
                groups[-1].append(i)
                stop = max(stop, last)
            if any(0 in entry.geometry.size for entry in self.entries):
                groups = [list(range(len(self.entries)))]
            # (The first argument of a part says how it lies.)
            entries = [[self.entries[i] for i in sorted(group)] for group in groups] or [[]]
            self._put([self._part(some) for some in entries])
            self._entered = self._parts, self._starts
        return self._parts

    def _part(self, entries: list[InputRegion]) -> AnyRegion:
        wheres = [entry.geometry for entry in entries]
        columns = None if not wheres or any(0 in where.size for where in wheres) else disjoint_groups(wheres)
        if columns is None:
            return RegionValue(self._builder, self.storage, entries, self.make_span_input)
        return InterleavedRegions(self._builder, self.storage, entries, columns, self.make_span_input)

    def _put(self, parts: list[AnyRegion]) -> None:
        self._parts = parts
        self._starts = [part.bytes[0] for part in parts] if len(parts) > 1 else [0]

    def _part_of(self, where: Geometry) -> RegionValue | StridedRegion | None:
        """The part that all of `where` lies in."""
        return _find_storage_part(self._split_storage(), self._starts, where)

    def apart(self, where: Geometry) -> RegionValue | StridedRegion | None:
        """What tells arguments apart: two tensors for which it is not the same show no element both, if it is
        something for both."""
        self._split_storage()
        return _find_storage_part(*self._entered, where)

    def _join_storage_part(self) -> RegionValue:
        """One part, as something reads or writes across them."""
        parts = self._split_storage()
        whole = parts[0]
        if len(parts) > 1 or isinstance(whole, InterleavedRegions):
            whole = RegionValue(self._builder, self.storage, self.entries, self.make_span_input)
            if any(part.changed for part in parts):
                dtypes = set[torch.dtype]().union(*(part.dtypes for part in parts))
                self._join_storage_parts(whole, parts, dtypes.pop() if len(dtypes) == 1 else torch.uint8)
            for parent, where, step in self._views:
                whole.view(parent, where, step)
            self._put([whole])
        return whole

    def _join_storage_parts(self, whole: RegionValue, parts: list[AnyRegion], dtype: torch.dtype) -> None:
        assert self.make_span_input is not None
        pieces: list[fx.Node] = []
        begin, end = 0, None
        for part in parts:
            start, stop, row = part.region_as_row(dtype)
            if end is None:
                begin = start
            elif start > end:
                pieces.append(self.make_span_input(dtype, end, start))
            pieces.append(row)
            end = stop
        assert end is not None
        node = self._builder.emit(aten.cat.default, pieces)
        whole.put(Geometry((end - begin,), (1,), begin, dtype), node)


def _find_storage_part(
    parts: list[AnyRegion], starts: list[int], where: Geometry
) -> RegionValue | StridedRegion | None:
    k = 0
    if len(parts) > 1:
        start, stop = where.bytes
        k = bisect.bisect_right(starts, start) - 1
        if 0 in where.size or k < 0 or stop > parts[k].bytes[1]:
            return None
    part = parts[k]
    return part.holding(where) if isinstance(part, InterleavedRegions) else part
