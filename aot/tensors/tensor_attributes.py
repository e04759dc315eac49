"""Python attributes of tensors, as ``w.quantized = True``: part of fakes, and of the specialization key.

A fake has the attributes of its tensor. Those whose names are read by code that the function
reaches are in the key: numbers and strings by value, all else by identity, with guards on what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from aot.errors import UnsupportedOutput
from aot.tensors.constants import identity_key
from aot.torch_internals import dynamo_api, wrapper_subclasses


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
        parts = tensor.__tensor_flatten__()[0] if wrapper_subclasses.is_wrapper_subclass(tensor) else ()  # type: ignore[attr-defined]
        return [
            (name, value)
            for name, value in space.items()
            if (self.every or name in self.names)
            and name not in parts
            and not name.startswith(dynamo_api.TORCH_ATTRIBUTE_PREFIXES)
        ]

    def key(self, tensors: Sequence[Tensor]) -> tuple[object, ...]:
        """Equal for two calls if their tensors have the same of these; empty if none has any."""
        found = ((i, self.of(tensor)) for i, tensor in enumerate(tensors))
        return tuple(
            (i, frozenset((name, identity_key(value)) for name, value in attributes))
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


@dataclass(frozen=True, slots=True)
class FakeAttributes:
    """The Python attributes of a fake when the function starts.

    Attributes:
        known: the names of all, those that a wrapper subclass has of itself included.
        own: what the user has set.
    """

    known: frozenset[str] = frozenset()
    own: Mapping[str, Any] = field(default_factory=dict)


def give_attributes(tensors: Sequence[Tensor], fakes: Sequence[Tensor]) -> list[FakeAttributes]:
    """Give fakes the attributes of what they stand for."""
    found = []
    for tensor, fake in zip(tensors, fakes, strict=True):
        space = vars(fake)
        own = {
            name: value
            for name, value in vars(tensor).items()
            if name not in space and not name.startswith(dynamo_api.TORCH_ATTRIBUTE_PREFIXES)
        }
        space.update(own)
        found.append(FakeAttributes(frozenset(space), own))
    return found


def check_attributes(what: str, fake: Tensor, before: FakeAttributes) -> None:
    """Look at a tensor of the trace when the function has run.

    Raises:
        UnsupportedOutput: the function has set an attribute, or deleted one.
    """
    space = vars(fake)
    # (What a wrapper subclass keeps for itself, its class sets.)
    private = "_" if wrapper_subclasses.is_wrapper_subclass(fake) else dynamo_api.TORCH_ATTRIBUTE_PREFIXES
    changed = [name for name in space if name not in before.known and not name.startswith(private)]
    changed += [name for name, value in before.own.items() if space.get(name, _GONE) is not value]
    if changed:
        raise UnsupportedOutput(
            f"{what} is given a Python attribute {changed[0]}, or loses it, which a compiled call would not "
            f"do; return the value beside it"
        )


_GONE = object()
