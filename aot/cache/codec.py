"""Codec: the dataclasses of a compile as plain data, and back.

In: a value and its type hint. Out: lists, strings, numbers, booleans and None, as in JSON; and the value
again. Data that is read is a stranger's. So each field is parsed by its hint into a value of that type before
other code sees it. Classes are those that hints name, operators those of `operator_table`, words those of a
`Literal`. Any other text (a `str`) reaches generated code only as a literal.
Invariant: decoding calls no function of the data's choice.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import keyword
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aot import errors
from aot.analysis.effect_summary import WrapperRebound
from aot.cache.operator_table import (
    TENSOR,
    TORCHS,
    Names,
    accepts_arguments,
    changes_metadata,
    find_operator,
    is_view_step,
)
from aot.capture.memory.metadata_log import MetadataMutation
from aot.capture.memory.view_ops import ViewOp
from aot.runtime.saved_values import Saved, SaveStrategy
from aot.tensors.constants import CONSTANTS
from aot.tensors.geometry import Geometry
from aot.tensors.subclasses import SubclassCreationMeta, SubclassMeta
from aot.tensors.symbolic_sizes import NO_SIZES, SYMBOLIC, Computed, ShapeGuards
from aot.torch_internals import op_queries

Data = Any  # a value that JSON can represent


class Uncacheable(Exception):
    """A compile, or a part of it, must not be stored.

    Attributes:
        reason: a few words, the same for all cases of a kind, because statistics count them.
    """

    def __init__(self, reason: str, what: object = "") -> None:
        super().__init__(f"{reason}: {what}" if what else reason)
        self.reason = reason


class Corrupt(Exception):
    """Data that was read is nothing that this module writes."""


class Encoder:
    """The state while one value is turned into data.

    Args:
        operators: custom operators that the value may hold, as (name, overload).
    """

    def __init__(self, operators: Names = frozenset()) -> None:
        self.operators = operators
        self.steps: dict[
            int, int
        ] = {}  # numbers of steps by id, because the code generator compares identity
        self.calls: dict[int, int] = {}
        self.kept: list[object] = []  # keeps objects alive, so that no id is used twice

    def constant(self, value: Any) -> Data:
        """An argument of an operation, or another constant of a graph, as data.

        Raises:
            Uncacheable: it is of a type that is not stored.
        """
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return ["float", value.hex()]
        if kind is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind], *map(self.constant, value)]
        if kind is dict or kind in _IMMUTABLE:
            return self.immutable(value)
        if kind is slice:
            return ["slice", *map(self.constant, (value.start, value.stop, value.step))]
        if value is Ellipsis:
            return ["ellipsis"]
        if kind in _NAMED:
            return [_NAMED[kind], str(value).removeprefix("torch.")]
        if isinstance(value, (*SYMBOLIC, Computed)):
            raise Uncacheable("sizes that are symbols")
        return self.encode_object(value)

    def immutable(self, value: Any) -> Data:
        """The immutable lists and dicts of fx, as data."""
        if isinstance(value, dict):
            return ["dict", *([self.constant(k), self.constant(v)] for k, v in value.items())]
        return ["list", *map(self.constant, value)]

    def encode_object(self, value: Any) -> Data:
        """An object that only graphs hold, as data."""
        raise Uncacheable("a constant of another type", type(value))

    def operator(self, op: Any) -> Data:
        """An operator as the name of its schema and its overload."""
        name, overload = op._schema.name, op._overloadname
        if op.namespace not in OURS and (name, overload) not in self.operators:
            raise Uncacheable("an operator that is not torch's", op)
        return [name, overload]


class Decoder:
    """The state while one value is read.

    Args:
        operators: custom operators that may be called, as (name, overload).
    """

    def __init__(self, operators: Names = frozenset()) -> None:
        self.operators = operators
        self.steps: list[ViewOp] = []
        self.calls: dict[int, object] = {}

    def constant(self, data: Data) -> Any:
        """The inverse of `Encoder.constant`.

        Raises:
            Corrupt: there is no such value.
        """
        if type(data) is int:
            return require_int(data)
        if data is None or type(data) in (bool, str):
            return data
        if type(data) is not list or not data or type(data[0]) is not str:
            raise Corrupt(f"no constant: {data!r:.80}")
        tag, *rest = data
        if tag == "dict":
            pairs = (parts(pair, 2) for pair in rest)
            return {self.constant(key): self.constant(value) for key, value in pairs}
        if tag in ("float", "complex"):
            numbers = [float.fromhex(text_of(one)) for one in rest]
            return float(*numbers) if tag == "float" else complex(*numbers)
        if tag in _MADE:
            return _MADE[tag](map(self.constant, rest))
        if tag == "slice":
            return slice(*map(self.constant, rest))
        if tag == "ellipsis":
            return Ellipsis
        if tag == "device":
            return torch.device(text_of(*rest))
        if tag in _KINDS:
            value = vars(torch).get(text_of(*rest))
            return require_type(value, _KINDS[tag])
        return self.decode_object(tag, rest)

    def decode_object(self, tag: str, rest: list[Data]) -> Any:
        """The inverse of `Encoder.encode_object`."""
        raise Corrupt(f"no constant: {tag:.80}")

    def operator(self, data: Data) -> op_queries.OpOverload:
        """The inverse of `Encoder.operator`: torch's operator of that name."""
        name, overload = map(text_of, parts(data, 2))
        op = find_operator(name, overload, self.operators)
        if op is None:
            raise Corrupt(f"no operator that the graph may call: {name:.80}.{overload:.80}")
        return op


def text_of(value: Data) -> str:
    """The value, if it is a string; else `Corrupt` is raised."""
    return require_type(value, str)  # type: ignore[no-any-return]


def require_int(value: Data) -> int:
    """The value, if it is an int of 64 bits that torch takes; else `Corrupt` is raised."""
    if not -(1 << 63) <= require_type(value, int) < 1 << 63:
        raise Corrupt("a number of more than 64 bits")
    return int(value)


LARGEST = 1 << 62
"""More bytes than any memory has, and more elements."""


def parts(value: Data, count: int) -> list[Data]:
    """The value, if it is a list of `count` items; else `Corrupt` is raised."""
    if type(value) is not list or len(value) != count:
        raise Corrupt(f"{count} parts are expected: {value!r:.80}")
    return value


def entry(known: Sequence[Any], number: Data) -> Any:
    """The item with this number; `Corrupt` is raised if there is none."""
    if type(number) is not int or not 0 <= number < len(known):
        raise Corrupt(f"none of {len(known)}: {number!r:.80}")
    return known[number]


def require_type(value: Any, kind: type) -> Any:
    """The value, if it is exactly of this type, or an instance of a class that is not Python's own."""
    if type(value) is not kind:
        raise Corrupt(f"a {kind.__name__} is expected, and not {value!r:.80}")
    return value


def identifier(value: Data) -> str:
    """The value, if it is a name that may stand in generated code; else `Corrupt` is raised."""
    if not _is_identifier(text_of(value)):
        raise Corrupt(f"no name: {value!r:.80}")
    return str(value)


def _is_identifier(value: str) -> bool:
    return value.isascii() and value.isidentifier() and not keyword.iskeyword(value)


_SEQUENCES: dict[type, str] = {tuple: "tuple", list: "list", torch.Size: "size", set: "set"}
_MADE: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "list": list,
    "set": set,
    "size": lambda given: torch.Size([require_type(n, int) for n in given]),
}
_IMMUTABLE = (torch.fx.immutable_collections.immutable_list, torch.fx.immutable_collections.immutable_dict)
_KINDS: dict[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_NAMED: dict[type, str] = {kind: name for name, kind in (*_KINDS.items(), ("device", torch.device))}
OURS = TORCHS


def _takes_text(kind: type[Exception]) -> bool:
    """Whether an exception class can be called with a message only."""
    try:
        return str(kind("a message")) == "a message"
    except TypeError:
        return False


_EXCEPTIONS: dict[str, type[Exception]] = {
    name: value
    for space in (vars(builtins), vars(errors))
    for name, value in space.items()
    if isinstance(value, type) and issubclass(value, Exception) and _takes_text(value)
}
_RAW: dict[str, type] = {kind.__name__: kind for kind in (*CONSTANTS, Tensor, torch.nn.Parameter, torch.Size)}

Pack = Callable[[Encoder, Any], Data]
Unpack = Callable[[Decoder, Data], Any]


@functools.cache
def _codec(hint: Any) -> tuple[Pack, Unpack]:
    """The two functions that turn values of a type hint into data, and back."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return Encoder.constant, Decoder.constant
    if hint in (int, bool, str):
        return _exact_type_codec(hint)
    if origin is typing.Literal:
        return _word_codec(inner)
    if hint is op_queries.OpOverload:
        return Encoder.operator, Decoder.operator
    if hint == tuple[str, ...]:
        return _pack_no_path, _unpack_no_path
    if hint is object:
        return _pack_call, _unpack_call
    if hint == dict[str, Any]:
        return _pack_arguments, _unpack_arguments
    if hint is ShapeGuards:
        return _pack_sizes, lambda context, data: NO_SIZES
    if hint is type or origin is type:
        return _choice_codec(_RAW if hint is type else _EXCEPTIONS)
    if origin in (types.UnionType, typing.Union):  # `Union` in hints of words
        return _union_codec(inner)
    if origin is tuple and inner[-1] is Ellipsis:
        return _sequence_codec(inner[0], tuple)
    if origin is frozenset:
        return _sequence_codec(inner[0], frozenset)
    if origin is tuple:
        return _field_codecs(tuple(map(_codec, inner)), tuple, lambda value: value)
    if hint in (torch.dtype, torch.device):
        return Encoder.constant, lambda context, data: require_type(context.constant(data), hint)
    if hint in (SubclassCreationMeta, SubclassMeta, WrapperRebound):
        return _refusing_codec("a tensor subclass")
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return lambda context, value: value.name, lambda context, data: hint[text_of(data)]
    if hint is ViewOp:
        return _pack_view_step, _unpack_step
    if hint is Geometry:
        write, read = _record_codec(Geometry)
        return write, lambda context, data: _require_possible_geometry(read(context, data))
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return _record_codec(hint)
    raise TypeError(f"no data for {hint}")


def _require_possible_geometry(where: Geometry) -> Geometry:
    """The geometry, if a tensor can have it; else `Corrupt` is raised. An empty tensor has a limit too."""
    numbers = (*where.size, *where.stride, where.offset)
    if len(where.size) != len(where.stride) or not all(0 <= n < LARGEST for n in numbers):
        raise Corrupt("no geometry")
    if where.bytes[1] >= LARGEST or math.prod(n for n in where.size if n) >= LARGEST:
        raise Corrupt("no geometry")
    return where


def encode(context: Encoder, hint: Any, value: Any) -> Data:
    """Turn a value of the type `hint` into data.

    Raises:
        Uncacheable: it holds an object that must not be stored.

    Example:
        >>> encode(Encoder(), Geometry, Geometry((2,), (1,), 0, torch.float32))
        [[2], [1], 0, ['dtype', 'float32'], False, False]
    """
    return _codec(hint)[0](context, value)


def decode(context: Decoder, hint: Any, data: Data) -> Any:
    """The inverse of `encode`.

    Raises:
        Corrupt: the data is no value of the type `hint`.
    """
    return _codec(hint)[1](context, data)


def _exact_type_codec(kind: type) -> tuple[Pack, Unpack]:
    def pack_one(context: Encoder, value: Any) -> Data:
        if type(value) is not kind:
            raise Uncacheable("sizes that are symbols" if isinstance(value, SYMBOLIC) else "odd data", value)
        return value

    if kind is int:
        return _pack_natural, _unpack_natural
    return pack_one, lambda context, data: require_type(data, kind)


def _pack_natural(context: Encoder, value: Any) -> Data:
    if isinstance(value, SYMBOLIC):
        raise Uncacheable("sizes that are symbols")
    if type(value) is not int or value < 0:
        raise Uncacheable("odd data", value)
    return value


def _unpack_natural(context: Decoder, data: Data) -> Any:
    """A number that is not negative, of any size: a set of tangents has a bit for each."""
    if require_type(data, int) < 0:
        raise Corrupt(f"a number below zero: {data}")
    return data


def _word_codec(known: tuple[str, ...]) -> tuple[Pack, Unpack]:
    """The codec of a `Literal` of words."""

    def pack_one(context: Encoder, value: Any) -> Data:
        if value not in known:
            raise Uncacheable("odd data", value)
        return value

    def unpack_one(context: Decoder, data: Data) -> Any:
        if text_of(data) not in known:
            raise Corrupt(f"none of {', '.join(known)}: {data:.80}")
        return data

    return pack_one, unpack_one


def _pack_no_path(context: Encoder, value: Any) -> Data:
    """The path into a wrapper subclass, which must be empty: such compiles are not stored."""
    if value:
        raise Uncacheable("a tensor subclass")
    return []


def _unpack_no_path(context: Decoder, data: Data) -> Any:
    if data != []:
        raise Corrupt("a tensor subclass")
    return ()


def _choice_codec(known: Mapping[str, type]) -> tuple[Pack, Unpack]:
    def pack_one(context: Encoder, value: Any) -> Data:
        name = str(value.__name__)
        if known.get(name) is not value:
            raise Uncacheable("a type of the user's", value)
        return name

    def unpack_one(context: Decoder, data: Data) -> Any:
        if text_of(data) not in known:
            raise Corrupt(f"no type: {data}")
        return known[data]

    return pack_one, unpack_one


def _union_codec(kinds: tuple[Any, ...]) -> tuple[Pack, Unpack]:
    """The codec of None or one of several classes. If there are several, the data has the class's name."""
    others = [kind for kind in kinds if kind is not types.NoneType]
    named = {kind.__name__: _codec(kind) for kind in others} if len(others) > 1 else {}
    only = None if named else _codec(others[0])

    def pack_one(context: Encoder, value: Any) -> Data:
        if value is None and types.NoneType in kinds:
            return None
        if only is not None:
            return [only[0](context, value)]
        name = type(value).__name__
        if name not in named:
            raise Uncacheable("odd data", name)
        return [name, named[name][0](context, value)]

    def unpack_one(context: Decoder, data: Data) -> Any:
        if data is None and types.NoneType in kinds:
            return None
        if only is not None and type(data) is list and len(data) == 1:
            return only[1](context, data[0])
        name, value = parts(data, 2)
        if text_of(name) not in named:
            raise Corrupt(f"none of {', '.join(named)}: {name}")
        return named[name][1](context, value)

    return pack_one, unpack_one


def _sequence_codec(inner: Any, kind: Callable[[Any], Any]) -> tuple[Pack, Unpack]:
    pack_one, unpack_one = _codec(inner)
    ordered = sorted if kind is frozenset else list

    def pack_all(context: Encoder, value: Any) -> Data:
        return [pack_one(context, one) for one in ordered(value)]

    def unpack_all(context: Decoder, data: Data) -> Any:
        return kind(unpack_one(context, one) for one in require_type(data, list))

    return pack_all, unpack_all


def _field_codecs(
    codecs: tuple[tuple[Pack, Unpack], ...], make: Callable[[Any], Any], values: Callable[[Any], Any]
) -> tuple[Pack, Unpack]:
    def pack_all(context: Encoder, value: Any) -> Data:
        return [one[0](context, part) for one, part in zip(codecs, values(value), strict=True)]

    def unpack_all(context: Decoder, data: Data) -> Any:
        given = parts(data, len(codecs))
        return make([one[1](context, part) for one, part in zip(codecs, given, strict=True)])

    return pack_all, unpack_all


def _record_codec(kind: Any) -> tuple[Pack, Unpack]:
    """The codec of a dataclass or a named tuple, field by field."""
    hints = typing.get_type_hints(kind)
    if issubclass(kind, tuple):
        names: list[str] = list(kind._fields)
    else:
        names = [field.name for field in dataclasses.fields(kind)]
    codecs = tuple(_codec(hints[name]) for name in names)
    may_be = _MAY_BE.get(kind, _anything)

    def make(given: Any) -> Any:
        value = kind(*given)
        if not may_be(value):
            raise Corrupt(f"no {kind.__name__}: {value!r:.80}")
        return value

    def values(value: Any) -> Any:
        if not may_be(value):
            raise Uncacheable("a call that an entry may not hold", getattr(value, "op", "a backward's write"))
        return [getattr(value, name) for name in names]

    return _field_codecs(codecs, make, values)


def _anything(value: object) -> bool:
    return True


def _may_be_step(step: ViewOp) -> bool:
    known = changes_metadata(step.op) if step.in_place else is_view_step(step.op)
    return known and accepts_arguments(step.op, (TENSOR, *step.args), step.kwargs)


def _may_be_reshape(change: MetadataMutation) -> bool:
    return changes_metadata(change.op) and accepts_arguments(change.op, (TENSOR, *change.args), change.kwargs)


def _may_be_saved(saved: Saved) -> bool:
    return (
        saved.how is not SaveStrategy.LIVE
    )  # only for a backward that writes to it, and such a compile is not stored


_MAY_BE: dict[type, Callable[[Any], bool]] = {
    ViewOp: _may_be_step,
    MetadataMutation: _may_be_reshape,
    Saved: _may_be_saved,
}


def _refusing_codec(reason: str) -> tuple[Pack, Unpack]:
    def pack_one(context: Encoder, value: Any) -> Data:
        raise Uncacheable(reason)

    def unpack_one(context: Decoder, data: Data) -> Any:
        raise Corrupt(reason)

    return pack_one, unpack_one


def _pack_sizes(context: Encoder, value: Any) -> Data:
    if value is not NO_SIZES:
        raise Uncacheable("sizes that are symbols")
    return None


def _pack_arguments(context: Encoder, value: Any) -> Data:
    return [[encode(context, str, name), context.constant(one)] for name, one in value.items()]


def _unpack_arguments(context: Decoder, data: Data) -> Any:
    pairs = (parts(pair, 2) for pair in require_type(data, list))
    return {identifier(name): context.constant(value) for name, value in pairs}


def _pack_call(context: Encoder, value: Any) -> Data:
    """The number of a call of an operation, by identity."""
    if value is None:
        return None
    context.kept.append(value)
    return context.calls.setdefault(id(value), len(context.calls))


def _unpack_call(context: Decoder, data: Data) -> Any:
    return None if data is None else context.calls.setdefault(require_int(data), object())


@functools.cache
def _step() -> tuple[Pack, Unpack]:
    return _record_codec(ViewOp)


def _pack_view_step(context: Encoder, value: Any) -> Data:
    known = context.steps.get(id(value))
    if known is not None:
        return known
    data = _step()[0](context, value)
    context.kept.append(value)
    context.steps[id(value)] = len(context.steps)
    return data


def _unpack_step(context: Decoder, data: Data) -> Any:
    if type(data) is int:
        return entry(context.steps, data)
    step = _step()[1](context, data)
    context.steps.append(step)
    return step
