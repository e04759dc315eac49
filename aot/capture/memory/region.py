"""The value of a stretch of storage, in static single assignment.

A stretch has one current value, its *base* (a node of the graph with a known geometry). Reading a tensor that
lies in it gives the node for that part of the current base, writing it makes a new base, after which every
other tensor there reads the new one. Strides never drift, because a value that lies otherwise than the tensor
is scattered into the old base instead of replacing it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from aot.capture.memory.view_ops import ViewOp, invert_view, replay_view, same_layout
from aot.graph.builder import GraphBuilder
from aot.graph.value_meta import is_contiguous
from aot.tensors.geometry import Geometry, is_dense
from aot.tensors.views import alias_root

aten = torch.ops.aten

MakeSpanInput = Callable[[torch.dtype, int, int], fx.Node]


@dataclass(slots=True)
class InputRegion:
    """An argument as it lies in a storage that the caller owns."""

    geometry: Geometry
    node: fx.Node


class RegionValue:
    """The current value of a stretch of storage.

    Args:
        storage: the storage that it is a stretch of.
        entries: the caller's arguments that lie in it; empty for a storage that the function made.
        make_span_input: makes a graph input of the caller's elements of a dtype from one to another; None
            where the elements are counted without gaps (`strided_region`), and one argument shows all.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        storage: torch.UntypedStorage,
        entries: Sequence[InputRegion] = (),
        stretch: MakeSpanInput | None = None,
    ) -> None:
        self.entries = list(entries)
        self.make_span_input = stretch
        self._builder = builder
        self._storage = storage
        self._base: tuple[Geometry, fx.Node] | None = None
        self._nodes: dict[Geometry, fx.Node] = {}
        self._views: dict[Geometry, tuple[Geometry, ViewOp]] = {}
        for entry in self.entries:
            self._nodes.setdefault(entry.geometry, entry.node)

    @property
    def bytes(self) -> tuple[int, int]:
        """Which bytes of the storage it has."""
        starts, stops = zip(*(entry.geometry.bytes for entry in self.entries), strict=True)
        return min(starts), max(stops)

    @property
    def dtypes(self) -> set[torch.dtype]:
        """Of the arguments."""
        return {entry.geometry.dtype for entry in self.entries}

    @property
    def changed(self) -> bool:
        """Whether it is not simply what the arguments show any more."""
        return self._base is not None

    def define(self, where: Geometry, node: fx.Node) -> None:
        """The storage was just made by the operation `node`, whose result has the geometry `where`."""
        if self._base is None:
            self._base = (where, node)
        self._nodes[where] = node

    def grow_region(self, before: int, after: int) -> None:
        """The storage now has `after` bytes, and had `before`; those at the end are undefined."""
        if self._base is None:
            self._base = self._join_entry_region()
        base, _ = self._value_reaching_region(Geometry((before,), (1,), 0, torch.uint8))
        if after % base.dtype.itemsize:  # it was a view of another dtype that has grown
            start, row = self._bytes()
            length = (base.stop - base.offset) * base.dtype.itemsize
            base = Geometry((length,), (1,), start, torch.uint8)
            self._replace(base, row)
        more = after // base.dtype.itemsize - base.stop
        row = self._builder.emit(aten.constant_pad_nd.default, self._row(), [0, more])
        self._replace(Geometry((base.stop - base.offset + more,), (1,), base.offset, base.dtype), row)

    def view(self, parent: Geometry, where: Geometry, step: ViewOp) -> None:
        """A view operation gave a tensor with the geometry `where`; its node is made when it is read."""
        if where.is_lazy and parent.overlaps_itself_somehow:
            # (What shows an element several times is laid out anew where its numbers are computed.)
            parent, where = parent.physical, where.physical
        if parent != where and where not in self._views and not self._leads_to(parent, where):
            self._views[where] = (parent, step)

    def _leads_to(self, start: Geometry, target: Geometry) -> bool:
        while start in self._views:
            start = self._views[start][0]
            if start == target:
                return True
        return False

    def read(self, where: Geometry) -> fx.Node:
        """The node whose value is what a tensor with the geometry `where` shows now."""
        node = self._nodes.get(where)
        if node is None:
            node = self._nodes[where] = self._make_region_value(where)
        return node

    def current(self) -> dict[Geometry, fx.Node]:
        """The nodes that hold the current value, or a part of it, by its geometry."""
        return dict(self._nodes)

    def base(self) -> tuple[Geometry, fx.Node]:
        """The geometry and node of the whole current value."""
        if self._base is None:
            entry = self.entries[0]
            return entry.geometry, entry.node
        return self._base

    def _make_region_value(self, where: Geometry) -> fx.Node:
        known = self._views.get(where)
        if known is not None:
            parent, step = known
            value = self.read(parent)
            if where.is_lazy or self._is_aligned(parent, where.dtype):
                return replay_view(self._builder, value, step)
            return self._reinterpret_region(where)
        if where.is_lazy:
            return self._conjugated(where, self.read(where.physical))
        base, node = self._value_reaching_region(where)
        if where.dtype != base.dtype:
            return self._reinterpret_region(where)
        # (What has no elements may lie outside of all that there is.)
        offset = 0 if 0 in where.size else where.offset - base.offset
        offset += self._builder.offsets.get(node, 0)
        return self._builder.emit(aten.as_strided.default, node, list(where.size), list(where.stride), offset)

    def _is_aligned(self, where: Geometry, dtype: torch.dtype) -> bool:
        """Whether the value of `where` begins in its memory at a multiple of the size of `dtype`, as views of
        larger elements have to. In the caller's storage it did, but its value may begin elsewhere."""
        if dtype.itemsize <= where.dtype.itemsize:
            return True
        start = self._first_byte_of_region(where)
        return start is not None and bool(start % dtype.itemsize == 0)

    def _first_byte_of_region(self, where: Geometry) -> int | None:
        """At which byte of its memory the value of `where` begins, if that is known."""
        node = self._nodes[where]
        if alias_root(node) is node:
            return self._builder.offsets.get(node, 0) * where.dtype.itemsize
        if node.target is aten.as_strided.default and len(node.args) > 3:
            offset = node.args[3]
            return offset * where.dtype.itemsize if isinstance(offset, int) else None
        if where not in self._views:
            return None
        parent, step = self._views[where]
        call = node if step.index is None else node.args[0]
        if not isinstance(call, fx.Node) or call.args[0] is not self._nodes.get(parent):
            return None  # it was written to, and is a view of something else
        start = self._first_byte_of_region(parent)
        if start is None:
            return None
        return start + where.offset * where.dtype.itemsize - parent.offset * parent.dtype.itemsize

    def _conjugated(self, where: Geometry, value: fx.Node) -> fx.Node:
        """What a lazy tensor shows of physical numbers, or the physical numbers that it shows: either way."""
        if where.conj:
            value = self._builder.emit(aten._conj_physical.default, value)
        return self._builder.emit(aten.neg.default, value) if where.neg else value

    def _reinterpret_region(self, where: Geometry) -> fx.Node:
        """The value of a tensor of another dtype than the storage's, by way of bytes."""
        if 0 in where.size:
            meta = {"dtype": where.dtype, "device": self._storage.device}
            return self._builder.emit(
                aten.empty_strided.default, list(where.size), list(where.stride), **meta
            )
        start, stop = where.bytes
        whole, content = self._bytes()
        part = self._builder.emit(aten.slice.Tensor, content, 0, start - whole, stop - whole)
        # A view of another dtype has to begin at a multiple of its size; a copy begins at 0.
        part = self._builder.emit(aten.clone.default, part)
        numbers = self._builder.emit(aten.view.dtype, part, where.dtype)
        return self._builder.emit(aten.as_strided.default, numbers, list(where.size), list(where.stride), 0)

    def _store_reinterpreted(self, where: Geometry, value: fx.Node) -> None:
        base, _ = self.base()
        start, stop = where.bytes
        whole, content = self._bytes()
        part = self._builder.emit(aten.slice.Tensor, content, 0, start - whole, stop - whole)
        part = self._builder.emit(aten.clone.default, part)
        numbers = self._builder.emit(aten.view.dtype, part, where.dtype)
        size, stride = list(where.size), list(where.stride)
        numbers = self._builder.emit(aten.as_strided_scatter.default, numbers, value, size, stride, 0)
        part = self._builder.emit(aten.view.dtype, numbers, torch.uint8)
        content = self._builder.emit(
            aten.slice_scatter.default, content, part, 0, start - whole, stop - whole
        )
        numbers = self._builder.emit(aten.view.dtype, content, base.dtype)
        size, stride = list(base.size), list(base.stride)
        self._replace(base, self._builder.emit(aten.as_strided.default, numbers, size, stride, 0))

    def _value_reaching_region(self, where: Geometry) -> tuple[Geometry, fx.Node]:
        """The geometry and node of a value that holds all elements of `where`: what is there for now, or,
        where that is too little, it and what lies beside it in the caller's storage."""
        start, stop = where.bytes
        if self._base is None:
            for entry in self.entries:
                first, last = entry.geometry.bytes
                lies = same_layout(self._builder.meta(entry.node), entry.geometry)
                if lies and entry.geometry.dtype == where.dtype and first <= start and stop <= last:
                    return entry.geometry, entry.node
            self._base = self._join_entry_region()
        base, _ = self._base
        first, last = base.bytes
        if self.make_span_input is None or 0 in where.size or (first <= start and stop <= last):
            return self._base
        low = min(start, first) // base.dtype.itemsize
        high = -(-max(stop, last) // base.dtype.itemsize)  # (A smaller dtype may end within an element.)
        if high * base.dtype.itemsize > self._storage.nbytes():  # which may not be there in full
            begin, row = self._bytes()
            self._replace(Geometry((last - first,), (1,), begin, torch.uint8), row)
            return self._value_reaching_region(where)
        pieces = [self._row()]
        if low < base.offset:
            pieces.insert(0, self.make_span_input(base.dtype, low, base.offset))
        if high > base.stop:
            pieces.append(self.make_span_input(base.dtype, base.stop, high))
        self._replace(
            Geometry((high - low,), (1,), low, base.dtype), self._builder.emit(aten.cat.default, pieces)
        )
        return self._base

    def region_as_row(self, dtype: torch.dtype) -> tuple[int, int, fx.Node]:
        """The whole current value as one row of `dtype`, its own or uint8, and where it begins and ends, in
        elements of that."""
        if self._base is None:
            self._base = self._join_entry_region()
        base, _ = self._base
        if dtype == base.dtype:
            return base.offset, base.stop, self._row()
        start, row = self._bytes()
        return start, base.bytes[1], row

    def put(self, where: Geometry, node: fx.Node) -> None:
        """The current value is `node`, which lies as `where`."""
        self._replace(where, node)

    def begin_at_zero(self) -> None:
        """Let the current value begin where its memory does, as writes to a part of it need."""
        where, node = self.base()
        moved = self._at_zero(node)
        if moved is not node:
            self._replace(where, moved)

    def _row(self) -> fx.Node:
        """The whole current value as one row."""
        base, node = self.base()
        offset = self._builder.offsets.get(node, 0)
        row = self._builder.emit(aten.as_strided.default, node, [base.stop - base.offset], [1], offset)
        return self._builder.emit(aten.clone.default, row) if offset else row

    def _bytes(self) -> tuple[int, fx.Node]:
        """The same as bytes, and the place of the first one in the storage."""
        if self._base is None:
            self._base = self._join_entry_region()
        return self._base[0].bytes[0], self._builder.emit(aten.view.dtype, self._row(), torch.uint8)

    def write(self, where: Geometry, value: fx.Node) -> None:
        """What lies as `where` now shows `value` (same size and dtype)."""
        if 0 in where.size:
            if self._builder.meta(value).stride != where.stride:
                # (Views of another dtype look at strides, and what is computed of nothing has strides of 0.)
                size, stride = list(where.size), list(where.stride)
                value = self._builder.emit(aten.as_strided.default, value, size, stride)
            self._nodes[where] = value  # which is another tensor with a history of its own all the same
            return
        if self._base is None:
            self._base = self._join_entry_region()
        if where.overlaps_itself:
            where, value = self._without_overlap(where, value)
        elif _may_lie_otherwise(where) and same_layout(self._builder.meta(value), where):
            value = self._builder.emit(aten.as_strided.default, value, list(where.size), list(where.stride))
        self._store_in_region(where, value)

    def _store_in_region(self, where: Geometry, value: fx.Node) -> None:
        assert self._base is not None
        base, node = self._base
        fits = same_layout(self._builder.meta(value), where)
        if fits and 0 not in where.size and self._builder.meta(value).stride != where.stride:
            # Convolutions, for one, look at the strides of dimensions of size 1 as well.
            # (Where the value begins is left to it: torch's scatters keep where their argument does.)
            value = self._builder.emit(aten.as_strided.default, value, list(where.size), list(where.stride))
        if where == base and fits:
            self._replace(base, value)
            return
        known = self._views.get(where)
        # (A value cannot be put into one that shows an element several times: not all places would get it.)
        if known is not None and where != base and not known[0].overlaps_itself_somehow:
            parent, step = known
            whole = invert_view(
                self._builder, parent, self._even_sized_region(self.read(parent)), value, step
            )
            if whole is not None:
                self._store_in_region(parent, whole)
                if fits:
                    self._nodes[where] = value
                return
        if where.is_lazy:
            self._store_in_region(where.physical, self._conjugated(where, value))
            return
        if 0 in where.size:
            return
        base, node = self._value_reaching_region(where)
        if where.dtype != base.dtype:
            self._store_reinterpreted(where, value)
            return
        if base.overlaps_itself_somehow:
            base, node = self._flattened(base, node)
        offset = where.offset - base.offset
        scattered = self._builder.emit(
            aten.as_strided_scatter.default, node, value, list(where.size), list(where.stride), offset
        )
        self._replace(base, scattered)
        if fits:
            self._nodes[where] = value

    def _flattened(self, base: Geometry, node: fx.Node) -> tuple[Geometry, fx.Node]:
        """The same value as a row: torch's scatters lay out anew what shows an element several times."""
        length = base.stop - base.offset
        row = self._builder.emit(aten.as_strided.default, node, [length], [1], 0)
        return Geometry((length,), (1,), base.offset, base.dtype), self._builder.emit(aten.clone.default, row)

    def _replace(self, base: Geometry, node: fx.Node) -> None:
        self._base = (base, node)
        self._nodes = {base: node}

    def _join_entry_region(self) -> tuple[Geometry, fx.Node]:
        """A caller's storage becomes one value, as it is written to or read as another dtype.

        An argument that lies alone and densely is that value, or one that shows all, where gaps do not
        count; otherwise it is the flat stretch of storage that the arguments show together, which becomes a
        graph input of its own.
        """
        if self.make_span_input is None:
            entry = next(e for e in self.entries if e.geometry.bytes == self.bytes and is_dense(e.geometry))
            alone = True
        else:
            entry = self.entries[0]
            alone = len({e.geometry for e in self.entries}) == 1 and is_dense(entry.geometry)
        if alone:
            node = self._at_zero(entry.node)
            if node is not entry.node:  # what views of the argument showed begins elsewhere
                self._nodes = {entry.geometry: node}
            return entry.geometry, node
        assert self.make_span_input is not None
        entries = [e.geometry for e in self.entries]
        dtype = entry.geometry.dtype
        if any(e.dtype != dtype for e in entries):
            dtype = torch.uint8
        start = min(e.bytes[0] for e in entries) // dtype.itemsize
        stop = max(e.bytes[1] for e in entries) // dtype.itemsize
        where = Geometry((stop - start,), (1,), start, dtype)
        self._nodes[where] = node = self._at_zero(self.make_span_input(dtype, start, stop))
        return where, node

    def _at_zero(self, node: fx.Node) -> fx.Node:
        """The same value at storage offset 0: torch's scatters keep their argument's offset, other backends
        need not, and `as_strided` counts from the start of the storage. (And torch's `as_strided_scatter`
        wants an argument that requires grad to be contiguous.)"""
        if self._builder.offsets.get(node, 0) == 0 and is_contiguous(self._builder.meta(node)):
            return self._even_sized_region(node)
        return self._builder.emit(aten.clone.default, node)

    def _even_sized_region(self, node: fx.Node) -> fx.Node:
        """The same value in a storage that holds a whole number of elements, as torch's scatters want it, and
        which begins where it does: what was shown of an argument before it was written to need not."""
        root = alias_root(node)
        if self._builder.offsets.get(root, 0):
            return self._builder.emit(aten.clone.default, node)
        if root.op == "placeholder":
            nbytes = self._storage.nbytes()
        else:
            meta = self._builder.meta(root)
            nbytes = Geometry(meta.size, meta.stride, 0, meta.dtype).bytes[1]
        if nbytes % self._builder.meta(node).dtype.itemsize:
            return self._builder.emit(aten.clone.default, node)
        return node

    def _without_overlap(self, where: Geometry, value: fx.Node) -> tuple[Geometry, fx.Node]:
        """Only fills may write through an expanded view; all that it shows of one element is equal."""
        once = where.once
        for dim, (n, m) in enumerate(zip(where.size, once.size, strict=True)):
            if n != m:
                value = self._builder.emit(aten.slice.Tensor, value, dim, 0, 1)
        return once, value


def _may_lie_otherwise(where: Geometry) -> bool:
    """Whether a kernel may give dimensions of size 1 other strides than its shape function says, as some do
    where sizes are symbols."""
    numbers = (*where.size, *where.stride)
    return any(isinstance(n, torch.SymInt) for n in numbers) and any(n == 1 for n in where.size)
