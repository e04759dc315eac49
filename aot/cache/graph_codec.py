"""Graph codec: graphs of operations as plain data, and back.

In: a `GraphModule` of a trace, whose nodes have the metadata of their values. Out: data; and the same graph
again, with fake tensors of its own. A node of a stored graph does one of three things:

- It calls an operator of `operator_table`, directly or by a function of this compiler, with arguments that
  the operator's schema accepts.
- It takes one of several results by its number.
- It copies a value into an input.

Names are identifiers. Constants are small tensors, as bytes.
"""

from __future__ import annotations

import base64
import json
import keyword
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot.backends.compilers import defer_fake_values
from aot.cache import operator_table as table
from aot.cache.codec import (
    LARGEST,
    Corrupt,
    Data,
    Decoder,
    Encoder,
    Uncacheable,
    decode,
    encode,
    entry,
    parts,
    require_int,
    require_type,
    text_of,
)
from aot.cache.operator_table import Names
from aot.graph import node_origins
from aot.graph.symint_inputs import DATA_NUMBERS
from aot.ops.call_targets import call_by_name, call_with_grad
from aot.ops.classify import call_on_clones
from aot.tensors.geometry import Geometry
from aot.torch_internals import fx_graphs, mode_stacks, op_queries, torch_fakes

LARGEST_CONSTANT = 1 << 16  # bytes; a larger constant is no literal of a program
_TAGS = ("is_forward", "is_backward", "must_be_in_backward")
_TITLES = ("Joint", "Forward", "Backward")
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]{0,500}")
_CONSTANT = re.compile("_tensor_constant[0-9]{1,9}")
_OWN: Mapping[str, Any] = {
    "getitem": operator.getitem,
    **{f.__name__: f for f in (call_by_name, call_with_grad, call_on_clones)},
}
_COPY = torch.ops.aten.copy_.default
_NOTES: Mapping[str, Any] = {"partitioner_tag": str, "segment": int, "may_raise": bool, "static": bool}


class _Nodes(Encoder):
    def __init__(self, operators: Names) -> None:
        super().__init__(operators)
        self.numbers: dict[fx.Node, int] = {}

    def encode_object(self, value: Any) -> Data:
        if isinstance(value, fx.Node):
            return ["node", self.numbers[value]]
        if isinstance(value, op_queries.OpOverload):
            return ["op", *self.operator(value)]
        return super().encode_object(value)

    def target(self, value: Any) -> Data:
        """The target of a node as data."""
        own = getattr(value, "__name__", "")
        if _OWN.get(own) is value:
            return own
        if not isinstance(value, op_queries.OpOverload):
            raise Uncacheable("an operator that takes functions", value)
        return self.operator(value)


class _Made(Decoder):
    def __init__(self, operators: Names) -> None:
        super().__init__(operators)
        self.nodes: list[fx.Node] = []

    def decode_object(self, tag: str, rest: list[Data]) -> Any:
        if tag == "node" and len(rest) == 1:
            return entry(self.nodes, rest[0])
        if tag == "op":
            return self.operator(rest)
        return super().decode_object(tag, rest)

    def target(self, data: Data) -> Any:
        """The inverse of `_Nodes.target`."""
        if type(data) is str:
            if data not in _OWN:
                raise Corrupt(f"nothing to call: {data:.80}")
            return _OWN[data]
        return self.operator(data)


class _Table:
    """A table of values, in which equal ones have one number and are stored once."""

    def __init__(self) -> None:
        self.data: list[Data] = []
        self._numbers: dict[str, int] = {}

    def number(self, data: Data) -> int:
        """The number of a value, which is added if it is new."""
        number = self._numbers.setdefault(json.dumps(data), len(self.data))
        if number == len(self.data):
            self.data.append(data)
        return number


def _may_graph_call(node: fx.Node, operators: Names) -> bool:
    """Whether a stored graph may have this call."""
    target: Any = node.target
    if target is operator.getitem:
        return not node.kwargs and len(node.args) == 2 and _has_result(*node.args)
    if target is _COPY:  # the plan says which inputs it may write to (`validation`)
        written = node.args[0] if len(node.args) == 2 and not node.kwargs else None
        return isinstance(written, fx.Node) and written.op == "placeholder" and not node.users
    return table.has_right_call(target, node.args, node.kwargs, operators)


def _has_result(node: Any, number: Any) -> bool:
    """Whether `node` is a call with several results, and `number` one of them."""
    if not isinstance(node, fx.Node) or type(number) is not int or number < 0:
        return False
    given = table.schema_results_of(node)
    return given.startswith("List[") if isinstance(given, str) else number < len(given)


def _fits(node: fx.Node, value: _Known) -> bool:
    """Whether a node may have this value, by the schema of its operator."""
    given = table.schema_results_of(node)
    if not isinstance(given, str) or given.startswith("List["):
        return isinstance(value, _Several)
    return isinstance(value, _Fake if given == "Tensor" else _Number) or value == _Number(None)


def encode_graph(module: fx.GraphModule, operators: Names) -> Data:
    """Turn a graph into data. `operators` has the custom operators that it may call.

    Raises:
        Uncacheable: the graph holds an object that must not be stored.
    """
    context = _Nodes(operators)
    targets, notes, values = _Table(), _Table(), _Table()
    nodes = []
    for node in module.graph.nodes:
        if node.op == "call_function":
            if not _may_graph_call(node, operators):
                raise Uncacheable("a call that an entry may not hold", node.format_node())
            target: Data = targets.number(context.target(node.target))
        elif node.op in ("placeholder", "get_attr", "output"):
            target = node.target
        else:
            raise Uncacheable("a graph that calls modules")
        if DATA_NUMBERS in node.meta:
            raise Uncacheable("sizes that depend on values")
        args = [context.constant(one) for one in node.args]
        kwargs = [[name, context.constant(one)] for name, one in node.kwargs.items()]
        value = values.number(_encode_node_value(context, node.meta["val"])) if "val" in node.meta else None
        nodes.append([node.op, node.name, target, args, kwargs, notes.number(_notes(node.meta)), value])
        context.numbers[node] = len(context.numbers)
    names = dict.fromkeys(node.target for node in module.graph.find_nodes(op="get_attr"))
    constants = [[name, _encode_graph_constant(getattr(module, str(name)))] for name in names]
    return [type(module).__name__, targets.data, notes.data, values.data, constants, nodes]


def decode_graph(
    data: Data, operators: Names, mode: Callable[[], torch_fakes.FakeTensorMode]
) -> fx.GraphModule:
    """The inverse of `encode_graph`. `mode` gives the mode of its fake tensors.

    Fake tensors are made only when somebody looks at them, because the first one in a process loads a good
    part of torch.

    Raises:
        Corrupt: the data is no such graph.
    """
    title, *tables, constants, nodes = parts(data, 6)
    context, graph, root = _Made(operators), fx.Graph(), torch.nn.Module()
    targets, notes, values = (require_type(table, list) for table in tables)
    targets = [context.target(one) for one in targets]
    notes = [_decode_node_notes(one) for one in notes]
    values = [_decode_node_value(context, one) for one in values]
    for one in require_type(constants, list):
        name, constant = parts(one, 2)
        root.register_buffer(_name(name, _CONSTANT), _decode_graph_constant(constant))
    known: dict[fx.Node, _Known] = {}
    for one in require_type(nodes, list):
        op, name, target, args, kwargs, note, value = parts(one, 7)
        if op == "call_function":
            target = entry(targets, target)
        elif op == "output":
            target = "output"
        elif op != ("get_attr" if text_of(target) in root._buffers else "placeholder"):
            raise Corrupt(f"no node: {op!r:.80}")
        given = tuple([context.constant(one) for one in require_type(args, list)])
        pairs = (parts(pair, 2) for pair in require_type(kwargs, list))
        named = {_name(key): context.constant(one) for key, one in pairs}
        if op == "placeholder" and target != name:
            raise Corrupt(f"an input of two names: {name!r:.80}")
        if op == "placeholder" and value is None:
            raise Corrupt(f"an input of which nothing is known: {name!r:.80}")
        node = graph.create_node(op, target, given, named, _name(name))
        if node.name != name:  # fx has changed it, so fx did not make this name
            raise Corrupt(f"no name for a node: {name!r:.80}")
        if op in ("placeholder", "get_attr") and (given or named):
            raise Corrupt(f"arguments of what calls nothing: {name!r:.80}")
        node.meta = dict(entry(notes, note))
        if value is not None:
            known[node] = entry(values, value)
        context.nodes.append(node)
    if [place for place, node in enumerate(context.nodes, 1) if node.op == "output"] != [len(context.nodes)]:
        raise Corrupt("no output at the end")
    if text_of(title) not in _TITLES:
        raise Corrupt(f"no graph: {title!r:.80}")
    for node in context.nodes:  # the users of each node are known only now
        if node.op == "call_function" and not _may_graph_call(node, operators):
            raise Corrupt(f"a call that no graph has: {node.name} = {node.target}")
        if node in known and node.op != "output" and not _fits(node, known[node]):
            raise Corrupt(f"another value than a call has: {node.name}")
    module = fx_graphs.LazyGraphModule(root, graph, title)
    defer_fake_values(module, lambda: {node: one.make(mode()) for node, one in known.items()})
    return module


def _name(data: Data, pattern: re.Pattern[str] = _NAME) -> str:
    """The value, if it is a name that may stand in generated code; else `Corrupt` is raised."""
    if not pattern.fullmatch(text_of(data)) or keyword.iskeyword(data):
        raise Corrupt(f"no name: {data!r:.80}")
    return str(data)


@dataclass(frozen=True, slots=True)
class _Fake:
    """The metadata of a tensor."""

    where: Geometry
    device: torch.device
    nbytes: int

    def make(self, mode: torch_fakes.FakeTensorMode) -> Any:
        size, stride, offset, dtype, *_ = self.where
        return torch_fakes.fake_tensor(mode, self.nbytes, size, stride, offset, dtype, self.device)


@dataclass(frozen=True, slots=True)
class _Several:
    """The metadata of several results."""

    parts: tuple[_Known, ...]

    def make(self, mode: torch_fakes.FakeTensorMode) -> Any:
        return tuple(part.make(mode) for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Number:
    """A result that is no tensor."""

    value: Any

    def make(self, mode: torch_fakes.FakeTensorMode) -> Any:
        return self.value


_Known = _Fake | _Several | _Number


# Keys of a node's `meta` that are not stored.
_NOT_KEPT = node_origins.COMPLETED | {"val", node_origins.KEY}


def _notes(meta: Mapping[str, Any]) -> Data:
    """The entries of a node's `meta` for partitioners and compilers, besides its value, as data."""
    if meta.keys() - _NOTES.keys() - _NOT_KEPT:
        raise Uncacheable("notes on nodes", ", ".join(map(str, meta)))
    context = Encoder()
    return [[name, encode(context, kind, meta[name])] for name, kind in _NOTES.items() if name in meta]


def _decode_node_notes(data: Data) -> dict[str, Any]:
    context, meta = Decoder(), {}
    for note in require_type(data, list):
        name, value = parts(note, 2)
        if text_of(name) not in _NOTES:
            raise Corrupt("unknown notes")
        meta[name] = decode(context, _NOTES[name], value)
    if meta.get("partitioner_tag", _TAGS[0]) not in _TAGS:
        raise Corrupt("an unknown tag")
    return meta


def _encode_node_value(context: Encoder, value: Any) -> Data:
    if isinstance(value, Tensor):
        where = Geometry(tuple(value.shape), value.stride(), _number(value.storage_offset()), value.dtype)
        nbytes = _number(value.untyped_storage().nbytes())
        return ["fake", encode(context, Geometry, where), context.constant(value.device), nbytes]
    if isinstance(value, tuple):
        return ["several", *(_encode_node_value(context, one) for one in value)]
    return ["number", context.constant(value)]


def _number(value: Any) -> int:
    if type(value) is not int:
        raise Uncacheable("sizes that are symbols")
    return value


def _decode_node_value(context: Decoder, data: Data) -> _Known:
    tag, *rest = require_type(data, list) or [None]
    if tag == "several":
        return _Several(tuple(_decode_node_value(context, one) for one in rest))
    if tag == "number" and len(rest) == 1:
        return _Number(context.constant(rest[0]))
    if tag != "fake" or len(rest) != 3:
        raise Corrupt("no value")
    where: Geometry = decode(context, Geometry, rest[0])
    device, nbytes = require_type(context.constant(rest[1]), torch.device), require_int(rest[2])
    if where.bytes[1] > nbytes or nbytes >= LARGEST:
        raise Corrupt("a value that ends behind its memory")
    return _Fake(where, device, nbytes)


def _encode_graph_constant(value: Any) -> Data:
    """A tensor literal of the function as data."""
    if not isinstance(value, Tensor) or value.numel() * value.itemsize > LARGEST_CONSTANT:
        raise Uncacheable("a large constant")
    if value.device.type != "cpu" or not value.is_contiguous() or value.is_conj() or value.is_neg():
        raise Uncacheable("a constant that lies oddly")
    with mode_stacks.dispatch_modes_off():
        raw = bytes(value.detach().reshape(-1).view(torch.uint8).tolist()) if value.numel() else b""
    return [str(value.dtype).removeprefix("torch."), list(value.shape), base64.b64encode(raw).decode()]


def _decode_graph_constant(data: Data) -> Tensor:
    name, size, text = parts(data, 3)
    dtype = require_type(vars(torch).get(text_of(name)), torch.dtype)
    shape = [require_int(n) for n in require_type(size, list)]
    raw = bytearray(base64.b64decode(text_of(text), validate=True))
    if len(raw) > LARGEST_CONSTANT or min(shape, default=1) < 0:
        raise Corrupt("no constant")
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).clone().view(dtype).view(shape)
