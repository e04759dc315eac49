"""Graph builder: the graph under construction, with the metadata of every value in it.

In: operations with nodes and constants as arguments. Out: nodes of an `fx.Graph`.
Invariant: `meta["val"]` is set when the trace is over (`annotate`), never while it runs.
"""

from __future__ import annotations

import keyword
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx

from aot import config
from aot.graph.node_origins import NodeOrigins
from aot.graph.shape_inference import ShapeInference
from aot.graph.value_meta import Number, ResultMeta, meta_of
from aot.ops.call_targets import call_by_name
from aot.tensors.symbolic_sizes import as_arguments
from aot.torch_internals import fx_graphs, mode_stacks, op_queries, torch_fakes


class GraphBuilder(ShapeInference):
    """Append pure calls to a graph, and know the metadata of every value in it.

    Attributes:
        graph: the graph. `placeholder` adds its inputs.
        root: the module that holds the graph's constants and inner graphs.
        default_dtype: the default dtype of the call, under which the graph runs.
        backward: nodes that are appended now belong to the backward.
        origins: where nodes come from.
    """

    def __init__(self, mode: torch_fakes.FakeTensorMode) -> None:
        super().__init__(mode)
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.backward = False
        self.default_dtype = torch.get_default_dtype()
        self._constants = 0
        self.origins = NodeOrigins(config.settings().stack_traces)

    def placeholder(self, name: str, meta: int, offset: int = 0) -> fx.Node:
        """Add a graph input. `offset` is its storage offset in elements."""
        node = self.graph.placeholder(name)
        self.metas[node] = meta
        self.offsets[node] = offset
        return node

    def constant(self, value: Tensor) -> fx.Node:
        """Add a copy of a tensor literal of the function as a constant."""
        name = f"_tensor_constant{self._constants}"
        self._constants += 1
        with mode_stacks.dispatch_modes_off():
            setattr(self.root, name, value.detach().clone())
        node = self.graph.get_attr(name)
        self.metas[node] = meta_of(value)
        return node

    def module(self, name: str, module: fx.GraphModule) -> fx.Node:
        """Add the graph of a function that an operator takes, such as a branch of `cond`."""
        name = f"{name}_{self._constants}"
        self._constants += 1
        self.root.add_module(name, module)
        return self.graph.get_attr(name)

    def call(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], metas: ResultMeta) -> fx.Node:
        """Append ``op(*args, **kwargs)``, whose result has the given metadata."""
        if isinstance(op, op_queries.OpOverload) and keyword.iskeyword(op._overloadname):
            op, args = call_by_name, (f"{op._opname}.{op._overloadname}", *args)
        if self.symbolic:
            args, kwargs = as_arguments(args), as_arguments(kwargs)
        node = fx_graphs.append_node(self.graph, "call_function", op, args, kwargs)
        self.metas[node] = metas.metas if metas.many else metas.metas[0]
        self._tag_for_partitioner(node)
        return node

    def item(self, node: fx.Node, index: int) -> fx.Node:
        """Append the `index`-th result of an operation that returns several."""
        metas = self.metas[node]
        assert isinstance(metas, tuple)
        result = fx_graphs.append_node(self.graph, "call_function", operator.getitem, (node, index), {})
        self.metas[result] = metas[index]
        self._tag_for_partitioner(result)
        return result

    def emit(self, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Append a call whose metadata is inferred."""
        return self.call(op, args, kwargs, self.infer(op, args, kwargs))

    def _tag_for_partitioner(self, node: fx.Node) -> None:
        """Mark a node of the backward for partitioners, with AOTAutograd's tags."""
        again = self.backward and torch.is_grad_enabled()
        if self.backward:
            # Autograd's formulas run without grad mode. With it, a checkpoint runs the user's code again.
            node.meta["partitioner_tag"] = "must_be_in_backward" if again else "is_backward"
        self.origins.note(node, self.backward, again)

    def annotate(self, nodes: Iterable[fx.Node]) -> None:
        """Set the `meta["val"]` of nodes, which graph compilers read: fake tensors outside autograd."""
        for node in nodes:
            meta = self.metas.get(node)
            if isinstance(meta, int):
                node.meta["val"] = self.fake(node)
            elif meta is not None:
                node.meta["val"] = self._value(meta)

    def _value(self, meta: Any) -> Any:
        if isinstance(meta, tuple):
            return tuple(map(self._value, meta))
        if isinstance(meta, Number):
            return meta.value
        return None if meta is None else self._fake(meta, 0)
