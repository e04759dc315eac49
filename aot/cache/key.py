"""Cache key: a digest of everything that a compile depends on.

In: a front end's graph, the call that it is compiled for, and the options. Out: hexadecimal digits. Two
processes get equal digits only if their compiles would give the same result. Names of nodes and their origins
do not count. If something cannot be compared as data, the compile is not stored (`Uncacheable`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from aot import config
from aot.cache.codec import OURS, Data, Encoder, Uncacheable
from aot.cache.source_digest import (
    is_library_function,
    library_name_of,
    library_target_of,
    operator_digest,
    own_source,
    require_methods_of_torch,
)
from aot.capture.recorder.autocast_cache import Candidate
from aot.guards import function_modes
from aot.partition.default import default_partition
from aot.partition.min_cut import min_cut_rematerialization_partition
from aot.specialize.call import Arguments
from aot.tensors.geometry import Geometry
from aot.torch_internals import (
    ambient_state,
    autocast_state,
    fx_graphs,
    higher_order_ops,
    mode_stacks,
    module_hooks,
    op_queries,
    pytree,
)

Places = Sequence[tuple[dict[str, Any], str]]

_PARTITIONERS: Mapping[Any, str] = {
    default_partition: "default",
    min_cut_rematerialization_partition: "min-cut",
}
# Higher-order operators that take functions of the graph, and depend on nothing outside of it.
_HIGHER = frozenset(
    (
        *("cond", "switch", "while_loop", "map_impl", "scan", "associative_scan", "flex_attention"),
        "invoke_subgraph",
    )
)
_REGISTRIES = frozenset(("_parameters", "_buffers", "_modules"))
_HOOKS = tuple(name for name in vars(nn.Module()) if "_hooks" in name)
_UNREAD = frozenset((*_HOOKS, "_is_full_backward_hook", "_non_persistent_buffers_set"))


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a compile.

    Attributes:
        partition: the partitioner.
        decompositions: the decomposition table.
        keep_input_mutations: graphs without a backward write to their inputs themselves.
        functionalize_rng: random draws are functionalized.
        static: positions of tensors of the call that are parameters or buffers.
        inference: the call is made in inference mode, which is off when it is compiled.
        dynamic: some sizes of the call are symbols.
        candidates: arguments that are casts which autocast keeps.
    """

    partition: Callable[..., Any]
    decompositions: Mapping[Any, Any]
    keep_input_mutations: bool
    functionalize_rng: bool
    static: Collection[int]
    inference: bool
    dynamic: bool
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a compile.

    Attributes:
        digest: hexadecimal digits.
        operators: the custom operators that the graph calls, as (name, overload).
    """

    digest: str
    operators: frozenset[tuple[str, str]]


def cache_key(
    module: nn.Module, places: Places, arguments: Arguments, spec: pytree.TreeSpec, options: Options
) -> Key:
    """The key of a call of a front end's graph.

    Args:
        module: the graph module.
        places: (namespace, name) of each parameter and buffer. These are the first tensors of the call.
        arguments: the arguments of the call.
        spec: the tree of the arguments.
        options: the options of the compile.

    Raises:
        Uncacheable: the compile depends on something that is not in the key, such as a mode or a hook.
    """
    if options.dynamic:
        raise Uncacheable("sizes that are symbols")
    if options.functionalize_rng:
        raise Uncacheable("functionalized random draws")
    if config.settings().stack_traces:
        raise Uncacheable("stack traces")
    if arguments.metas:
        raise Uncacheable("a tensor subclass")
    if function_modes.has_modes_aside() or mode_stacks.is_any_mode_on():
        raise Uncacheable("a mode that is on")
    require_methods_of_torch()
    front = _GraphKey(places)
    parts = {
        "format": 1,
        "graph": front.module(module),
        "operators": sorted(front.sources.items()),
        "tree": tree_structure(spec),
        "arguments": _plain_call_key(arguments.key),
        "ambient": _plain_call_key(ambient_state.current_key()),
        "region of autocast": list(autocast_state.cast_cache_key()),
        "casts": [list(dataclasses.astuple(candidate)) for candidate in options.candidates],
        "static": sorted(options.static),
        "partitioner": _partitioner_key(options.partition),
        "decompositions": sorted([str(op), library_name_of(f)] for op, f in options.decompositions.items()),
        "keep": options.keep_input_mutations,
        "inference": options.inference,
        "torch": _plain_call_key(ambient_state.process_key({str(t.device) for t in arguments.tensors})),
        "aot": own_source(),
    }
    text = json.dumps(parts, sort_keys=True)
    return Key(hashlib.sha256(text.encode()).hexdigest(), frozenset(front.sources))


def tree_structure(spec: pytree.TreeSpec) -> Data:
    """A tree of tuples, lists and dicts as data, with numbers for its leaves.

    Raises:
        Uncacheable: the tree has containers of another type.
    """
    return _tree_key(pytree.tree_unflatten(range(spec.num_leaves), spec))


def _tree_key(tree: Any) -> Data:
    if type(tree) is int:
        return tree
    if type(tree) in (tuple, list):
        return [type(tree).__name__, *map(_tree_key, tree)]
    if type(tree) is dict and all(type(key) in (str, int) for key in tree):
        return ["dict", *([key, _tree_key(value)] for key, value in tree.items())]
    if tree is None:
        return None
    raise Uncacheable("containers of another type", type(tree).__qualname__)


def _plain_call_key(value: Any) -> Data:
    """A part of a key that holds in this process, as data."""
    if isinstance(value, type):
        if value not in (Tensor, nn.Parameter) and value.__module__ not in ("builtins", "torch"):
            raise Uncacheable("a type of the user's", value)
        return ["type", value.__module__, value.__qualname__]
    if isinstance(value, Geometry) or type(value) is tuple:
        return ["tuple", *map(_plain_call_key, value)]
    return Encoder().constant(value)


def _partitioner_key(partition: Any) -> Data:
    if type(partition) is functools.partial:
        if partition.args:
            raise Uncacheable("a partitioner of the user's")
        named = [[name, Encoder().constant(value)] for name, value in sorted(partition.keywords.items())]
        return [_partitioner_key(partition.func), named]
    for one, name in _PARTITIONERS.items():
        if partition is one:
            return name
    raise Uncacheable("a partitioner of the user's")


class _GraphKey(Encoder):
    """Encodes a front end's graph, and the modules that it calls.

    Attributes:
        sources: the digests of custom operators in the graph, by (name, overload).
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.sources: dict[tuple[str, str], Data] = {}
        self._places = {(id(owner), name): number for number, (owner, name) in enumerate(places)}
        self._numbers: dict[fx.Node, int] = {}

    def module(self, module: nn.Module) -> Data:
        """A graph, or a module of ``torch.nn``, as data."""
        if module_hooks.has_global_hooks() or any(getattr(module, name) for name in _HOOKS):
            raise Uncacheable("hooks on modules")
        if "forward" in vars(module):
            raise Uncacheable("a module of the user's")
        if isinstance(module, fx.GraphModule):
            return self._graph_key(module)
        if not type(module).__module__.startswith("torch.nn.") or not is_library_function(
            type(module).forward
        ):
            raise Uncacheable("a module of the user's", type(module).__qualname__)
        own = vars(module)
        held = [[name, self.constant(own[name])] for name in sorted(own.keys() - _REGISTRIES - _UNREAD)]
        places = [self._place(own[w], name) for w in ("_parameters", "_buffers") for name in own[w]]
        inner = module._modules.items()
        children = [[name, child and self.module(child)] for name, child in inner]
        return ["module", library_name_of(type(module)), held, places, children]

    def encode_object(self, value: Any) -> Data:
        if isinstance(value, fx.Node):
            return ["node", self._numbers[value]]
        if isinstance(value, op_queries.OpOverload):
            return self._operator(value)
        if isinstance(value, op_queries.OpOverloadPacket):
            return ["packet", [self._operator(one) for one in op_queries.overloads(value)]]
        if isinstance(value, higher_order_ops.HigherOrderOperator):
            if type(value).__module__.split(".")[0] != "torch" or value.__name__ not in _HIGHER:
                raise Uncacheable("an operator that takes functions", value)
            return ["higher", value.__name__]
        return ["function", library_target_of(value)]

    def _graph_key(self, module: fx.GraphModule) -> Data:
        if not fx_graphs.is_graph_only(module):
            raise Uncacheable("a graph module that runs something else than its graph")
        nodes = []
        for node in module.graph.nodes:
            if node.op == "call_function":
                target = self.constant(node.target)
            elif node.op == "get_attr":
                target = self._attribute_key(module, str(node.target))
            elif node.op == "call_module":
                target = self.module(module.get_submodule(str(node.target)))
            else:
                target = str(node.target) if node.op == "call_method" else None
            nodes.append([node.op, target, self.constant(tuple(node.args)), self.constant(dict(node.kwargs))])
            self._numbers[node] = len(self._numbers)
        return ["graph", nodes]

    def _operator(self, op: op_queries.OpOverload) -> Data:
        name, overload = op._schema.name, op._overloadname
        if op.namespace not in OURS and (name, overload) not in self.sources:
            self.sources[name, overload] = operator_digest(op)
        return ["op", name, overload]

    def _attribute_key(self, module: nn.Module, target: str) -> Data:
        *path, name = target.split(".")
        owner: Any = module
        for part in path:
            owner = getattr(owner, part)
        for which in (owner._parameters, owner._buffers):
            if name in which:
                return self._place(which, name)[-1]
        value = getattr(owner, name)
        if isinstance(value, fx.GraphModule):
            return self.module(value)
        raise Uncacheable("an attribute of another type", type(value).__qualname__)

    def _place(self, owner: dict[str, Any], name: str) -> Data:
        return ["state", name, self._places.get((id(owner), name))]
