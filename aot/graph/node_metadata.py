"""Node metadata: the entries of ``node.meta`` that torch's tools read, made when somebody looks at a graph.

In: a graph whose nodes have an `Origin`. Out: the same graph, with the entries of AOTAutograd's graphs:

* All nodes have ``tensor_meta``, ``seq_nr`` and ``original_aten``. They have ``partitioner_tag`` unless the
graph
  is for inference, and ``unbacked_bindings`` if sizes depend on data.
* Entries from a front end's own nodes are ``stack_trace``, ``nn_module_stack``, ``source_fn_stack``,
``from_node``
  and ``custom``. In its checkpoints there are also ``recompute`` and ``ac_graph_id``.
* Nodes of a backward have ``autograd_backward``, ``fwd_nn_module_stack`` and ``fwd_source_fn_stack``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.shape_prop import TensorMetadata
from torch.fx.traceback import NodeSource, NodeSourceAction
from torch.utils.checkpoint import CheckpointPolicy

from aot.graph.node_origins import KEY, Origin, front_end_node
from aot.tensors.symbolic_sizes import has_symbols, with_hints
from aot.torch_internals import op_queries, symbolic_shapes

_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
# Entries of a front end's node that also hold for all nodes that are recorded for it.
_SAID = ("stack_trace", "nn_module_stack", "source_fn_stack", "custom")
_PASS = "aotfuzz"


def complete_node_metadata(module: fx.GraphModule) -> None:
    """Set the metadata of all nodes of a graph, and of the graphs that it calls."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            _complete_graph(part.graph)


def _complete_graph(graph: fx.Graph) -> None:
    joint = any("partitioner_tag" in node.meta for node in graph.nodes)
    bound: set[Any] = set()
    for node in graph.nodes:
        meta = node.meta
        value = meta.get("val")
        if isinstance(value, Tensor) and "tensor_meta" not in meta:
            meta["tensor_meta"] = _tensor_metadata(value)
        bindings = symbolic_shapes.unbacked_bindings(value, bound) if has_symbols(_sizes(value)) else None
        if bindings:
            meta["unbacked_bindings"] = bindings
            bound.update(bindings)
        if joint and node.op in ("placeholder", "call_function"):
            tangent = node.op == "placeholder" and node.name.startswith("tangents_")
            meta.setdefault("partitioner_tag", "is_backward" if tangent else "is_forward")
        origin = meta.pop(KEY, None)
        if origin is not None:
            _add_origin(node, origin)
        elif isinstance(node.target, op_queries.OpOverload):
            meta.setdefault("original_aten", node.target)
        if node.op == "output" and joint:
            results = node.args[0] if isinstance(node.args[0], (tuple, list)) else node.args
            meta["output_stack_traces"] = [
                one.meta.get("stack_trace") if isinstance(one, fx.Node) else None for one in results
            ]


def _add_origin(node: fx.Node, origin: Origin) -> None:
    meta = node.meta
    if origin.operator is not None:
        meta.setdefault("original_aten", origin.operator)
    meta.update(origin.notes)
    meta.setdefault("seq_nr", origin.sequence)
    source = front_end_node(origin.graph, origin.at)
    if origin.backward:
        meta["autograd_backward"] = True
    if not origin.backward or source is not None:
        _add_source(meta, origin, source)
        return
    forward = origin.forward
    behind: dict[str, Any] = {}
    if forward is not None:
        differentiated = front_end_node(forward.graph, forward.at)
        behind = {**forward.notes, **({} if differentiated is None else differentiated.meta)}
    meta.update({key: behind[key] for key in ("stack_trace", "custom") if key in behind})
    meta["fwd_nn_module_stack"] = behind.get("nn_module_stack")
    meta["fwd_source_fn_stack"] = behind.get("source_fn_stack")


def _add_source(meta: dict[str, Any], origin: Origin, source: fx.Node | None) -> None:
    if source is not None:
        meta.update({key: source.meta[key] for key in _SAID if source.meta.get(key)})
        meta["from_node"] = [NodeSource(source, _PASS, NodeSourceAction.CREATE)]
    if origin.graph is not None and origin.graph.checkpoint is not None:
        meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
        meta["ac_graph_id"] = origin.graph.checkpoint


def _sizes(value: Any) -> tuple[Any, ...]:
    """The sizes and strides of a value, or the number that it is, where symbols may be."""
    if isinstance(value, Tensor):
        return (*value.shape, *value.stride())
    if isinstance(value, (tuple, list)):
        return tuple(number for one in value for number in _sizes(one))
    return (value,) if isinstance(value, torch.SymInt) else ()


def _tensor_metadata(value: Tensor) -> TensorMetadata:
    """The `TensorMetadata` that `torch.fx.passes.shape_prop` would make of a tensor."""
    shape, stride = value.shape, value.stride()
    strided = value
    if has_symbols((*shape, *stride)):  # `is_contiguous` of symbols would add a guard
        strided = torch.empty_strided(*with_hints((tuple(shape), tuple(stride))), device="meta")
    formats = (one for one in _FORMATS if strided.is_contiguous(memory_format=one))
    return TensorMetadata(shape, value.dtype, value.requires_grad, stride, next(formats, None), False, {})
