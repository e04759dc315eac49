"""Where a function may have stored something, as the walk from it has come by there."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aot.containers import SEQUENCES
from aot.objects import parts_in, values_in

_CONTAINERS = (dict, tuple, *SEQUENCES)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the walk from a function has come to.

    Attributes:
        objects: all that can hold others, with a path to each.
        caches: what torch's modules keep for themselves: the namespace, the name and the value.
    """

    objects: tuple[tuple[str, Any], ...]
    caches: tuple[tuple[dict[str, Any], str, Any], ...]

    def put_back(self) -> None:
        """Give torch's modules back what they kept for themselves before a trace called them: an LSTM keeps a
        list of the weights that it was called with last, and those of a trace have no values."""
        for space, name, value in self.caches:
            if space.get(name) is not value:
                space[name] = value

    def stored(self, tensors: Sequence[Tensor]) -> str | None:
        """A path to where one of the tensors is, if one is anywhere here."""
        sought = {id(tensor) for tensor in tensors}
        if not sought or not self._holds(sought):
            return None
        ahead = [(f"{path}{part}", one) for path, value in self.objects for part, one in parts_in(value)]
        seen: set[int] = set()
        while ahead:
            path, value = ahead.pop()
            if id(value) in sought:
                return path.removeprefix(".")
            if isinstance(value, _CONTAINERS) and id(value) not in seen:
                seen.add(id(value))
                ahead += [(f"{path}{part}", one) for part, one in parts_in(value)]
        return None

    def _holds(self, sought: Set[int]) -> bool:
        """Whether one of these, by id, is anywhere here. (To make all paths takes three times as long.)"""
        seen: set[int] = set()
        found = [one for _, value in self.objects for one in values_in(value)]
        while found:
            if not sought.isdisjoint(map(id, found)):
                return True
            containers = {id(one): one for one in found if isinstance(one, _CONTAINERS)}
            ahead = [one for number, one in containers.items() if number not in seen]
            seen.update(containers)
            found = [one for value in ahead for one in values_in(value)]
        return False
