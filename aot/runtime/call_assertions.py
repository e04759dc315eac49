"""Calls that are held against what was found when they were compiled (`debug_assert`).

In: what answers a kind of call, and its `ViewAndMutationMeta`. Out: the same, which looks at the arguments
before and after, and at the results, and says by name what is not as it was in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aot.analysis.metadata import MutationType, OutputType, ViewAndMutationMeta
from aot.errors import AssumptionViolated
from aot.runtime.graph_assertions import same_elements
from aot.tensors.version_counters import version_of
from aot.torch_internals import tensor_impl


@dataclass(frozen=True, slots=True)
class _Before:
    """A tensor before a call."""

    data: Tensor
    where: tuple[Any, ...]
    storage: int
    version: int


def with_call_assertions(
    call: Callable[..., list[Any]], metadata: ViewAndMutationMeta, name: str
) -> Callable[..., list[Any]]:
    """`call`, checked each time; it takes the tensors of a call and returns the flat results.

    Raises:
        AssumptionViolated: it does something else to its arguments, or returns something else, than
            `metadata` says.
    """

    def checked(*tensors: Tensor) -> list[Any]:
        before = [_before(tensor) for tensor in tensors]
        outputs = call(*tensors)
        for violation in (
            *_violated_input_assertions(tensors, before, metadata),
            *_violated_output_assertions(tensors, outputs, metadata),
        ):
            raise AssumptionViolated(f"{name}: {violation}")
        return outputs

    return checked


def _where(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def _before(tensor: Tensor) -> _Before:
    version = version_of(tensor)
    data = tensor.detach().clone()
    return _Before(data, _where(tensor), tensor_impl.storage_key(tensor), version)


def _violated_input_assertions(
    tensors: Sequence[Tensor], before: Sequence[_Before], metadata: ViewAndMutationMeta
) -> list[str]:
    """What is not as predicted of the arguments."""
    found = []
    infos = metadata.input_info
    pairs = zip(before, infos, strict=True)
    touched = {b.storage for b, info in pairs if info.mutation_type is not MutationType.NOT_MUTATED}
    for i, (tensor, was, info) in enumerate(zip(tensors, before, infos, strict=True)):
        moved = info.mutates_metadata or info.mutates_storage_metadata
        if not moved and (_where(tensor) != was.where or tensor_impl.storage_key(tensor) != was.storage):
            found.append(f"input {i} has other sizes, strides or another storage")
            continue
        if was.storage in touched:
            continue
        if not same_elements(tensor.detach(), was.data):
            found.append(f"input {i} was written to")
        if version_of(tensor) != was.version:
            found.append(f"the version counter of input {i} has moved")
    return found


def _violated_output_assertions(
    tensors: Sequence[Tensor], outputs: Sequence[Any], metadata: ViewAndMutationMeta
) -> list[str]:
    """What is not as predicted of the results."""
    found = []
    storages = {tensor_impl.storage_key(tensor): i for i, tensor in enumerate(tensors)}
    for k, (value, info) in enumerate(zip(outputs, metadata.output_info, strict=True)):
        if not isinstance(value, info.raw_type):
            found.append(f"output {k} is a {type(value).__name__} and no {info.raw_type.__name__}")
        if not isinstance(value, Tensor):
            continue
        if value.requires_grad != info.requires_grad:
            found.append(f"output {k} has requires_grad={value.requires_grad}")
        shown = storages.get(tensor_impl.storage_key(value)) if value.numel() else None
        if info.output_type is OutputType.IS_INPUT and value is not tensors[info.base_idx or 0]:
            found.append(f"output {k} is not input {info.base_idx}")
        if info.output_type is OutputType.ALIAS_OF_INPUT and value.numel():
            base = tensors[info.base_idx or 0]
            if tensor_impl.storage_key(base) != tensor_impl.storage_key(value):
                found.append(f"output {k} does not lie in the memory of input {info.base_idx}")
        if info.output_type is OutputType.NON_ALIAS and shown is not None:
            found.append(f"output {k} lies in the memory of input {shown}")
    return found
