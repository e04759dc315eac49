"""Eager rules: whether eager raises at a statement, raises later, or has an undefined result.

In: a statement on abstract tensors (`AbstractCall`). Out: a reason in words, or None.
Invariant: the functions change nothing.
"""

from __future__ import annotations

from math import prod

from fuzz.abstract.tensor import AbstractCall, AbstractTensor, SavedForBackward
from fuzz.operators.dtypes import COMPLEX
from fuzz.operators.layout import end_byte, is_dense, overlaps_itself, shares_elements
from fuzz.operators.row import Aliasing, Change, Expanded, Kind, Meta, Operator, Result
from fuzz.operators.training_scripts import SPARSE_GRADIENTS

MOVES = (Change.STORAGE, Change.UNTYPED)
SILENT = (Change.DATA, Change.DETACH, Change.REQUIRE)  # changes that no version counter notices


def eager_error_now(use: AbstractCall) -> str | None:
    """Why eager raises at this statement, or None."""
    row, tensors = use.row, use.tensors
    if row.raises:
        return "eager refuses that whatever it is given"
    if use.followed and row.given:
        return "autograd does not follow an operator that is given its result"
    if use.grad and row.differentiable:
        for tensor in tensors:
            if tensor.base is not None and tensor.stale:
                return "an operand is a view whose base was written to"
        if use.handles_inference and _saves_inference(use):
            return "a backward would need a tensor that was made under inference mode"
    if use.grad and any(tensors[number].requires_grad for number in row.statistics):
        return "a statistic requires grad"
    if not row.writes and row.change is None:
        return None
    for number in row.writes or (0,):
        inferred = tensors[number].inference and not use.inference
        if inferred and row.bumps_version and row.change not in SILENT:
            return "the tensor written to was made under inference mode"
        if row.writes and row.expanded is not Expanded.UNDEFINED:
            written = _written(use, number)
            # If the tensor is lazily conjugated or negated, eager fills it by a copy.
            refused = row.expanded is Expanded.REFUSED or written.conj or written.neg
            if refused and written.stride is not None and overlaps_itself(written):
                return "the tensor written to is expanded"
        if row.overlap and any(
            other is not tensors[number]
            and other.memory == tensors[number].memory
            and _overlaps_partially_in_eager(tensors[number].meta, other.meta)
            for other in tensors
        ):
            return "the tensor written to overlaps an operand in part"
    if row.statistics:
        return None
    target = tensors[0]
    match row.change:
        case Change.RESIZE if target.requires_grad:
            return "the tensor resized requires grad"
        case Change.DETACH if target.base is not None:
            return "the tensor detached is a view"
        case Change.REQUIRE if target.grad_fn and not use.attributes["value"]:
            return "the tensor that is not to require grad has a history"
        case Change.RESIZE | Change.DETACH | Change.REQUIRE | Change.DATA:
            return None
    if use.followed:
        if target.base is not None:
            if target.made != "plain":
                return "the tensor written to is a view taken under no_grad or one of several views"
            if target.requires_grad and not target.base.grad_fn:
                return "the tensor written to is a view of a leaf that requires grad"
        if target.requires_grad and not target.grad_fn:
            return "the tensor written to is a leaf that requires grad, as far as autograd knows"
    return None


def not_generated(use: AbstractCall) -> str | None:
    """Why no program has this statement, or None.

    It is about hooks, `retain_grad`, the grad mode, custom functions, Python state, and wrapper subclasses.
    """
    if use.row.kind is Kind.MODE:
        if use.contained or use.inference:
            return "the grad mode is set where it is put back, or means nothing"
        return None
    if use.row.kind is Kind.PYTHON:
        return _unfit_python(use)
    if use.row.kind is Kind.FUNCTION:
        # A custom function above it would replace the missing gradient by zeros, only in eager.
        if any(t.requires_grad and (t.grad_fn or t.base is not None) for t in use.tensors[1:]):
            return "an operand that gets no gradient has a history"
        return None
    tensor = use.target
    if use.row.kind is Kind.WRAPPER:
        if tensor.wrapped is not use.row.unwraps:
            return "what is wrapped is plain, and only a wrapper subclass can be taken apart"
        if tensor.meta.dtype in COMPLEX or tensor.meta.neg:
            return "eager overlooks the bits of what a wrapper subclass is made of (torch 2.13)"
        if use.inference or use.handles_inference:
            return "wrapper subclasses under inference mode are not modelled"
        return None
    if use.repeated or use.inference or not tensor.requires_grad:
        return "the tensor has no gradient to hook"
    if tensor.base is not None and tensor.born != tensor.clock.version:
        # Eager crashes (torch 2.13), because it rebuilds the view's history when the hook is registered.
        return "the tensor hooked is a view of what was written to since"
    if use.row.kind is Kind.RETAIN and tensor.several:
        # If it is written to afterwards, eager crashes too.
        return "a tensor that is to keep its gradient is one of several results"
    return None


def _unfit_python(use: AbstractCall) -> str | None:
    """Why no program reads or writes Python state here, or None."""
    if use.repeated:
        return "a backward would read or write the state once more"
    if use.inference or use.handles_inference or use.wraps:
        return "Python state with inference tensors and wrapper subclasses is not modelled"
    target = use.tensors[0] if use.tensors else None
    if (
        use.row.name in SPARSE_GRADIENTS
        and target is not None
        and (target.grad_fn or target.base is not None)
    ):
        return "the gradient of what is no leaf would be sparse"
    return None


def eager_error_later(use: AbstractCall, kept: SavedForBackward) -> str | None:
    """Why eager raises later, in backward or at the next use of a view, or None."""
    row, tensors = use.row, use.tensors
    if not row.writes and row.change is None:
        return None
    target = tensors[0]
    if row.change in (Change.DETACH, Change.REQUIRE) and target.memory in kept.asked:
        return "a backward of an operator that takes functions asks whether it requires grad"
    if row.change in SILENT:
        if row.change is Change.DATA and target.requires_grad and target.meta.size != tensors[1].meta.size:
            return "its history does not know of the new size"
        if row.change is Change.DETACH and target.requires_grad:
            if target.clock.viewed:
                return "its views have a history that goes nowhere"
            if any(memory == target.memory for memory, *_ in kept.saved):
                return "a backward needs the history that it loses"
        return None
    if row.metadata and target.requires_grad and not use.grad and _sizes_differ(use):
        return "its history does not know of the new size"
    if row.change in MOVES and use.followed:
        return "set_ has no derivative"
    if target.clock.split and use.followed and not row.statistics:
        return "a view and its base no longer go together"
    into_view = 0 in row.writes and use.followed and target.base is not None
    if into_view and target.meta.stride is not None and overlaps_itself(target.meta):
        return "its backward puts a gradient into a view that shows elements several times"
    if not row.bumps_version:
        return None
    for number in row.writes or (0,):
        reason = _saved_operand_error(use, number, kept)
        if reason is not None:
            return reason
    return None


def _sizes_differ(use: AbstractCall) -> bool:
    """Whether a change of metadata changes the size."""
    return use.row.rule(use.metas, use.attributes)[0].meta.size != use.metas[0].size


def _saved_operand_error(use: AbstractCall, number: int, kept: SavedForBackward) -> str | None:
    """Why eager raises later because the version counter of an operand moves, or None."""
    row, tensors = use.row, use.tensors
    target = tensors[number]
    for memory, clock, version, _ in kept.saved:
        if memory == target.memory and clock is target.clock and version == clock.version:
            return "a backward needs the old values"
    for view in kept.fragile:
        base = view.base
        if view.clock is target.clock and base is not None and (view is not target or base.requires_grad):
            return "a view whose history cannot be made anew would be stale"
    if use.grad and row.differentiable:
        for which, when in row.saves:
            # Autograd clones the written tensor before it saves it, but no other tensor with its counter.
            if not isinstance(which, int) or which == number or tensors[which].clock is not target.clock:
                continue
            if any(tensors[i].requires_grad for i in when):
                return "its own backward needs an operand that it writes to"
    return None


def corrupts_saved(use: AbstractCall, kept: SavedForBackward) -> bool:
    """Whether a saved tensor is changed without autograd's notice, so that gradients are undefined."""
    row = use.row
    if not row.writes and row.change is None:
        return False
    return any(_corrupts_eager_result(row, use.tensors[number], kept) for number in row.writes or (0,))


def _corrupts_eager_result(row: Operator, target: AbstractTensor, kept: SavedForBackward) -> bool:
    change = row.change
    if target.memory in kept.reread:
        return True
    if change is Change.DATA:
        return any(memory == target.memory and clock is target.clock for memory, clock, *_ in kept.saved)
    if change in SILENT:
        return False
    if target.memory in kept.unsafe:
        return True
    return any(
        read and memory == target.memory and (clock is not target.clock or not row.bumps_version)
        for memory, clock, _, read in kept.saved
    )


def undefined_write(use: AbstractCall) -> str | None:
    """Why eager's result of a write is undefined, or None."""
    for number in use.row.writes:
        reason = _undefined_eager_write(use, number)
        if reason is not None:
            return reason
    return None


def _undefined_eager_write(use: AbstractCall, number: int) -> str | None:
    target = use.tensors[number]
    others = [tensor for i, tensor in enumerate(use.tensors) if i != number]
    row, meta = use.row, target.meta
    if "_foreach_" in row.source and _lazy(meta):
        return "eager's operators on lists write to nothing that is lazily conjugated or negated"
    if meta.stride is None:
        if target.base is not None or any(other.memory == target.memory for other in others):
            return "a write to a view whose strides are not modelled"
        return None
    meta = _written(use, number)
    assert meta.stride is not None
    if row.expanded is not Expanded.ALLOWED and overlaps_itself(meta):
        if row.expanded is Expanded.UNDEFINED:
            return "a write to a tensor whose elements overlap is not defined for good"
        if not any(n > 1 and s == 0 for n, s in zip(meta.size, meta.stride, strict=True)):
            return "a write to a tensor whose elements overlap has no defined result"
    base = target.base
    if use.followed and base is not None and base.meta.stride is not None and overlaps_itself(base.meta):
        return "the gradient of a tensor whose elements overlap is not defined where it is written in part"
    for other in others:
        if other.memory != target.memory:
            continue
        if other is target and overlaps_itself(meta):
            return "a tensor that overlaps itself is written to itself, which some operators do not do"
        if other.meta.stride is None:
            return "a write beside a view whose strides are not modelled"
        same = other.meta == meta
        if row.overlap and same:
            continue
        if row.overlap and _overlaps_partially_in_eager(meta, other.meta):
            continue  # eager refuses it
        if same or shares_elements(meta, other.meta):
            return "a write to a tensor that overlaps an operand has no defined result"
    return None


def _lazy(meta: Meta) -> bool:
    return meta.conj or meta.neg


def _overlaps_partially_in_eager(one: Meta, other: Meta) -> bool:
    """Whether eager notices that two tensors on one storage overlap and are not the same."""
    if one.dtype != other.dtype or one.stride is None or other.stride is None:
        return False
    if _lazy(one) or _lazy(other):
        return False  # most operators copy a lazily conjugated or negated tensor, and then see no overlap
    if 0 in one.size or not (is_dense(one.size, one.stride) and is_dense(other.size, other.stride)):
        return False
    if one.offset >= other.offset + prod(other.size) or other.offset >= one.offset + prod(one.size):
        return False
    return (one.offset, prod(one.size), one.stride) != (other.offset, prod(other.size), other.stride)


def unmodelled_inference(use: AbstractCall, outcome: tuple[Result, ...]) -> str | None:
    """Why the effect of a statement with inference mode or inference tensors is not modelled, or None."""
    row, tensors = use.row, use.tensors
    recast = any(link is Aliasing.DETACHED and meta.dtype != tensors[0].meta.dtype for meta, link in outcome)
    if recast or row.defines or row.change in SILENT or row.change in MOVES:
        return "what it makes under inference mode, or of a tensor made there, is not modelled"
    if row.change is Change.RESIZE and tensors[0].requires_grad:
        return "under inference mode eager does not notice that the tensor requires grad"
    if any(link is Aliasing.UNSAFE for _, link in outcome):
        return "an unsafe view under inference mode is not modelled"
    return None


def unmodelled_wrapper(use: AbstractCall, outcome: tuple[Result, ...]) -> str | None:
    """Why the effect of a statement on wrapper subclasses is not modelled, or None."""
    row, target = use.row, use.target
    if any(meta.dtype in COMPLEX for meta in (*use.metas, *(meta for meta, _ in outcome))):
        return "eager overlooks the conj bits of what a wrapper subclass is made of (torch 2.13)"
    if use.inference or use.handles_inference:
        return "wrapper subclasses under inference mode are not modelled"
    if row.defines and any(link not in (Aliasing.FRESH, Aliasing.PART) for _, link in outcome):
        return "a view of a wrapper subclass by a custom function is not modelled"
    if row.has_side_effect or row.kind is Kind.HIGHER_ORDER:
        return "an operator that acts or takes functions is not modelled on a wrapper subclass"
    if use.tensors and use.tensors[0].wrapped and any(name in row.source for name in _MAKES_PLAIN):
        return "what a wrapper subclass makes with new or new_tensor is a plain tensor"
    if "_foreach_" in row.source and any(use.tensors[number].wrapped for number in row.writes):
        return "eager does not count a write to a wrapper subclass that is one of a list"
    if row.change is None:
        return None
    if row.change is Change.STORAGE and len(use.tensors) > 1:
        if len({(tensor.wrapped, tensor.nested) for tensor in use.tensors}) > 1:
            return "a wrapper subclass is put onto what is made otherwise"
        if any(tensor.requires_grad for tensor in use.tensors):
            return "a wrapper subclass that is followed is put onto another storage"
    elif row.change not in (Change.GEOMETRY, Change.RESIZE):
        return "a wrapper subclass has no storage of its own, and keeps its place in autograd"
    if row.change is Change.RESIZE and target.wrapped and _grows(target.meta, outcome[0].meta):
        return "eager takes no views of a wrapper subclass that has outgrown its storage (torch 2.13)"
    if target.wrapped and (target.base is not None or (target.requires_grad and not use.grad)):
        return "a wrapper subclass that is a view, or is followed, changes its shape past autograd"
    return None


_MAKES_PLAIN = (".new(", ".new_tensor(")


def _grows(before: Meta, after: Meta) -> bool:
    """Whether a tensor may reach beyond its storage."""
    return before.stride is None or after.stride is None or end_byte(after) > end_byte(before)


def _written(use: AbstractCall, number: int) -> Meta:
    """The part of an operand to which a row writes."""
    return use.tensors[number].meta if use.row.fills is None else use.row.fills(use.metas, use.attributes)


def _saves_inference(use: AbstractCall) -> bool:
    tensors = use.tensors
    return any(
        tensors[which].inference and any(tensors[i].requires_grad for i in when)
        for which, when in use.row.saves
        if isinstance(which, int)
    )
