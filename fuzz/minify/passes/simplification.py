"""Simplification: passes that make inputs, elements, sizes and numbers of a recorded function plainer."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from fuzz.minify.recording import (
    NONE,
    Call,
    Input,
    Lit,
    Recording,
    Ref,
    Seq,
    Size,
    Storage,
    Tree,
    dtype_of,
    operands,
    tidy_recording,
    with_operands,
)
from fuzz.minify.script_text import is_plain
from fuzz.operators.dtypes import COMPLEX, FLOATS
from fuzz.operators.layout import contiguous_strides
from fuzz.reduce.search import Edit, Pass

RANKS = {"ones": 0, "zeros": 1, "ramp": 2}
_SMALL, _LESS_SMALL = 2, 4
_FLOAT = re.compile(r"-?\d+(\.\d*)?(e[+-]?\d+)?|float\(\"-?(inf|nan)\"\)")
PLAIN_NUMBER = "2.0"


def rank(storage: Storage) -> int:
    """The rank of a storage's elements; lower is plainer."""
    return RANKS[storage.values] if isinstance(storage.values, str) else len(RANKS)


def _simplify_elements(values: str) -> Pass[Recording]:
    """The pass that gives storages these elements ("ones", "zeros", "ramp")."""

    def edits(recording: Recording) -> Sequence[Edit]:
        return [i for i, storage in enumerate(recording.storages) if rank(storage) > RANKS[values]]

    def apply(recording: Recording, edits: frozenset[Edit]) -> Recording:
        storages = (
            replace(storage, values=values) if i in edits else storage
            for i, storage in enumerate(recording.storages)
        )
        return replace(recording, storages=tuple(storages))

    return Pass(f"elements: {values}", edits, apply)


# ---------------------------------------------------------------------------------------------------------
# inputs


def _simplify_input_kinds(recording: Recording) -> Sequence[Edit]:
    edits: list[Edit] = []
    for i, one in enumerate(recording.inputs):
        if one.via != "own":
            edits += [(i, "own")] + ([(i, "view")] if one.via != "view" else [])
        elif not is_plain(one, recording.storages[one.storage]):
            edits.append((i, "plain"))
        if one.via == "own" and not one.leaf:
            edits.append((i, "leaf"))
        if one.requires_grad and (one.leaf or one.via == "own"):
            edits.append((i, "grad"))
        if one.parameter:
            edits.append((i, "tensor"))
    return edits


def _simplify_inputs(recording: Recording, edits: frozenset[Edit]) -> Recording:
    storages, inputs = list(recording.storages), list(recording.inputs)
    for i, one in enumerate(inputs):
        if (i, "own") in edits or (i, "plain") in edits:
            storage = storages[one.storage]
            values = storage.values if isinstance(storage.values, str) else "ramp"
            storages.append(Storage(one.dtype, math.prod(one.size), storage.device, values))
            own = replace(one, storage=len(storages) - 1, stride=contiguous_strides(one.size), offset=0)
            one = replace(own, via="own", base=None, leaf=one.leaf or not one.requires_grad)
        if (i, "view") in edits and (i, "own") not in edits:
            one = replace(one, via="view")
        if (i, "tensor") in edits:
            one = replace(one, parameter=False)
        if (i, "leaf") in edits:
            one = replace(one, leaf=True)
        if (i, "grad") in edits:
            one = replace(one, requires_grad=False, leaf=True)
        inputs[i] = one
    for i, one in enumerate(inputs):
        if one.base is not None:
            # It moves to its base's new storage, and requires no grad if the base requires none.
            base = inputs[one.base]
            needs = one.requires_grad and (one.leaf or base.requires_grad)
            inputs[i] = replace(one, storage=base.storage, requires_grad=needs, leaf=one.leaf or not needs)
    return tidy_recording(replace(recording, storages=tuple(storages), inputs=tuple(inputs)))


def is_odd(storage: Storage) -> bool:
    """Whether a storage has a floating or complex dtype other than float32, which would be plainer."""
    return storage.dtype in FLOATS | COMPLEX and storage.dtype != "float32"


def _dtypes(recording: Recording) -> Sequence[Edit]:
    odd: list[Edit] = [i for i, storage in enumerate(recording.storages) if is_odd(storage)]
    return odd + (["device"] if any(storage.device != "cpu" for storage in recording.storages) else [])


def _simplify_dtypes(recording: Recording, edits: frozenset[Edit]) -> Recording:
    storages = list(recording.storages)
    for i, storage in enumerate(storages):
        if i in edits:
            values = storage.values if isinstance(storage.values, str) else "ramp"
            storages[i] = replace(storage, dtype="float32", values=values)
        if "device" in edits:
            storages[i] = replace(storages[i], device="cpu")
    inputs = tuple(
        replace(one, dtype="float32")
        if one.storage in edits and one.dtype == recording.storages[one.storage].dtype
        else one
        for one in recording.inputs
    )
    recording = replace(recording, storages=tuple(storages), inputs=inputs)
    return _with_constants(recording, _on_cpu) if "device" in edits else recording


def _on_cpu(text: str) -> str:
    return re.sub(r"cuda(:\d+)?", "cpu", text)


# ---------------------------------------------------------------------------------------------------------
# sizes and numbers


def _simplify_lengths(recording: Recording) -> Sequence[Edit]:
    """The edits that make a length above 2 to 2, 3 or 4, the longest first: everywhere, or in inputs."""
    found = {n for one in recording.inputs for n in one.size if n > _SMALL}
    return [
        (n, small, where)
        for n in sorted(found, reverse=True)
        for small in range(_SMALL, min(n, _LESS_SMALL + 1))
        for where in ("everywhere", "inputs")
    ]


def _shorten_lengths(recording: Recording, edits: frozenset[Edit]) -> Recording | None:
    chosen = sorted((edit for edit in edits if isinstance(edit, tuple)), reverse=True)
    lengths = {n: small for n, small, _ in chosen}  # the smallest chosen length
    inputs: list[Input] = []
    storages = list(recording.storages)
    for i, one in enumerate(recording.inputs):
        size = tuple(lengths.get(n, n) for n in one.size)
        if one.base is None:
            stride = _simplified_strides(one, size)
            # The elements before and after it stay.
            grown = _extent(size, stride) - _extent(one.size, one.stride)
            storage = storages[one.storage]
            width = dtype_of(storage.dtype).itemsize
            length = max(storage.length + grown, one.offset + _extent(size, stride))
            if isinstance(storage.values, bytes) and length * width <= len(storage.values):
                storage = replace(storage, values=storage.values[: length * width])
            storages[one.storage] = replace(storage, length=length)
            inputs.append(replace(one, size=size, stride=stride))
        else:
            inputs.append(_simplified_view(one, size, recording.inputs[one.base], inputs[one.base]))
        assert len(inputs) == i + 1
    shorter = replace(recording, storages=tuple(storages), inputs=tuple(inputs))
    everywhere = {str(n): str(small) for n, small, where in chosen if where == "everywhere"}
    for one, other in zip(recording.inputs, inputs, strict=True):
        # After `view` or `reshape`, a number may be the product of adjacent lengths.
        for start in range(len(one.size)):
            for end in range(start + 2, len(one.size) + 1):
                product = str(math.prod(one.size[start:end]))
                if everywhere:
                    everywhere.setdefault(product, str(math.prod(other.size[start:end])))
    return _with_constants(shorter, lambda text: everywhere.get(text, text))


def _extent(size: Size, stride: Size) -> int:
    """The number of elements from the first to the last, with gaps."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def _simplified_strides(one: Input, size: Size) -> Size:
    """The strides of a shorter tensor in the same order, without gaps between shortened dimensions."""
    order = sorted(range(len(size)), key=lambda d: one.stride[d])
    stride = list(one.stride)
    before: int | None = None
    for d in order:
        if before is not None and stride[before] * one.size[before] and one.stride[d]:
            ratio = one.stride[d] / (one.stride[before] * one.size[before])
            if ratio == 1:
                stride[d] = stride[before] * size[before]
        before = d if one.stride[d] else before
    return tuple(stride)


def _simplified_view(one: Input, size: Size, before: Input, after: Input) -> Input:
    """The view of a shorter base that comes nearest to the same part."""
    steps = {0: 0, 1: 1}
    dims = sorted(range(len(before.size)), key=lambda d: -before.stride[d])
    position, offset = one.offset - before.offset, after.offset
    for d in dims:
        old, new = before.stride[d], after.stride[d]
        steps.setdefault(old, new)
        steps.setdefault(2 * old, 2 * new)
        if old and position >= 0:
            offset += min(position // old, max(after.size[d] - 1, 0)) * new
            position %= old
    limited = tuple(
        min(n, m) if len(size) == len(after.size) else n for n, m in zip(size, after.size, strict=False)
    )
    stride = tuple(steps.get(step, step) for step in one.stride)
    return replace(one, size=limited if len(limited) == len(size) else size, stride=stride, offset=offset)


def _with_constants(recording: Recording, change: Callable[[str], str]) -> Recording:
    """The recording with each constant of its calls changed by `change`."""

    def leaf(one: Ref | Lit) -> Tree:
        return Lit(change(one.text)) if isinstance(one, Lit) else one

    return replace(recording, calls=tuple(with_operands(call, leaf) for call in recording.calls))


def odd_numbers(call: Call) -> list[str]:
    """The floating point constants of a call other than 2.0."""
    found: list[str] = []

    def look(one: Ref | Lit) -> Tree:
        if isinstance(one, Lit) and _is_odd_number(one.text):
            found.append(one.text)
        return one

    with_operands(call, look)
    return found


def _is_odd_number(text: str) -> bool:
    return text != PLAIN_NUMBER and not text.lstrip("-").isdigit() and _FLOAT.fullmatch(text) is not None


def _slices(recording: Recording) -> Sequence[Edit]:
    """The edits that leave an end of a slice open."""
    edits: list[Edit] = []
    for i, call in enumerate(recording.calls):
        for j, one in enumerate(s for tree in operands(call) for s in _slices_in(tree)):
            edits += [(i, j, k) for k, part in enumerate(one.items) if part != NONE]
    return edits


def _slices_in(tree: Tree) -> Iterator[Seq]:
    match tree:
        case Seq("slice", _):
            yield tree
        case Seq(_, items):
            for item in items:
                yield from _slices_in(item)


def _simplify_slices(recording: Recording, edits: frozenset[Edit]) -> Recording:
    def opened(tree: Tree, i: int, count: Iterator[int]) -> Tree:
        match tree:
            case Seq("slice", items):
                j = next(count)
                return Seq("slice", tuple(NONE if (i, j, k) in edits else p for k, p in enumerate(items)))
            case Seq(kind, items):
                return Seq(kind, tuple(opened(item, i, count) for item in items))
            case _:
                return tree

    calls = []
    for i, call in enumerate(recording.calls):
        count = itertools.count()
        given = tuple(opened(tree, i, count) for tree in call.operands)
        keywords = tuple((name, opened(tree, i, count)) for name, tree in call.keywords)
        calls.append(replace(call, operands=given, keywords=keywords))
    return tidy_recording(replace(recording, calls=tuple(calls)))


def _odd_calls(recording: Recording) -> Sequence[Edit]:
    return [i for i, call in enumerate(recording.calls) if odd_numbers(call)]


def _plain_numbers(recording: Recording, edits: frozenset[Edit]) -> Recording:
    def leaf(one: Ref | Lit) -> Tree:
        return Lit(PLAIN_NUMBER) if isinstance(one, Lit) and _is_odd_number(one.text) else one

    calls = (with_operands(call, leaf) if i in edits else call for i, call in enumerate(recording.calls))
    return replace(recording, calls=tuple(calls))


RAMPS, ZEROS, ONES = map(_simplify_elements, ("ramp", "zeros", "ones"))
KINDS = Pass("inputs' kinds", _simplify_input_kinds, _simplify_inputs)
DTYPES = Pass("dtypes and devices", _dtypes, _simplify_dtypes)
SHAPES = Pass("shapes", _simplify_lengths, _shorten_lengths)
SLICES = Pass("slices", _slices, _simplify_slices)
NUMBERS = Pass("numbers", _odd_calls, _plain_numbers)
