"""Whether the memory of a call is freed when nobody holds its tensors any more.

Storages are watched, not tensors: whoever keeps a tensor alive, or a detached alias of it, keeps its storage.
What lives on without ever having been seen, such as an intermediate value, shows in what CUDA's allocator has
given out; on a CPU torch counts nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing import reductions

from oracles.observation.result_structure import has_memory

# A thread of autograd's for a CUDA device wakes who waits for a backward before it drops its last node.
_LOOKS, _PAUSE = 20, 0.001

_Weak: Any = reductions.StorageWeakRef  # not annotated in torch


class Lifetimes:
    """Weak references to the storages of one observation, each under the name of the first tensor on it.

    lifetimes = Lifetimes()
    lifetimes.watch([("arg[0]", x)])
    del x
    lifetimes.alive()   # (): its memory has been freed
    """

    def __init__(self) -> None:
        """Before the call whose memory is watched."""
        with torch.inference_mode(False), torch.enable_grad():
            devices = ["cpu", *(f"cuda:{number}" for number in range(_devices()))]
            self._leaves = [torch.zeros((), requires_grad=True, device=device) for device in devices]
            self._early = [leaf * 1 for leaf in self._leaves]
        self._allocated = allocated_bytes()
        self._storages: dict[int, tuple[str, Any]] = {}

    def watch(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Note the storages of these tensors, without keeping any alive."""
        for name, tensor in tensors:
            if has_memory(tensor):
                reference = _Weak(tensor.untyped_storage())
                self._storages.setdefault(reference.cdata, (name, reference))

    def names_alive(self) -> tuple[str, ...]:
        """The names of those that are still alive, once cycles have been collected."""
        names = self._alive()
        if names:
            self._drain()
            names = self._alive()
        # Collections grow dearer from one generation to the next, and most cycles are young.
        for generation in range(3):
            if names:
                gc.collect(generation)
                names = self._alive()
        for _ in range(_LOOKS if _devices() else 0):
            if names:
                time.sleep(_PAUSE)
                names = self._alive()
        return names

    def memory_grown(self) -> int:
        """How many bytes more are given out now, once `names_alive` has been asked."""
        more = allocated_bytes() - self._allocated
        if more > 0:
            gc.collect()
            more = allocated_bytes() - self._allocated
        for _ in range(_LOOKS):
            if more > 0:
                time.sleep(_PAUSE)
                more = allocated_bytes() - self._allocated
        return more

    def _alive(self) -> tuple[str, ...]:
        return tuple(name for name, storage in self._storages.values() if not storage.expired())

    def _drain(self) -> None:
        """Have the engine forget a backward that raised.

        What it had still to do stays in the queue of the thread that is a device's, ordered by age, until an
        older node is run there.
        """
        torch.autograd.grad(self._early, self._leaves, retain_graph=True)


def allocated_bytes() -> int:
    """How many bytes CUDA's allocator has given out and not got back, on all devices; 0 without CUDA."""
    return sum(map(torch.cuda.memory_allocated, range(_devices())))


def _devices() -> int:
    """How many CUDA devices are in use, or may be; 0 before CUDA is."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return torch.cuda.device_count()
