"""The wrapper subclasses among a call's arguments: what stands for them inside of the trace.

One that is a view is a view inside of the trace, too: of what stands for its base, which may be no argument
itself. So autograd does there what it does in eager where views of one base are written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from aot import errors
from aot.capture.recorder.recorder import Recorder
from aot.capture.recorder.session import fake_of
from aot.specialize.subclass_keys import base_groups, nesting_depth, view_base
from aot.tensors.fake_tensors import edge_of
from aot.tensors.geometry import geometry
from aot.tensors.subclasses import (
    SubclassCreationMeta,
    all_inner_tensors,
    flatten_subclass,
    inner_wrappers,
    is_wrapper,
    subclass_meta_key,
    unflatten_subclass,
)
from aot.torch_internals import autograd_state, dispatcher, plain_fakes, tensor_impl


@dataclass(frozen=True, slots=True)
class FakeSubclassInput:
    """A wrapper subclass inside the trace.

    Attributes:
        fake: stands for it: of the same type, made of the fakes of what it is made of.
        meta: how it is made of these when the function starts.
        edge: its gradient edge then; None where it requires none.
        version: its version counter then.
        grad: a stand-in for the gradient that it holds, if it is a leaf and holds one.
        is_view, is_leaf: whether it is a view of another tensor; whether it is a leaf.
        is_linked: whether the fake is a view, of what stands for that.
        shown: its size and stride.
        base_group: the number of the first one that is a view of the same tensor, or is that.
        inner: the wrapper subclasses that it is made of, by the way to them.
    """

    fake: Tensor
    meta: SubclassCreationMeta
    edge: GradientEdge | None
    version: int
    grad: Tensor | None
    is_view: bool
    is_leaf: bool
    is_linked: bool
    shown: tuple[Any, Any]
    base_group: int
    inner: dict[tuple[str, ...], Tensor]


def make_subclass_inputs(
    recorder: Recorder,
    wrappers: Sequence[Tensor],
    metas: Sequence[SubclassCreationMeta],
    tensors: Sequence[Tensor],
    fakes: Sequence[Tensor],
    known: Mapping[int, Tensor],
) -> tuple[tuple[FakeSubclassInput, ...], list[tuple[Tensor, int]]]:
    """Make what stands for the wrapper subclasses of a call, of `fakes`, which stand for its `tensors`; and
    what stands for bases that are no arguments, each with the number of a view of it.

    Args:
        known: what stands for plain tensors, and for what these are views of, by the identity of those.

    Raises:
        UnsupportedArgument: one that its own code makes again has another standing with autograd.
    """
    metas = metas if recorder.symbols is None else recorder.symbols.metas
    made: dict[int, Tensor] = {}
    # (An argument may be what another one is made of; that one is made first.)
    for real, meta in sorted(zip(wrappers, metas, strict=True), key=lambda one: -nesting_depth(one[1])):
        if id(real) not in made:
            with recorder, dispatcher.trace_kernels_on():
                fake = made[id(real)] = unflatten_subclass(meta, fakes)
            pairs = zip(inner_wrappers(real), inner_wrappers(fake), strict=True)
            made |= {id(part): stands for (_, part), (_, stands) in pairs}
    bases = _Bases(recorder, {id(real): made[id(real)] for real in wrappers}, tensors, fakes, known)
    linked = set[int]()
    inner = {id(part) for real in wrappers for _, part in inner_wrappers(real)}
    for i, real in enumerate(wrappers):
        view = None if id(real) in inner else bases.view(real, made[id(real)])
        if view is not None:
            made[id(real)] = view
            linked.add(i)
    bases.part_bases_from_views()
    recorder.wrapper_views.clear()  # what has been done so far is none of the function's
    families = base_groups(wrappers)
    entries = tuple(
        _enter_subclass_input(recorder, real, made[id(real)], meta, family, i in linked)
        for i, (real, meta, family) in enumerate(zip(wrappers, metas, families, strict=True))
    )
    recorder.wrapper_views.note_subclass_bases([(entry.fake, entry.base_group) for entry in entries])
    for i, entry in enumerate(entries):
        for path, one in (((), entry.fake), *entry.inner.items()):
            recorder.wrapper_views.entered.setdefault(tensor_impl.storage_key(one), (i, path))
    first = {id(view_base(real)): i for i, real in reversed(list(enumerate(wrappers)))}
    return entries, [(fake, first[name]) for name, fake in bases.hidden.items()]


class _Bases:
    """What stands for the bases of views.

    Attributes:
        hidden: for those that are no arguments, by the identity of what they stand for.
    """

    def __init__(
        self,
        recorder: Recorder,
        arguments: dict[int, Tensor],
        tensors: Sequence[Tensor],
        fakes: Sequence[Tensor],
        known: Mapping[int, Tensor],
    ) -> None:
        self.hidden: dict[int, Tensor] = {}
        self._recorder = recorder
        self._arguments = arguments
        self._known = known
        self._storages = {
            tensor_impl.storage_key(tensor): fake.untyped_storage()
            for tensor, fake in zip(tensors, fakes, strict=True)
        }
        self._with_grad: dict[int, tuple[Tensor, bool]] = {}  # and whether it is a leaf

    def view(self, real: Tensor, fake: Tensor) -> Tensor | None:
        """One like `fake` that is a view as `real` is; None where `real` is none, or that cannot be had."""
        base, itself = view_base(real), autograd_state.can_accumulate_grad(real)
        if base is None or base.is_inference():
            return None
        how = autograd_state.creation_meta(real)
        if how == "IN_CUSTOM_FUNCTION" or not (itself or real.requires_grad == base.requires_grad):
            return None  # (Or it was detached in place since.)
        stands = self._stand_in(base, real)
        if stands is None:
            return None
        if base.requires_grad and id(base) not in self._with_grad:
            self._with_grad[id(base)] = stands, base.is_leaf
            autograd_state.make_non_leaf(stands)
        # (A view of a leaf that has come to require grad since says that it does, too, and has no history.)
        since = real.requires_grad and real.is_leaf
        grad = not since and how not in ("NO_GRAD_MODE", "INFERENCE_MODE")
        with self._recorder, dispatcher.trace_kernels_on(), torch.set_grad_enabled(grad):
            view = _replay_subclass_view(real, fake, stands, self._known)
        if view is not None:
            autograd_state.copy_creation_meta(real, view)
            if itself:
                view.requires_grad_()
        return view

    def _stand_in(self, base: Tensor, view: Tensor) -> Tensor | None:
        if not is_wrapper(base):  # (A nested tensor is made of the very tensor that it is a view of.)
            return self._known.get(id(base))
        if self._recorder.symbols is not None or not _memory_of(base) >= _memory_of(view):
            return None  # (In other memory it may be made by talking to other processes.)
        known = self._arguments.get(id(base), self.hidden.get(id(base)))
        return self._hidden_subclass_base(base) if known is None else known

    def _hidden_subclass_base(self, base: Tensor) -> Tensor | None:
        """What stands for a base that is no argument; None where it is made of other memory than these."""
        meta, parts = flatten_subclass(base)
        fakes = []
        for part in parts:
            fake = self._known.get(id(part))
            if fake is None:
                storage, where = self._storages.get(tensor_impl.storage_key(part)), geometry(part)
                if storage is None:
                    return None
                fake = plain_fakes.make_tensor(
                    storage, where.size, where.stride, where.offset, part.dtype, part.device
                )
                tensor_impl.set_lazy_bits(fake, part.is_conj(), part.is_neg())
                self._recorder.lifetimes.track(fake)
            fakes.append(fake)
        with self._recorder, dispatcher.trace_kernels_on():
            stands: Tensor = unflatten_subclass(meta, fakes)
        self.hidden[id(base)] = self._recorder.lifetimes.track(stands)
        return stands

    def part_bases_from_views(self) -> None:
        """Give each an edge of its own. The views hold the one that it had until here, so that the gradient
        through a view and the gradient through its base can be told apart."""
        for fake, is_leaf in self._with_grad.values():
            if is_leaf:
                fake.detach_().requires_grad_()
            else:
                autograd_state.make_non_leaf(fake)


def _memory_of(wrapper: Tensor) -> set[int]:
    return {tensor_impl.storage_key(part) for part in flatten_subclass(wrapper)[1]}


def _replay_subclass_view(
    real: Tensor, fake: Tensor, base: Tensor, known: Mapping[int, Tensor]
) -> Tensor | None:
    """A view of `base`, by the operations that made `real` one of its own base, that is made of what `fake`
    is made of; None where it would be another one than that."""
    try:
        view: Tensor = autograd_state.call_view_func(real, base, lambda tensor: known.get(id(tensor), tensor))
        for way, part in all_inner_tensors(fake):
            if len(way) == 1:
                setattr(view, way[0], part)
    except (AttributeError, errors.Unsupported):  # (It keeps them elsewhere, or its code reads values.)
        return None
    return (
        view
        if subclass_meta_key(flatten_subclass(view)[0]) == subclass_meta_key(flatten_subclass(fake)[0])
        else None
    )


def _enter_subclass_input(
    recorder: Recorder,
    real: Tensor,
    fake: Tensor,
    meta: SubclassCreationMeta,
    family: int,
    is_linked: bool,
) -> FakeSubclassInput:
    if isinstance(real, torch.nn.Parameter):
        fake._is_param = True
    if not is_linked and real.is_leaf:
        fake.requires_grad_(real.requires_grad)
    elif not is_linked and fake.is_leaf:  # as one of which there are views is not any more
        autograd_state.make_non_leaf(fake)
    if fake.requires_grad != real.requires_grad or fake.is_leaf != real.is_leaf:
        raise errors.UnsupportedArgument(
            f"a {type(real).__name__} that is made again by its __tensor_unflatten__ has another standing "
            f"with autograd (requires_grad={fake.requires_grad}, is_leaf={fake.is_leaf})"
        )
    return FakeSubclassInput(
        fake=fake,
        meta=meta,
        edge=edge_of(fake),
        version=fake._version,
        grad=_held_subclass_gradient(recorder, real, fake),
        is_view=real._is_view(),
        is_leaf=real.is_leaf,
        is_linked=is_linked,
        shown=(tuple(fake.shape), fake.stride()),
        base_group=family,
        inner=dict(inner_wrappers(fake)),
    )


def _held_subclass_gradient(recorder: Recorder, real: Tensor, fake: Tensor) -> Tensor | None:
    """What the function finds in ``.grad``: something, where the real leaf holds something."""
    if not real.is_leaf or real.grad is None:
        return None
    with recorder, dispatcher.trace_kernels_on():
        held = flatten_subclass(real.grad) if is_wrapper(real.grad) else None
        like = [real.grad] if held is None else held[1]
        stand_ins = [
            recorder.lifetimes.track(fake_of(geometry(t), t.device, recorder.builder.symbolic)) for t in like
        ]
        grad = stand_ins[0] if held is None else unflatten_subclass(held[0], stand_ins)
    fake.grad = grad
    return grad
