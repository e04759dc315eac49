"""Version counters: how often a tensor was written to in place, and which tensors share a counter.

Several functions set counters for a moment. One lock serializes them, because counters are shared with all
threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from aot.torch_internals import tensor_impl

_setting_counters = threading.Lock()


def counter_groups(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """For each tensor, the position of the first one that shares its version counter.

    `detach` shares the counter, and `.data` does not. An inference tensor has no counter, and is its own
    first.

    torch has no query for this. So each counter is set to a number of its own, all are read, and all are set
    back. Writes of other threads in the meantime are counted. If no two counters are equal, nothing is set.
    """
    groups = list(range(len(tensors)))
    by_version: dict[int, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if not tensor.is_inference():
            by_version.setdefault(tensor._version, []).append(i)
    places = [i for same in by_version.values() if len(same) > 1 for i in same]
    if not places:
        return tuple(groups)
    alike = [tensors[i] for i in places]
    apart = 2**31 // len(alike)  # counters have 32 bits
    with _setting_counters:
        before = [tensor._version for tensor in alike]
        # Of those that share one, the first is the last to set it.
        marks = [k * apart for k in range(len(alike))]
        tensor_impl.set_version_counters(alike[::-1], marks[::-1])
        firsts = [tensor._version // apart for tensor in alike]
        chosen = [k for k, first in enumerate(firsts) if k == first]
        moved = [alike[k]._version % apart for k in chosen]
        tensor_impl.set_version_counters(
            [alike[k] for k in chosen], [before[k] + m for k, m in zip(chosen, moved, strict=True)]
        )
    for i, first in zip(places, firsts, strict=True):
        groups[i] = places[first]
    return tuple(groups)


def has_counter(tensor: Tensor) -> bool:
    """Whether a tensor has a version counter: an inference tensor has none."""
    try:
        return tensor._version >= 0
    except RuntimeError:
        return False


def version_of(tensor: Tensor) -> int:
    """The version counter of a tensor; 0 for an inference tensor, which has none."""
    return 0 if tensor.is_inference() else tensor._version


@contextlib.contextmanager
def as_if_at_version(tensor: Tensor, version: int) -> Iterator[None]:
    """While it lasts, the version counter of `tensor` is at `version`."""
    with _setting_counters:
        before = tensor._version
        tensor_impl.set_version_counters((tensor,), (version,))
        try:
            yield
        finally:
            tensor_impl.set_version_counters((tensor,), (before,))


@contextlib.contextmanager
def as_if_bumped(tensor: Tensor) -> Iterator[None]:
    """While it lasts, the version counter of `tensor` is one higher."""
    before = tensor._version
    torch.autograd.graph.increment_version(tensor)
    try:
        yield
    finally:
        tensor_impl.set_version_counters((tensor,), (before,))


@contextlib.contextmanager
def without_version_bump(tensor: Tensor) -> Iterator[None]:
    """While it lasts, writes to `tensor` do not count; the counter is set back at the end."""
    before = tensor._version
    try:
        yield
    finally:
        tensor_impl.set_version_counters((tensor,), (before,))


def detached_in_place_error() -> RuntimeError:
    """Eager's error for a saved tensor that was detached in place, with eager's message."""
    return RuntimeError(
        "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
        "This is not supported, please use out-of-place `.detach()` instead"
    )
