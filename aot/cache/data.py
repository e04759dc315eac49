"""Dataclasses of a compile as plain data, and back.

In: a value and its type hint. Out: lists, strings, numbers, booleans and None, as JSON has them; and the
value again. What is read is a stranger's: each field is held against its hint, classes are those that hints
name, operations those that `torch.ops` has, and names that end up in generated code are identifiers. Nothing
is called.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import keyword
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aot import errors
from aot import torch_internals as internals
from aot.capture.calls import call_by_name, call_with_grad
from aot.capture.operations import call_on_clones
from aot.capture.steps import ViewStep
from aot.constants import CONSTANTS
from aot.geometry import Geometry
from aot.subclasses import SubclassCreationMeta, SubclassMeta
from aot.symbols import NO_SIZES, SYMBOLIC, Computed, Sizes

Data = Any  # what JSON has


class Uncacheable(Exception):
    """What is not kept on disk.

    Attributes:
        reason: in few words, the same for all of the kind: these are counted.
    """

    def __init__(self, reason: str, what: object = "") -> None:
        super().__init__(f"{reason}: {what}" if what else reason)
        self.reason = reason


class Corrupt(Exception):
    """What is read is nothing that was written."""


class Packing:
    """One value being turned into data.

    Args:
        operators: custom operators that it may hold, by name and overload.
    """

    def __init__(self, operators: frozenset[tuple[str, str]] = frozenset()) -> None:
        self.operators = operators
        self.steps: dict[int, int] = {}  # which step it is; the code generator goes by identity
        self.calls: dict[int, int] = {}
        self.kept: list[object] = []  # so that identities stay theirs

    def constant(self, value: Any) -> Data:
        """An argument of an operation, or something else that a graph holds as it is.

        Raises:
            Uncacheable: it is of another kind.
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
        return self.other(value)

    def immutable(self, value: Any) -> Data:
        """Containers of fx, which are lists and dicts that do not change."""
        if isinstance(value, dict):
            return ["dict", *([self.constant(k), self.constant(v)] for k, v in value.items())]
        return ["list", *map(self.constant, value)]

    def other(self, value: Any) -> Data:
        """What only some graphs hold."""
        if isinstance(value, internals.OpOverload):
            name, overload = value._schema.name, value._overloadname
            if value.namespace not in OURS and (name, overload) not in self.operators:
                raise Uncacheable("an operator that is not torch's", value)
            return ["op", name, overload]
        own = getattr(value, "__name__", "")
        if own and _OWN.get(own) is value:
            return ["own", own]
        raise Uncacheable("a constant of another type", type(value))


class Unpacking:
    """One value being read.

    Args:
        operators: custom operators that may be called, by name and overload.
    """

    def __init__(self, operators: frozenset[tuple[str, str]] = frozenset()) -> None:
        self.operators = operators
        self.steps: list[ViewStep] = []
        self.calls: dict[int, object] = {}

    def constant(self, data: Data) -> Any:
        """The reverse of `Packing.constant`.

        Raises:
            Corrupt: there is no such value.
        """
        if data is None or type(data) in (bool, int, str):
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
            return checked(value, _KINDS[tag])
        return self.other(tag, rest)

    def other(self, tag: str, rest: list[Data]) -> Any:
        """The reverse of `Packing.other`."""
        if tag == "op":
            return self.operator(*map(text_of, rest))
        if tag == "own" and len(rest) == 1 and text_of(rest[0]) in _OWN:
            return _OWN[rest[0]]
        raise Corrupt(f"no constant: {tag}")

    def operator(self, name: str, overload: str) -> Any:
        """An operator that torch has by that name."""
        namespace, _, packet = name.partition("::")
        if namespace not in OURS and (name, overload) not in self.operators:
            raise Corrupt(f"an operator that the graph did not call: {name}")
        if not _is_identifier(namespace) or not packet.isidentifier() or not overload.isidentifier():
            raise Corrupt(f"no operator: {name}.{overload}")
        value = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        return checked(value, internals.OpOverload)


def text_of(value: Data) -> str:
    """A string."""
    return checked(value, str)  # type: ignore[no-any-return]


def parts(value: Data, count: int) -> list[Data]:
    """A list of so many."""
    if type(value) is not list or len(value) != count:
        raise Corrupt(f"{count} parts are expected: {value!r:.80}")
    return value


def entry(known: Sequence[Any], number: Data) -> Any:
    """The one of that number."""
    if type(number) is not int or not 0 <= number < len(known):
        raise Corrupt(f"none of {len(known)}: {number!r:.80}")
    return known[number]


def checked(value: Any, kind: type) -> Any:
    """A value of exactly this type, or of one that is not Python's own."""
    if type(value) is not kind:
        raise Corrupt(f"a {kind.__name__} is expected, and not {value!r:.80}")
    return value


def identifier(value: Data) -> str:
    """A name that may stand in generated code."""
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
    "size": lambda given: torch.Size([checked(n, int) for n in given]),
}
_IMMUTABLE = (torch.fx.immutable_collections.immutable_list, torch.fx.immutable_collections.immutable_dict)
_KINDS: dict[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_NAMED: dict[type, str] = {kind: name for name, kind in (*_KINDS.items(), ("device", torch.device))}
OURS = ("aten", "prims")
_OWN: dict[str, Any] = {f.__name__: f for f in (call_by_name, call_with_grad, call_on_clones)}
_EXCEPTIONS: dict[str, type[Exception]] = {
    name: value
    for space in (vars(builtins), vars(errors))
    for name, value in space.items()
    if isinstance(value, type) and issubclass(value, Exception)
}
_RAW: dict[str, type] = {kind.__name__: kind for kind in (*CONSTANTS, Tensor, torch.nn.Parameter, torch.Size)}

Pack = Callable[[Packing, Any], Data]
Unpack = Callable[[Unpacking, Data], Any]


@functools.cache
def _codec(hint: Any) -> tuple[Pack, Unpack]:
    """What turns values of a type hint into data, and back."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return Packing.constant, Unpacking.constant
    if hint in (int, bool, str):
        return _exactly(hint)
    if hint is object:
        return _pack_call, _unpack_call
    if hint == dict[str, Any]:
        return _pack_arguments, _unpack_arguments
    if hint is Sizes:
        return _pack_sizes, lambda context, data: NO_SIZES
    if hint is type or origin is type:
        return _one_of(_RAW if hint is type else _EXCEPTIONS)
    if origin is types.UnionType:
        return _union(inner)
    if origin is tuple and inner[-1] is Ellipsis:
        return _sequence(inner[0], tuple)
    if origin is frozenset:
        return _sequence(inner[0], frozenset)
    if origin is tuple:
        return _fields(tuple(map(_codec, inner)), tuple, lambda value: value)
    if hint in (torch.dtype, torch.device):
        return Packing.constant, lambda context, data: checked(context.constant(data), hint)
    if hint in (SubclassCreationMeta, SubclassMeta):
        return _refused("a tensor subclass")
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return lambda context, value: value.name, lambda context, data: hint[text_of(data)]
    if hint is ViewStep:
        return _pack_step, _unpack_step
    if dataclasses.is_dataclass(hint) or hint is Geometry:
        assert isinstance(hint, type)
        return _record(hint)
    raise TypeError(f"no data for {hint}")


def pack(context: Packing, hint: Any, value: Any) -> Data:
    """A value of a type as data.

    Raises:
        Uncacheable: it holds what cannot be.

    Example:
        >>> pack(Packing(), Geometry, Geometry((2,), (1,), 0, torch.float32))
        [[2], [1], 0, ['dtype', 'float32'], False, False]
    """
    return _codec(hint)[0](context, value)


def unpack(context: Unpacking, hint: Any, data: Data) -> Any:
    """The reverse of `pack`.

    Raises:
        Corrupt: it is no such value.
    """
    return _codec(hint)[1](context, data)


def _exactly(kind: type) -> tuple[Pack, Unpack]:
    def pack_one(context: Packing, value: Any) -> Data:
        if type(value) is not kind:
            raise Uncacheable("sizes that are symbols" if isinstance(value, SYMBOLIC) else "odd data", value)
        return value

    return pack_one, lambda context, data: checked(data, kind)


def _one_of(known: Mapping[str, type]) -> tuple[Pack, Unpack]:
    def pack_one(context: Packing, value: Any) -> Data:
        name = str(value.__name__)
        if known.get(name) is not value:
            raise Uncacheable("a type of the user's", value)
        return name

    def unpack_one(context: Unpacking, data: Data) -> Any:
        if text_of(data) not in known:
            raise Corrupt(f"no type: {data}")
        return known[data]

    return pack_one, unpack_one


def _union(kinds: tuple[Any, ...]) -> tuple[Pack, Unpack]:
    """None, or one of several; which one is told by its name, where they are several."""
    others = [kind for kind in kinds if kind is not types.NoneType]
    named = {kind.__name__: _codec(kind) for kind in others} if len(others) > 1 else {}
    only = None if named else _codec(others[0])

    def pack_one(context: Packing, value: Any) -> Data:
        if value is None and types.NoneType in kinds:
            return None
        if only is not None:
            return [only[0](context, value)]
        name = type(value).__name__
        if name not in named:
            raise Uncacheable("odd data", name)
        return [name, named[name][0](context, value)]

    def unpack_one(context: Unpacking, data: Data) -> Any:
        if data is None and types.NoneType in kinds:
            return None
        if only is not None and type(data) is list and len(data) == 1:
            return only[1](context, data[0])
        name, value = parts(data, 2)
        if text_of(name) not in named:
            raise Corrupt(f"none of {', '.join(named)}: {name}")
        return named[name][1](context, value)

    return pack_one, unpack_one


def _sequence(inner: Any, kind: Callable[[Any], Any]) -> tuple[Pack, Unpack]:
    pack_one, unpack_one = _codec(inner)
    ordered = sorted if kind is frozenset else list

    def pack_all(context: Packing, value: Any) -> Data:
        return [pack_one(context, one) for one in ordered(value)]

    def unpack_all(context: Unpacking, data: Data) -> Any:
        return kind(unpack_one(context, one) for one in checked(data, list))

    return pack_all, unpack_all


def _fields(
    codecs: tuple[tuple[Pack, Unpack], ...], make: Callable[[Any], Any], values: Callable[[Any], Any]
) -> tuple[Pack, Unpack]:
    def pack_all(context: Packing, value: Any) -> Data:
        return [one[0](context, part) for one, part in zip(codecs, values(value), strict=True)]

    def unpack_all(context: Unpacking, data: Data) -> Any:
        given = parts(data, len(codecs))
        return make([one[1](context, part) for one, part in zip(codecs, given, strict=True)])

    return pack_all, unpack_all


def _record(kind: Any) -> tuple[Pack, Unpack]:
    """A dataclass, or a tuple with names, by its fields."""
    hints = typing.get_type_hints(kind)
    if issubclass(kind, tuple):
        names: list[str] = list(kind._fields)
    else:
        names = [field.name for field in dataclasses.fields(kind)]
    codecs = tuple(_codec(hints[name]) for name in names)
    return _fields(codecs, lambda parts: kind(*parts), lambda value: [getattr(value, name) for name in names])


def _refused(reason: str) -> tuple[Pack, Unpack]:
    def pack_one(context: Packing, value: Any) -> Data:
        raise Uncacheable(reason)

    def unpack_one(context: Unpacking, data: Data) -> Any:
        raise Corrupt(reason)

    return pack_one, unpack_one


def _pack_sizes(context: Packing, value: Any) -> Data:
    if value is not NO_SIZES:
        raise Uncacheable("sizes that are symbols")
    return None


def _pack_arguments(context: Packing, value: Any) -> Data:
    return [[pack(context, str, name), context.constant(one)] for name, one in value.items()]


def _unpack_arguments(context: Unpacking, data: Data) -> Any:
    pairs = (parts(pair, 2) for pair in checked(data, list))
    return {identifier(name): context.constant(value) for name, value in pairs}


def _pack_call(context: Packing, value: Any) -> Data:
    """Which call of an operation it is."""
    if value is None:
        return None
    context.kept.append(value)
    return context.calls.setdefault(id(value), len(context.calls))


def _unpack_call(context: Unpacking, data: Data) -> Any:
    return None if data is None else context.calls.setdefault(checked(data, int), object())


@functools.cache
def _step() -> tuple[Pack, Unpack]:
    return _record(ViewStep)


def _pack_step(context: Packing, value: Any) -> Data:
    known = context.steps.get(id(value))
    if known is not None:
        return known
    data = _step()[0](context, value)
    context.kept.append(value)
    context.steps[id(value)] = len(context.steps)
    return data


def _unpack_step(context: Unpacking, data: Data) -> Any:
    if type(data) is int:
        return entry(context.steps, data)
    step = _step()[1](context, data)
    context.steps.append(step)
    return step
