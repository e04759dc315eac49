"""Graphs whose sizes are symbols, as compilers get them: symbols are inputs, what follows from them nodes.

In: a graph of the trace, in which symbols stand among the arguments of operations. Out: the same graph with
its symbols as its first inputs, which are ints at run time: those that it computes with, and those in sizes,
strides and offsets of its other inputs, as graph compilers expect it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from aot.tensors.symbolic_sizes import Computed, SymbolicSizes, has_symbols, numbers_of
from aot.torch_internals import fx_graphs, symbolic_shapes


@dataclass(frozen=True, slots=True)
class GraphWithSymbolInputs:
    """A graph that takes numbers of a call before its other inputs.

    Attributes:
        taken: which of them.
    """

    module: fx.GraphModule
    taken: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SymbolAOTInput:
    """The descriptor of an input that is a number for which a symbol stands.

    Attributes:
        name: of the input.
    """

    name: str


def lift_symbols_to_inputs(module: fx.GraphModule, symbols: SymbolicSizes | None) -> GraphWithSymbolInputs:
    """A graph of a trace with `symbols`; one that has none of them is left as it is."""
    if symbols is None:
        return GraphWithSymbolInputs(module)
    used: set[Any] = set()
    computes = False

    def look(value: Any) -> Any:
        nonlocal computes
        if isinstance(value, Computed):
            computes = True
            used.update(value.value.node.expr.free_symbols)
        return value

    for node in module.graph.nodes:
        fx.node.map_aggregate((node.args, node.kwargs), look)
        if node.op == "placeholder":
            used.update(*(n.node.expr.free_symbols for n in numbers_of(node.meta["val"]) if has_symbols(n)))
    if not used and not computes:
        return GraphWithSymbolInputs(module)
    taken = tuple(i for i, symbol in enumerate(symbols.names) if symbol in used)
    graph = fx.Graph()
    inputs = {}
    for i, (symbol, value) in enumerate(symbols.values.items()):
        if i in taken:
            inputs[symbol] = graph.placeholder(symbols.names[symbol])
            inputs[symbol].meta |= {"val": value, "desc": SymbolAOTInput(symbols.names[symbol])}
    copies: dict[fx.Node, fx.Node] = {}
    known: dict[Any, Any] = {}

    def number(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return copies[value]
        if not isinstance(value, Computed):
            return value
        expression = value.value.node.expr
        if expression not in known:
            known[expression] = symbolic_shapes.symbol_nodes(expression, inputs, graph)
        return known[expression]

    for node in module.graph.nodes:
        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), number)
        copies[node] = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        copies[node].meta = node.meta.copy()
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta and node not in copies.values():
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            node.meta["val"] = node.target(*args, **kwargs)
    result = fx_graphs.LazyGraphModule(module, graph, type(module).__name__)
    result.meta.update(module.meta)
    return GraphWithSymbolInputs(result, taken)
