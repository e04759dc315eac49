"""Fake tensors: plain tensors without memory that have the relations of a call's tensors.

In: the tensors of a call. Out: a fake for each, and for the base of each view. Fakes share storages, bases
and version counters as the tensors do. Their geometry, dtype, `requires_grad` and `is_leaf` are the same, and
so is autograd's record of how a view was made.

After the trace, two checks look at the fakes for changes of history that they cannot model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from aot import errors
from aot.tensors import views
from aot.tensors.geometry import Geometry, geometry
from aot.tensors.version_counters import counter_groups, version_of
from aot.torch_internals import autograd_state, plain_fakes, tensor_impl
from aot.torch_internals.wrapper_subclasses import as_class_of

_APART = "a view of a tensor that lies in other memory by now (set_, .data), which cannot be modelled"


class Geometries(Protocol):
    """Gives the geometry of tensors and the sizes of their storages."""

    def geometry(self, tensor: Tensor) -> Geometry: ...
    def nbytes(self, tensor: Tensor) -> int: ...


def make_fakes(
    tensors: Sequence[Tensor], device: torch.device | None = None, places: Geometries | None = None
) -> tuple[list[Tensor], dict[int, Tensor]]:
    """Make fakes of tensors.

    Args:
        tensors: the tensors of a call.
        device: the device that the fakes report; None for that of each tensor.
        places: gives the geometry of the fakes; None for that of the tensors.

    Returns:
        The fakes, and the fakes of the tensors' roots (`root_of`) by the `id` of the root.

    Raises:
        UnsupportedArgument: tensors show one storage as dtypes that do not divide it evenly. A storage is too
            small, and sizes are symbols. A view that requires grad has left the storage of its base.
    """
    lying = geometry if places is None else places.geometry
    nbytes = _nbytes if places is None else places.nbytes
    storages: dict[int, torch.UntypedStorage] = {}
    roots: dict[int, Tensor] = {}
    real_roots = {id(root): root for root in map(root_of, tensors)}
    needed: dict[int, int] = {}  # bytes of storages that were freed (`resize_storage_bytes_`), as before that
    for tensor in (*tensors, *real_roots.values()):
        if lacks_memory(tensor):
            if places is not None:
                raise errors.UnsupportedArgument(
                    "an argument shows more than its storage holds, and sizes are symbols: call with "
                    "dynamic=False, or give the storage its size before the call"
                )
            key = tensor_impl.storage_key(tensor)
            needed[key] = max(needed.get(key, 0), geometry(tensor).bytes[1])

    def root_fake(real: Tensor, relative: Tensor | None) -> Tensor:
        key = tensor_impl.storage_key(real)
        if key not in storages:
            size = needed.get(key) or nbytes(real)
            storages[key] = plain_fakes.make_storage(size, device or real.device, symbolic=places is not None)
        where = lying(real)
        fake: Tensor
        if real.is_inference():
            with torch.inference_mode():
                fake = plain_fakes.make_tensor(
                    storages[key], where.size, where.stride, where.offset, real.dtype, device or real.device
                )
        elif relative is not None:
            with torch.no_grad():
                fake = relative.detach()
                if where != geometry(fake):
                    fake = _fake_seen_as(fake, where).detach()
        else:
            fake = plain_fakes.make_tensor(
                storages[key], where.size, where.stride, where.offset, real.dtype, device or real.device
            )
        tensor_impl.set_lazy_bits(fake, real.is_conj(), real.is_neg())
        if isinstance(real, torch.nn.Parameter):
            fake = torch.nn.Parameter(fake, requires_grad=False)
        elif type(real) is not Tensor:
            fake = as_class_of(fake, real)
        if real.is_inference():  # it can require grad only as a leaf, which inference mode must make
            with torch.inference_mode():
                return fake.requires_grad_(real.requires_grad)
        if real.requires_grad:
            autograd_state.make_non_leaf(fake)
        return fake

    together: dict[int, list[Tensor]] = {}
    for root in real_roots.values():
        together.setdefault(tensor_impl.storage_key(root), []).append(root)
    first: dict[int, Tensor] = {}  # the first root that has the same version counter
    for members in together.values():
        groups = counter_groups(members)
        first.update((id(root), members[k]) for root, k in zip(members, groups, strict=True))
    for root in real_roots.values():
        roots[id(root)] = root_fake(root, roots.get(id(first[id(root)])))
    fakes: list[Tensor] = []
    for tensor in tensors:
        root = root_of(tensor)
        if root is tensor:
            fakes.append(roots[id(root)])
        else:
            fakes.append(as_class_of(_fake_view(tensor, roots[id(root)], lying(tensor)), tensor))
    # Views hold the edge that their base has had so far. From now on the base has an edge of its own. So the
    # gradient through a view and the gradient through its base are different.
    for name, fake in roots.items():
        real = real_roots[name]
        if real.requires_grad and not real.is_inference():
            if real.is_leaf:
                fake.detach_().requires_grad_(True)
            else:
                autograd_state.make_non_leaf(fake)
    return fakes, roots


def _fake_seen_as(fake: Tensor, where: Geometry) -> Tensor:
    try:
        return views.as_strided_view(fake, where)
    except RuntimeError as error:
        raise errors.UnsupportedArgument(
            f"an argument shows the end of a storage as {where.dtype}, another all of it as {fake.dtype}, "
            f"and the one does not divide it evenly: that cannot be modelled; clone it"
        ) from error


def root_of(tensor: Tensor) -> Tensor:
    """The tensor whose autograd history a tensor shares: its base, if it is a differentiable view.

    Some views are their own roots, because no history passes from the base:

    - a view of another dtype, except between complex numbers and their parts;
    - a view that was made a leaf, as a parameter in a flat buffer;
    - a view whose base got another storage since.

    Raises:
        UnsupportedArgument: the base got another storage, and the view requires grad, so history does pass.
    """
    if tensor._is_view():
        if left_base_storage(tensor):
            if tensor.requires_grad:
                raise errors.UnsupportedArgument(f"an argument that requires grad is {_APART}; clone it")
            return tensor
        base = tensor._base
        assert base is not None
        if (
            base.requires_grad >= tensor.requires_grad
            and not autograd_state.can_accumulate_grad(tensor)
            and (
                base.dtype == tensor.dtype
                or views.is_component_dtype(base.dtype, tensor.dtype)
                or views.is_component_dtype(tensor.dtype, base.dtype)
            )
        ):
            return base
    return tensor


def _nbytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def lacks_memory(tensor: Tensor) -> bool:
    """Whether a tensor reaches beyond its storage, as a parameter whose memory FSDP has freed."""
    return tensor.numel() > 0 and geometry(tensor).bytes[1] > _nbytes(tensor)


def check_base_relations(tensors: Sequence[Tensor], fakes: Sequence[Tensor]) -> None:
    """Check, when the function has run, views that have left the storage of their base.

    If such a view gets a history, its base does too, and the other way round. Their fakes do not know of each
    other, so this cannot be modelled.

    Raises:
        UnsupportedArgument: such a view or its base has come to require grad.
    """
    concerned = {id(one) for tensor in tensors if left_base_storage(tensor) for one in (tensor, tensor._base)}
    for position, (tensor, fake) in enumerate(zip(tensors, fakes, strict=True)):
        if id(tensor) in concerned and fake.requires_grad > tensor.requires_grad:
            raise errors.UnsupportedArgument(
                f"the function makes tensor {position} require grad, which is, or has, {_APART}; clone it"
            )


def check_view_histories(
    tensors: Sequence[Tensor],
    fakes: Sequence[Tensor],
    versions: Sequence[int],
    edges: Sequence[GradientEdge | None],
    turned: Callable[[], Sequence[Tensor]],
) -> None:
    """Check, when the function has run, for changes of views that eager forbids because of their base.

    A leaf may be a view that was taken without grad mode. If its memory is written to and its base requires
    grad, every later use of it raises. A view whose base was detached since must not be written to in grad
    mode.

    Args:
        tensors, fakes: the tensors of the call and their fakes.
        versions: the fakes' version counters when the function began.
        edges: the fakes' gradient edges at that time.
        turned: gives the views whose metadata the function has changed in grad mode.

    Raises:
        AutogradStateMutation: eager forbids a change.
    """
    for position, (tensor, fake, before, edge) in enumerate(
        zip(tensors, fakes, versions, edges, strict=True)
    ):
        if not tensor._is_view():
            continue
        base = tensor._base
        assert base is not None
        if autograd_state.can_accumulate_grad(tensor) and base.requires_grad and not fake.requires_grad:
            raise errors.AutogradStateMutation(
                f"the function has tensor {position} require no grad any more, a leaf that is a view of what "
                f"requires grad, so that it goes on saying that it does: call requires_grad_(False) outside"
            )
        if version_of(fake) == before:
            continue
        # The history of an ordinary view must not be read now. A view with a detached base has its own.
        if base_was_detached(tensor) and (
            (edge is not None and fake.grad_fn is not edge.node) or any(one._base is fake for one in turned())
        ):
            raise errors.AutogradStateMutation(
                f"the function writes in grad mode to tensor {position}, a view of a tensor that was "
                f"detached in place since, which eager forbids; write under torch.no_grad, or to a clone"
            )
        if not autograd_state.can_accumulate_grad(tensor):
            continue
        family = (f for t, f in zip(tensors, fakes, strict=True) if t is base or t._base is base)
        if autograd_state.creation_meta(tensor) != "DEFAULT" and any(
            one.requires_grad for one in (base, *family) if one is not None and one is not fake
        ):
            raise errors.AutogradStateMutation(
                f"the function writes to memory of tensor {position}, a leaf that is a view which was taken "
                f"without grad mode of what requires grad: whatever uses it afterwards raises in eager; "
                f"detach it before it is made a leaf"
            )


def edge_of(fake: Tensor) -> GradientEdge | None:
    """The gradient edge of a tensor; None if it has none.

    A view that was taken under no_grad has none, although it requires grad if its base does.
    """
    if not fake.requires_grad or (fake.grad_fn is None and fake._is_view()):
        return None
    return autograd_state.gradient_edge(fake)


def base_was_detached(view: Tensor) -> bool:
    """Whether a view has a history, but its base has lost it (`detach_`)."""
    base = view._base
    return view.requires_grad and not view.is_leaf and base is not None and not base.requires_grad


def left_base_storage(tensor: Tensor) -> bool:
    """Whether a tensor is a view whose base got another storage since (`set_`, `.data`)."""
    base = tensor._base if tensor._is_view() else None
    return base is not None and tensor_impl.storage_key(base) != tensor_impl.storage_key(tensor)


def _fake_view(tensor: Tensor, base: Tensor, where: Geometry) -> Tensor:
    # If a leaf came to require grad after the view was taken, the view requires grad and has no history.
    since = tensor.requires_grad and tensor.is_leaf
    grad = not since and autograd_state.creation_meta(tensor) not in ("NO_GRAD_MODE", "INFERENCE_MODE")
    with torch.set_grad_enabled(grad):
        view = views.as_strided_view(base, where)
    autograd_state.copy_creation_meta(tensor, view)
    return view
