"""Compiled graphs that are held against what they were compiled from, at each run (`debug_assert`).

In: a graph and the callable that a compiler has made of it. Out: a callable that looks at what goes in (the
values of the call, what a forward has saved, tangents) and at what comes out (the results, their memory, and
whether inputs were written to), and says by name what is not as the graph says.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from aot import config
from aot.backends.compilers import Compiled, Compiler, as_boxed, materialize_metadata
from aot.backends.compilers import compile_graph as compile_as_it_is
from aot.errors import AssumptionViolated
from aot.partition.tensor_bytes import memory_roots
from aot.torch_internals import tensor_impl


def compile_graph(compiler: Compiler, module: fx.GraphModule, which: str) -> Compiled:
    """Hand a graph to a compiler; what it makes is checked at each run, if `debug_assert` is set now.

    Raises:
        BackendError: what comes back cannot be called.
    """
    compiled = compile_as_it_is(compiler, module, which)
    return (
        _CheckedGraph(compiled, materialize_metadata(module), which)
        if config.settings().debug_assert
        else compiled
    )


def same_elements(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and elements, NaN included."""
    if one.shape != other.shape:
        return False
    if one.is_floating_point() or one.is_complex():
        return bool(torch.isclose(one, other, 0, 0, equal_nan=True).all())
    return torch.equal(one, other)


class _CheckedGraph:
    """A compiled graph; boxed.

    Raises:
        AssumptionViolated: what goes in or comes out is not what the graph was compiled for.
    """

    _boxed_call = True

    def __init__(self, compiled: Compiled, module: fx.GraphModule, which: str) -> None:
        self._run = as_boxed(compiled)
        self._which = which
        nodes = list(module.graph.nodes)
        self._inputs = [n for n in nodes if n.op == "placeholder"]
        self._outputs = list(nodes[-1].args[0])
        self._roots = memory_roots(module.graph)
        self._donated = module.meta.get("donated", ()) if which == "backward" else ()
        written = {n.args[0] for n in nodes if n.target is torch.ops.aten.copy_.default}
        self._untouched = [
            i for i, n in enumerate(self._inputs) if i not in self._donated and n not in written
        ]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        given = list(arguments)
        if len(given) != len(self._inputs):
            self._violated(f"takes {len(self._inputs)} inputs and was given {len(given)}")
        for node, value in zip(self._inputs, given, strict=True):
            self._check_graph_results(f"input {node.name}", node, value)
        before = {i: given[i].clone() for i in self._untouched if isinstance(given[i], Tensor)}
        results = list(self._run(arguments))
        for i, value in before.items():
            if not same_elements(value, given[i]):
                self._violated(f"wrote to its input {self._inputs[i].name}")
        for position, (node, value) in enumerate(zip(self._outputs, results, strict=False)):
            if isinstance(node, fx.Node):
                self._check_graph_results(f"result {position}, {node.name},", node, value)
        self._check_graph_result_memory(given, results)
        return results

    def _check_graph_results(self, name: str, node: fx.Node, value: Any) -> None:
        expected = node.meta.get("val")
        if not isinstance(expected, Tensor):
            return
        if not isinstance(value, Tensor):
            self._violated(f"{name} is a {type(value).__name__} and no tensor")
        for what, one, other in (
            ("dtype", value.dtype, expected.dtype),
            ("device", value.device, expected.device),
            ("shape", tuple(value.shape), _fixed(expected.shape, value.shape)),
            ("strides", *_strides(value, expected)),
        ):
            if one != other:
                self._violated(f"{name} has {what} {one} and not {other}")

    def _check_graph_result_memory(self, given: Sequence[Any], results: Sequence[Any]) -> None:
        """See that no result lies in memory that the graph does not say it lies in."""
        entered: dict[int, str] = {}
        for i, (node, value) in enumerate(zip(self._inputs, given, strict=True)):
            if i not in self._donated and isinstance(value, Tensor) and value.numel():
                entered.setdefault(tensor_impl.storage_key(value), node.name)
        made: dict[int, tuple[fx.Node, int]] = {}
        for position, (node, value) in enumerate(zip(self._outputs, results, strict=False)):
            if not isinstance(value, Tensor) or not isinstance(node, fx.Node) or not value.numel():
                continue
            root, key = self._root(node), tensor_impl.storage_key(value)
            if key in entered:
                if root.op != "placeholder":
                    self._violated(
                        f"result {position}, {node.name}, lies in the memory of input {entered[key]}"
                    )
                continue
            other, first = made.setdefault(key, (root, position))
            if other is not root:
                self._violated(f"result {position}, {node.name}, lies in the memory of result {first}")

    def _root(self, node: fx.Node) -> fx.Node:
        """What has made the memory that a value lies in; several results of one operation may share some."""
        root = self._roots[node]
        if root.target is operator.getitem and isinstance(root.args[0], fx.Node):
            return root.args[0]
        return root

    def _violated(self, what: str) -> None:
        raise AssumptionViolated(f"the compiled {self._which} graph: {what}")


def _fixed(expected: Sequence[Any], now: Sequence[int]) -> tuple[Any, ...]:
    """A shape with those lengths that are symbols as they are now."""
    if len(expected) != len(now):
        return tuple(expected)
    return tuple(n if isinstance(e, torch.SymInt) else e for e, n in zip(expected, now, strict=True))


def _strides(value: Tensor, expected: Tensor) -> tuple[Any, Any]:
    """The strides that matter, of both: of lengths other than 1, in a tensor that has elements."""
    if value.numel() == 0 or value.dim() != expected.dim():
        return (), ()
    wanted = _fixed(expected.stride(), value.stride())
    kept = [d for d, n in enumerate(value.shape) if n != 1]
    return tuple(value.stride(d) for d in kept), tuple(wanted[d] for d in kept)
