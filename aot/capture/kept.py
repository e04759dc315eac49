"""What of the caller's a backward keeps, as autograd in eager keeps it.

Asked of the autograd graph itself: a formula may keep a tensor, and so check its version, and then not read
it for the values at hand.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

from aot import torch_internals as internals
from aot.capture.backward import Engine
from aot.capture.recorder import Recorder
from aot.capture.segments import Graph


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor of the caller's that eager's backward keeps: written to between forward and backward, it makes
    the backward raise.

    Attributes:
        tensor, root: which argument or which root of the outputs; one of the two.
        tangents: the segment's tangents (bit j for the j-th) whose backward unpacks it, as far as that is
            shown.
        counted: whether a write to it is noticed; not if it is kept under another version counter (`.data`).
    """

    tensor: int | None
    root: int | None
    tangents: int
    counted: bool = True


def find_kept(
    recorder: Recorder, graph: Graph, engine: Engine, arguments: Sequence[Tensor], roots: Sequence[Tensor]
) -> list[tuple[Kept, ...]]:
    """What each segment keeps of the arguments and of the roots of the outputs."""

    def tangents(number: int, reached: int) -> int:
        present = sorted(engine.segments[number].tangents)
        return sum(1 << j for j, entrance in enumerate(present) if reached >> entrance & 1)

    saved: list[dict[int, list[tuple[Tensor, int]]]] = [{} for _ in graph.segments]
    # What the formulas inside a CopySlices node keep is not shown, so what was read counts as well.
    for fake, node in recorder.backward_reads:
        number = graph.segment_of.get(node) if node is not None else None
        if number is not None:
            saved[number].setdefault(internals.storage_key(fake), []).append((fake, 0))
    for number, segment in enumerate(graph.segments):
        for node in segment.nodes:
            for tensor in _saved_tensors(node):
                known = saved[number].setdefault(internals.storage_key(tensor), [])
                known.append((tensor, segment.reach[node]))

    def keeping(number: int, fake: Tensor) -> int | None:
        known = saved[number].get(internals.storage_key(fake), ())
        masks = [m for t, m in known if t is fake or internals.share_version_counter(fake, t)]
        if masks:
            return functools.reduce(operator.or_, masks)
        if internals.storage_key(fake) in recorder.joined and raises_if_written(number, fake):
            return (1 << len(graph.segments[number].entrances)) - 1
        return None

    def raises_if_written(number: int, fake: Tensor) -> bool:
        with internals.moved_version(fake):
            try:
                engine.try_segment(number)
            except RuntimeError:
                return True
        return False

    found: list[tuple[Kept, ...]] = []
    for number in range(len(graph.segments)):
        kept = []
        for i, fake in enumerate(arguments):
            mask = keeping(number, fake)
            if mask is not None:
                kept.append(Kept(i, None, tangents(number, mask)))
            elif internals.storage_key(fake) in saved[number]:
                kept.append(Kept(i, None, 0, counted=False))
        for k, fake in enumerate(roots):
            mask = keeping(number, fake)
            if mask is not None:
                kept.append(Kept(None, k, tangents(number, mask)))
            elif internals.storage_key(fake) in saved[number]:
                kept.append(Kept(None, k, 0, counted=False))
        found.append(tuple(kept))
    return found


def saves_something(node: Node) -> bool:
    """Whether a node of the autograd graph has saved a tensor, so that it runs once unless it is retained."""
    raw: tuple[Any, ...] = getattr(node, "_raw_saved_tensors", ())
    if raw or node.name().endswith("CopySlices"):
        return True
    return any(True for _ in _saved_tensors(node))


_SAVED_NAMES: dict[type, tuple[str, ...]] = {}


def _saved_tensors(node: Node) -> Iterator[Tensor]:
    """The tensors that a node of the autograd graph has saved."""
    names = _SAVED_NAMES.get(type(node))
    if names is None:
        names = _SAVED_NAMES[type(node)] = tuple(n for n in dir(node) if n.startswith("_saved_"))
    for name in names:
        if internals.is_packed(node, name):
            continue  # by a hook, that of checkpoint for one: autograd itself keeps nothing
        try:
            value = getattr(node, name)
        except RuntimeError:
            continue  # modified in place since: this backward raises anyway
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, Tensor):
                yield tensor
