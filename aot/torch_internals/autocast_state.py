"""Autocast of this thread: devices, dtypes, and whether casts of leaves are cached."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import enable_reentrant_dispatch

__all__ = [
    "AUTOCAST_DEVICES",
    "AUTOCAST_KEYS",
    "cast_cache_key",
    "device_states",
    "dtypes_before_dispatch",
    "is_autocast_enabled",
    "set_device_states",
    "without_autocast",
    "without_cast_cache",
]

AUTOCAST_DEVICES = ("cpu", "cuda")
AUTOCAST_KEYS = [getattr(torch._C.DispatchKey, f"Autocast{device.upper()}") for device in AUTOCAST_DEVICES]


def dtypes_before_dispatch() -> dict[str, torch.dtype]:
    """Inside a dispatch mode: for which devices autocast was on when an operation came, and the dtypes."""
    with enable_reentrant_dispatch():
        return {
            device: torch.get_autocast_dtype(device)
            for device in AUTOCAST_DEVICES
            if torch.is_autocast_enabled(device)
        }


# Whether any device is under autocast.
is_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled


@contextlib.contextmanager
def without_cast_cache() -> Iterator[None]:
    """While this lasts, autocast keeps no cast of a leaf for the next operation that takes it."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def cast_cache_key() -> tuple[bool, bool]:
    """Whether this thread is in a region of autocast, and whether casts of leaves are kept until it ends."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0, torch.is_autocast_cache_enabled()


def without_autocast() -> contextlib.AbstractContextManager[Any]:
    """Graphs hold the casts that autocast made while tracing; running them must not cast again."""
    manager: contextlib.AbstractContextManager[Any] = torch._C._DisableAutocast()
    return manager


def device_states() -> tuple[tuple[str, bool, torch.dtype], ...]:
    """For each device, whether autocast is on and which dtype it casts to."""
    return tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in AUTOCAST_DEVICES
    )


def set_device_states(states: Sequence[tuple[str, bool, torch.dtype]]) -> None:
    """Set those for good."""
    for device, enabled, dtype in states:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
