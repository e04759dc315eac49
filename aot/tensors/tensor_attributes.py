"""Tensor attributes: Python attributes such as ``w.quantized = True``, on fakes and in specialization keys.

A fake gets the attributes of its tensor. If code that the function reaches reads an attribute's name, its
value is in the key: numbers and strings by value, other objects by identity, with guards on what these
contain.
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
    """The attributes of tensors that the code of a function may read.

    Attributes:
        names: the names in the code.
        every: the code computes names, so all attributes count.
    """

    names: frozenset[str] = frozenset()
    every: bool = False

    def __or__(self, other: AttributeNames) -> AttributeNames:
        return AttributeNames(self.names | other.names, self.every or other.every)

    def of(self, tensor: Tensor) -> list[tuple[str, Any]]:
        """These attributes of a tensor, as (name, value). `vars` makes an empty dict if there is none."""
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
        """A key that is equal for two calls if these attributes are equal; empty if no tensor has one."""
        found = ((i, self.of(tensor)) for i, tensor in enumerate(tensors))
        return tuple(
            (i, frozenset((name, identity_key(value)) for name, value in attributes))
            for i, attributes in found
            if attributes
        )

    def none_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether no tensor has one of these attributes."""
        return not any(map(self.of, tensors))

    def objects(self, tensors: Sequence[Tensor]) -> Iterator[Any]:
        """The values of these attributes."""
        for tensor in tensors:
            for _, value in self.of(tensor):
                yield value


@dataclass(frozen=True, slots=True)
class FakeAttributes:
    """The Python attributes of a fake when the function starts.

    Attributes:
        known: the names of all attributes, with those that a wrapper subclass sets itself.
        own: the attributes that the user has set, with their values.
    """

    known: frozenset[str] = frozenset()
    own: Mapping[str, Any] = field(default_factory=dict)


def give_attributes(tensors: Sequence[Tensor], fakes: Sequence[Tensor]) -> list[FakeAttributes]:
    """Give fakes the attributes of the tensors that they stand for."""
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
    """Check the attributes of a fake when the function has run. `what` names the tensor in the message.

    Raises:
        UnsupportedOutput: the function has set or deleted an attribute.
    """
    space = vars(fake)
    # A wrapper subclass's own class sets its private attributes.
    private = "_" if wrapper_subclasses.is_wrapper_subclass(fake) else dynamo_api.TORCH_ATTRIBUTE_PREFIXES
    changed = [name for name in space if name not in before.known and not name.startswith(private)]
    changed += [name for name, value in before.own.items() if space.get(name, _GONE) is not value]
    if changed:
        raise UnsupportedOutput(
            f"{what} is given a Python attribute {changed[0]}, or loses it, which a compiled call would not "
            f"do; return the value beside it"
        )


_GONE = object()
