"""How the wrapper subclasses of a trace came to be views of others.

For autograd, views of a wrapper subclass are made by its own code and repeated by it, so that nothing but the
operation says what they are: what each one was made of, and how, is noted when torch asks the subclass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aot import errors
from aot.capture.memory.metadata_log import MetadataMutation, SubclassStorageRebind
from aot.capture.memory.view_ops import CreationMode, ViewOp
from aot.tensors.geometry import geometry
from aot.tensors.subclasses import is_wrapper
from aot.tensors.version_counters import counter_groups
from aot.torch_internals import op_queries


@dataclass(frozen=True, slots=True)
class SubclassViewOrigin:
    """A wrapper subclass, a view of `parent` whose version counter was `version` then; `at` grows with
    time."""

    parent: Tensor
    step: ViewOp
    version: int
    at: int


def subclass_size_and_stride(args: tuple[Any, ...]) -> object:
    """The size and stride of the first argument of an operation, if it is a wrapper subclass."""
    return (tuple(args[0].shape), args[0].stride()) if args and is_wrapper(args[0]) else None


def check_rebind(func: Any, args: tuple[Any, ...]) -> None:
    """Refuse to put a wrapper subclass elsewhere but onto the storage of another one of its type, or where
    autograd has a part in it.

    Raises:
        SubclassMutation: it is one of these.
    """
    tensor, *others = args
    kind = type(tensor).__name__
    if func is not torch.ops.aten.set_.source_Tensor or type(others[0]) is not type(tensor):
        raise errors.SubclassMutation(
            f"{func} of a tensor of type {kind}, and not to another tensor of that type; make a new tensor"
        )
    if tensor._is_view() or any(one.requires_grad or one.is_inference() for one in args):
        raise errors.SubclassMutation(
            f"{func} of a tensor of type {kind} that is a view, or where one requires grad or was made in "
            f"inference mode; make a new tensor"
        )


def _resizes(change: MetadataMutation | SubclassStorageRebind) -> bool:
    return isinstance(change, MetadataMutation) and change.op is torch.ops.aten.resize_.default


class SubclassViews:
    """The views among the wrapper subclasses of a trace, and the changes of their metadata.

    Attributes:
        entered: the storages that arguments, and the wrapper subclasses that they are made of, lay on at
            first, by their address: the number of the argument, and the way to that part of it.
    """

    def __init__(self) -> None:
        self._origins: dict[int, tuple[Tensor, SubclassViewOrigin]] = {}
        self._changes: dict[
            int, tuple[Tensor, list[tuple[int, MetadataMutation | SubclassStorageRebind]]]
        ] = {}
        self._clock = itertools.count()
        self._unnoticed: set[int] = set()
        self._direct: set[int] = set()
        # For each argument those of its family that do not share its counter, one for each other counter.
        self._apart: dict[int, list[Tensor]] = {}
        self.entered: dict[int, tuple[int, tuple[str, ...]]] = {}

    def note_subclass_bases(self, arguments: Sequence[tuple[Tensor, int]]) -> None:
        """Note which arguments are views of one tensor, or are that: those with one number. They share a
        counter, and so do the fakes that are views of one."""
        families: dict[int, list[Tensor]] = {}
        for fake, number in arguments:
            families.setdefault(number, []).append(fake)
        for family in families.values():
            groups = counter_groups(family)
            for fake, own in zip(family, groups, strict=True):
                self._apart[id(fake)] = [family[one] for one in sorted({*groups} - {own})]

    def count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Have arguments that are views of one be counted as changed together, as these share a counter.

        The one that an operation writes to is counted by autograd, when it has been done.
        """
        if not any(self._apart.values()) or not isinstance(func, op_queries.OpOverload):
            return
        for i, argument in enumerate(func._schema.arguments):
            value: Any = args[i] if i < len(args) else kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write and is_wrapper(value):
                root = self.root(value, set(self._apart))
                for other in self._apart.get(id(root), ()):
                    torch.autograd.graph.increment_version(other)

    def note_subclass_mutation(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inside: bool
    ) -> None:
        """Note that an operation has changed what its first argument shows; `inside` the code of what that is
        a part of, or not."""
        wrapper = args[0]
        change = MetadataMutation(func, tuple(args[1:]), kwargs, CreationMode.BELOW_SUBCLASS)
        self._changes.setdefault(id(wrapper), (wrapper, []))[1].append((next(self._clock), change))
        if not inside:
            self._direct.add(id(wrapper))
        if not torch.is_grad_enabled():
            self._unnoticed.add(id(wrapper))

    def note_rebind(self, wrapper: Tensor, inside: bool) -> None:
        """Note that a wrapper subclass was put onto another storage; `inside` as above."""
        change = SubclassStorageRebind(wrapper.untyped_storage(), geometry(wrapper))
        self._changes.setdefault(id(wrapper), (wrapper, []))[1].append((next(self._clock), change))
        if not inside:
            self._direct.add(id(wrapper))

    def note_subclass_result(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note that an operation on wrapper subclasses has given `result`."""
        if not args or not is_wrapper(args[0]) or torch.is_inference_mode_enabled():
            return
        if not isinstance(func, op_queries.OpOverload) or not func.is_view:
            return
        parent, mode, call = args[0], CreationMode.now(), object()
        several = isinstance(result, (tuple, list))
        for i, view in enumerate(result if several else (result,)):
            if is_wrapper(view) and view is not parent:
                index = i if several else None
                step = ViewOp(func, tuple(args[1:]), kwargs, index, mode, call=call if several else None)
                origin = SubclassViewOrigin(parent, step, parent._version, next(self._clock))
                self._origins[id(view)] = (view, origin)

    def origin(self, view: Tensor) -> SubclassViewOrigin | None:
        """How a wrapper subclass came to be; None for one that is no view."""
        known = self._origins.get(id(view))
        return None if known is None else known[1]

    def root(self, view: Tensor, arguments: set[int]) -> Tensor:
        """What it is a view of: one of the `arguments`, or what is none. (`.data` is on the same memory, and
        counts what is written to it by itself: for autograd it is no view.)"""
        while id(view) not in arguments and (origin := self.origin(view)) is not None:
            detached = origin.step.op is torch.ops.aten.detach.default
            if detached and not self._counts_with(view, origin.parent):
                break
            view = origin.parent
        return view

    def _counts_with(self, detached: Tensor, parent: Tensor) -> bool:
        """Whether one shares its version counter with what it was detached from: or, as a view of which
        autograd knows no derivative (as integers) is detached at once, with what that was a view of."""
        origin = self.origin(parent)
        counting = (parent,) if origin is None else (parent, origin.parent)
        return any(counter_groups((one, detached)) == (0, 0) for one in counting)

    def lineage(self, view: Tensor) -> Iterator[Tensor]:
        """It, and what it is a view of, and so on."""
        yield view
        while (origin := self.origin(view)) is not None:
            view = origin.parent
            yield view

    def changes_of(self, wrapper: Tensor) -> tuple[MetadataMutation | SubclassStorageRebind, ...]:
        """What changed about its metadata, in order."""
        known = self._changes.get(id(wrapper))
        return () if known is None else tuple(change for _, change in known[1])

    def rebinds(self) -> Iterator[SubclassStorageRebind]:
        """Each time that one was put onto another storage."""
        every = (change for _, changes in self._changes.values() for _, change in changes)
        return (change for change in every if isinstance(change, SubclassStorageRebind))

    def changed_before(self, view: Tensor) -> bool:
        """Whether what a view is a view of had changed when it was taken."""
        origin = self._origins[id(view)][1]
        return any(at < origin.at for at, _ in self._changes.get(id(origin.parent), (None, ()))[1])

    def subclass_changed_since(self, view: Tensor) -> bool:
        """Whether it has changed since, or something was resized: what shares its storage, perhaps, of which
        torch makes no views any more when that has grown."""
        origin = self._origins[id(view)][1]
        return any(
            at > origin.at and (changed is origin.parent or _resizes(change))
            for changed, changes in self._changes.values()
            for at, change in changes
        )

    def changed_with_whole(self, part: Tensor) -> tuple[MetadataMutation | SubclassStorageRebind, ...]:
        """The changes of what another wrapper subclass is made of, if that one's code made all of them."""
        return () if id(part) in self._direct else self.changes_of(part)

    def changed_unnoticed(self, wrapper: Tensor) -> bool:
        """Whether its metadata changed without grad mode, of which autograd takes no note."""
        return id(wrapper) in self._unnoticed

    def clear(self) -> None:
        """Let go of every tensor."""
        self._origins.clear()
        self._changes.clear()
        self._unnoticed.clear()
        self._direct.clear()
        self._apart.clear()
        self.entered.clear()
