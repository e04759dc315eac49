"""Alias probe: write through one tensor and read through all others on the same storage.

In: the states of all known tensors, and the live tensors. Out: a `Reach` for each pair that overlaps.

Each storage that two or more known tensors share is probed as follows. The probe zeroes the storage. Then it
writes a tag to each element of one tensor, and reads all tensors after it in the list; the pair in the other
order was probed before. A byte that is not zero was reached, and its tag says by which element of the writer.
Tags have no zero byte, so readers of another dtype show partial overlaps too.

The probe does not depend on values, so runs whose numbers differ by rounding give the same result. It does
not depend on the device either: tensors of another device are probed in CPU memory of the same size, where
writes to one place have an order.
Invariant: the elements are put back afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from oracles.observation.records import Reach, TensorState
from oracles.observation.tensor_state import INTEGER_OF_SIZE, Known, storage_as_tensor

_DIGIT = 255
"""Tags count in digits from 1 to 255, so that none of their bytes is zero."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A tensor's memory as raw integers, for reading and for writing (each element once)."""

    name: str
    elements: torch.Tensor
    distinct: torch.Tensor


def probe_aliases(states: Sequence[TensorState], known: Sequence[Known]) -> tuple[Reach, ...]:
    """Write through each known tensor, read through the others, and return the pairs that overlap.

    `states` and `known` are in the same order. A tensor without elements reaches nothing, and so does a
    tensor that is alone on its storage. Tags of one-byte dtypes repeat after 255 elements.
    """
    groups: dict[int, list[int]] = {}
    for index, state in enumerate(states):
        if state.storage is not None and state.value is not None and state.value.data:
            groups.setdefault(state.storage, []).append(index)
    found: list[Reach] = []
    for indices in groups.values():
        if len(indices) > 1:
            memory = known[indices[0]].tensor.untyped_storage()
            if memory.device.type != "cpu":
                memory = torch.empty(memory.nbytes(), dtype=torch.uint8, device="cpu").untyped_storage()
            found += _probe_storage([_probed_member(known[index], memory) for index in indices])
    return tuple(found)


def _probe_storage(members: Sequence[_Member]) -> list[Reach]:
    whole = storage_as_tensor(members[0].elements.untyped_storage())
    saved = whole.clone()
    readers = [member.elements.numpy().tobytes for member in members]
    found: list[Reach] = []
    for index, writer in enumerate(members):
        whole.zero_()
        writer.distinct.copy_(_tags(tuple(writer.distinct.shape), writer.distinct.dtype))
        for member, read in zip(members[index + 1 :], readers[index + 1 :], strict=True):
            tags = read()
            if tags.strip(b"\0"):
                found.append(Reach(writer.name, member.name, tags))
    whole.copy_(saved)
    return found


def _probed_member(known: Known, memory: torch.UntypedStorage) -> _Member:
    tensor = known.tensor
    unit = min(tensor.element_size(), 8)
    parts = tensor.element_size() // unit
    dtype = INTEGER_OF_SIZE[unit]
    shape = tuple(tensor.shape)
    stride = tuple(step * parts for step in tensor.stride())
    if parts > 1:
        shape, stride = (*shape, parts), (*stride, 1)
    offset = tensor.storage_offset() * parts
    elements = torch.empty(0, dtype=dtype, device=memory.device)
    elements.set_(memory, offset, shape, stride)
    distinct = elements
    if 0 in stride:
        # Expanded dimensions: torch refuses a write to one element through several indices.
        once = tuple(1 if step == 0 else length for length, step in zip(shape, stride, strict=True))
        distinct = torch.empty(0, dtype=dtype, device=memory.device)
        distinct.set_(memory, offset, once, stride)
    return _Member(known.path, elements, distinct)


@lru_cache(maxsize=512)
def _tags(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Tags of a writer's elements, in row-major order: different from each other, without a zero byte."""
    numbers = torch.arange(math.prod(shape), dtype=torch.int64, device="cpu")
    low, high = numbers % _DIGIT + 1, numbers // _DIGIT % _DIGIT + 1
    size = torch.empty((), dtype=dtype).element_size()
    digits = torch.stack([low, high], dim=1).to(torch.uint8).repeat(1, 4)[:, :size].contiguous()
    return digits.view(dtype).reshape(shape)
