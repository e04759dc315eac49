"""Rules for outputs that are views: which call of the wrapper makes each, or why none does.

The first rule whose condition holds decides. A rule gives the `View` that the wrapper makes, or refuses what
it could not make exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from aot import errors
from aot.analysis.context import is_current, made_a_leaf
from aot.analysis.effect_summary import View, ViewTime
from aot.analysis.histories import BY_STRIDES, history_leads_to
from aot.analysis.view_facts import ViewFacts
from aot.capture.memory.metadata_log import StorageRebind
from aot.capture.memory.view_ops import CreationMode, ViewOp
from aot.tensors.geometry import Geometry, geometry, same_interpretation
from aot.tensors.version_counters import version_of
from aot.torch_internals import autograd_state

_NOWHERE = Geometry((0,), (1,), 0, torch.float32)
_WITHOUT_GRAD = ("NO_GRAD_MODE", "INFERENCE_MODE")


class Roots(Protocol):
    """What a rule notes besides its view.

    Attributes:
        leaves: the views that the function has made leaves of.
        moving: arguments whose version counter the making of an output moves.
    """

    leaves: list[Tensor]
    moving: set[int]

    def root(self, fake: Tensor) -> int:
        """The number of the root that `fake` is."""


@dataclass(frozen=True, slots=True)
class ViewRule:
    """One rule.

    Attributes:
        name: what the output is.
        when: whether it is that.
        make: the view, or a refusal.
    """

    name: str
    when: Callable[[ViewFacts], bool]
    make: Callable[[ViewFacts, Roots], View]


def refusal(error: type[errors.Unsupported], text: str) -> Callable[[ViewFacts, Roots], View]:
    """Refuse an output, of which `text` says what it is and what to do instead."""

    def refuse(facts: ViewFacts, roots: Roots) -> View:
        raise error(f"an output of shape {tuple(facts.value.shape)} {text}")

    return refuse


def choose_view(facts: ViewFacts, roots: Roots) -> View:
    """What the wrapper makes of an output that is a view.

    Raises:
        Unsupported: there is no call that makes it exactly.
    """
    return next(rule for rule in VIEW_RULES if rule.when(facts)).make(facts, roots)


# ---- views by their steps


def _by_steps(facts: ViewFacts, roots: Roots, taken: ViewTime = ViewTime.AT_END) -> View:
    return View(roots.root(facts.start), facts.steps, None, True, taken, rebound=facts.rebound)


def _note_leaf(facts: ViewFacts, roots: Roots) -> None:
    if facts.steps[-1].leaf:
        roots.leaves.append(facts.value)


def _before_storage_changes(facts: ViewFacts, roots: Roots) -> View:
    _note_leaf(facts, roots)
    return _by_steps(facts, roots, ViewTime.BEFORE_METADATA)


def _without_history_after_write(facts: ViewFacts, roots: Roots) -> View:
    # What it is a view of, for autograd, has no history any more, and so has this one.
    assert facts.owner is not None
    first = facts.version == facts.world.forward.entry.versions[facts.owner]
    taken = ViewTime.BEFORE_WRITES if first else ViewTime.AT_END
    return View(roots.root(facts.start), facts.steps, None, True, taken, stale=not first)


def _before_start_begins(facts: ViewFacts, roots: Roots) -> View:
    view = _by_steps(facts, roots, ViewTime.BEFORE_REQUIRES_GRAD)
    return replace(view, required=facts.index)


def _before_root_begins(facts: ViewFacts, roots: Roots) -> View:
    view = View(roots.root(facts.start), facts.steps, None, True)
    if not facts.steps:
        view = _by_geometry(facts, roots, facts.start, False)
    taken = ViewTime.BEFORE_REQUIRES_GRAD
    return replace(view, taken=taken, required=facts.owner, rebound=facts.rebound)


def _with_a_leaf(facts: ViewFacts, roots: Roots) -> View:
    _note_leaf(facts, roots)
    return _by_steps(facts, roots)


def _before_release(facts: ViewFacts, roots: Roots) -> View:
    return replace(_by_steps(facts, roots, ViewTime.BEFORE_RELEASE), required=facts.owner)


def _before_metadata_changes(facts: ViewFacts, roots: Roots) -> View:
    first = facts.from_first_version
    return _by_steps(facts, roots, ViewTime.BEFORE_WRITES if first else ViewTime.BEFORE_METADATA)


def _past_autograd_by_strides(facts: ViewFacts) -> bool:
    by_strides = any(step.op in BY_STRIDES for step in facts.steps)
    return _past_autograd(facts) and (geometry(facts.start).size != facts.place.size or by_strides)


def _past_autograd(facts: ViewFacts) -> bool:
    """That went past autograd, for which the view is what its operations make of the indices."""
    return bool(facts.elsewhere and facts.steps and facts.value.requires_grad and not facts.derived)


def _put_where_it_was(facts: ViewFacts, roots: Roots) -> View:
    rebound = facts.rebound
    if rebound is None:
        here = geometry(facts.value)
        rebound = facts.world.rebound(StorageRebind(facts.state, here, True, CreationMode.GRAD), here)
    return View(roots.root(facts.start), facts.steps, None, True, rebound=rebound)


def _ordinary(facts: ViewFacts, roots: Roots) -> View:
    # (Should what it is a view of come to require grad after the call, autograd derives a history for a
    # view that was there before a write, and none for one that was not.)
    before = facts.moved and not facts.value.requires_grad and facts.value._is_view()
    early = before and facts.starts_at_input and not facts.reshapes
    # (To move the counter once more would have it derive those of arguments that share it anew as well.)
    stale = before and not early and not facts.counts_with_a_followed_view
    # Or taken from the argument before it moved its version counter, and taken note of since.
    unmoved = facts.from_first_version and any(step.in_place for step in facts.steps)
    view = _by_steps(facts, roots, ViewTime.BEFORE_WRITES if early or unmoved else ViewTime.AT_END)
    view = replace(view, stale=stale)
    if view.bumps_version and facts.index is not None:
        roots.moving.add(facts.index)
    return view


# ---- views by their geometry


def _by_geometry(facts: ViewFacts, roots: Roots, start: Tensor, stale: bool) -> View:
    """A view that was made some way that cannot be repeated, or whose root was written since: autograd
    derives the history of such a view from its geometry as well."""
    value, made, origin = facts.value, facts.made, facts.origin
    where = geometry(value) if origin is None else origin.where
    number = roots.root(start)
    other = not same_interpretation(geometry(start), where)
    special = None if made in ("DEFAULT", "NO_GRAD_MODE") else made
    without = is_current(value) and value.requires_grad and value.grad_fn is None
    grad = made not in _WITHOUT_GRAD and not (made == "IN_CUSTOM_FUNCTION" and without)
    if not stale and made in _WITHOUT_GRAD and is_current(value) and value.grad_fn is not None:
        # Taken in grad mode of one that was not.
        steps = (ViewOp(torch.ops.aten.alias.default, (), {}, None, CreationMode.GRAD),)
        return View(number, steps, where, False, ViewTime.AT_END, other, special)
    if not stale or made == "DEFAULT":
        return View(number, (), where, grad, ViewTime.AT_END, other, special)
    # Of the history of such a view autograd says that it cannot be told any more.
    given = id(start) in facts.world.index_of or id(start) in facts.world.base_of
    taken = ViewTime.BEFORE_WRITES if given else ViewTime.AT_END
    return View(number, (), where, grad, taken, other, special, stale=not given)


def _as_it_lay_on_entry(facts: ViewFacts, roots: Roots) -> View:
    value, entry = facts.value, facts.world.forward.entry
    where = geometry(value) if facts.origin is None else facts.origin.where
    assert facts.index is not None
    other = not same_interpretation(entry.before[facts.index], where)
    made = made_a_leaf(value)
    if made:
        roots.leaves.append(value)
    unmoved = version_of(facts.start) == version_of(value)
    noted = facts.origin is not None and facts.origin.version == version_of(value)
    taken = ViewTime.BEFORE_METADATA if unmoved and noted else ViewTime.BEFORE_WRITES
    grad = autograd_state.creation_meta(value) not in _WITHOUT_GRAD
    return View(
        *(roots.root(facts.start), (), where, grad, taken, other),
        requires_grad=made,
        rebound=facts.rebound,
    )


def _of_nothing_put_where_it_is(facts: ViewFacts, roots: Roots) -> View:
    where = geometry(facts.value) if facts.origin is None else facts.origin.where
    rebound = facts.rebound
    if rebound is None:
        rebound = facts.world.rebound(StorageRebind(facts.state, where, True, CreationMode.GRAD), where)
    nowhere = _NOWHERE._replace(dtype=facts.start.dtype)
    return View(roots.root(facts.start), (), nowhere, True, rebound=rebound)


def _leaf_by_geometry(facts: ViewFacts, roots: Roots) -> View:
    roots.leaves.append(facts.value)
    view = _by_geometry(facts, roots, facts.start, False)
    return replace(view, requires_grad=True, rebound=facts.rebound)


def _as_autograd_derives_it(facts: ViewFacts, roots: Roots) -> View:
    where, repeated = facts.regenerated
    other = where is not None and not same_interpretation(where, geometry(facts.root))
    number = roots.root(facts.root)
    view = View(number, repeated, where, True, reinterpreted=other, made=facts.special)
    return replace(view, rebound=facts.rebound)


def _as_it_lies(facts: ViewFacts, roots: Roots) -> View:
    source = facts.root if facts.steps else facts.start
    view = _by_geometry(facts, roots, source, facts.stale)
    if facts.rebound is not None and not facts.value.requires_grad:
        # (Where it lay then there may be nothing any more.)
        view = replace(view, where=_NOWHERE._replace(dtype=source.dtype), reinterpreted=False)
    return replace(view, rebound=facts.rebound)


# ---- the table


def _is_simple_view_of_beginner(facts: ViewFacts) -> bool:
    return bool(facts.steps) and not facts.stale and not facts.start_reshaped_since


def _is_no_simple_view_of_beginner(facts: ViewFacts) -> bool:
    reshaped = facts.start_reshaped_since or bool(facts.state.grown)
    within = facts.start is not facts.root and not facts.steps
    return bool(facts.stale or reshaped or facts.parted_by_begin or within)


VIEW_RULES = (
    ViewRule(
        "another dtype of a root that was changed",
        lambda v: bool(v.reinterpreted and v.value.requires_grad and v.root_reshaped_since),
        refusal(
            errors.AutogradStateMutation,
            "shows a tensor as another dtype, or conjugated, whose metadata the function changes: autograd "
            "repeats such a view, and may fail; use out-of-place operations",
        ),
    ),
    # What it was taken from lies on another storage by now.
    ViewRule(
        "taken before an argument went elsewhere",
        lambda v: bool(
            v.start_on_other_storage
            and v.index is not None
            and v.steps
            and not v.reshapes
            and version_of(v.value) == v.version
        ),
        _before_storage_changes,
    ),
    ViewRule(
        "on the memory that an argument lay in on entry",
        lambda v: (
            v.start_on_other_storage
            and v.index is not None
            and v.world.forward.entry.states[v.index] is v.state
        ),
        _as_it_lay_on_entry,
    ),
    ViewRule(
        "with a history, of what went elsewhere",
        lambda v: v.start_on_other_storage and v.value.requires_grad,
        refusal(
            errors.StorageMutation,
            "is a view that requires grad of a tensor that was put onto another storage since (set_, .data "
            "= ...); take the view afterwards",
        ),
    ),
    ViewRule(
        "of what went elsewhere",
        lambda v: v.start_on_other_storage,
        _of_nothing_put_where_it_is,
    ),
    # Its history is derived anew.
    ViewRule(
        "derived anew, and put elsewhere",
        lambda v: v.rebound is not None and v.derived,
        refusal(
            errors.StorageMutation,
            "is a view that was put onto other memory, and what it is a view of was changed as well: "
            "autograd derives its history from how it lies when it is asked; make a new tensor instead",
        ),
    ),
    ViewRule(
        "of a root that forgets its history",
        lambda v: bool(v.forgets and v.derived and v.steps and v.rebound is None),
        _without_history_after_write,
    ),
    ViewRule(
        "of a view with a history, whose base was changed",
        lambda v: v.moved and v.has_own_history,
        refusal(
            errors.AutogradStateMutation,
            "is a view of a view that requires grad, and the base of both, which does not, was changed "
            "since; take the view afterwards",
        ),
    ),
    # What it was taken from begins to require grad, or ceases to.
    ViewRule(
        "cut off from its base",
        lambda v: v.cut_off,
        refusal(
            errors.AutogradStateMutation,
            "is a view that was taken while its base did not require grad; call requires_grad_ outside of "
            "the function",
        ),
    ),
    ViewRule(
        "not simply a view of a view that begins to require grad",
        lambda v: v.start_begins and not v.value.requires_grad and not _is_simple_view_of_beginner(v),
        refusal(
            errors.AutogradStateMutation,
            "is a view of a view that the function lets require grad, and not simply that; call "
            "requires_grad_ outside of the function",
        ),
    ),
    ViewRule(
        "taken before a view begins to require grad",
        lambda v: v.start_begins and not v.value.requires_grad,
        _before_start_begins,
    ),
    ViewRule(
        "with an earlier history than a view that begins to require grad",
        lambda v: v.start_begins and not history_leads_to(v.value, v.start),
        refusal(
            errors.AutogradStateMutation,
            "was taken of a view, before the function let that require grad; call requires_grad_ outside of "
            "the function",
        ),
    ),
    ViewRule(
        "not simply a view of a root that begins to require grad",
        lambda v: v.follows_begin and _is_no_simple_view_of_beginner(v),
        refusal(
            errors.AutogradStateMutation,
            "is a view of a tensor that the function lets require grad, and not simply that; call "
            "requires_grad_ outside of the function",
        ),
    ),
    ViewRule(
        "taken before its root begins to require grad",
        lambda v: v.follows_begin and v.leaf,
        _before_root_begins,
    ),
    ViewRule(
        "of a view that was made a leaf",
        lambda v: any(step.leaf for step in v.steps) and not v.start_reshaped_since,
        _with_a_leaf,
    ),
    ViewRule(
        "a leaf, by its geometry",
        lambda v: v.leaf and v.value.requires_grad and not v.root.requires_grad,
        _leaf_by_geometry,
    ),
    ViewRule(
        "taken before its root was released",
        lambda v: v.has_own_history and not v.start_begins and v.before_release,
        _before_release,
    ),
    ViewRule(
        "taken before its root was detached",
        lambda v: v.has_own_history and not v.start_begins,
        refusal(
            errors.AutogradStateMutation,
            "is a view of a tensor that was detached in place since, or of a view that was made a leaf; use "
            "detach(), or make it outside",
        ),
    ),
    # What it was taken from lies otherwise by now.
    ViewRule(
        "taken before the metadata of an argument changed",
        lambda v: bool(v.elsewhere and v.index is not None and v.steps and not (v.reshapes or v.derived)),
        _before_metadata_changes,
    ),
    ViewRule(
        "with a history by strides, of what was moved past autograd",
        _past_autograd_by_strides,
        refusal(
            errors.StorageMutation,
            "is a view of a tensor that was put elsewhere since (.data = ...), with another shape, or where "
            "the view cannot be taken (`view`, `as_strided`); return a new tensor",
        ),
    ),
    ViewRule("with a history, of what was moved past autograd", _past_autograd, _put_where_it_was),
    ViewRule("repeated as autograd derives it", lambda v: bool(v.regenerated[1]), _as_autograd_derives_it),
    ViewRule("by its geometry", lambda v: v.derived or not v.steps or v.elsewhere, _as_it_lies),
    ViewRule("by its steps", lambda v: True, _ordinary),
)
