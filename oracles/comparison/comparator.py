"""Comparator: compare two observations clause by clause, in the order of the call.

In: two `Observation`s. Out: findings, ordered by clause.

The order is: errors, structure, each tensor, relations between tensors, gradients, later writes. A comparison
that could only repeat an earlier finding is left out. Nothing is compared after an error on one side. The
elements of a tensor are not compared if its shape differs. The gradients of a result are not compared if the
result differs in shape, dtype or history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields

from oracles.comparison.accepted_differences import is_accepted
from oracles.comparison.autograd import (
    compare_gradients,
    compare_histories,
    compare_later_gradients,
    compare_later_writes,
    compare_steps,
)
from oracles.comparison.context import Comparison, Difference, difference, listing, outcome, same_exception
from oracles.comparison.refusals import Compare, compare_python_state, compare_refusal, first_change
from oracles.comparison.tensors import (
    FIELDS,
    INPUT_METADATA,
    compare_inputs,
    compare_outputs,
    compare_overlaps,
    compare_sharing,
)
from oracles.comparison.tolerance import EXACTLY_AS_SAID, Arithmetic
from oracles.findings import CLAUSES, Finding, is_judged
from oracles.observation.records import Observation

_MARKS = (
    ("input-data", ("value",)),
    ("input-metadata", (*INPUT_METADATA, "requires_grad", "has_grad_fn")),
)


def compare(
    eager: Observation,
    target: Observation,
    reference: Observation | None = None,
    *,
    exact: bool = False,
) -> tuple[Finding, ...]:
    """List what the target did otherwise than eager, ordered by clause, then in the order of comparison.

    `reference` is the same program in double precision, for the error policy of
    `oracles.comparison.tolerance`. `exact` asks for equal bits. If the target refused the call, two things
    are findings: what the refusal left changed, and what eager then does differently on the same objects.

        compare(observe(f, make), observe(compiled, make))    # () when they agree
    """
    return tuple(item.finding for item in differences(eager, target, reference, exact=exact))


def differences(
    eager: Observation,
    target: Observation,
    reference: Observation | None = None,
    terms: Observation | None = None,
    *,
    exact: bool = False,
    clauses: Collection[str] = CLAUSES,
    arithmetic: Arithmetic = EXACTLY_AS_SAID,
) -> tuple[Difference, ...]:
    """List what `compare` does, each finding with what a judge needs to weigh it.

    `terms` is a second observation of eager, in which the terms of gradients were measured. Only findings of
    `clauses` are listed. `arithmetic` says in which precision the target computes.
    """
    found = _compare_snapshots(Comparison.of(eager, target, reference, terms, exact, arithmetic))
    kept = (
        item
        for item in found
        if is_judged(item.finding, clauses) and not is_accepted(item.finding, eager, target)
    )
    return tuple(sorted(kept, key=lambda item: CLAUSES.index(item.finding.clause)))


def _compare_snapshots(sides: Comparison) -> Iterator[Difference]:
    eager, target = sides.eager, sides.target
    if target.raised is not None and target.refused is not None:
        yield from compare_refusal(sides, _alike(sides))
    elif not same_exception(eager.raised, target.raised):
        yield difference("errors", "call", "the call", outcome(eager.raised), outcome(target.raised))
    elif eager.raised is not None:
        yield from _compare_ambient_of_raising_calls(sides)
        yield from _compare_inputs_of_raising_calls(sides)
        yield from compare_python_state(sides)
    else:
        yield from _compare_ambient(sides)
        yield from _compare_randomness(sides)
        yield from compare_python_state(sides)
        yield from _compare_structure(sides)
        # The states hold everything about single tensors: for most pairs this one test is enough.
        alike = eager.states == target.states and eager.outputs == target.outputs
        if not alike:
            yield from compare_inputs(sides)
        if [path for path, _ in eager.outputs] == [path for path, _ in target.outputs]:
            yield from _compare_results(sides, alike)
    yield from _compare_lifetimes(sides)


def _compare_lifetimes(sides: Comparison) -> Iterator[Difference]:
    """Memory that the target keeps when everything has been dropped."""
    alive = [name for name in sides.target.alive if name not in sides.eager.alive]
    if alive:
        what = "memory of a call when all has been dropped"
        yield difference("lifetime", alive[0], what, "freed", f"{listing(alive)} alive")
    eager, target = sides.eager.grown, sides.target.grown
    # `observe` counts no bytes if a tensor is alive, as when a module holds arguments that are its own.
    if target > max(eager, 0) and not (sides.eager.alive or sides.target.alive):
        what = "bytes that the allocator has not got back when all has been dropped"
        yield difference("lifetime", "memory", what, str(eager), str(target))


def _compare_results(sides: Comparison, alike: bool) -> Iterator[Difference]:
    if not alike:
        yield from compare_outputs(sides)
        yield from compare_sharing(sides)
    yield from compare_overlaps(sides)
    yield from compare_histories(sides)
    yield from compare_steps(sides)
    gradients = tuple(compare_gradients(sides))
    yield from gradients
    if sides.target.refused is None:
        writes = tuple(compare_later_writes(sides))
        yield from writes
        if not gradients and not writes:
            yield from compare_later_gradients(sides)


def _compare_inputs_of_raising_calls(sides: Comparison) -> Iterator[Difference]:
    """Compare the inputs after a call that raised in both.

    A change of an input's data is a finding only if eager had left its data alone when it raised; so is a
    change of its metadata.
    """
    eager_before = {state.path: state for state in sides.eager.before}
    for before in sides.target.before:
        path = before.path
        for clause, names in _MARKS:
            changed = first_change(before, sides.target_states[path], names)
            if changed is None or first_change(eager_before[path], sides.eager_states[path], names):
                continue
            what, left = f"{FIELDS[changed]} of {path}", "untouched when it raised"
            yield difference(clause, path, what, left, "changed before it raised")


def _alike(sides: Comparison) -> Compare:
    """A function that compares two calls in eager with the reference, terms and exactness of `sides`."""

    def compare_both(eager: Observation, again: Observation) -> tuple[Difference, ...]:
        return differences(eager, again, sides.reference, sides.terms, exact=sides.exact)

    return compare_both


def _compare_ambient(sides: Comparison) -> Iterator[Difference]:
    pairs = [("", sides.eager.ambient, sides.target.ambient)]
    after, target_after = sides.eager.ambient_after_backward, sides.target.ambient_after_backward
    if after is not None and target_after is not None:
        pairs.append((" after the backward", after, target_after))
    for suffix, eager, target in pairs:
        if eager == target:
            continue
        for field in fields(eager):
            left, right = getattr(eager, field.name), getattr(target, field.name)
            if left != right:
                name = field.name.replace("_", " ") + suffix
                yield difference("ambient", name, name, str(left), str(right))


def _compare_ambient_of_raising_calls(sides: Comparison) -> Iterator[Difference]:
    """Compare the ambient state after a call that raised in both.

    The target may leave a setting as it was before the call, or as eager leaves it.
    """
    eager, target = sides.eager, sides.target
    for field in fields(target.ambient):
        before, left = (getattr(state, field.name) for state in (target.ambient_before, target.ambient))
        here = getattr(eager.ambient, field.name)
        if left not in (before, here):
            name = field.name.replace("_", " ")
            yield difference("ambient", name, name, str(here), str(left))


def _compare_randomness(sides: Comparison) -> Iterator[Difference]:
    eager, target = sides.eager, sides.target
    if eager.generator != target.generator:
        path = "random state"
        what = "random state after the call"
        yield difference("randomness", path, what, _drawn(eager), _drawn(target))
        return
    left, right = eager.generator_after_backward, target.generator_after_backward
    if left is not None and right is not None and left != right:
        path = "random state after the backward"
        yield difference("randomness", path, path, f"state {left}", f"state {right}")


def _drawn(observation: Observation) -> str:
    return f"state {observation.generator}" if observation.drew else "nothing was drawn"


def _compare_structure(sides: Comparison) -> Iterator[Difference]:
    """Compare the trees of results: each node that differs, or only the first if their shapes differ."""
    eager, target = sides.eager.structure, sides.target.structure
    if eager == target:
        return
    one_shape = [path for path, _ in eager] == [path for path, _ in target]
    for (path, left), (other, right) in zip(eager, target, strict=False):
        if path != other:
            return
        if left != right:
            yield difference("structure", path, path, left, right)
            if not one_shape:
                return
