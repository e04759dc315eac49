"""The clause `refusals`: a refused call changes nothing, or everything that eager would have changed.

In: the two snapshots, the target's of a refused call. Out: findings of the clause.

The caller's objects are all as before the call, or all as after eager's call, never in between. The second
part of the clause is a retry: the same call in eager, made afterwards on the same objects, gives what it
would have given without the refused call. `compare_python_state` is here too, because it compares the same
objects after a call that was not refused (clause `once`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace

from oracles.comparison.context import Comparison, Difference, difference, kind, text
from oracles.comparison.tensors import FIELDS, INPUT_METADATA
from oracles.findings import Finding
from oracles.observation.records import Ambient, Observation, PythonState, TensorState, Value

MARKS = ("value", *INPUT_METADATA, "requires_grad", "has_grad_fn", "retains_grad", "grad", "attributes")
"""The fields of an argument's state that a refused call leaves alone."""

Compare = Callable[[Observation, Observation], tuple[Difference, ...]]


def compare_refusal(sides: Comparison, compare: Compare) -> Iterator[Difference]:
    """Find what a refused call changed, or what eager does differently on the same objects afterwards.

    Changes are findings at once, unless everything is as after eager's call. In that case, and without any
    change, the retry decides: if it differs from eager's call, the changes are the findings, or, without
    changes, the retry's differences. `compare` compares eager's call with the retry.
    """
    target = sides.target
    marks = tuple(_marks_of_refused_call(target, sides.target_states))
    if marks and not (target.retried is not None and _is_as_after_eager(sides)):
        yield from marks
    elif target.retried is not None:
        again = tuple(map(_in_eager, compare(sides.eager, target.retried)))
        yield from (marks if marks and again else again)


def _in_eager(item: Difference) -> Difference:
    """A difference between eager's call and the retry in eager, as a finding of `refusals`."""
    found = item.finding
    message = f"after the refused call, in eager: {found.message.replace(' in the target', ' then')}"
    path = f"{found.clause}: {found.path}"
    return replace(item, finding=Finding("refusals", path, found.eager, found.target, message))


def _marks_of_refused_call(target: Observation, after: Mapping[str, TensorState]) -> Iterator[Difference]:
    """Everything that a refused call has changed: ambient state, generators, Python objects, tensors."""
    yield from _ambient_marks(target.ambient_before, target.ambient)
    if target.generator != target.generator_before:
        yield _mark("random state", f"state {target.generator_before}", f"state {target.generator}")
    yield from _python_marks(target.python_before, target.python)
    for before in target.before:
        changed = first_change(before, after[before.path], MARKS)
        if changed is not None:
            left = text(getattr(after[before.path], changed)) if changed in _SHOWN else "changed"
            there = text(getattr(before, changed)) if changed in _SHOWN else "as it was"
            yield _mark(f"{FIELDS.get(changed, changed)} of {before.path}", there, left, before.path)


_SHOWN = tuple(name for name in MARKS if name not in ("value", "grad"))  # fields that are short in words


def first_change(before: TensorState, after: TensorState, names: tuple[str, ...]) -> str | None:
    """The first of the fields that differs between two states of a tensor."""
    return next((name for name in names if getattr(before, name) != getattr(after, name)), None)


def _ambient_marks(before: Ambient, after: Ambient) -> Iterator[Difference]:
    for field in fields(before):
        left, right = getattr(before, field.name), getattr(after, field.name)
        if left != right:
            yield _mark(field.name.replace("_", " "), text(left), text(right))


def _python_marks(before: PythonState, after: PythonState) -> Iterator[Difference]:
    for path, left, right in changed_nodes(before, after):
        yield _mark(path, left, right)
    elements = dict(after.tensors)
    for path, value in before.tensors:
        if path in elements and elements[path] != value:
            yield _mark(f"elements of {path}", "as they were", "changed", path)


def changed_nodes(one: PythonState, other: PythonState) -> Iterator[tuple[str, str, str]]:
    """Each path at which two Python states differ, with the description on both sides."""
    if one.nodes == other.nodes:
        return
    left, right = dict(one.nodes), dict(other.nodes)
    for path in dict.fromkeys((*left, *right)):
        here, there = left.get(path, "nothing"), right.get(path, "nothing")
        if here != there:
            yield path, here, there


def _mark(what: str, before: str, after: str, path: str | None = None) -> Difference:
    message = f"{what}: {before} before the refused call, {after} after it"
    return Difference(Finding("refusals", path or what, before, after, message))


def _is_as_after_eager(sides: Comparison) -> bool:
    """Whether a refused call has left all arguments, objects, modes and generators as eager's call does."""
    eager, target = sides.eager, sides.target
    if (eager.ambient, eager.generator) != (target.ambient, target.generator):
        return False
    if eager.python != target.python:
        return False
    for before in target.before:
        left = sides.eager_states.get(before.path)
        if left is None or first_change(left, sides.target_states[before.path], MARKS) is not None:
            return False
    return True


def compare_python_state(sides: Comparison) -> Iterator[Difference]:
    """Compare the Python objects that a call was given, after the call (clause `once`).

    If both raised, a change is a finding only where eager left the object untouched.
    """
    eager, target = sides.eager, sides.target
    if eager.python == target.python:
        return
    failed = eager.raised is not None
    untouched = dict(eager.python_before.nodes) if failed else {}
    after = dict(eager.python.nodes)
    for path, left, right in changed_nodes(eager.python, target.python):
        if not failed or untouched.get(path) == after.get(path):
            yield difference("once", path, path, left, right)
    if not failed:
        yield from _compare_elements_after_refusal(sides)


def _compare_elements_after_refusal(sides: Comparison) -> Iterator[Difference]:
    target = dict(sides.target.python.tensors)
    reference: dict[str, Value | None] = {}
    if sides.reference is not None:
        reference = dict(sides.reference.python.tensors)
    for path, left in sides.eager.python.tensors:
        right = target.get(path, left)
        if left is None or right is None:
            if left is not right:
                yield difference("once", path, f"elements of {path}", kind(left), kind(right))
        elif (left.dtype, left.shape, left.kind) != (right.dtype, right.shape, right.kind):
            what = f"dtype and shape of {path}"
            yield difference("once", path, what, kind(left), kind(right))
        else:
            yield from sides.numbers("once", path, path, left, right, reference.get(path))
