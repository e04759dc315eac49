"""Leaks: whether the memory of a call is freed when nobody holds its tensors any more.

Storages are watched, not tensors: a tensor keeps its storage alive, and so does a detached alias of it.
Memory that the observer never saw, such as an intermediate value, shows in the bytes that CUDA's allocator
has given out. On a CPU torch counts no bytes, so only known storages are watched there.
Invariant: `Lifetimes` holds weak references, and keeps no watched storage alive.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing import reductions

from oracles.observation.result_structure import has_memory

# autograd's thread for a CUDA device ends a backward before it drops the last node, so look again after a
# pause.
_LOOKS, _PAUSE = 20, 0.001

_Weak: Any = reductions.StorageWeakRef  # not annotated in torch


class Lifetimes:
    """Weak references to the storages of one observation, each under the name of the first tensor on it.

    Example:
        lifetimes = Lifetimes()
        lifetimes.watch([("arg[0]", x)])
        del x
        lifetimes.names_alive()   # (): its memory has been freed
    """

    def __init__(self) -> None:
        """Count the bytes that are given out now, before the call whose memory is watched."""
        with torch.inference_mode(False), torch.enable_grad():
            devices = ["cpu", *(f"cuda:{number}" for number in range(_devices()))]
            self._leaves = [torch.zeros((), requires_grad=True, device=device) for device in devices]
            self._early = [leaf * 1 for leaf in self._leaves]
        self._allocated = allocated_bytes()
        self._storages: dict[int, tuple[str, Any]] = {}

    def watch(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Watch the storages of these tensors, without keeping any alive."""
        for name, tensor in tensors:
            if has_memory(tensor):
                reference = _Weak(tensor.untyped_storage())
                self._storages.setdefault(reference.cdata, (name, reference))

    def names_alive(self) -> tuple[str, ...]:
        """Collect cycles, and return the names of the storages that are still alive."""
        names = self._alive()
        if names:
            self._drain()
            names = self._alive()
        # A collection costs more with each generation, and most cycles are young.
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
        """How many more bytes are given out now than before the call. Call `names_alive` first."""
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
        """Make the engine drop the rest of a backward that raised.

        Its remaining nodes stay in the queue of the device's thread. The queue runs younger nodes first, so
        they leave it when an older node runs. `_early` was made before the call, so its node is older.
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
