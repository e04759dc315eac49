"""Graphs of `torch.fx`: how to append to one fast, and whether a module runs its graph alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import CodeType
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.node import map_arg

__all__ = [
    "LazyGraphModule",
    "append_node",
    "copy_node",
    "forward_code",
    "has_lazy_code",
    "is_graph_only",
    "recompile_eagerly",
]


def append_node(
    graph: torch.fx.Graph,
    op: str,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str | None = None,
) -> torch.fx.Node:
    """`graph.create_node`, in a third of its time: that looks through all arguments for what it warns of, and
    makes the same name of the same target again each time."""
    if graph.owning_module is not None:  # which may have asked to be told
        return graph.create_node(op, target, args, kwargs, name)
    space = graph._graph_namespace
    name = _unused_node_name(space, _target_name(target)) if name is None else space.create_name(name, None)
    node = torch.fx.Node(graph, name, op, target, args, kwargs)
    space.associate_name_with_obj(name, node)
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


def _unused_node_name(space: Any, wanted: str) -> str:
    """`space.create_name`, which takes a name apart to find by what others of the kind were counted."""
    names, counts = space._used_names, space._base_count
    if wanted in names and wanted in counts:
        name = f"{wanted}_{counts[wanted] + 1}"
        if name not in names:
            names.add(name)
            counts[wanted] += 1
            return name
    made: str = space.create_name(wanted, None)
    return made


def copy_node(graph: torch.fx.Graph, node: torch.fx.Node, copies: Mapping[Any, Any]) -> torch.fx.Node:
    """`graph.node_copy`, where `copies` has what stands for each node that it is given."""
    args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
    copy = append_node(graph, node.op, node.target, args, kwargs, node.name)
    if node.type is not None:
        copy.type = node.type
    copy.meta.update(node.meta)
    return copy


_target_name = functools.lru_cache(maxsize=1024)(torch.fx.Graph()._target_to_str)


def forward_code(module: GraphModule) -> CodeType:
    """The code that a call of a module runs, which is made now if it was not."""
    LazyGraphModule.force_recompile(module)
    code: CodeType = module.forward.__code__
    return code


def recompile_eagerly(module: GraphModule) -> None:
    """Make the Python of a graph now, and from now on whenever it is changed, as in a plain `GraphModule`:
    `torch.jit.script` reads the code of its class."""
    LazyGraphModule.force_recompile(module)
    kind = type(module)
    if kind.__bases__ == (LazyGraphModule,):  # a class of this module's own
        kind.__bases__ = (GraphModule,)


def is_graph_only(module: GraphModule) -> bool:
    """Whether a call of the module runs its graph as it is now, in order, and nothing else."""
    kind, codegen = type(module).__mro__[1], type(module.graph._codegen)
    if kind not in (GraphModule, LazyGraphModule) or codegen is not torch.fx.graph.CodeGen:
        return False
    if has_lazy_code(module):
        return True
    return bool(module.code == module.graph.python_code("self").src)


def has_lazy_code(module: GraphModule) -> bool:
    """Whether the Python of a plain module's graph is not made until somebody asks for it."""
    lazy = isinstance(module, LazyGraphModule) and module._needs_recompile()
    return lazy and type(module.graph._codegen) is torch.fx.graph.CodeGen
