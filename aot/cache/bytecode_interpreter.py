"""Bytecode interpreter: an abstract interpretation of a function that finds what it reads from outside.

In: a function, and `Objects`, which turn objects into data. Out: the reads as data, which differs if one of
them does. There are two kinds of values. `ANY` is a value that follows from arguments and from data in the
key. An `OutsideObject` was found outside of the function, and becomes `ANY` where it is used.

A read is followed only if each of its steps is known: a variable, an import, or an attribute of a module, a
class or a function. The rest has no data (`Uncacheable`). This is an object that goes where any of its
attributes may be read, a function of a library that is in no table (`library_purity`), and an instruction
that is not handled here.
"""

from __future__ import annotations

import builtins
import dis
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from aot.cache import library_purity
from aot.cache.codec import Data, Uncacheable
from aot.torch_internals import op_queries

OBJECTS = "a custom operator that reads Python objects"
CALLS = "a custom operator that calls what may read anything"
CHANGES = "a custom operator that changes what is outside of it"
CODE = "a custom operator with code that is not followed"
VERSION = (3, 11)  # the version of Python whose instructions are handled here
_MOST_STEPS = 20_000
EMPTY = types.CellType()  # stands for no object; cells are not followed
_CONTAINERS = (list, dict)
SETS = (set, frozenset)
_READING = frozenset(("get", "keys", "values", "items", "index", "count", "copy"))  # methods of containers


class _Any:
    """A value that follows from arguments and from data in the key."""


class _Null:
    """The empty place that some instructions leave on the stack."""


ANY, NULL = _Any(), _Null()


@dataclass(frozen=True, slots=True, eq=False)
class OutsideObject:
    """An object that was found outside of the function."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutsideObject) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


Value = _Any | _Null | OutsideObject


@dataclass(frozen=True, slots=True)
class State:
    """The stack and the variables before an instruction."""

    stack: tuple[Value, ...]
    names: Mapping[str, Value]


class Objects(Protocol):
    """Turns the objects that code reads into data."""

    def data(self, value: Any) -> Data:
        """The data of an object that goes where any value may go."""

    def container_digest(self, value: Any) -> Data:
        """The data of a container whose entries go where any value may go."""

    def ask(self, name: str) -> None:
        """Record that an attribute of some value is read."""

    def store(self, name: str) -> None:
        """Record that an attribute of some value is written."""


def object_title(value: Any) -> str:
    """The name of an object in a message."""
    kind: Any = type(value)
    if kind is types.ModuleType:
        return f"module {vars(value).get('__name__')}"
    if kind in (types.FunctionType, types.BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    of = value if issubclass(kind, type) else kind
    # `type.__getattribute__`, because a metaclass may override the attributes.
    names = [type.__getattribute__(of, name) for name in ("__module__", "__qualname__")]
    return ".".join(name for name in names if type(name) is str)


def reads_of_function(objects: Objects, function: types.FunctionType) -> list[Data]:
    """Find what a function reads. Its own code is in the key separately.

    Raises:
        Uncacheable: a read cannot be followed.
    """
    if sys.version_info[:2] != VERSION:
        raise Uncacheable(CODE, f"Python {sys.version_info[0]}.{sys.version_info[1]}")
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    scope = {name: OutsideObject(_content(cell)) for name, cell in cells}
    frame = Frame(objects, function.__code__, function, scope)
    try:
        frame.run()
    except (AssertionError, LookupError, RecursionError, ValueError) as error:
        # Code that no compiler has made, or functions that call each other too deeply, may raise anything.
        raise Uncacheable(CODE, f"{function.__qualname__}: {type(error).__name__}") from None
    return frame.reads


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def _imported_module(name: str, level: int, space: Mapping[str, Any], whole: bool) -> Any:
    """The module that an import gives, if all of its path is loaded: the first, or the last if `whole`."""
    package = space.get("__package__")
    if level:
        try:
            name = importlib.util.resolve_name("." * level + name, package if type(package) is str else "")
        except ImportError as error:
            raise Uncacheable(OBJECTS, error) from None
    parts = name.split(".")
    modules = [sys.modules.get(".".join(parts[: count + 1])) for count in range(len(parts))]
    if any(type(module) is not types.ModuleType for module in modules):
        raise Uncacheable(OBJECTS, f"the import of {name}")
    return modules[-1 if whole or level else 0]


class Frame:
    """The interpretation of one function's code."""

    def __init__(
        self,
        objects: Objects,
        code: types.CodeType,
        function: types.FunctionType,
        scope: Mapping[str, Value],
    ) -> None:
        self.reads: list[Data] = []
        self._objects = objects
        self._steps = 0
        self._code = code
        self._owner = function
        self._space = function.__globals__
        own: Any = function
        self._builtins: Mapping[str, Any] = own.__builtins__
        self._scope = scope
        self._within: set[types.CodeType] = set()
        self._at = 0

    def run(self) -> None:
        """Interpret all paths through the code."""
        bytecode = dis.Bytecode(self._code)
        instructions = list(bytecode)
        places = {one.offset: i for i, one in enumerate(instructions)}
        handlers: Any = getattr(bytecode, "exception_entries", ())
        states: dict[int, State] = {}
        ahead = [(0, State((), dict.fromkeys(_parameters(self._code), ANY)))]
        while ahead:
            i, state = ahead.pop()
            known = states.get(i)
            joined = state if known is None else self._join_state(known, state)
            if known is not None and joined == known:
                continue
            states[i] = joined
            one = instructions[i]
            self._at = one.offset
            for entry in handlers:
                if entry.start <= one.offset < entry.end:
                    caught = joined.stack[: entry.depth] + (ANY,) * (2 if entry.lasti else 1)
                    ahead.append((places[entry.target], State(caught, joined.names)))
            ahead += [
                (i + 1 if to is None else places[to], after)
                for to, after in self._interpret_instruction(one, joined)
            ]

    def _join_state(self, one: State, other: State) -> State:
        if len(one.stack) != len(other.stack):
            raise Uncacheable(CODE, self._code.co_name)
        stack = tuple(map(self._either_value, one.stack, other.stack))
        both = [*one.names, *(name for name in other.names if name not in one.names)]
        # If a variable has no value on one path, that path ends where the variable is read.
        return State(
            stack,
            {name: self._either_value(one.names.get(name), other.names.get(name)) for name in both},
        )

    def _either_value(self, one: Value | None, other: Value | None) -> Value:
        if one is None or other is None or one == other:
            found = other if one is None else one
            assert found is not None
            return found
        if NULL in (one, other):
            raise Uncacheable(CODE, self._code.co_name)
        return self._use_values(one, other)

    def _use_values(self, *values: Value) -> Value:
        """Use values where any value may go."""
        for value in values:
            if isinstance(value, OutsideObject):
                self.reads.append([self._at, self._objects.data(value.value)])
            elif value is NULL:
                raise Uncacheable(CODE, self._code.co_name)
        return ANY

    def _read_containers(self, *values: Value) -> Value:
        """Use values that are read and not kept, so that they may also be containers."""
        for value in values:
            if isinstance(value, OutsideObject) and type(value.value) in _CONTAINERS:
                self.reads.append([self._at, self._objects.container_digest(value.value)])
            else:
                self._use_values(value)
        return ANY

    def _interpret_instruction(self, one: dis.Instruction, state: State) -> list[tuple[int | None, State]]:
        """The states after an instruction, each with the offset of the next instruction, or None."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise Uncacheable(CODE, f"{self._code.co_name} is too long")
        stack, names = list(state.stack), dict(state.names)
        if one.opname in _ENDS:
            self._use_values(*[stack.pop() for _ in range(_ENDS[one.opname](one))])
            return []
        if one.opname in _JUMPS:
            return self._jump_states(one, stack, names)
        step = _STEPS.get(one.opname)
        if step is None:
            raise Uncacheable(CODE, one.opname)
        step(self, one, stack, names)
        return [(None, State(tuple(stack), names))]

    def _jump_states(
        self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]
    ) -> list[tuple[int | None, State]]:
        name, here = one.opname, tuple(stack)
        if name in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"):
            return [(one.argval, State(here, names))]
        if name == "FOR_ITER":
            return [(None, State((*here, ANY), names)), (one.argval, State(here[:-1], names))]
        self._read_containers(here[-1])
        kept = here if name in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP") else here[:-1]
        return [(None, State(here[:-1], names)), (one.argval, State(kept, names))]

    # One method for each instruction, which changes the stack and the variables.

    def _nothing(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        pass

    def _null(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(NULL)

    def _value(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(ANY)

    def _pop(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.pop()

    def _copy(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(stack[-one.argval])

    def _swap(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack[-1], stack[-one.argval] = stack[-one.argval], stack[-1]

    def _load_constant(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(OutsideObject(one.argval))

    def _load_fast(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(names.get(one.argval, ANY))

    def _store_fast(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        names[one.argval] = stack.pop()

    def _delete_fast(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        names.pop(one.argval, None)

    def _load_deref(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(self._scope.get(one.argval, ANY))

    def _store_deref(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        if self._scope.get(one.argval, ANY) is not ANY:
            raise Uncacheable(CHANGES, one.argval)
        self._use_values(stack.pop())

    def _delete_deref(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        if self._scope.get(one.argval, ANY) is not ANY:
            raise Uncacheable(CHANGES, one.argval)

    def _load_global(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        if type(self._space) is not dict or type(self._builtins) is not dict:
            raise Uncacheable(OBJECTS, one.argval)
        value = self._space.get(one.argval, self._builtins.get(one.argval, EMPTY))
        if value is EMPTY:
            raise Uncacheable(OBJECTS, one.argval)
        stack += [NULL, OutsideObject(value)] if one.arg and one.arg & 1 else [OutsideObject(value)]

    def _load_attribute(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(self._interpret_attribute(stack.pop(), one.argval))

    def _load_method(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack += [NULL, self._interpret_attribute(stack.pop(), one.argval)]

    def _store_attribute(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        owner = stack.pop()
        if isinstance(owner, OutsideObject):
            raise Uncacheable(CHANGES, f"{object_title(owner.value)}.{one.argval}")
        if one.opname == "STORE_ATTR":
            self._use_values(stack.pop())
        self._objects.store(one.argval)

    def _subscript(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        key, container = stack.pop(), stack.pop()
        self._use_values(key)
        stack.append(self._read_containers(container))

    def _store_subscript(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        key, container = stack.pop(), stack.pop()
        if isinstance(container, OutsideObject):
            raise Uncacheable(CHANGES, object_title(container.value))
        self._use_values(key)
        if one.opname == "STORE_SUBSCR":
            self._use_values(stack.pop())

    def _interpret_contains(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        container, sought = stack.pop(), stack.pop()
        self._use_values(sought)
        if isinstance(container, OutsideObject) and type(container.value) in SETS:
            self.reads.append([self._at, self._objects.container_digest(container.value)])
        else:
            self._read_containers(container)
        stack.append(ANY)

    def _unary(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(self._use_values(stack.pop()))

    def _binary(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(self._use_values(stack.pop(), stack.pop()))

    def _iterate(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(self._read_containers(stack.pop()))

    def _build(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        count: int = one.argval
        parts = {"BUILD_MAP": 2 * count, "BUILD_CONST_KEY_MAP": count + 1}.get(one.opname, count)
        self._use_values(*[stack.pop() for _ in range(parts)])
        stack.append(ANY)

    def _extend(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        """Extend a new container. The added value may be a container that is only read."""
        self._read_containers(stack.pop())

    def _add_pair(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        self._use_values(stack.pop(), stack.pop())

    def _unpack(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        self._read_containers(stack.pop())
        count: int = one.argval
        stack += [ANY] * (count if one.opname == "UNPACK_SEQUENCE" else (count & 0xFF) + 1 + (count >> 8))

    def _format(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        spec = stack.pop() if one.arg and one.arg & 4 else None
        if spec is not None and not (isinstance(spec, OutsideObject) and "n" not in str(spec.value)):
            raise Uncacheable(CALLS, "format, with the locale")
        stack.append(self._use_values(stack.pop()))

    def _make_function(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        code = stack.pop()
        flags = one.arg or 0
        self._use_values(*[stack.pop() for flag in (1, 2, 4, 8) if flags & flag])
        assert isinstance(code, OutsideObject) and isinstance(code.value, types.CodeType)
        if code.value not in self._within:
            self._within.add(code.value)
            own = self._code.co_cellvars
            scope = {n: ANY if n in own else self._scope[n] for n in code.value.co_freevars}
            frame = Frame(self._objects, code.value, self._owner, scope)
            frame.run()
            self.reads.append([self._at, ["within", frame.reads]])
        stack.append(ANY)

    def _call(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        args = [stack.pop() for _ in range(one.argval)][::-1]
        second, first = stack.pop(), stack.pop()
        if first is NULL:
            stack.append(self._interpret_call(second, args))
        else:
            stack.append(self._interpret_call(first, [second, *args]))

    def _call_with(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        args = [stack.pop() for _ in range(2 if one.arg and one.arg & 1 else 1)]
        function = stack.pop()
        if stack.pop() is not NULL:
            raise Uncacheable(CODE, one.opname)
        self._read_containers(*args)
        stack.append(self._use_values(function))

    def _interpret_call(self, function: Value, args: list[Value]) -> Value:
        if isinstance(function, OutsideObject):
            if function.value is getattr and len(args) in (2, 3) and isinstance(args[1], OutsideObject):
                name = args[1].value
                if type(name) is str and len(args) == 2:
                    return self._interpret_attribute(args[0], name)
                if type(name) is str and args[0] is ANY:
                    self._objects.ask(name)
                    return self._use_values(args[2])
            if library_purity.is_reader(function.value):
                self._use_values(function)
                return self._read_containers(*args)
        return self._use_values(function, *args)

    def _import(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        wanted, level = stack.pop(), stack.pop()
        if self._builtins.get("__import__") is not _IMPORT or vars(builtins)["__import__"] is not _IMPORT:
            raise Uncacheable(CALLS, "__import__")
        assert isinstance(wanted, OutsideObject) and isinstance(level, OutsideObject)
        module = _imported_module(one.argval, level.value, self._space, bool(wanted.value))
        stack.append(OutsideObject(module))

    def _import_from(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.append(self._interpret_attribute(stack[-1], one.argval))

    def _caught(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        stack.insert(-1, ANY)

    def _matches(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        self._use_values(stack.pop())
        stack.append(ANY)

    def _enter(self, one: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> None:
        self._use_values(stack.pop())
        stack += [ANY, ANY]

    def _interpret_attribute(self, owner: Value, name: str) -> Value:
        """The value of an attribute."""
        if not isinstance(owner, OutsideObject):
            self._objects.ask(name)
            return self._use_values(owner)
        value = owner.value
        if name.startswith("__") and name.endswith("__"):
            raise Uncacheable(OBJECTS, f"attribute {name}")
        if type(value) is types.ModuleType and name in vars(value):
            return OutsideObject(vars(value)[name])
        if type(value) is types.FunctionType and name in vars(value):
            return OutsideObject(vars(value)[name])
        if type(value) is type and not library_purity.is_value(value):
            return OutsideObject(_read_class_attribute(value, name))
        if type(value) in _OPERATORS:
            return OutsideObject(_read_torch_op(value, name))
        if type(value) in _CONTAINERS and name in _READING:
            return self._read_containers(owner)
        if not library_purity.is_value(value):
            raise Uncacheable(OBJECTS, f"{object_title(value)}.{name}")
        self._objects.ask(name)
        return self._use_values(owner)


def _read_class_attribute(cls: type, name: str) -> Any:
    """An attribute of a user's class, as code reads it from the class."""
    if any(type(base) is not type for base in cls.__mro__) or hasattr(type, name):
        raise Uncacheable(OBJECTS, object_title(cls))
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), EMPTY)
    if isinstance(found, staticmethod):
        return found.__func__
    if type(found) is types.FunctionType or not hasattr(type(found), "__get__"):
        return found
    raise Uncacheable(OBJECTS, f"{object_title(cls)}.{name}")


def _read_torch_op(value: Any, name: str) -> Any:
    """An attribute of `torch.ops`, of a namespace in it, or of an operator."""
    ops: Any = torch.ops
    if value is ops and not name.startswith("_"):
        return getattr(ops, name)
    if type(value) is type(ops.aten):
        found = getattr(value, name, None)
        if type(found) is op_queries.OpOverloadPacket:
            return found
    if type(value) is op_queries.OpOverloadPacket:
        found = getattr(value, name, None)
        if type(found) is op_queries.OpOverload:
            return found
    raise Uncacheable(OBJECTS, f"{object_title(value)}.{name}")


def _parameters(code: types.CodeType) -> tuple[str, ...]:
    flags = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in flags)
    return code.co_varnames[:count]


_IMPORT = builtins.__import__
_OPERATORS = (type(torch.ops), type(torch.ops.aten), op_queries.OpOverloadPacket)
_Step = Callable[["Frame", dis.Instruction, list[Value], dict[str, Value]], None]
# How many values an instruction takes that ends a path, such as a return.
_ENDS: Mapping[str, Callable[[dis.Instruction], int]] = {
    "RETURN_VALUE": lambda one: 1,
    "RAISE_VARARGS": lambda one: one.arg or 0,
    "RERAISE": lambda one: 1,
}
_JUMPS = frozenset(
    (
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "FOR_ITER"),
        *("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"),
        *(
            f"POP_JUMP_{where}_IF_{what}"
            for where in ("FORWARD", "BACKWARD")
            for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")
        ),
    )
)
_STEPS: Mapping[str, _Step] = {
    **dict.fromkeys(
        (
            *("NOP", "RESUME", "PRECALL", "KW_NAMES", "MAKE_CELL", "COPY_FREE_VARS", "EXTENDED_ARG"),
            *("LIST_TO_TUPLE", "CACHE"),
        ),
        Frame._nothing,
    ),
    "PUSH_NULL": Frame._null,
    **dict.fromkeys(
        ("LOAD_CLOSURE", "LOAD_ASSERTION_ERROR", "RETURN_GENERATOR", "WITH_EXCEPT_START"), Frame._value
    ),
    "POP_TOP": Frame._pop,
    "POP_EXCEPT": Frame._pop,
    "COPY": Frame._copy,
    "SWAP": Frame._swap,
    "LOAD_CONST": Frame._load_constant,
    "LOAD_FAST": Frame._load_fast,
    "STORE_FAST": Frame._store_fast,
    "DELETE_FAST": Frame._delete_fast,
    "LOAD_DEREF": Frame._load_deref,
    "STORE_DEREF": Frame._store_deref,
    "DELETE_DEREF": Frame._delete_deref,
    "LOAD_GLOBAL": Frame._load_global,
    "LOAD_ATTR": Frame._load_attribute,
    "LOAD_METHOD": Frame._load_method,
    "STORE_ATTR": Frame._store_attribute,
    "DELETE_ATTR": Frame._store_attribute,
    "BINARY_SUBSCR": Frame._subscript,
    "STORE_SUBSCR": Frame._store_subscript,
    "DELETE_SUBSCR": Frame._store_subscript,
    "CONTAINS_OP": Frame._interpret_contains,
    **dict.fromkeys(
        ("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_NOT", "UNARY_INVERT", "YIELD_VALUE"), Frame._unary
    ),
    **dict.fromkeys(("BINARY_OP", "COMPARE_OP", "IS_OP"), Frame._binary),
    "GET_ITER": Frame._iterate,
    **dict.fromkeys(
        ("BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_STRING", "BUILD_SLICE"),
        Frame._build,
    ),
    **dict.fromkeys(("LIST_EXTEND", "LIST_APPEND", "DICT_UPDATE", "DICT_MERGE"), Frame._extend),
    "MAP_ADD": Frame._add_pair,
    **dict.fromkeys(("UNPACK_SEQUENCE", "UNPACK_EX"), Frame._unpack),
    "FORMAT_VALUE": Frame._format,
    "MAKE_FUNCTION": Frame._make_function,
    "CALL": Frame._call,
    "CALL_FUNCTION_EX": Frame._call_with,
    "IMPORT_NAME": Frame._import,
    "IMPORT_FROM": Frame._import_from,
    "PUSH_EXC_INFO": Frame._caught,
    "CHECK_EXC_MATCH": Frame._matches,
    "BEFORE_WITH": Frame._enter,
}
