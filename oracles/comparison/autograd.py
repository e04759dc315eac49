"""Comparison of what autograd sees: histories, gradients, and in-place writes to the results later on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

from oracles.comparison.context import Comparison, Difference, difference, outcome, same_exception
from oracles.observation.records import GradientRun, LaterRequire, LaterWrite, TensorState, Value


def compare_histories(sides: Comparison) -> Iterator[Difference]:
    """Compare which inputs have another autograd history after the call.

    Where `requires_grad` or the presence of a `grad_fn` differs too, that is the finding, and this adds none.
    """
    for path in sorted({*sides.eager.moved} ^ {*sides.target.moved}):
        eager, target = sides.eager_states[path], sides.target_states[path]
        if (eager.requires_grad, eager.has_grad_fn) == (target.requires_grad, target.has_grad_fn):
            left = _history(path in sides.eager.moved)
            right = _history(path in sides.target.moved)
            yield difference("autograd-metadata", path, f"history of {path}", left, right)


def _history(moved: bool) -> str:
    return "continued by the call" if moved else "as before the call"


def compare_gradients(sides: Comparison) -> Iterator[Difference]:
    """Each backward: its exceptions, then each gradient."""
    references = () if sides.reference is None else sides.reference.gradients
    for index, (eager, target) in enumerate(zip(sides.eager.gradients, sides.target.gradients, strict=False)):
        if target.raised is not None and sides.target.refused is not None:
            continue
        reference = _at(references, index)
        which = "" if index == 0 else f" from {', '.join(eager.roots)}"
        measured = _at(() if sides.terms is None else sides.terms.gradients, index)
        yield from _compare_backward(
            sides, ("errors", "gradients"), which, eager, target, reference, measured
        )


def _compare_backward(
    sides: Comparison,
    clauses: tuple[str, str],
    which: str,
    eager: GradientRun,
    target: GradientRun,
    reference: GradientRun | None,
    measured: GradientRun | None,
) -> Iterator[Difference]:
    """Compare one backward.

    `clauses` has the clause of its exceptions and the clause of its gradients. `which` is appended to the
    paths of its findings.
    """
    if eager == target:
        return
    if eager.roots != target.roots or sides.unlike & {*eager.roots}:
        # Other roots: requires_grad, a history or a shape differs, which has been found.
        return
    errors, clause = clauses
    raised = eager.raised if eager.raised is not None else target.raised
    if raised is not None:
        if not same_exception(eager.raised, target.raised):
            path = f"{raised.stage}{which}"
            what = f"{path}, starting at {', '.join(eager.roots)}"
            yield difference(errors, path, what, outcome(eager.raised), outcome(target.raised))
        return
    if eager.cotangents_kept != target.cotangents_kept:
        path = f"cotangents of the backward{which}"
        yield difference(clause, path, path, _kept(eager), _kept(target))
    others = dict(target.gradients)
    known = dict(reference.gradients) if reference is not None and reference.roots == eager.roots else {}
    terms = dict(measured.terms) if measured is not None and measured.roots == eager.roots else {}
    for path, value in eager.gradients:
        if path in others:
            what = f"grad of {path}{which}"
            yield from sides.gradients(clause, what, value, others[path], known.get(path), terms.get(path))


_T = TypeVar("_T")


def _at(records: Sequence[_T], index: int) -> _T | None:
    return records[index] if index < len(records) else None


def _kept(run: GradientRun) -> str:
    return "left alone" if run.cotangents_kept else "written to by the backward"


def compare_later_writes(sides: Comparison) -> Iterator[Difference]:
    """Each result doubled in place: allowed or not, and what it changes elsewhere."""
    references = () if sides.reference is None else sides.reference.later_writes
    for index, (eager, target) in enumerate(
        zip(sides.eager.later_writes, sides.target.later_writes, strict=False)
    ):
        if eager.path != target.path:
            # A result of another dtype, or another object: found already.
            return
        write = f"{eager.path}.mul_(2)"
        if not same_exception(eager.raised, target.raised):
            what = f"a later {write}"
            left, right = outcome(eager.raised), outcome(target.raised)
            yield difference("autograd-metadata", eager.path, what, left, right)
            return
        reference = _at(references, index)
        yield from _compare_after_write(sides, write, eager, target, reference)


def _compare_after_write(
    sides: Comparison, write: str, eager: LaterWrite, target: LaterWrite, reference: LaterWrite | None
) -> Iterator[Difference]:
    if (eager.requires_grad, eager.data, eager.counted) == (
        target.requires_grad,
        target.data,
        target.counted,
    ):
        return
    others = {state.path: position for position, state in enumerate(sides.target.states)}
    known: dict[str, Value | None] = {}
    if reference is not None and sides.reference is not None:
        known = _values(sides.reference.states, reference.data)
    mine, its = _values(sides.eager.states, eager.data), _values(sides.target.states, target.data)
    for position, state in enumerate(sides.eager.states):
        path = state.path
        if path not in others or path in sides.unlike:
            continue
        left, right = eager.requires_grad[position], target.requires_grad[others[path]]
        if left != right and state.requires_grad == sides.target_states[path].requires_grad:
            what = f"requires_grad of {path} after {write}"
            yield difference("autograd-metadata", path, what, str(left), str(right))
        moved, moves = eager.counted[position], target.counted[others[path]]
        if None not in (moved, moves) and moved != moves:
            what = f"version counter of {path} after {write}"
            yield difference("versions", path, what, _moved(moved), _moved(moves))
        one, other = mine[path], its[path]
        if one is None or other is None or path in sides.differing:
            continue
        for item in sides.numbers("aliasing", path, f"{path} after {write}", one, other, known.get(path)):
            sides.differing.add(path)
            yield item


def _moved(moved: bool | None) -> str:
    return "moved" if moved else "not moved"


def _values(states: Sequence[TensorState], data: Sequence[bytes | None]) -> dict[str, Value | None]:
    return {
        state.path: None if elements is None else Value(state.dtype, state.shape, elements)
        for state, elements in zip(states, data, strict=True)
    }


def compare_later_gradients(sides: Comparison) -> Iterator[Difference]:
    """Compare the backwards after all later writes: they give eager's gradients, or raise as eager does.

    Nothing is compared after a write that autograd cannot notice. What a backward gives then depends on which
    tensors it saved, and the contract leaves that to the target.
    """
    if any(write.uncounted for write in sides.eager.later_writes):
        return
    pairs = zip(sides.eager.later_gradients, sides.target.later_gradients, strict=False)
    for index, (eager, target) in enumerate(pairs):
        reference = _at(() if sides.reference is None else sides.reference.later_gradients, index)
        clauses = ("autograd-metadata", "autograd-metadata")
        measured = _at(() if sides.terms is None else sides.terms.later_gradients, index)
        which = " after later writes" + (f" from {', '.join(eager.roots)}" if index else "")
        found = tuple(_compare_backward(sides, clauses, which, eager, target, reference, measured))
        yield from found
        if found:
            return


def compare_steps(sides: Comparison) -> Iterator[Difference]:
    """Compare the steps in order, up to the first that differs: later ones follow from it.

    After a write that autograd does not notice everywhere, a backward is defined only if it raises in eager:
    then it has saved a tensor for which autograd did notice the write.
    """
    unnoticed = False
    references = () if sides.reference is None else sides.reference.steps
    number = 0
    for index, (eager, target) in enumerate(zip_longest(sides.eager.steps, sides.target.steps)):
        number += not (_is_double(eager) or _is_double(target))
        if sides.target.refused is not None and (target is None or target.raised is not None):
            return
        if unnoticed and (eager is None or eager.raised is None):
            return
        reference = _at(references, index)
        measured = _at(() if sides.terms is None else sides.terms.steps, index)
        found = tuple(_compare_step(sides, f" in step {number}", eager, target, reference, measured))
        yield from found
        if found:
            return
        unnoticed |= isinstance(eager, LaterWrite) and eager.uncounted


Step = GradientRun | LaterRequire | LaterWrite | None


def _compare_step(
    sides: Comparison, which: str, eager: Step, target: Step, reference: Step, measured: Step
) -> Iterator[Difference]:
    if isinstance(eager, LaterWrite) and isinstance(target, LaterWrite):
        if same_exception(eager.raised, target.raised):
            known = reference if isinstance(reference, LaterWrite) else None
            yield from _compare_after_write(sides, f"{eager.path}.mul_(2)", eager, target, known)
        else:
            left, right = outcome(eager.raised), outcome(target.raised)
            yield difference("autograd-metadata", eager.path, f"{eager.path}.mul_(2){which}", left, right)
        return
    if isinstance(eager, LaterRequire) and isinstance(target, LaterRequire):
        yield from _gradients_required(which, eager, target)
        return
    double = _is_double(eager)
    if isinstance(eager, GradientRun) and isinstance(target, GradientRun) and double == _is_double(target):
        if double and eager.roots != target.roots:
            yield _compare_gradient_histories(which, eager, target)
            return
        clauses = ("double-backward", "double-backward") if double else ("errors", "gradients")
        known_run = reference if isinstance(reference, GradientRun) else None
        terms = measured if isinstance(measured, GradientRun) else None
        yield from _compare_backward(sides, clauses, which, eager, target, known_run, terms)
    elif double or _is_double(target):
        yield _compare_gradient_histories(which, eager, target)


def _gradients_required(which: str, eager: LaterRequire, target: LaterRequire) -> Iterator[Difference]:
    what = f"{eager.path}.requires_grad_(){which}"
    if not same_exception(eager.raised, target.raised):
        left, right = outcome(eager.raised), outcome(target.raised)
        yield difference("autograd-metadata", eager.path, what, left, right)
        return
    for path in sorted({*eager.leading} ^ {*target.leading}):
        left, right = ("one" if path in side.leading else "none" for side in (eager, target))
        yield difference("autograd-metadata", path, f"history of {path} after {what}", left, right)


def _is_double(step: Step) -> bool:
    return isinstance(step, GradientRun) and step.stage == "double backward"


def _compare_gradient_histories(which: str, eager: Step, target: Step) -> Difference:
    """The difference that other gradients require grad, so that other double backwards exist."""
    left, right = (
        ", ".join(run.roots) if isinstance(run, GradientRun) and _is_double(run) else "none"
        for run in (eager, target)
    )
    what = f"gradients that require grad{which}"
    return difference("double-backward", what, what, left, right)
