"""Graphs of operations as plain data, and back.

In: a `GraphModule` of a trace, whose nodes know the metadata of their values. Out: data; and the same graph
again, with fake tensors of its own. Names are identifiers, targets are operations that `torch.ops` has or our
own few functions, and constants are small tensors, as bytes.
"""

from __future__ import annotations

import base64
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from aot import torch_internals as internals
from aot.cache.data import (
    Corrupt,
    Data,
    Packing,
    Uncacheable,
    Unpacking,
    checked,
    entry,
    identifier,
    pack,
    parts,
    text_of,
    unpack,
)
from aot.compilers import put_off
from aot.geometry import Geometry

LARGEST_CONSTANT = 1 << 16  # bytes; a larger one is data, and not a literal of the program
_TAGS = ("is_forward", "is_backward", "must_be_in_backward")
_NOTES: Mapping[str, Any] = {"partitioner_tag": str, "segment": int, "may_raise": bool, "static": bool}


class _Nodes(Packing):
    def __init__(self, operators: frozenset[tuple[str, str]]) -> None:
        super().__init__(operators)
        self.numbers: dict[fx.Node, int] = {}

    def other(self, value: Any) -> Data:
        if isinstance(value, fx.Node):
            return ["node", self.numbers[value]]
        if value is operator.getitem:
            return ["getitem"]
        return super().other(value)


class _Made(Unpacking):
    def __init__(self, operators: frozenset[tuple[str, str]]) -> None:
        super().__init__(operators)
        self.nodes: list[fx.Node] = []

    def other(self, tag: str, rest: list[Data]) -> Any:
        if tag == "node" and len(rest) == 1:
            return entry(self.nodes, rest[0])
        if tag == "getitem" and not rest:
            return operator.getitem
        return super().other(tag, rest)


class _Table:
    """Values of which many are alike, each as data once."""

    def __init__(self) -> None:
        self.data: list[Data] = []
        self._numbers: dict[str, int] = {}

    def number(self, data: Data) -> int:
        """Which one it is."""
        number = self._numbers.setdefault(json.dumps(data), len(self.data))
        if number == len(self.data):
            self.data.append(data)
        return number


def pack_graph(module: fx.GraphModule, operators: frozenset[tuple[str, str]]) -> Data:
    """A graph as data; `operators` are the custom ones that it may call.

    Raises:
        Uncacheable: it holds what cannot be.
    """
    context = _Nodes(operators)
    targets, notes, values = _Table(), _Table(), _Table()
    nodes = []
    for node in module.graph.nodes:
        if node.op == "call_function":
            target: Data = targets.number(context.constant(node.target))
        elif node.op in ("placeholder", "get_attr", "output"):
            target = node.target
        else:
            raise Uncacheable("a graph that calls modules")
        args = [context.constant(one) for one in node.args]
        kwargs = [[name, context.constant(one)] for name, one in node.kwargs.items()]
        value = values.number(_value(context, node.meta["val"])) if "val" in node.meta else None
        nodes.append([node.op, node.name, target, args, kwargs, notes.number(_notes(node.meta)), value])
        context.numbers[node] = len(context.numbers)
    names = dict.fromkeys(node.target for node in module.graph.find_nodes(op="get_attr"))
    constants = [[name, _constant(getattr(module, str(name)))] for name in names]
    return [type(module).__name__, targets.data, notes.data, values.data, constants, nodes]


def unpack_graph(
    data: Data, operators: frozenset[tuple[str, str]], mode: Callable[[], internals.FakeTensorMode]
) -> fx.GraphModule:
    """The reverse of `pack_graph`; its fake tensors are of `mode`. They are made when somebody looks at them:
    to make the first in a process loads a good part of torch.

    Raises:
        Corrupt: it is no such graph.
    """
    title, *tables, constants, nodes = parts(data, 6)
    context, graph, root = _Made(operators), fx.Graph(), torch.nn.Module()
    targets, notes, values = (checked(table, list) for table in tables)
    targets = [context.constant(one) for one in targets]
    notes = [_read_notes(one) for one in notes]
    values = [_read_value(context, one) for one in values]
    for one in checked(constants, list):
        name, constant = parts(one, 2)
        root.register_buffer(identifier(name), _tensor(constant))
    known: dict[fx.Node, _Known] = {}
    for one in checked(nodes, list):
        op, name, target, args, kwargs, note, value = parts(one, 7)
        if op == "call_function":
            target = entry(targets, target)
            if not callable(target):
                raise Corrupt(f"nothing to call: {target!r:.80}")
        elif op == "output":
            target = "output"
        elif op == "placeholder" or (op == "get_attr" and target in root._buffers):
            identifier(target)
        else:
            raise Corrupt(f"no node: {op!r:.80}")
        given = tuple([context.constant(one) for one in checked(args, list)])
        pairs = (parts(pair, 2) for pair in checked(kwargs, list))
        named = {identifier(key): context.constant(one) for key, one in pairs}
        node = graph.create_node(op, target, given, named, identifier(name))
        if node.name != name:
            node.name = name
        node.meta = dict(entry(notes, note))
        if value is not None:
            known[node] = entry(values, value)
        context.nodes.append(node)
    if len({node.name for node in context.nodes}) != len(context.nodes):
        raise Corrupt("nodes of one name")
    if [place for place, node in enumerate(context.nodes, 1) if node.op == "output"] != [len(context.nodes)]:
        raise Corrupt("no output at the end")
    module = internals.LazyGraphModule(root, graph, identifier(title))
    put_off(module, lambda: {node: one.make(mode()) for node, one in known.items()})
    return module


@dataclass(frozen=True, slots=True)
class _Fake:
    """A tensor without data."""

    where: Geometry
    device: torch.device
    nbytes: int

    def make(self, mode: internals.FakeTensorMode) -> Any:
        size, stride, offset, dtype, *_ = self.where
        return internals.fake_tensor(mode, self.nbytes, size, stride, offset, dtype, self.device)


@dataclass(frozen=True, slots=True)
class _Several:
    """Several results."""

    parts: tuple[_Known, ...]

    def make(self, mode: internals.FakeTensorMode) -> Any:
        return tuple(part.make(mode) for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Number:
    """No tensor."""

    value: Any

    def make(self, mode: internals.FakeTensorMode) -> Any:
        return self.value


_Known = _Fake | _Several | _Number


def _notes(meta: Mapping[str, Any]) -> Data:
    """What is noted of a node for partitioners and compilers, besides its value."""
    if meta.keys() - _NOTES.keys() - {"val"}:
        raise Uncacheable("notes on nodes", ", ".join(map(str, meta)))
    context = Packing()
    return [[name, pack(context, kind, meta[name])] for name, kind in _NOTES.items() if name in meta]


def _read_notes(data: Data) -> dict[str, Any]:
    context, meta = Unpacking(), {}
    for note in checked(data, list):
        name, value = parts(note, 2)
        if text_of(name) not in _NOTES:
            raise Corrupt("unknown notes")
        meta[name] = unpack(context, _NOTES[name], value)
    if meta.get("partitioner_tag", _TAGS[0]) not in _TAGS:
        raise Corrupt("an unknown tag")
    return meta


def _value(context: Packing, value: Any) -> Data:
    if isinstance(value, Tensor):
        where = Geometry(tuple(value.shape), value.stride(), _number(value.storage_offset()), value.dtype)
        nbytes = _number(value.untyped_storage().nbytes())
        return ["fake", pack(context, Geometry, where), context.constant(value.device), nbytes]
    if isinstance(value, tuple):
        return ["several", *(_value(context, one) for one in value)]
    return ["number", context.constant(value)]


def _number(value: Any) -> int:
    if type(value) is not int:
        raise Uncacheable("sizes that are symbols")
    return value


def _read_value(context: Unpacking, data: Data) -> _Known:
    tag, *rest = checked(data, list) or [None]
    if tag == "several":
        return _Several(tuple(_read_value(context, one) for one in rest))
    if tag == "number" and len(rest) == 1:
        return _Number(context.constant(rest[0]))
    if tag != "fake" or len(rest) != 3:
        raise Corrupt("no value")
    where: Geometry = unpack(context, Geometry, rest[0])
    device, nbytes = checked(context.constant(rest[1]), torch.device), checked(rest[2], int)
    if len(where.size) != len(where.stride) or min((*where.size, *where.stride, where.offset)) < 0:
        raise Corrupt("no geometry")
    if where.stop * where.dtype.itemsize > nbytes or nbytes >= 1 << 62:
        raise Corrupt("a value that ends behind its memory")
    return _Fake(where, device, nbytes)


def _constant(value: Any) -> Data:
    """A literal of the function."""
    if not isinstance(value, Tensor) or value.numel() * value.itemsize > LARGEST_CONSTANT:
        raise Uncacheable("a large constant")
    if value.device.type != "cpu" or not value.is_contiguous() or value.is_conj() or value.is_neg():
        raise Uncacheable("a constant that lies oddly")
    with internals.modes_off():
        raw = bytes(value.detach().reshape(-1).view(torch.uint8).tolist()) if value.numel() else b""
    return [str(value.dtype).removeprefix("torch."), list(value.shape), base64.b64encode(raw).decode()]


def _tensor(data: Data) -> Tensor:
    name, size, text = parts(data, 3)
    dtype = checked(vars(torch).get(text_of(name)), torch.dtype)
    shape = [checked(n, int) for n in checked(size, list)]
    raw = bytearray(base64.b64decode(text_of(text), validate=True))
    if len(raw) > LARGEST_CONSTANT or min(shape, default=1) < 0:
        raise Corrupt("no constant")
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).clone().view(dtype).view(shape)
