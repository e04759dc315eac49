"""Effect tokens: the order of external effects as values of a graph.

In: an `fx.Graph`. Out: the same graph, changed. In a graph of this compiler, operations run in the order of
the nodes, so an operation with an external effect (`purity.node_has_external_effect`) needs no token.
Inductor orders operations only by what they read. For it each such operation takes a token and returns the
next one, by torch's operator ``with_effects``.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from aot.graph.purity import node_has_external_effect
from aot.torch_internals import higher_order_ops, op_queries, torch_fakes


def thread_tokens(graph: fx.Graph, *, lifted: bool) -> tuple[str, str] | None:
    """Chain the operations of a graph with external effects by tokens.

    Args:
        graph: the graph, which is changed. Its nodes have ``meta["val"]``. An operation that also writes to
            its arguments stays as it is, because ``with_effects`` does not take such an operation.
        lifted: make the first token the first input of the graph, and the last one its first output.
            Otherwise the graph makes the first token and drops the last one.

    Returns:
        The names of the first and the last token; None if there are no such operations.

    Example:
        >>> module = aot.aot_function(f, aot.nop).specializations[0].forward  # doctest: +SKIP
        >>> thread_tokens(module.graph, lifted=False); module.recompile()  # doctest: +SKIP
    """
    acts = [
        n for n in graph.nodes if isinstance(n.target, op_queries.OpOverload) and node_has_external_effect(n)
    ]
    if not acts:
        return None
    first = next(iter(graph.nodes))
    output = graph.output_node()
    if lifted:
        with graph.inserting_before(first):
            token = graph.placeholder("token")
    else:
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            token = graph.call_function(higher_order_ops.MAKE_TOKEN)
    val = _fake_token(graph)
    token.meta["val"] = val
    begin = token.name
    for node in acts:
        token = _with_token(graph, node, token, val)
    if lifted:
        output.args = ((token, *output.args[0]),)  # type: ignore[misc]
    else:
        with graph.inserting_before(output):
            graph.call_function(higher_order_ops.SINK_TOKENS, ([token],)).meta["val"] = None
    return begin, token.name


def _with_token(graph: fx.Graph, node: fx.Node, token: fx.Node, val: Any) -> fx.Node:
    """Replace a node by the same operation with a token, and return the token that it gives."""
    op: Any = node.target
    several = isinstance(node.meta["val"], tuple) and len(op._schema.returns) > 1
    results = node.meta["val"] if several else (node.meta["val"],)
    with graph.inserting_before(node):
        call = graph.call_function(higher_order_ops.WITH_EFFECTS, (token, op, *node.args), node.kwargs)
        call.meta = {**node.meta, "val": (val, *results)}
        after = graph.call_function(operator.getitem, (call, 0))
        after.meta["val"] = val
        if several:
            for user in list(node.users):
                user.args = (call, user.args[1] + 1)  # type: ignore[operator]
        elif node.users:
            result = graph.call_function(operator.getitem, (call, 1))
            result.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(result)
    graph.erase_node(node)
    return after


def _fake_token(graph: fx.Graph) -> Any:
    """A token as graph compilers get it: a fake tensor without elements."""
    known = (node.meta.get("val") for node in graph.nodes)
    mode = next((val.fake_mode for val in known if isinstance(val, torch_fakes.FakeTensor)), None)
    with mode or torch_fakes.FakeTensorMode():
        return torch.empty(0)
