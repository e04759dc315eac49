"""Version counters: how often a tensor was written to in place, and which tensors count together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from aot.torch_internals import tensor_impl

_setting_counters = threading.Lock()


def counter_groups(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """For each tensor, which of them is the first that counts its in-place writes together with it
    (`detach`), and not apart (`.data`); an inference tensor has no counter, and is its own first.

    There is no query for it: each counter is set to a number of its own, all are looked at, and set back.
    What is written by another thread meanwhile is counted. It takes one look where no two counters are equal.
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
    """As if the version counter of `tensor` were at `version`, for as long as it lasts."""
    with _setting_counters:
        before = tensor._version
        tensor_impl.set_version_counters((tensor,), (version,))
        try:
            yield
        finally:
            tensor_impl.set_version_counters((tensor,), (before,))


@contextlib.contextmanager
def as_if_bumped(tensor: Tensor) -> Iterator[None]:
    """As if `tensor` had been written to, for as long as it lasts."""
    before = tensor._version
    torch.autograd.graph.increment_version(tensor)
    try:
        yield
    finally:
        tensor_impl.set_version_counters((tensor,), (before,))


@contextlib.contextmanager
def without_version_bump(tensor: Tensor) -> Iterator[None]:
    """What is written to `tensor` meanwhile does not move its version counter."""
    before = tensor._version
    try:
        yield
    finally:
        tensor_impl.set_version_counters((tensor,), (before,))


def detached_in_place_error() -> RuntimeError:
    """Eager's complaint, in eager's words, of a tensor that a backward keeps and whose history is gone."""
    return RuntimeError(
        "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
        "This is not supported, please use out-of-place `.detach()` instead"
    )
