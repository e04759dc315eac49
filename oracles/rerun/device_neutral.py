"""Device neutral: an observation of another device as if it were of the CPU, so that both can be compared."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from oracles.observation.records import Observation

_CPU = torch.device("cpu")


def as_on_cpu(seen: Observation) -> Observation:
    """The same observation with the CPU in the place of every device.

    The bytes that an allocator counts (`grown`) become 0, because only CUDA's allocator counts.

    Example:
        as_on_cpu(observe(compiled, make_on_cuda)).states[0].device    # device(type='cpu')
    """
    moved: Observation = _moved_to_cpu(seen)
    return dataclasses.replace(moved, grown=0)


def _moved_to_cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return _CPU
    if isinstance(value, tuple):
        return tuple(map(_moved_to_cpu, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {name: new for name, old in given.items() if (new := _moved_to_cpu(old)) is not old}
        return dataclasses.replace(value, **changed) if changed else value
    return value
