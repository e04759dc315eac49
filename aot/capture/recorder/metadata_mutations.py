"""Operations that change a tensor besides its data: its metadata, and which storage it is on, how large."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aot import errors
from aot.capture.memory.metadata_log import MetadataMutation, StorageRebind
from aot.capture.memory.view_ops import CreationMode, ViewOp
from aot.capture.recorder.mutations import Writing
from aot.ops.classify import functional_form
from aot.tensors.geometry import geometry
from aot.torch_internals import plain_fakes, tensor_impl

aten = torch.ops.aten


def replayable_metadata_mutation(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The same change of a tensor without the template of `resize_as_`, which is not at hand when the wrapper
    repeats it."""
    if func is not aten.resize_as_.default:
        return func, args, kwargs
    tensor, template = args
    form = kwargs.get("memory_format")
    if form is torch.preserve_format:
        form = None if template.is_contiguous() else torch.channels_last
    kwargs = {} if form is None else {"memory_format": form}
    return aten.resize_.default, (tensor, list(template.shape)), kwargs


class Moving(Writing):  # type: ignore[no-untyped-call]
    """A trace that records changes of metadata and storage."""

    def reshape(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A metadata mutation: the fake changes, the storage does not."""
        fake = args[0]
        self.journal.sync_data_assignment(fake)
        state = self.state(fake)
        before = geometry(fake)
        result = func(*args, **kwargs)
        if func is aten.resize_.default and before == geometry(fake):
            return result  # which does not count as a change
        stale = fake.requires_grad and fake._is_view() and self.journal.moved_unnoticed(fake)
        mode = CreationMode.BELOW_SUBCLASS if self.inside else CreationMode.now()
        event = MetadataMutation(func, tuple(args[1:]), kwargs, mode, stale)
        functional = functional_form(func)
        if functional not in (None, aten.as_strided.default, aten.resize.default):
            state.view(before, geometry(fake), ViewOp(functional, event.args, kwargs, None, event.mode))
        if id(fake) in self.journal.origins:
            origin = self.journal.origins[id(fake)][1]
            if (origin.state, origin.where) == (state, before):
                self.journal.note_view_origin(
                    fake, fake, ViewOp(func, event.args, kwargs, None, event.mode, True)
                )
            else:
                del self.journal.origins[id(fake)]  # it has been put elsewhere since: no steps lead there
        self.journal.note_change(fake, event)
        if all(view is not fake for view in state.reshaped):
            state.reshaped.append(fake)
        return result

    def resize(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`resize_` changes the metadata, and the storage where that is too small."""
        fake = args[0]
        func, args, kwargs = replayable_metadata_mutation(func, args, kwargs)
        self.journal.sync_data_assignment(fake)
        count = 1
        for n in args[1]:
            count *= n
        nbytes = (geometry(fake).offset + count) * fake.dtype.itemsize
        larger = nbytes > fake.untyped_storage().nbytes()
        if count and larger and tuple(args[1]) != tuple(fake.shape):
            state = self.state(fake)
            if not state.grown or state.grown[-1].nbytes() < nbytes:
                state.grow(plain_fakes.make_storage(nbytes, fake.device, symbolic=self.builder.symbolic))
            self.follow_growth(fake)
        return self.reshape(func, args, kwargs)

    def follow_growth(self, fake: Tensor) -> None:
        """Put a tensor onto the largest storage that stands for its own, which has grown."""
        state = self.state(fake)
        if state.grown and state.nbytes > fake.untyped_storage().nbytes():
            plain_fakes.set_storage(fake, state.grown[-1])
            self.states[tensor_impl.storage_key(fake)] = state

    def rebind(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`set_`: the fake moves to another storage."""
        fake = args[0]
        self.journal.sync_data_assignment(fake)
        source = args[1] if len(args) > 1 else None
        if isinstance(source, Tensor):
            self.state(source)
        elif source is not None and source._cdata not in self.states:
            raise errors.ClosureTensor(
                "set_() to a storage that is neither an argument's nor made by the function; pass a tensor "
                "on it as an argument"
            )
        begins = isinstance(source, Tensor) and source.requires_grad and not fake.requires_grad
        if begins and torch.is_grad_enabled():
            raise errors.StorageMutation(
                "set_() in grad mode of a tensor that does not require grad to one that does: autograd "
                "cannot differentiate it; call it under torch.no_grad()"
            )
        if torch.is_inference_mode_enabled() or fake.is_inference():
            raise errors.InferenceModeUnsupported(
                "set_() under torch.inference_mode or on a tensor that was made there; call it under "
                "torch.no_grad"
            )
        state = self.state(fake)
        if fake._base is not None and all(member is not fake for member in state.members):
            state.roots_with_rebound_views.add(id(fake._base))
        mode = CreationMode.BELOW_SUBCLASS if self.inside else CreationMode.now()
        result = func(*args, **kwargs)
        if source is None:
            where = geometry(fake)
            node = self.builder.emit(
                aten.empty_strided.default,
                list(where.size),
                list(where.stride),
                dtype=where.dtype,
                device=fake.device,
            )
            self.track_storage(fake).define(where, node)
        self.journal.note_change(fake, StorageRebind(self.state(fake), geometry(fake), False, mode))
        return result
