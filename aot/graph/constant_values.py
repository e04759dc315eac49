"""Constant values: values of the graph that depend on no argument, so that the trace can compute them.

In: the arguments of an operation as nodes. Out: their values, or None. A trace knows no values of arguments.
But a value that the function computes from literals only, as `torch.tensor([2])` or `torch.ones(3)`, is the
same at every call, so `.item()` of it has an answer.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from aot.graph.builder import GraphBuilder
from aot.ops.call_targets import is_custom
from aot.tensors.symbolic_sizes import Computed
from aot.torch_internals import autocast_state, mode_stacks, op_queries


class ConstantValues:
    """The known values of one trace."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._values: dict[fx.Node, Any] = {}

    def note(self, node: fx.Node, value: Any) -> None:
        """Set the value of a node that is known from elsewhere."""
        self._values[node] = value

    def values(self, tree: Any) -> Any:
        """The arguments of an operation with values in place of nodes.

        `tree` has nodes and constants, in tuples and dicts. The result is None if a node depends on an
        argument or on a random draw.
        """
        nodes: list[fx.Node] = []
        fx.node.map_arg(tree, nodes.append)
        needed: set[fx.Node] = set()
        while nodes:
            node = nodes.pop()
            if node in self._values or node in needed:
                continue
            if not _is_constant_value(node):
                return None
            needed.add(node)
            nodes.extend(node.all_input_nodes)
        with mode_stacks.dispatch_modes_off(), torch.no_grad(), autocast_state.without_autocast():
            for node in self._builder.graph.nodes if needed else ():
                if node in needed:
                    self._values[node] = self._run(node)
            return fx.node.map_arg(tree, self._values.__getitem__)

    def _run(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return getattr(self._builder.root, str(node.target))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._values.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _is_constant_value(node: fx.Node) -> bool:
    """Whether a node's value follows from those of its arguments, in any call."""
    constants: list[Any] = []
    fx.node.map_aggregate((node.args, node.kwargs), constants.append)
    if any(isinstance(constant, Computed) for constant in constants):
        return False
    if node.op == "get_attr" or node.target is operator.getitem:
        return True
    op = node.target
    if not isinstance(op, op_queries.OpOverload) or op_queries.may_be_random(op):
        return False
    return not is_custom(op)  # a custom operator runs only where the caller calls it
