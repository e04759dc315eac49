"""Python attributes of tensors, as ``w.quantized = True``: part of fakes, and of the specialization key.

A fake has the attributes of its tensor. Those whose names are read by code that the function
reaches are in the key: numbers and strings by value, all else by identity, with guards on what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aot import torch_internals as internals
from aot.constants import identified
from aot.errors import UnsupportedOutput

_TORCHS = ("__", "_dynamo_")  # what torch keeps at tensors for itself begins so


@dataclass(frozen=True, slots=True)
class AttributeNames:
    """Which attributes of tensors the code of a function may read.

    Attributes:
        names: by these names.
        every: by names that it computes.
    """

    names: frozenset[str] = frozenset()
    every: bool = False

    def __or__(self, other: AttributeNames) -> AttributeNames:
        return AttributeNames(self.names | other.names, self.every or other.every)

    def of(self, tensor: Tensor) -> list[tuple[str, Any]]:
        """What a tensor has of them. (Torch makes an empty dict where there is none, and keeps it.)"""
        space = vars(tensor)
        if not space or not (self.every or not self.names.isdisjoint(space)):
            return []
        parts = tensor.__tensor_flatten__()[0] if internals.is_wrapper(tensor) else ()  # type: ignore[attr-defined]
        return [
            (name, value)
            for name, value in space.items()
            if (self.every or name in self.names) and name not in parts and not name.startswith(_TORCHS)
        ]

    def key(self, tensors: Sequence[Tensor]) -> tuple[object, ...]:
        """Equal for two calls if their tensors have the same of these; empty if none has any."""
        found = ((i, self.of(tensor)) for i, tensor in enumerate(tensors))
        return tuple(
            (i, frozenset((name, identified(value)) for name, value in attributes))
            for i, attributes in found
            if attributes
        )

    def none_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether no tensor has any."""
        return not any(map(self.of, tensors))

    def objects(self, tensors: Sequence[Tensor]) -> Iterator[Any]:
        """What these attributes are."""
        for tensor in tensors:
            for _, value in self.of(tensor):
                yield value


def give_attributes(tensors: Sequence[Tensor], fakes: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Give fakes the attributes of what they stand for; what each of them has then."""
    for tensor, fake in zip(tensors, fakes, strict=True):
        space = vars(fake)
        for name, value in vars(tensor).items():
            if name not in space and not name.startswith(_TORCHS):
                space[name] = value
    return [dict(vars(fake)) for fake in fakes]


def check_attributes(what: str, fake: Tensor, before: dict[str, Any]) -> None:
    """Look at a tensor of the trace when the function has run.

    Raises:
        UnsupportedOutput: the function has set an attribute, or deleted one.
    """
    space = vars(fake)
    if not space and not before:
        return
    if internals.is_wrapper(fake):  # whose class says itself what its attributes mean
        parts = fake.__tensor_flatten__()[0]  # type: ignore[attr-defined]
        changed = [name for name in space.keys() - before.keys() - set(parts) if not name.startswith("_")]
        before = space
    else:
        changed = [name for name in space if name not in before or before[name] is not space[name]]
    changed += [name for name in before if name not in space]
    mine = [name for name in changed if not name.startswith(_TORCHS)]
    if mine:
        raise UnsupportedOutput(
            f"{what} is given a Python attribute {mine[0]}, or loses it, which a compiled call would not do; "
            f"return the value beside it"
        )
