"""Static single assignment for storages: what a mutating, aliasing program reads and writes, as pure values.

A storage has one current value, its *base* (a node of the graph with a known geometry). A tensor is a
storage and a geometry, nothing more: reading it gives the node for that part of the current base, writing
it makes a new base, after which every other tensor on the storage reads the new one. So aliasing is exact
by construction, whatever the views are: strides never drift, because a value that does not lie as the
tensor lies is scattered into the old base instead of replacing it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot.capture.graph import GraphBuilder, ValueMeta, is_contiguous
from aot.geometry import Geometry, geometry, is_dense

aten = torch.ops.aten


class Mode(enum.Enum):
    """In which mode an operation runs: autograd remembers it of a view that is made."""

    GRAD = "grad"
    NO_GRAD = "no_grad"
    INFERENCE = "inference"

    @classmethod
    def now(cls) -> Mode:
        """The mode of this moment."""
        if torch.is_inference_mode_enabled():
            return cls.INFERENCE
        return cls.GRAD if torch.is_grad_enabled() else cls.NO_GRAD


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operation: ``op(parent, *args, **kwargs)``, or its `index`-th result."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int | None
    mode: Mode
    in_place: bool = False  # it changed the metadata of the parent itself
    leaf: bool = False  # `requires_grad_` was called on what it made
    by_function: bool = False  # a custom `autograd.Function` called it, which autograd remembers of the view


@dataclass(slots=True)
class EntryView:
    """An argument as it lies in a storage that the caller owns."""

    geometry: Geometry
    node: fx.Node


class StorageState:
    """The current value of one storage.

    Attributes:
        inference: whether tensors on it are inference tensors.
        entries: the caller's arguments on this storage; empty for a storage that the function made.
        members: the arguments on this storage.
        of_backward: whether the storage was made while a backward was recorded.
        writes: the tensors that were written to, by geometry and by the tensor that they are views of.
        tracked: the names of those roots that were written to in grad mode.
        counted: the tensors whose version counter a write moved.
        reshaped: differentiable views whose metadata was changed in place.
        stretch: makes a graph input of the caller's elements of a dtype from one to another.
        grown: larger storages that stand for it, since it has grown.
    """

    def __init__(self, builder: GraphBuilder, storage: torch.UntypedStorage, inference: bool) -> None:
        self.storage = storage  # kept alive: its address is its name
        self.inference = inference
        self.grown: list[torch.UntypedStorage] = []
        self.entries: list[EntryView] = []
        self.members: list[Tensor] = []
        self.of_backward = False
        self.writes: dict[tuple[Geometry, int], Tensor] = {}
        self.counted: list[Tensor] = []
        self.tracked: set[int] = set()
        self.reshaped: list[Tensor] = []
        self._builder = builder
        self._base: tuple[Geometry, fx.Node] | None = None
        self._nodes: dict[Geometry, fx.Node] = {}
        self._views: dict[Geometry, tuple[Geometry, ViewStep]] = {}
        self.stretch: Callable[[torch.dtype, int, int], fx.Node] | None = None

    @property
    def nbytes(self) -> int:
        """Its size in bytes now."""
        return (self.grown[-1] if self.grown else self.storage).nbytes()

    def define(self, where: Geometry, node: fx.Node) -> None:
        """The storage was just made by the operation `node`, whose result has the geometry `where`."""
        if self._base is None:
            self._base = (where, node)
        self._nodes[where] = node

    def enter(self, fake: Tensor, where: Geometry, node: fx.Node) -> None:
        """An argument lies on this storage; `node` is what is in memory there."""
        self.members.append(fake)
        self.entries.append(EntryView(where.physical, node))
        self._nodes.setdefault(where.physical, node)

    def grow(self, storage: torch.UntypedStorage) -> None:
        """The storage now has as many bytes as `storage`, those at the end undefined."""
        before = self.grown[-1] if self.grown else self.storage
        base, _ = self._reach(Geometry((before.nbytes(),), (1,), 0, torch.uint8))
        self.grown.append(storage)
        if storage.nbytes() % base.dtype.itemsize:  # it was a view of another dtype that has grown
            start, row = self._bytes()
            length = (base.stop - base.offset) * base.dtype.itemsize
            base = Geometry((length,), (1,), start, torch.uint8)
            self._replace(base, row)
        more = storage.nbytes() // base.dtype.itemsize - base.stop
        row = self._builder.emit(aten.constant_pad_nd.default, self._row(), [0, more])
        self._replace(Geometry((base.stop - base.offset + more,), (1,), base.offset, base.dtype), row)

    def view(self, parent: Geometry, where: Geometry, step: ViewStep) -> None:
        """A view operation gave a tensor with the geometry `where`; its node is made when it is read."""
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
            node = self._nodes[where] = self._make(where)
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

    def _make(self, where: Geometry) -> fx.Node:
        known = self._views.get(where)
        if known is not None:
            parent, step = known
            return apply_step(self._builder, self.read(parent), step)
        if where.is_lazy:
            return self._conjugated(where, self.read(where.physical))
        base, node = self._reach(where)
        if where.dtype != base.dtype:
            return self._reinterpreted(where)
        offset = where.offset - base.offset + self._builder.offsets.get(node, 0)
        return self._builder.emit(aten.as_strided.default, node, list(where.size), list(where.stride), offset)

    def _conjugated(self, where: Geometry, value: fx.Node) -> fx.Node:
        """What a lazy tensor shows of physical numbers, or the physical numbers that it shows: either way."""
        if where.conj:
            value = self._builder.emit(aten._conj_physical.default, value)
        return self._builder.emit(aten.neg.default, value) if where.neg else value

    def _reinterpreted(self, where: Geometry) -> fx.Node:
        """The value of a tensor of another dtype than the storage's, by way of bytes."""
        if 0 in where.size:
            meta = {"dtype": where.dtype, "device": self.storage.device}
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

    def _reach(self, where: Geometry) -> tuple[Geometry, fx.Node]:
        """The geometry and node of a value that holds all elements of `where`: what is there for now, or,
        where that is too little, it and what lies beside it in the caller's storage."""
        start, stop = where.bytes
        if self._base is None:
            for entry in self.entries:
                first, last = entry.geometry.bytes
                if entry.geometry.dtype == where.dtype and first <= start and stop <= last:
                    return entry.geometry, entry.node
            self._base = self._entry_base()
        base, _ = self._base
        first, last = base.bytes
        if self.stretch is None or 0 in where.size or (first <= start and stop <= last):
            return self._base
        low = min(start, first) // base.dtype.itemsize
        high = max(stop, last) // base.dtype.itemsize
        pieces = [self._row()]
        if low < base.offset:
            pieces.insert(0, self.stretch(base.dtype, low, base.offset))
        if high > base.stop:
            pieces.append(self.stretch(base.dtype, base.stop, high))
        self._replace(
            Geometry((high - low,), (1,), low, base.dtype), self._builder.emit(aten.cat.default, pieces)
        )
        return self._base

    def _row(self) -> fx.Node:
        """The whole current value as one row."""
        base, node = self.base()
        offset = self._builder.offsets.get(node, 0)
        row = self._builder.emit(aten.as_strided.default, node, [base.stop - base.offset], [1], offset)
        return self._builder.emit(aten.clone.default, row) if offset else row

    def _bytes(self) -> tuple[int, fx.Node]:
        """The same as bytes, and the place of the first one in the storage."""
        if self._base is None:
            self._base = self._entry_base()
        return self._base[0].bytes[0], self._builder.emit(aten.view.dtype, self._row(), torch.uint8)

    def write(self, target: Tensor, value: fx.Node, counted: bool = True) -> None:
        """The tensor `target` now shows `value` (same size and dtype); `counted` writes move its version."""
        where = geometry(target)
        root = target._base if target._is_view() else target
        self.writes.setdefault((where, id(root)), target)
        if torch.is_grad_enabled():
            self.tracked.add(id(root))
        if counted:
            self.counted.append(target)
        if 0 in where.size:
            self._nodes[where] = value  # which is another tensor with a history of its own all the same
            return
        if self._base is None:
            self._base = self._entry_base()
        if where.overlaps_itself:
            where, value = self._without_overlap(where, value)
        self._store(where, value)

    def _store(self, where: Geometry, value: fx.Node) -> None:
        assert self._base is not None
        base, node = self._base
        fits = same_layout(self._builder.meta(value), where)
        if where == base and fits:
            self._replace(base, value)
            return
        known = self._views.get(where)
        if known is not None and where != base:
            parent, step = known
            whole = invert_step(self._builder, parent, self.read(parent), value, step)
            if whole is not None:
                self._store(parent, whole)
                if fits:
                    self._nodes[where] = value
                return
        if where.is_lazy:
            self._store(where.physical, self._conjugated(where, value))
            return
        if 0 in where.size:
            return
        base, node = self._reach(where)
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

    def _entry_base(self) -> tuple[Geometry, fx.Node]:
        """A caller's storage becomes one value, as it is written to or read as another dtype.

        An argument that lies alone and densely is that value; otherwise it is the flat stretch of storage
        that the arguments show together, which becomes a graph input of its own.
        """
        entry = self.entries[0]
        if len({e.geometry for e in self.entries}) == 1 and is_dense(entry.geometry):
            return entry.geometry, self._at_zero(entry.node)
        assert self.stretch is not None
        entries = [e.geometry for e in self.entries]
        dtype = entry.geometry.dtype
        if any(e.dtype != dtype for e in entries):
            dtype = torch.uint8
        start = min(e.bytes[0] for e in entries) // dtype.itemsize
        stop = max(e.bytes[1] for e in entries) // dtype.itemsize
        where = Geometry((stop - start,), (1,), start, dtype)
        self._nodes[where] = node = self._at_zero(self.stretch(dtype, start, stop))
        return where, node

    def _at_zero(self, node: fx.Node) -> fx.Node:
        """The same value at storage offset 0: torch's scatters keep their argument's offset, other backends
        need not, and `as_strided` counts from the start of the storage. (And torch's `as_strided_scatter`
        wants an argument that requires grad to be contiguous.)"""
        meta = self._builder.meta(node)
        # (And it wants the storage to hold a whole number of elements.)
        whole = self.storage.nbytes() % meta.dtype.itemsize == 0
        if whole and self._builder.offsets.get(node, 0) == 0 and is_contiguous(meta):
            return node
        return self._builder.emit(aten.clone.default, node)

    def _without_overlap(self, where: Geometry, value: fx.Node) -> tuple[Geometry, fx.Node]:
        """Only fills may write through an expanded view; all that it shows of one element is equal."""
        size = list(where.size)
        for dim, (n, s) in enumerate(zip(where.size, where.stride, strict=True)):
            if n > 1 and s == 0:
                value = self._builder.emit(aten.slice.Tensor, value, dim, 0, 1)
                size[dim] = 1
        return where._replace(size=tuple(size)), value


def same_layout(meta: ValueMeta, where: Geometry) -> bool:
    """Whether a value lies in memory as a tensor of geometry `where` does (dimensions of size 1 aside)."""
    return 0 in where.size or all(
        n == 1 or a == b for n, a, b in zip(where.size, meta.stride, where.stride, strict=True)
    )


def apply_step(builder: GraphBuilder, parent: fx.Node, step: ViewStep) -> fx.Node:
    """The value of a view of `parent`."""
    node = builder.emit(step.op, parent, *step.args, **step.kwargs)
    return node if step.index is None else builder.item(node, step.index)


_SQUEEZES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)


def invert_step(
    builder: GraphBuilder, where: Geometry, parent: fx.Node, value: fx.Node, step: ViewStep
) -> fx.Node | None:
    """The parent's value after its view was overwritten by `value`; None where `as_strided_scatter` must do.

    A result that would not lie in memory as the parent does is not used: the layout of a storage never
    changes under a write.
    """
    op, args = step.op, step.args
    whole: fx.Node
    if step.kwargs:
        return None
    if op is aten.select.int:
        whole = builder.emit(aten.select_scatter.default, parent, value, *args)
    elif op is aten.slice.Tensor:
        whole = builder.emit(aten.slice_scatter.default, parent, value, *args)
    elif op is aten.t.default:
        whole = builder.emit(aten.t.default, value)
    elif op is aten.transpose.int:
        whole = builder.emit(aten.transpose.int, value, *args)
    elif op is aten.permute.default:
        inverse = sorted(range(len(args[0])), key=lambda i: args[0][i] % len(args[0]))
        whole = builder.emit(aten.permute.default, value, inverse)
    elif op in _SQUEEZES:
        if not is_contiguous(builder.meta(value)):
            return None
        whole = builder.emit(aten.view.default, value, list(where.size))
    elif op is aten.view.dtype:
        whole = builder.emit(aten.view.dtype, value, where.dtype)
    elif op is aten.view_as_real.default:
        whole = builder.emit(aten.view_as_complex.default, value)
    elif op is aten.view_as_complex.default:
        whole = builder.emit(aten.view_as_real.default, value)
    else:
        return None
    return whole if same_layout(builder.meta(whole), where) else None
