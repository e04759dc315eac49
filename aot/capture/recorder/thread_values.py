"""What another thread is answered that computes with tensors of a trace what the trace cannot record.

The trace is refused when the function has returned; but the function may wait for what the other thread makes
of its tensors, and would wait for ever if that ended with an error that eager does not raise. So it gets the
values that the tensors have in this call, as far as they are known, and computes with these. What it writes
to other tensors is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from aot.graph.builder import GraphBuilder
from aot.graph.value_meta import lookup
from aot.tensors.symbolic_sizes import Computed, with_hints
from aot.tensors.version_counters import version_of
from aot.torch_internals import plain_fakes, pytree, rng


class ConcreteValues:
    """The values of one trace.

    Args:
        builder: the graph so far.
        read: the node for what a tensor of the trace shows now.
        given: the values of placeholders; those of others, which come with a later backward, are taken to be
            ones.
    """

    def __init__(
        self, builder: GraphBuilder, read: Callable[[Tensor], fx.Node], given: Mapping[fx.Node, Tensor]
    ) -> None:
        self._builder = builder
        self._read = read
        self._values: dict[fx.Node, Any] = dict(given)

    def run_on_concrete_values(
        self, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
        """What an operation returns for the values of its arguments, which it leaves as they are; and to
        which of them it would have written what.

        Raises whatever the operation raises.
        """
        stand_ins: list[tuple[Tensor, Tensor]] = []

        def value(given: Any) -> Any:
            if not isinstance(given, Tensor):
                return given
            own = self.value(given) if plain_fakes.is_fake(given) else given.detach().clone()
            stand_ins.append((given, own))
            return own

        args, kwargs = pytree.tree_map(value, (args, kwargs))
        versions = [version_of(own) for _, own in stand_ins]
        with torch.no_grad():
            result = op(*args, **kwargs)
        stands_for = {id(own): given for given, own in stand_ins}
        result = pytree.tree_map(lambda r: stands_for.get(id(r), r), result)
        changed = zip(stand_ins, versions, strict=True)
        return result, [(given, own) for (given, own), version in changed if version_of(own) != version]

    def value(self, tensor: Tensor) -> Tensor:
        """A copy of what a tensor of the trace shows, as far as that is known."""
        with rng.preserving_generators():
            value: Tensor = self.value_of(self._read(tensor))
            return value.clone()

    def value_of(self, node: fx.Node) -> Any:
        """What a node of the graph gives, as far as that is known."""
        needed: set[fx.Node] = set()
        left = [node]
        while left:
            user = left.pop()
            if user not in self._values and user not in needed:
                needed.add(user)
                left.extend(user.all_input_nodes)
        with torch.no_grad():
            for user in self._builder.graph.nodes:
                if user in needed:
                    self._values[user] = self._evaluate_concretely(user)
        return self._values[node]

    def _given(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self._values[argument]
        return with_hints(argument.value) if isinstance(argument, Computed) else argument

    def _evaluate_concretely(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            meta = lookup(self._builder.metas[node])  # type: ignore[arg-type]
            size, stride = with_hints((meta.size, meta.stride))
            ones = torch.empty_strided(size, stride, dtype=meta.dtype, device=meta.device)
            return ones.fill_(1)
        if node.op == "get_attr":
            return getattr(self._builder.root, str(node.target))
        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), self._given)
        return node.target(*args, **kwargs)  # type: ignore[operator]
