"""Workarounds: find nodes of a graph that Inductor would compute wrongly, and change the graph around them.

In: the decomposed graph. Out: the same graph with copies, or the answer that the pattern matcher must be off.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from aot.ops.classify import is_written
from aot.tensors.symbolic_sizes import with_hints
from aot.torch_internals import higher_order_ops, inductor_api, op_queries

# Operations that count offsets from the beginning of a storage, or show bytes as another dtype.
_BY_MEMORY = {
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_scatter.default,
    torch.ops.aten.view.dtype,
}

# Operations that Inductor computes as a write to a view of a copy.
SCATTERS = {
    torch.ops.aten.as_strided_scatter.default,
    torch.ops.aten.diagonal_scatter.default,
    torch.ops.aten.select_scatter.default,
    torch.ops.aten.slice_scatter.default,
}
# Operations that Inductor may compute as a write to their argument, if that is not read afterwards.
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
# Operations that it computes so although another argument is a part of that one, and is read meanwhile.
_INDEXED = {
    op
    for packet in (torch.ops.aten.index_put, torch.ops.aten._unsafe_index_put)
    for op in op_queries.overloads(packet)
}
# Views that ATen makes, which Inductor takes to be aligned.
_RETYPED = {torch.ops.aten.view.dtype, torch.ops.aten.view_as_complex.default}


# A sum with one of these becomes one operation, which drops the `alpha` of the sum.
_PRODUCTS = {torch.ops.aten.mm.default}


def multiply_alpha_first(graph: fx.Graph) -> None:
    """Multiply by the `alpha` of a sum before the sum, if an operand is a matrix product.

    Inductor makes ``addmm`` of such a sum, and drops its `alpha`.
    """
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
    """Insert copies of tensors whose memory Inductor would reuse wrongly. Returns whether there are any.

    If there are, the pattern matcher must be off, because it would remove the copies. These tensors are
    copied:

    * A tensor that is written to twice, and read in between. Inductor would read it after the second write,
      because it looks for reads under the tensor's first name only.
    * A part of the result of `cat` that is shown as another dtype, because that part may not be aligned.
    * A tensor into which elements of itself are put. Inductor would read elements that are already
    overwritten.
      A copy in the graph does not help, because Inductor removes it before.
    * A tensor that a custom operator writes to and another node reads. Inductor computes the reading node
    again
      wherever it is needed, also after the write.
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
    """Let a custom operator write to copies of tensors that others read. Returns whether there are any."""
    (op,) = node.args
    read: set[fx.Node] = set()

    def copied(given: fx.Node) -> fx.Node:
        memory = _memory(given)
        last = (torch.ops.aten.copy_.default, memory)  # it overwrites the memory and does not read it
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
    """The same view of a copy of its base, so that `as_strided` has the same memory around it."""
    assert isinstance(node, fx.Node)
    if _is_view(node):
        return node.graph.node_copy(
            node, lambda given: _view_of_copy(given) if given is node.args[0] else given
        )
    copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta["val"] = node.meta["val"].clone()
    return copy


def _is_written_twice_by_inductor(node: fx.Node) -> bool:
    """Whether a node may write to memory that another node also writes to, and a third one reads."""
    if node.target not in _MAY_WRITE:
        return False
    written = _memory(node.args[0])
    if written.op == "placeholder":  # a `copy_` may write to it at the end
        return any(
            user.target is torch.ops.aten.copy_.default and user.args[1] is not node for user in written.users
        )
    by_custom = written.target is operator.getitem  # only results of custom operators are written to
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
    """For each node itself and its sources: bases of views, and sources of copies that may be removed."""
    origins: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        origins[node] = {node}
        if _is_view(node) or _may_be_a_copy(node):
            origins[node].update(*(origins[source] for source in node.all_input_nodes))
    return origins


def _memory(node: Any) -> fx.Node:
    """The base of a chain of views."""
    assert isinstance(node, fx.Node)
    return _memory(node.args[0]) if _is_view(node) else node


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that read a node or a view of it."""
    for user in node.users:
        if _is_view(user):
            yield from _readers(user)
        else:
            yield user


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, op_queries.OpOverload) and node.target.is_view


def writes_within(graph: fx.Graph) -> bool:
    """Whether a node writes to another node than an input."""
    written: list[fx.Node] = []
    for node in graph.nodes:
        if isinstance(node.target, op_queries.OpOverload) and node.target._schema.is_mutable:
            for i, argument in enumerate(node.target._schema.arguments):
                if is_written(argument):
                    given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
                    fx.node.map_arg(given, written.append)
    return any(node.op != "placeholder" for node in written)


def does_layout_matter_to_inductor(graph: fx.Graph) -> bool:
    """Whether a graph depends on the layout of tensors, so that the pattern matcher must be off.

    The pattern matcher removes copies. That is wrong in these cases:

    * An offset counts from the beginning of a storage, or bytes are shown as another dtype.
    * A copy is made of an input that is written to, or is written to it (pytorch issue 198131).
    * Two results are copies of one value, and would become the same tensor.
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
        shown = origins[result] - inputs  # the pattern matcher keeps copies of inputs
        if seen & shown:
            return True
        seen |= shown
    return False


def _may_be_a_copy(node: fx.Node) -> bool:
    """Whether a node may be a copy that Inductor replaces by its source."""
    if node.target not in inductor_api.copy_ops():
        return False
    own = _kind(node)
    return any(_kind(source) == own for source in node.all_input_nodes)


def _kind(node: fx.Node) -> Any:
    known = node.meta["val"]
    return (with_hints(tuple(known.shape)), known.dtype, known.device)
