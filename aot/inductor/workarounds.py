"""What of a graph Inductor would compute wrongly: where that shows, and what keeps it from doing so."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from aot.ops.classify import is_written
from aot.tensors.symbolic_sizes import with_hints
from aot.torch_internals import higher_order_ops, inductor_api, op_queries

# What counts offsets from the beginning of a storage, or shows bytes as another dtype.
_BY_MEMORY = {
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_scatter.default,
    torch.ops.aten.view.dtype,
}

# What is computed as a write to views of a copy.
SCATTERS = {
    torch.ops.aten.as_strided_scatter.default,
    torch.ops.aten.diagonal_scatter.default,
    torch.ops.aten.select_scatter.default,
    torch.ops.aten.slice_scatter.default,
}
# What may be computed as a write to an argument that is not read any more.
_MAY_WRITE = SCATTERS | {
    op
    for packet in (
        torch.ops.aten.index_put,
        torch.ops.aten.scatter,
        torch.ops.aten.scatter_add,
        torch.ops.aten.scatter_reduce,
    )
    for op in op_queries.overloads(packet)
}
# What is so computed even where another argument is a part of that one, and read meanwhile.
_INDEXED = {
    op
    for packet in (torch.ops.aten.index_put, torch.ops.aten._unsafe_index_put)
    for op in op_queries.overloads(packet)
}
# Views that ATen makes, of which Inductor takes it that they are aligned.
_RETYPED = {torch.ops.aten.view.dtype, torch.ops.aten.view_as_complex.default}


# A sum with one of these becomes one operation, which knows no `alpha` of the sum.
_PRODUCTS = {torch.ops.aten.mm.default}


def multiply_alpha_first(graph: fx.Graph) -> None:
    """Multiply with the `alpha` of a sum before it, where one operand is a matrix product: Inductor makes
    ``addmm`` of such a sum, and drops its `alpha`."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
        alpha, (first, second) = node.kwargs.get("alpha", 1), node.args
        products = [one for one in (first, second) if isinstance(one, fx.Node) and one.target in _PRODUCTS]
        if alpha == 1 or not products or not isinstance(second, fx.Node):
            continue
        dtype = node.meta["val"].dtype
        with graph.inserting_before(node):
            if second.meta["val"].dtype is not dtype:
                second = _called(graph, torch.ops.prims.convert_element_type.default, second, dtype)
            second = _called(graph, torch.ops.aten.mul.Tensor, second, alpha)
        node.args, node.kwargs = (first, second), {}


def _called(graph: fx.Graph, operation: Any, tensor: fx.Node, other: Any) -> fx.Node:
    node = graph.call_function(operation, (tensor, other))
    node.meta["val"] = operation(tensor.meta["val"], other)
    return node


def insert_copies(graph: fx.Graph) -> bool:
    """Copy what Inductor must not compute in one place with something else; returns whether anything is.
    Inductor's pattern matcher would take the copies away.

    * A tensor that is written to twice, and read between: it would be read where elements are written
      already, as Inductor looks for reads under the tensor's first name only.
    * A part of what `cat` returns, shown as another dtype: that part need not be aligned.
    * A tensor that elements of itself are put into: they would be read where others are put already. So are
      those of a copy of it, which is taken away before.
    * What a custom operator writes to, and something else reads: Inductor computes what reads it anew
      wherever that is needed, after the write too.
    """
    origins = _copy_origins(graph)
    kept = [
        node
        for node in graph.nodes
        if _is_written_twice_by_inductor(node) or _is_part_of_cat(node) or _is_put_into_itself(node, origins)
    ]
    for node in kept:
        with graph.inserting_before(node):
            node.update_arg(0, _view_of_copy(node.args[0]))
    custom = [node for node in graph.nodes if node.target is higher_order_ops.AUTO_FUNCTIONALIZED]
    return bool([node for node in custom if _have_operator_write_to_copies(node)] or kept)


def _have_operator_write_to_copies(node: fx.Node) -> bool:
    """Have a custom operator write to copies of what others read, too; returns whether there are any."""
    (op,) = node.args
    read: set[fx.Node] = set()

    def copied(given: fx.Node) -> fx.Node:
        memory = _memory(given)
        last = (torch.ops.aten.copy_.default, memory)  # which does not read it
        if all(user is node or (user.target, user.args[0]) == last for user in _readers(memory)):
            return given
        read.add(given)
        return _view_of_copy(given)

    assert isinstance(op, op_queries.OpOverload)
    with node.graph.inserting_before(node):
        for argument in op._schema.arguments:
            if is_written(argument) and argument.name in node.kwargs:
                node.update_kwarg(argument.name, fx.node.map_arg(node.kwargs[argument.name], copied))
    return bool(read)


def _view_of_copy(node: Any) -> fx.Node:
    """The same view of a copy, which as_strided sees the memory of."""
    assert isinstance(node, fx.Node)
    if _is_view(node):
        return node.graph.node_copy(
            node, lambda given: _view_of_copy(given) if given is node.args[0] else given
        )
    copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta["val"] = node.meta["val"].clone()
    return copy


def _is_written_twice_by_inductor(node: fx.Node) -> bool:
    """Whether it writes to what another operation may write to as well, while something else reads that."""
    if node.target not in _MAY_WRITE:
        return False
    written = _memory(node.args[0])
    if written.op == "placeholder":  # which `copy_` writes to at the end
        return any(
            user.target is torch.ops.aten.copy_.default and user.args[1] is not node for user in written.users
        )
    by_custom = written.target is operator.getitem  # (Of its results no other operation writes to one.)
    return (written.target in _MAY_WRITE or by_custom) and any(user is not node for user in _readers(written))


def _is_part_of_cat(node: fx.Node) -> bool:
    if node.target not in _RETYPED:
        return False
    return any(user.target is torch.ops.aten.cat.default for user in _readers(_memory(node.args[0])))


def _is_put_into_itself(node: fx.Node, origins: Mapping[fx.Node, set[fx.Node]]) -> bool:
    if node.target not in _INDEXED:
        return False
    read: list[fx.Node] = []
    fx.node.map_arg((node.args[1:], node.kwargs), read.append)
    assert isinstance(node.args[0], fx.Node)
    return any(origins[node.args[0]] & origins[one] for one in read)


def _copy_origins(graph: fx.Graph) -> dict[fx.Node, set[fx.Node]]:
    """Of each node itself, and all that it is a view of, or a copy that Inductor may take away."""
    origins: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        origins[node] = {node}
        if _is_view(node) or _may_be_a_copy(node):
            origins[node].update(*(origins[source] for source in node.all_input_nodes))
    return origins


def _memory(node: Any) -> fx.Node:
    """What this is a view of."""
    assert isinstance(node, fx.Node)
    return _memory(node.args[0]) if _is_view(node) else node


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads this, or a view of it."""
    for user in node.users:
        if _is_view(user):
            yield from _readers(user)
        else:
            yield user


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, op_queries.OpOverload) and node.target.is_view


def writes_within(graph: fx.Graph) -> bool:
    """Whether something else than an input is written to."""
    written: list[fx.Node] = []
    for node in graph.nodes:
        if isinstance(node.target, op_queries.OpOverload) and node.target._schema.is_mutable:
            for i, argument in enumerate(node.target._schema.arguments):
                if is_written(argument):
                    given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
                    fx.node.map_arg(given, written.append)
    return any(node.op != "placeholder" for node in written)


def does_layout_matter_to_inductor(graph: fx.Graph) -> bool:
    """Whether it matters where elements lie, and not only which they are: Inductor's pattern matcher takes
    copies away, and does not see that

    * an offset is counted from the beginning of a storage, or bytes are shown as another dtype;
    * inputs are written to, of which something is a copy, or to which one is written (pytorch issue 198131);
    * two results are copies of one value, and would be the same tensor.
    """
    if any(node.target in _BY_MEMORY for node in graph.nodes):
        return True
    copies = [node for node in graph.nodes if _may_be_a_copy(node)]
    if copies and graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        return True
    origins = _copy_origins(graph)
    (output,) = graph.find_nodes(op="output")
    inputs = set(graph.find_nodes(op="placeholder"))
    seen: set[fx.Node] = set()
    for result in set(copies).intersection(output.all_input_nodes):
        shown = origins[result] - inputs  # (Copies of inputs it leaves.)
        if seen & shown:
            return True
        seen |= shown
    return False


def _may_be_a_copy(node: fx.Node) -> bool:
    """Whether Inductor may take a result for one of the arguments that it is no view of."""
    if node.target not in inductor_api.copy_ops():
        return False
    own = _kind(node)
    return any(_kind(source) == own for source in node.all_input_nodes)


def _kind(node: fx.Node) -> Any:
    known = node.meta["val"]
    return (with_hints(tuple(known.shape)), known.dtype, known.device)
