"""SymInt inputs: turn the symbols of a graph into graph inputs, and expressions of symbols into nodes.

In: a graph of the trace, with symbols among the arguments of operations. Out: the same graph with its symbols
as first inputs, which are ints at run time. These are the symbols that the graph computes with, and those in
sizes, strides and offsets of its other inputs, as graph compilers expect.

A graph may compute a number from values, such as how many elements a mask selects. Its symbol becomes a node
at the place where the number is found. The graph asserts there what the trace has assumed of the number.
Compilers get an unbacked symbol for it, of which they can assume nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot.errors import DataDependentValue
from aot.tensors.symbolic_sizes import Computed, DataNumber, SymbolicSizes, has_symbols, numbers_of
from aot.torch_internals import fx_graphs, symbolic_shapes, torch_fakes

DATA_NUMBERS = "data_numbers"
"""The key in a node's `meta` of the numbers that it computes from values (`DataNumber`)."""

OTHER_NUMBERS = "aotfuzz: a graph computes other numbers from values than it was compiled for"
"""The message of a graph's assertions about computed numbers."""


@dataclass(frozen=True, slots=True)
class GraphWithSymbolInputs:
    """A graph that takes numbers of a call before its other inputs.

    Attributes:
        module: the graph.
        taken: the positions of these numbers among `SymbolicSizes.names`.
    """

    module: fx.GraphModule
    taken: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SymbolAOTInput:
    """The descriptor of a graph input for a symbol. `name` is the input's name."""

    name: str


def lift_symbols_to_inputs(
    module: fx.GraphModule, symbols: SymbolicSizes | None, *, forward: bool = False
) -> GraphWithSymbolInputs:
    """Turn the symbols of a graph into inputs. A graph without symbols is returned unchanged.

    A `forward` graph returns the numbers that it computes from values after its other results.

    Raises:
        DataDependentValue: a graph needs a number that an earlier one, or a node that was dropped, computes.
    """
    if symbols is None:
        return GraphWithSymbolInputs(module)
    used: set[Any] = set()
    computes = False
    own = set() if not symbols.computed else _defined_symbols(module.graph, symbols, forward)
    tests = [test for test in symbols.data_tests() if test.free_symbols & own]

    def look(value: Any) -> Any:
        nonlocal computes
        if isinstance(value, Computed):
            computes = True
            used.update(symbolic_shapes.free_symbols(value.value))
        return value

    for node in module.graph.nodes:
        fx.node.map_aggregate((node.args, node.kwargs), look)
        if DATA_NUMBERS in node.meta:
            computes = True
            if not forward:  # of which compilers are told by what was computed before
                used.update(*map(symbolic_shapes.free_symbols, _sizes_of(node.meta["val"])))
        if node.op == "placeholder":
            sizes = filter(has_symbols, numbers_of(node.meta["val"]))
            used.update(*map(symbolic_shapes.free_symbols, sizes))
    used.update(*(test.free_symbols for test in tests))
    if not used and not computes:
        return GraphWithSymbolInputs(module)
    taken = tuple(i for i, symbol in enumerate(symbols.names) if symbol in used - own)
    graph = fx.Graph()
    inputs: dict[Any, fx.Node] = {}
    for i, (symbol, value) in enumerate(symbols.values.items()):
        if i in taken:
            inputs[symbol] = graph.placeholder(symbols.names[symbol])
            inputs[symbol].meta |= {"val": value, "desc": SymbolAOTInput(symbols.names[symbol])}
    copies: dict[fx.Node, fx.Node] = {}
    known: dict[Any, Any] = {}
    made: dict[fx.Node, fx.Node] = {}

    def number(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return copies[value]
        if not isinstance(value, Computed):
            return value
        expression = value.value.node.expr
        if expression not in known:
            known[expression] = _expression_nodes(expression, inputs, graph)
        return known[expression]

    for node in module.graph.nodes:
        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), number)
        if node.op == "output" and forward:
            args = ((*args[0], *(_require(inputs, s) for s in symbols.names if s in symbols.computed)),)
        copies[node] = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        copies[node].meta = node.meta.copy()
        made[copies[node]] = node
        for one in node.meta.get(DATA_NUMBERS, ()):
            if one.symbol is None or one.symbol in own - inputs.keys():
                _define(graph, copies[node], one, inputs)
        for test in [test for test in tests if test.free_symbols <= inputs.keys()]:
            tests.remove(test)
            _write_assertion(graph, _expression_nodes(test, inputs, graph))
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta and node not in made:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            checks = node.target is torch.ops.aten._assert_scalar.default
            node.meta["val"] = None if checks else node.target(*args, **kwargs)
    if forward and symbols.computed:
        _forget_hints(graph, symbols)
    result = fx_graphs.LazyGraphModule(module, graph, type(module).__name__)
    result.meta.update(module.meta)
    return GraphWithSymbolInputs(result, taken)


def has_data_numbers(graph: fx.Graph) -> bool:
    """Whether a graph computes numbers from values."""
    return any(DATA_NUMBERS in node.meta for node in graph.nodes)


def _defined_symbols(graph: fx.Graph, symbols: SymbolicSizes, forward: bool) -> set[Any]:
    """The symbols of numbers that a graph computes; in a backward without those that the forward gives it."""
    found = {one.symbol for node in graph.nodes for one in node.meta.get(DATA_NUMBERS, ())} - {None}
    return found if forward else found - symbols.names.keys()


def _sizes_of(value: Any) -> list[Any]:
    """The sizes, strides and offsets with symbols in a node's result."""
    if isinstance(value, (tuple, list)):
        return [size for one in value for size in _sizes_of(one)]
    return [n for n in numbers_of(value) if has_symbols(n)]


def _require(inputs: Mapping[Any, fx.Node], symbol: Any) -> fx.Node:
    if symbol not in inputs:
        raise DataDependentValue(
            "a size that depends on values is needed where nothing computes it any more (by a backward, or "
            "since a partitioner has dropped it); compute it outside, or pass it as an argument"
        )
    return inputs[symbol]


def _expression_nodes(expression: Any, inputs: Mapping[Any, fx.Node], graph: fx.Graph) -> Any:
    for symbol in expression.free_symbols:
        _require(inputs, symbol)
    try:
        return symbolic_shapes.symbol_nodes(expression, inputs, graph)
    except Exception as error:  # the expression has a function of plain numbers, Python's or another
        raise DataDependentValue(
            f"a graph cannot compute {expression}, which follows from a tensor's value ({error}); compute "
            f"with tensors, or outside"
        ) from error


def _define(graph: fx.Graph, node: fx.Node, one: DataNumber, inputs: dict[Any, fx.Node]) -> None:
    """Append the nodes that give a number of a node's result, and the assertion that always holds of it."""
    if one.path:
        *item, dimension = one.path
        result = graph.call_function(operator.getitem, (node, item[0])) if item else node
        if item:
            result.meta["val"] = node.meta["val"][item[0]]
        node = graph.call_function(torch.ops.aten.sym_size.int, (result, dimension))
        node.meta["val"] = one.value
    if one.symbol is None:
        _write_assertion(graph, graph.call_function(operator.eq, (node, one.value)))
        return
    inputs[one.symbol] = node
    if one.path:
        _write_assertion(graph, graph.call_function(operator.ge, (node, 2)))


def _write_assertion(graph: fx.Graph, condition: Any) -> None:
    if isinstance(condition, fx.Node):
        graph.call_function(torch.ops.aten._assert_scalar.default, (condition, OTHER_NUMBERS))


def _forget_hints(graph: fx.Graph, symbols: SymbolicSizes) -> None:
    """Replace the symbols of computed numbers by unbacked ones, and record where each is bound."""

    def unbacked(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(unbacked, value))
        if not isinstance(value, Tensor):
            return symbolic_shapes.replaced_by_unbacked(
                symbols.env, value, symbols.computed, symbols.unbacked
            )
        numbers = value.untyped_storage().nbytes(), tuple(value.shape), value.stride(), value.storage_offset()
        if not has_symbols(numbers):
            return value
        nbytes, size, stride, offset = map(unbacked, numbers)
        return torch_fakes.fake_tensor(symbols.mode, nbytes, size, stride, offset, value.dtype, value.device)

    for node in graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = unbacked(node.meta["val"])
        bindings = {
            symbols.unbacked[one.symbol].node.expr: symbolic_shapes.binding_keys(one.path)
            for one in node.meta.get(DATA_NUMBERS, ())
            if one.symbol in symbols.unbacked
        }
        if bindings:
            node.meta["unbacked_bindings"] = bindings
