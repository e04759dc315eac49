"""What autograd knows of tensors that were changed, and of views of them: what a history counts by."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aot import errors
from aot.analysis.context import is_current
from aot.capture.memory.metadata_log import MetadataMutation, StorageRebind, ViewOrigin
from aot.capture.memory.view_ops import CreationMode, ViewOp
from aot.ops.classify import functional_form
from aot.tensors.geometry import Geometry, covers, geometry, same_interpretation
from aot.torch_internals import autograd_state

aten = torch.ops.aten

# Autograd refuses these where there is a history.
_RESIZES = (aten.resize_.default, aten.resize_as_.default)

# View operations that go by how a tensor lies, and not by its indices alone.
BY_STRIDES = (aten.view.default, aten._unsafe_view.default, aten.as_strided.default)

# In-place operations whose result has its elements at other indices; each undoes itself.
_EXCHANGES = (aten.t_.default, aten.transpose_.default, aten.swapdims_.default, aten.swapaxes_.default)


def unseen_by_autograd(event: MetadataMutation | StorageRebind) -> bool:
    """Whether autograd takes no note of a change of metadata."""
    return isinstance(event, StorageRebind) or event.mode is not CreationMode.GRAD or event.op in _RESIZES


def before_metadata_mutations(
    root: Tensor, size: tuple[int, ...], changes: Sequence[MetadataMutation | StorageRebind]
) -> Tensor:
    """A tensor with the history of `root` before these changes of its metadata.

    A history counts elements by their indices: what autograd has noticed is undone on these, and the rest has
    moved elements without moving gradients, wherever they lie now.

    Args:
        size: the size of the root before the changes.

    Raises:
        AutogradStateMutation: one that goes past autograd changes the size, so that the history does not fit
            the tensor, or one that autograd notices goes by strides.
    """
    if all(map(unseen_by_autograd, changes)):
        return root
    sizes = [size]
    undo: list[tuple[MetadataMutation, tuple[int, ...]]] = []
    for event in changes:
        unnoticed = unseen_by_autograd(event)
        after = _size_after(event, sizes[-1])
        by_strides = isinstance(event, MetadataMutation) and event.op is aten.as_strided_.default
        if (after != sizes[-1]) if unnoticed else by_strides:
            raise errors.AutogradStateMutation(
                f"a tensor of shape {size} was written to in grad mode, and its metadata was changed both so "
                f"that autograd takes note and so that it does not (under torch.no_grad, .data = ...), with "
                f"another shape or by strides; change it outside"
            )
        if isinstance(event, MetadataMutation) and not unnoticed:
            undo.append((event, sizes[-1]))
        sizes.append(after)
    for event, before in reversed(undo):
        exchanged = event.op in _EXCHANGES
        root = functional_form(event.op)(root, *event.args) if exchanged else root.reshape(before)
    return root


def _size_after(event: MetadataMutation | StorageRebind, size: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(event, StorageRebind):
        return event.where.size
    if event.op in (*_RESIZES, aten.as_strided_.default):
        return tuple(event.args[0])
    changed = functional_form(event.op)(torch.empty(size, device="meta"), *event.args, **event.kwargs)
    return tuple(changed.shape)


def regenerated_view(
    root: Tensor, origin: ViewOrigin, stale: bool
) -> tuple[Geometry | None, tuple[ViewOp, ...]]:
    """How autograd comes to a view whose root was changed since: by its geometry; but operations that show
    elements as other numbers are repeated, on what they were called with. (As `View.where` and `steps`.)

    If only what it is a view of is `stale`, that one's history is derived by its geometry, and no gradient
    gets past it of what `as_strided` shows besides.
    """
    chain = [origin]
    while chain[0].before is not None and chain[0].parent is not root:
        chain.insert(0, chain[0].before)
    where: Geometry | None = chain[-1].where
    first = chain[0]
    # An argument may show other numbers than its base: then what is a view of it is repeated, too.
    otherwise = first.parent is not root and not same_interpretation(geometry(root), first.parent_where)
    if otherwise and any(map(_shows_besides, chain)):
        repeated = [_again(v) if same_interpretation(v.parent_where, v.where) else v.step for v in chain]
        return first.parent_where, tuple(repeated)
    steps: list[ViewOp] = []
    for one in chain:
        if not same_interpretation(one.parent_where, one.where):
            if not steps:
                where = None if one.parent is root else one.parent_where
            steps.append(one.step)
        elif steps:
            steps.append(_again(one))
    last = chain[-1]
    if _shows_besides(last) and not stale and not steps:
        return last.parent_where, (_strided(last.where),)
    return where, tuple(steps)


def _shows_besides(origin: ViewOrigin) -> bool:
    """Whether a view shows elements that what it was taken of does not."""
    return origin.step.op is aten.as_strided.default and not covers(origin.parent_where, origin.where)


def _reaches_out(origin: ViewOrigin | None) -> bool:
    """Whether one of the steps to a view does."""
    while origin is not None and not _shows_besides(origin):
        origin = origin.before
    return origin is not None


def _again(origin: ViewOrigin) -> ViewOp:
    """A step after one that shows elements as other numbers: by how it lies, but what went past autograd in
    place moves the tensor alone, and not its history."""
    return origin.step if origin.step.in_place else _strided(origin.where)


def _strided(where: Geometry) -> ViewOp:
    return ViewOp(aten.as_strided.default, where[:3], {}, None, CreationMode.GRAD)


def is_of_stale(view: Tensor, origin: ViewOrigin | None) -> bool:
    """Whether a view was taken of a view whose version counter had moved since that was taken, other than by
    a custom `autograd.Function`, whose views have a history of their own.

    What changes its own metadata counts where it shows what its parent does not: by its geometry, from which
    its history was derived anew before, gradients of that go on to the root, and through the parent do not.
    """
    while origin is not None and origin.before is not None:
        if view is not origin.parent and made_by_function(view, origin.parent):
            return False
        itself = origin.step.in_place  # which moves the counter once
        if origin.version != origin.before.version + itself and (not itself or _reaches_out(origin.before)):
            return True
        view, origin = origin.parent, origin.before
    return False


def has_history_of_a_view(view: Tensor) -> bool:
    """Whether autograd knows a view as one of what it was taken of."""
    ordinary = autograd_state.creation_meta(view) in ("DEFAULT", "MULTI_OUTPUT_NODE")
    return ordinary and is_current(view) and view.requires_grad and not view.is_leaf


def history_leads_to(value: Tensor, leaf: Tensor) -> bool:
    """Whether what a tensor was computed from is a leaf, or it has no history at all."""
    if not is_current(value) or value.grad_fn is None:
        return True
    nodes, seen = [value.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if getattr(node, "variable", None) is leaf:
            return True
        following = [below for below, _ in node.next_functions if below is not None and below not in seen]
        seen.update(following)
        nodes += following
    return False


def made_by_function(view: Tensor, parent: Tensor) -> bool:
    """Whether a custom `autograd.Function` made a view, where its parent was made otherwise."""

    def by_function(tensor: Tensor) -> bool:
        return tensor._is_view() and autograd_state.creation_meta(tensor) == "IN_CUSTOM_FUNCTION"

    return by_function(view) and not by_function(parent)
