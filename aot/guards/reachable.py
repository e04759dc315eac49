"""Reachable objects: what guard collection has visited, and where a function may have stored a tensor.

In: the objects of the walk. Out: a path to a stored tensor. Caches in torch's modules are restored here too.
"""

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
    """The objects that the walk from a function has visited.

    Attributes:
        objects: (path, object) of each object that can hold others.
        caches: (namespace, name, value) of each private attribute of torch's modules.
    """

    objects: tuple[tuple[str, Any], ...]
    caches: tuple[tuple[dict[str, Any], str, Any], ...]

    def restore_module_caches(self) -> None:
        """Restore the private attributes of torch's modules after a trace has called the modules.

        For example, an LSTM keeps a list of its weights, and the weights of a trace have no values.
        """
        for space, name, value in self.caches:
            if space.get(name) is not value:
                space[name] = value

    def find_stored(self, tensors: Sequence[Tensor]) -> str | None:
        """A path to one of these tensors, if a visited object holds one, directly or not; else None."""
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
        """The containers here, those in them, and so on, up to the layer before an object of `sought`.

        `sought` has ids. The result is None if no layer leads to such an object. There may be millions of
        containers, so they are handled in bulk. An object that the garbage collector does not track is
        skipped: it holds no tracked object, and tensors are tracked.
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
