"""Where a function may have stored something, as the walk from it has come by there."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aot.guards.containers import SEQUENCES
from aot.guards.introspection import referent_values, referents

_CONTAINERS = (dict, tuple, *SEQUENCES)


@dataclass(frozen=True, slots=True)
class ReachableObjects:
    """What the walk from a function has come to.

    Attributes:
        objects: all that can hold others, with a path to each.
        caches: what torch's modules keep for themselves: the namespace, the name and the value.
    """

    objects: tuple[tuple[str, Any], ...]
    caches: tuple[tuple[dict[str, Any], str, Any], ...]

    def restore_module_caches(self) -> None:
        """Give torch's modules back what they kept for themselves before a trace called them: an LSTM keeps a
        list of the weights that it was called with last, and those of a trace have no values."""
        for space, name, value in self.caches:
            if space.get(name) is not value:
                space[name] = value

    def find_stored(self, tensors: Sequence[Tensor]) -> str | None:
        """A path to where one of the tensors is, if one is anywhere here."""
        sought = {id(tensor) for tensor in tensors}
        layers = self._reachable_layers_down_to(sought) if sought else None
        if layers is None:
            return None
        leading = set(sought)
        for layer in reversed(layers):
            leading.update(id(one) for one in layer if not leading.isdisjoint(map(id, gc.get_referents(one))))
        ahead = [(path, one) for path, one in self.objects if not _is_container(one) or id(one) in leading]
        seen: set[int] = set()
        while ahead:
            path, value = ahead.pop()
            for part, one in referents(value, leading):
                if id(one) in sought:
                    return f"{path}{part}".removeprefix(".")
                if id(one) not in seen:
                    seen.add(id(one))
                    ahead.append((f"{path}{part}", one))
        return None

    def _reachable_layers_down_to(self, sought: Set[int]) -> list[list[Any]] | None:
        """The containers here, those in them, and so on, up to those that hold one of these, by id; None if
        none does.

        There may be millions, so this is done in bulk: what the garbage collector does not track holds
        nothing that it tracks, as tensors are.
        """
        layers: list[list[Any]] = []
        containers = [value for _, value in self.objects if _is_container(value)]
        others = (value for _, value in self.objects if not _is_container(value))
        found = [*containers, *itertools.chain.from_iterable(map(referent_values, others))]
        seen: set[int] = set()
        while True:
            tracked = list(itertools.compress(found, map(gc.is_tracked, found)))
            if not sought.isdisjoint(map(id, tracked)):
                return layers
            kinds = {kind for kind in set(map(type, tracked)) if issubclass(kind, _CONTAINERS)}
            layer = [one for one in tracked if type(one) in kinds] if kinds else []
            numbers = set(map(id, layer))
            if len(numbers) < len(layer) or not seen.isdisjoint(numbers):
                numbers -= seen
                layer = [one for number, one in {id(one): one for one in layer}.items() if number in numbers]
            if not layer:
                return None
            layers.append(layer)
            seen |= numbers
            found = gc.get_referents(*layer)


def _is_container(value: Any) -> bool:
    return issubclass(type(value), _CONTAINERS)
