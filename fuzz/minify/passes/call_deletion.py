"""Call deletion: passes that delete calls, results, inputs, modes and operands of a recorded function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fuzz.minify.eager_types import survey_eager_types
from fuzz.minify.recording import (
    NONE,
    Call,
    Dict,
    Input,
    Lit,
    Recording,
    Ref,
    Seq,
    Storage,
    Tree,
    arguments,
    globals_of,
    map_recording_leaves,
    names,
    operands,
    recording_leaves,
    tidy_recording,
    used_names,
    with_operands,
)
from fuzz.minify.script_text import as_bytes
from fuzz.operators.layout import contiguous_strides
from fuzz.reduce.search import Edit, Pass


class _Fresh:
    """A possible new input in place of a call's result."""

    __slots__ = ("name", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.name: str | None = None


def without_calls(recording: Recording, dropped: frozenset[int], *, fresh: bool) -> Recording | None:
    """The recording without some calls.

    A user of a deleted result gets an operand of the deleted call with the same size and dtype. If there is
    none, or if `fresh`, it gets a new argument like the result.
    """
    tensors = survey_eager_types(recording)
    if tensors is None:
        return None
    stands: dict[str, _Fresh | str | None] = {}
    came_from: dict[str, str] = {}
    storages, inputs, added = list(recording.storages), list(recording.inputs), []

    def resolve(name: str) -> _Fresh | str | None:
        return stands.get(name, name)

    def given(leaf: Ref | Lit) -> Tree:
        if isinstance(leaf, Lit):
            return leaf
        found = resolve(leaf.name)
        if isinstance(found, _Fresh):
            if found.name is None:
                found.name = f"x{len(inputs)}"
                storage, one = storage_like(found.tensor, len(storages))
                storages.append(storage)
                inputs.append(one)
                added.append(Ref(found.name))
            return Ref(found.name)
        return NONE if found is None else Ref(found)

    calls: list[Call] = []
    for i, call in enumerate(recording.calls):
        if i not in dropped:
            calls.append(with_operands(call, given))
            continue
        taken = list(names(*operands(call)))
        for name in names(call.results):
            came_from.update((name, other) for other in taken[:1])
            tensor = tensors.get(name)
            alike = next(
                (other for other in taken if tensor is not None and _alike(tensors.get(other), tensor)), None
            )
            if alike is not None and not fresh:
                stands[name] = resolve(alike)
            else:
                stands[name] = None if tensor is None else _Fresh(tensor)

    def left(name: str) -> str | None:
        """The name that replaces a result: its own if its call is kept, else that of an operand."""
        while not _is_kept(resolve(name)) and name in came_from:
            name = came_from[name]
        return name if _is_kept(resolve(name)) else None

    def is_left(leaf: Ref | Lit) -> bool:
        return isinstance(leaf, Lit) or left(leaf.name) is not None

    def returned(leaf: Ref | Lit) -> Tree:
        name = left(leaf.name) if isinstance(leaf, Ref) else None
        return leaf if name is None else given(Ref(name))

    returns = map_recording_leaves(_delete_leaves(recording.returns, is_left), returned)
    return tidy_recording(
        replace(
            recording,
            storages=tuple(storages),
            inputs=tuple(inputs),
            calls=tuple(calls),
            returns=returns,
            parameters=(*recording.parameters, *added),
        )
    )


def _is_kept(found: _Fresh | str | None) -> bool:
    return isinstance(found, str) or (isinstance(found, _Fresh) and found.name is not None)


def _alike(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def storage_like(tensor: torch.Tensor, storage: int) -> tuple[Storage, Input]:
    """A storage, and an input on it, with a tensor's size, dtype and elements."""
    dtype, size = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    device = "cpu" if tensor.device.type == "cpu" else str(tensor.device)
    needs = tensor.requires_grad
    made = Storage(dtype, tensor.numel(), device, as_bytes(tensor))
    return made, Input(storage, dtype, size, contiguous_strides(size), 0, needs, not needs)


def _delete_leaves(tree: Tree, keep: Callable[[Ref | Lit], bool]) -> Tree:
    """The tree without some leaves, and without the containers that become empty."""
    match tree:
        case Seq(kind, items):
            kept = [(item, _delete_leaves(item, keep)) for item in items]
            return Seq(kind, tuple(new for old, new in kept if new != NONE or old == NONE))
        case Dict(entries):
            pairs = [(key, item, _delete_leaves(item, keep)) for key, item in entries]
            return Dict(tuple((key, new) for key, old, new in pairs if new != NONE or old == NONE))
        case _:
            return tree if keep(tree) else NONE


def _backwards(count: int) -> range:
    return range(count - 1, -1, -1)


def _numbers(edits: frozenset[Edit]) -> frozenset[int]:
    return frozenset(edit for edit in edits if isinstance(edit, int))


def _drop_results(recording: Recording, edits: frozenset[Edit]) -> Recording:
    positions = iter(range(len(list(recording_leaves(recording.returns)))))
    return tidy_recording(
        replace(recording, returns=_delete_leaves(recording.returns, lambda _: next(positions) not in edits))
    )


def _drop_inputs(recording: Recording, edits: frozenset[Edit]) -> Recording | None:
    """The recording without some inputs. Another input of the same size and dtype replaces a used one."""
    needed = used_names(recording)
    stands: dict[str, str] = {}
    for i in _numbers(edits):
        one = recording.inputs[i]
        other = next(
            (
                f"x{j}"
                for j, other in enumerate(recording.inputs)
                if j not in edits and (other.size, other.dtype) == (one.size, one.dtype)
            ),
            None,
        )
        if other is not None:
            stands[f"x{i}"] = other
        elif f"x{i}" in needed:
            return None
    gone = {f"x{i}" for i in _numbers(edits)}

    def change(leaf: Ref | Lit) -> Tree:
        return Ref(stands.get(leaf.name, leaf.name)) if isinstance(leaf, Ref) else leaf

    def keep(leaf: Ref | Lit) -> bool:
        return isinstance(leaf, Lit) or leaf.name not in gone

    kept = ((tree, _delete_leaves(tree, keep)) for tree in recording.parameters)
    return tidy_recording(
        replace(
            recording,
            parameters=tuple(new for old, new in kept if new != NONE or old == NONE),
            calls=tuple(with_operands(call, change) for call in recording.calls),
            returns=map_recording_leaves(recording.returns, change),
        )
    )


def _pass_globals(recording: Recording, edits: frozenset[Edit]) -> Recording:
    added = tuple(Ref(name) for name in globals_of(recording) if name in edits)
    return tidy_recording(replace(recording, parameters=(*recording.parameters, *added)))


def _modes(recording: Recording) -> Sequence[Edit]:
    return list(dict.fromkeys(call.mode for call in recording.calls if call.mode != recording.mode))


def _leave_modes(recording: Recording, edits: frozenset[Edit]) -> Recording:
    mode = recording.mode
    calls = tuple(replace(call, mode=mode) if call.mode in edits else call for call in recording.calls)
    return replace(recording, calls=calls)


def flat_names(tree: Tree) -> Tree:
    """The names of a tree in one tuple, or the only name itself."""
    found = tuple(Ref(name) for name in names(tree))
    return Seq("tuple", found) if len(found) > 1 else found[0] if found else NONE


def _nested(recording: Recording) -> Sequence[Edit]:
    edits: list[Edit] = []
    if recording.parameters != tuple(map(Ref, arguments(recording))):
        edits.append("parameters")
    if recording.returns != flat_names(recording.returns):
        edits.append("returns")
    return edits


def _flatten(recording: Recording, edits: frozenset[Edit]) -> Recording:
    if "parameters" in edits:
        recording = replace(recording, parameters=tuple(map(Ref, arguments(recording))))
    if "returns" in edits:
        recording = replace(recording, returns=flat_names(recording.returns))
    return tidy_recording(recording)


def _spare(recording: Recording) -> Sequence[Edit]:
    """The edits that drop keyword arguments, and constants at the end of the operands."""
    edits: list[Edit] = []
    for i, call in enumerate(recording.calls):
        edits += [(i, name) for name, _ in call.keywords]
        edits += [(i, j) for j in _backwards(len(call.operands)) if j and not any(names(*call.operands[j:]))]
    return edits


def _drop_operands(recording: Recording, edits: frozenset[Edit]) -> Recording:
    calls = []
    for i, call in enumerate(recording.calls):
        own = {edit[1] for edit in edits if isinstance(edit, tuple) and edit[0] == i}
        end = min((j for j in own if isinstance(j, int)), default=len(call.operands))
        keywords = tuple((name, tree) for name, tree in call.keywords if name not in own)
        calls.append(replace(call, operands=call.operands[:end], keywords=keywords))
    return tidy_recording(replace(recording, calls=tuple(calls)))


CALLS = Pass(
    "calls",
    lambda recording: _backwards(len(recording.calls)),
    lambda recording, edits: without_calls(recording, _numbers(edits), fresh=False),
)
CUTS = Pass(
    "calls whose results become arguments",
    lambda recording: _backwards(len(recording.calls)),
    lambda recording, edits: without_calls(recording, _numbers(edits), fresh=True),
)
RESULTS = Pass(
    "results", lambda recording: _backwards(len(list(recording_leaves(recording.returns)))), _drop_results
)
INPUTS = Pass("inputs", lambda recording: _backwards(len(recording.inputs)), _drop_inputs)
GLOBALS = Pass("globals", globals_of, _pass_globals)
MODES = Pass("modes", _modes, _leave_modes)
TREES = Pass("trees", _nested, _flatten)
OPERANDS = Pass("operands", _spare, _drop_operands)
