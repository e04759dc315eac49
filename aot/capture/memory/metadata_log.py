"""What changes about tensors besides their data, and how views came to lie as they do, during a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from aot import errors
from aot.capture.memory.storage import Storage
from aot.capture.memory.view_ops import CreationMode, ViewOp
from aot.graph.graph_text import call_text, labels
from aot.tensors.geometry import Geometry, geometry
from aot.tensors.version_counters import version_of
from aot.torch_internals import op_queries


@dataclass(frozen=True, slots=True)
class MetadataMutation:
    """An operation that changes an argument but not its data, to be repeated on the real one.

    Attributes:
        mode: in which mode it ran.
        stale: whether the argument is a view whose history autograd derived anew for it, as the version
            counter had moved.
        path: the way from the argument to the part of it that changes, where that is a wrapper subclass made
            of such.
    """

    op: op_queries.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mode: CreationMode
    stale: bool = False
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        target = ".".join(("_", *self.path))
        words = [call_text(self.op, self.args, self.kwargs, target), *self.mode.labels]
        return ", ".join([*words, *labels(self, "stale")])


@dataclass(frozen=True, slots=True)
class StorageRebind:
    """A tensor was put onto the storage `state`, where it lies as `where`: by ``x.data = y`` (`assigned`), or
    by ``set_``, in the mode `mode`."""

    state: Storage
    where: Geometry
    assigned: bool
    mode: CreationMode


@dataclass(frozen=True, slots=True)
class SubclassStorageRebind:
    """`set_` put a wrapper subclass onto the storage of another one, which has no memory: what is done with
    what they are made of is told apart.

    Attributes:
        storage, where: that storage, and how it lies there.
        path: as that of `MetadataMutation`.
    """

    storage: torch.UntypedStorage
    where: Geometry
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewOrigin:
    """How a fake tensor came to lie as it does.

    Attributes:
        parent: the fake that it was taken from; itself, after a metadata mutation.
        step: the view operation, or the functional form of the metadata mutation.
        before: how the parent had come to lie as it did then; None for a tensor that is no view.
        reshapes: how often the parent's metadata had been changed by then.
        version: the version counter when autograd last took note of the view.
        state, where: the storage that it lay in, and how, just afterwards.
        parent_where: how the parent lay there.
        put: whether the parent is a view that had been put there by ``.data =`` or ``set_``.
    """

    parent: Tensor
    step: ViewOp
    before: ViewOrigin | None
    reshapes: int
    version: int
    state: Storage
    where: Geometry
    parent_where: Geometry
    put: bool = False


class MetadataLog:
    """The changes of all tensors of a trace.

    Args:
        state: the storage of a tensor.

    Attributes:
        origins: how each view came to be.
        mutations: the tensors that changed, one for each change, in order.
        version_bumps: those of which the change moved the version counter.
    """

    def __init__(self, state: Callable[[Tensor], Storage]) -> None:
        self.state = state
        self.origins: dict[int, tuple[Tensor, ViewOrigin]] = {}
        self.mutations: list[Tensor] = []
        self.version_bumps: list[Tensor] = []
        self._changes: dict[int, tuple[Tensor, list[MetadataMutation | StorageRebind]]] = {}
        self._histories: dict[int, list[Node | None]] = {}
        self._entered_at: dict[int, int] = {}
        self._changed_at: dict[int, int] = {}
        self._places: dict[int, tuple[Storage, Geometry]] = {}

    def forget_tensors(self) -> None:
        """Let go of every tensor."""
        self.origins.clear()
        self.mutations.clear()
        self.version_bumps.clear()
        self._changes.clear()
        self._histories.clear()
        self._places.clear()

    def watch_data_assignment(self, fake: Tensor) -> None:
        """From here on, note when the argument `fake` is put elsewhere by ``x.data = y``, which no operation
        tells."""
        self._places[id(fake)] = (self.state(fake), geometry(fake))
        self._entered_at.setdefault(id(fake), version_of(fake))

    def sync_data_assignment(self, fake: Tensor) -> None:
        """Note that an argument was put elsewhere since it was last looked at."""
        place = self._places.get(id(fake))
        if place is not None and place != (self.state(fake), geometry(fake)):
            if place[0].inference != self.state(fake).inference:
                raise errors.InferenceModeUnsupported(
                    "an inference tensor and another are put onto one storage (.data = ...); clone it first"
                )
            self.note_change(fake, StorageRebind(self.state(fake), geometry(fake), True, CreationMode.now()))

    def note_change(self, fake: Tensor, event: MetadataMutation | StorageRebind) -> None:
        """Note that something changed about a tensor besides its data."""
        self.mutations.append(fake)
        told = event.mode is not CreationMode.BELOW_SUBCLASS and not (
            isinstance(event, StorageRebind) and event.assigned
        )
        if told:
            self.version_bumps.append(fake)
        self._changes.setdefault(id(fake), (fake, []))[1].append(event)
        base = fake._base if fake._is_view() else None
        self._histories.setdefault(id(fake), []).append((fake if base is None else base).grad_fn)
        # An operation moves the counter as soon as it returns to autograd; an assignment does not.
        self._changed_at[id(fake)] = version_of(fake) + told
        if id(fake) in self._places:
            self.watch_data_assignment(fake)

    def changes_of(self, fake: Tensor) -> tuple[MetadataMutation | StorageRebind, ...]:
        """What changed about a tensor besides its data, in order."""
        known = self._changes.get(id(fake))
        return () if known is None else tuple(known[1])

    def histories_of(self, fake: Tensor) -> tuple[Node | None, ...]:
        """The place in the autograd graph that the tensor, or its base, had at each of these changes."""
        return tuple(self._histories.get(id(fake), ()))

    def moves(self, fake: Tensor) -> bool:
        """Whether one of these changes moves the version counter."""
        return any(mover is fake for mover in self.version_bumps)

    def moved_unnoticed(self, fake: Tensor) -> bool:
        """Whether the version counter moved after the last of these changes, or since the call began."""
        return version_of(fake) != self._changed_at.get(id(fake), self._entered_at.get(id(fake), 0))

    def moved_since(self, fake: Tensor) -> bool:
        """Whether the version counter moved after the last of these changes."""
        return version_of(fake) != self._changed_at[id(fake)]

    def reshaped(self, fake: Tensor) -> int:
        """How often something changed about a tensor besides its data."""
        known = self._changes.get(id(fake))
        return 0 if known is None else len(known[1])

    def views_mutated_in_grad_mode(self) -> list[Tensor]:
        """The views with a history whose metadata were changed in grad mode."""
        found: list[Tensor] = []
        for view, last in self.origins.values():
            origin: ViewOrigin | None = last if view.requires_grad else None
            while origin is not None and not (origin.step.in_place and origin.step.mode is CreationMode.GRAD):
                origin = origin.before
            if origin is not None:
                found.append(view)
        return found

    def note_view_origin(self, view: Tensor, parent: Tensor, step: ViewOp) -> None:
        """Note that `view` was made of `parent`, or that `step` changed its metadata."""
        known = self.origins.get(id(parent))
        before = None if known is None else known[1]
        place = (self.state(parent), geometry(parent))
        put = before is not None and not step.in_place and (before.state, before.where) != place
        if put:
            before = None
        version = version_of(parent)
        if step.in_place and before is not None:
            # A metadata mutation moves the counter as soon as it returns to autograd, which takes note of it
            # only where there is a history.
            version = version + 1 if view.requires_grad and step.mode is CreationMode.GRAD else before.version
        origin = ViewOrigin(
            parent,
            step,
            before,
            self.reshaped(parent),
            version,
            self.state(view),
            geometry(view),
            place[1],
            put,
        )
        self.origins[id(view)] = (view, origin)
