"""Comparison of tensors one by one (elements, strides, metadata), and of what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from oracles.comparison.context import Comparison, Difference, difference, kind, listing, text
from oracles.comparison.tolerance import first_mismatch
from oracles.observation.records import Observation, TensorState

FIELDS: Mapping[str, str] = {
    "value": "data",
    "dtype": "dtype",
    "device": "device",
    "layout": "layout",
    "shape": "shape",
    "stride": "strides",
    "conj": "conj bit",
    "neg": "neg bit",
    "offset": "storage offset in bytes",
    "storage_bytes": "storage size in bytes",
    "storage_kept": "same storage as before the call",
    "requires_grad": "requires_grad",
    "is_leaf": "is_leaf",
    "has_grad_fn": "grad_fn present",
    "retains_grad": "retains_grad",
    "version_moved": "movement of the version counter",
    "attributes": "Python attributes",
}
"""How the fields of a tensor's state are called in a finding."""

_TYPE = ("dtype", "device", "layout", "shape")
_LAYOUT = ("stride", "conj", "neg")
INPUT_METADATA = (*_TYPE, *_LAYOUT, "offset", "storage_bytes", "storage_kept")
"""An argument's metadata, apart from autograd's."""


def compare_inputs(sides: Comparison) -> Iterator[Difference]:
    """Compare arguments and the tensors behind them: data, metadata, version counters, `.grad`."""
    for eager in sides.eager.states[: sides.eager.inputs]:
        path = eager.path
        target = sides.target_states.get(path)
        if target is None:
            # A storage from which only eager moved an argument away: `storage_kept` reports it.
            continue
        yield from _fields("input-metadata", path, eager, target, INPUT_METADATA)
        if any(getattr(eager, name) != getattr(target, name) for name in _TYPE):
            sides.unlike.add(path)
        yield from _compare_autograd_metadata(sides, "input-metadata", path, eager, target)
        yield from _compare_elements(sides, "input-data", path, eager, target)
        yield from _fields("versions", path, eager, target, ("version_moved",))
        yield from _fields("once", path, eager, target, ("attributes",))
        yield from sides.gradients("gradients", f"{path}.grad", eager.grad, target.grad, None, None)


def compare_outputs(sides: Comparison) -> Iterator[Difference]:
    """Compare results: which object each is, its elements, strides and autograd metadata."""
    inputs = {state.path for state in sides.eager.states[: sides.eager.inputs]}
    seen: set[tuple[str, str]] = set()
    for (path, name), (_, target_name) in zip(sides.eager.outputs, sides.target.outputs, strict=True):
        if name != target_name:
            yield difference("identity", path, path, _object(path, name), _object(path, target_name))
        elif name in inputs or (name, target_name) in seen:
            continue
        seen.add((name, target_name))
        eager, target = sides.eager_states[name], sides.target_states[target_name]
        unlike = tuple(_fields("values", path, eager, target, _TYPE))
        yield from unlike
        if unlike:
            sides.unlike.add(path)
        else:
            yield from _compare_elements(sides, "values", path, eager, target)
            yield from _fields("strides", path, eager, target, _LAYOUT)
        yield from _compare_autograd_metadata(sides, "autograd-metadata", path, eager, target)
        yield from _fields("structure", path, eager, target, ("attributes",))
        yield from sides.gradients("gradients", f"{path}.grad", eager.grad, target.grad, None, None)


def _object(path: str, name: str) -> str:
    return "a tensor of its own" if path == name else f"the same object as {name}"


def _compare_elements(
    sides: Comparison, clause: str, path: str, eager: TensorState, target: TensorState
) -> Iterator[Difference]:
    if path in sides.unlike:
        return
    if eager.value is None or target.value is None:
        if eager.value is not target.value:
            sides.unlike.add(path)
            yield difference(clause, path, f"memory of {path}", kind(eager.value), kind(target.value))
        return
    known = sides.reference_states.get(eager.path)
    reference = None if known is None else known.value
    for item in sides.numbers(clause, path, path, eager.value, target.value, reference):
        sides.differing.add(path)
        yield replace(item, noise=True) if _shows_rounding(sides, eager, target) else item


def _shows_rounding(sides: Comparison, eager: TensorState, target: TensorState) -> bool:
    """Whether a tensor shows the bytes of floating numbers that agree within the tolerance.

    Another tensor on the same storage has the numbers, and shows whether the memory is right. Their bytes
    differ with any rounding, so a difference of the bytes proves nothing.
    """
    for name, other in sides.eager_states.items():
        its = sides.target_states.get(name)
        if other.value is None or its is None or its.value is None or other.dtype == eager.dtype:
            continue
        if not (other.dtype.is_floating_point or other.dtype.is_complex):
            continue
        if not (_share(eager, other) and _share(target, its)) or other.value.data == its.value.data:
            continue
        if (other.dtype, other.shape) == (its.dtype, its.shape):
            known = sides.reference_states.get(name)
            reference = None if known is None else known.value
            given, arithmetic = (other.value, its.value, reference), sides.arithmetic
            if first_mismatch(*given, exact=sides.exact, arithmetic=arithmetic) is None:
                return True
    return False


def _fields(
    clause: str, path: str, eager: TensorState, target: TensorState, names: Sequence[str]
) -> Iterator[Difference]:
    for name in names:
        left, right = getattr(eager, name), getattr(target, name)
        if left != right:
            yield difference(clause, path, f"{FIELDS[name]} of {path}", text(left), text(right))


def _compare_autograd_metadata(
    sides: Comparison, clause: str, path: str, eager: TensorState, target: TensorState
) -> Iterator[Difference]:
    for name in ("requires_grad", "is_leaf", "has_grad_fn", "retains_grad"):
        if getattr(eager, name) != getattr(target, name):
            # These flags depend on each other, so the first that differs stands for all.
            yield from _fields(clause, path, eager, target, (name,))
            break
    left, right = _base_in_words(eager, sides.eager), _base_in_words(target, sides.target)
    if left != right:
        yield difference(clause, path, f"base of {path}", left, right)


def _base_in_words(state: TensorState, observation: Observation) -> str:
    """A view's base in words. A base that no path names is named after the first tensor with this base."""
    if not state.base:
        return "none, it is no view"
    if not state.base.startswith("hidden"):
        return state.base
    first = next(other.path for other in observation.states if other.base == state.base)
    return "a hidden tensor" if first == state.path else f"the hidden base of {first}"


def compare_sharing(sides: Comparison) -> Iterator[Difference]:
    """Compare which tensors share storage, and at which offset results lie from tensors that share theirs."""
    eager, target = _by_every_path(sides.eager), _by_every_path(sides.target)
    common = [path for path in eager if path in target]
    outputs = {path for path, _ in sides.eager.outputs}
    for position, path in enumerate(common):
        left = [other for other in common[:position] if _share(eager[path], eager[other])]
        right = [other for other in common[:position] if _share(target[path], target[other])]
        if left != right:
            yield difference("aliasing", path, f"storage of {path}", _partners(left), _partners(right))
            # What later writes do to them follows from this.
            sides.differing.update((path, *left, *right))
        elif path in outputs and path not in sides.unlike:
            yield from _offset_from_partner(path, left, eager, target)


def _by_every_path(observation: Observation) -> dict[str, TensorState]:
    states = {state.path: state for state in observation.states}
    found = {state.path: state for state in observation.states[: observation.inputs]}
    found.update((path, states[name]) for path, name in observation.outputs)
    return found


def _share(one: TensorState, other: TensorState) -> bool:
    return one.storage is not None and one.storage == other.storage


def _partners(paths: list[str]) -> str:
    return f"shared with {listing(paths)}" if paths else "shared with none of the tensors before it"


def _offset_from_partner(
    path: str, partners: list[str], eager: dict[str, TensorState], target: dict[str, TensorState]
) -> Iterator[Difference]:
    """Compare a tensor's offset from the first partner that has elements; without elements it has none."""
    if 0 in eager[path].shape:
        return
    for other in partners:
        if 0 not in eager[other].shape and 0 not in target[other].shape:
            left = eager[path].offset - eager[other].offset
            right = target[path].offset - target[other].offset
            if left != right:
                what = f"offset of {path} from {other}"
                yield difference("strides", path, what, f"{left} bytes", f"{right} bytes")
            return


def compare_overlaps(sides: Comparison) -> Iterator[Difference]:
    """Compare which elements a write through one tensor reaches in the others on the same storage."""
    eager = {(reach.writer, reach.reader): reach.tags for reach in sides.eager.reaches}
    target = {(reach.writer, reach.reader): reach.tags for reach in sides.target.reaches}
    if eager == target:
        return
    for pair in dict.fromkeys((*eager, *target)):
        if eager.get(pair) == target.get(pair) or not _is_sharing_comparable(sides, *pair):
            continue
        writer, reader = pair
        left = _compare_overlap_reach(sides.eager_states[reader], eager.get(pair, b""))
        right = _compare_overlap_reach(sides.target_states[reader], target.get(pair, b""))
        if left == right:
            right += ", through other elements of the writer"
        what = f"elements of {reader} that a write through {writer} reaches"
        yield difference("aliasing", reader, what, left, right)


def _is_sharing_comparable(sides: Comparison, writer: str, reader: str) -> bool:
    """Whether two tensors share storage on both sides; if not, `compare_sharing` has a finding."""
    if writer == reader or sides.unlike & {writer, reader}:
        # How a tensor overlaps itself follows from its strides.
        return False
    return all(
        writer in states and reader in states and _share(states[writer], states[reader])
        for states in (sides.eager_states, sides.target_states)
    )


def _compare_overlap_reach(state: TensorState, tags: bytes) -> str:
    if not tags:
        return "none"
    count = 1
    for length in state.shape:
        count *= length
    size = len(tags) // count
    reached = [str(i) for i in range(count) if tags[i * size : (i + 1) * size].strip(b"\0")]
    return f"all {count}" if len(reached) == count else f"numbers {listing(reached)}"
