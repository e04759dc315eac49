"""Variables: read, compare and restore the state of Python objects that a function may change.

In: an object. Out: its `Holder`s, for variables, entries of containers, memory, iterators and generators. A
holder reads the state as a value, tells if it has changed, and writes it back.
Invariant: nothing here calls the user's code; containers are read and written with the builtin methods.
"""

from __future__ import annotations

import functools
import gc
import operator
import queue
import random
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor, nn

from aot.guards.bytecode import is_compiler, is_library
from aot.guards.containers import SEQUENCES, builtin_view
from aot.guards.guard import MISSING, GuardKind, contents
from aot.guards.introspection import content_of, has_introspectable_memory, namespace_of
from aot.guards.opaque_state import QUEUES, has_state, state_of
from aot.torch_internals import dynamo_api, mode_stacks, wrapper_subclasses

_REGISTRIES = frozenset(vars(nn.Module())) - {"training"}
_LRU = type(functools.lru_cache(lambda: None))


class Holder(Protocol):
    """One object's state.

    Attributes:
        path: how the function gets to the object.
        owner: the object that guards look into: the object itself, or the namespace of its variables.
    """

    path: str
    owner: Any

    def read(self) -> Any:
        """The present state."""

    def differs(self, before: Any) -> bool:
        """Whether the present state differs from this."""

    def write(self, before: Any) -> bool:
        """Restore a state. Returns whether that was possible."""


class Variables:
    """Variables with names; a state maps names to values.

    Args:
        owner: the object that guards of these variables look into.
    """

    kind = GuardKind.ENTRY
    named = "attributes"  # the one of `bytecode.KINDS` by which code stores to them

    def __init__(self, path: str, owner: Any) -> None:
        self.path = path
        self.owner = owner

    def where(self, name: str) -> str:
        """The path of a variable, as a user would write it."""
        return f"{self.path}.{name}" if self.path else name

    def read(self) -> dict[str, Any]:
        return dict(self.owner)

    def store(self, name: str, value: Any) -> None:
        """Set a variable."""
        self.owner[name] = value

    def delete(self, name: str) -> None:
        """Delete a variable."""
        self.owner.pop(name, None)

    def differs(self, before: Mapping[str, Any]) -> bool:
        return not _is_same(before, self.owner)

    def write(self, before: Mapping[str, Any]) -> bool:
        for name in changed_keys(before, now := self.read()):
            if name in before:
                self.store(name, before[name])
            elif name in now:
                self.delete(name)
        return True


class ModuleVariables(Variables):
    """The variables of a module or of a function's globals. Modules that the function imports stay."""

    named = "names"

    def write(self, before: Mapping[str, Any]) -> bool:
        now = self.read()
        for name in changed_keys(before, now):
            if name.startswith("__") or isinstance(now.get(name), types.ModuleType):
                continue
            if name in before:
                self.store(name, before[name])
            else:
                self.delete(name)
        return True


class ClassVariables(ModuleVariables):
    """The variables of a class."""

    named = "attributes"

    def __init__(self, path: str, cls: type, space: Mapping[str, Any]) -> None:
        super().__init__(path, space)
        self._class = cls

    def store(self, name: str, value: Any) -> None:
        type.__setattr__(self._class, name, value)

    def delete(self, name: str) -> None:
        if name in vars(self._class):
            type.__delattr__(self._class, name)


class Slots(Variables):
    """The slots of an instance."""

    kind = GuardKind.ATTRIBUTE

    def __init__(self, path: str, owner: Any, slots: Mapping[str, Any]) -> None:
        super().__init__(path, owner)
        self._slots = slots

    def read(self) -> dict[str, Any]:
        found = {}
        for name, slot in self._slots.items():
            try:
                found[name] = slot.__get__(self.owner)
            except AttributeError:
                continue
        return found

    def store(self, name: str, value: Any) -> None:
        self._slots[name].__set__(self.owner, value)

    def delete(self, name: str) -> None:
        self._slots[name].__delete__(self.owner)

    def differs(self, before: Mapping[str, Any]) -> bool:
        return not _is_same(before, self.read())


class TensorAttributes(Variables):
    """The attributes that users set on a tensor, without those of torch or of a wrapper subclass."""

    def __init__(self, path: str, tensor: Tensor) -> None:
        super().__init__(path, vars(tensor))
        wrapper = wrapper_subclasses.is_wrapper_subclass(tensor)
        self._private = "_" if wrapper else dynamo_api.TORCH_ATTRIBUTE_PREFIXES
        self._parts = {name for name, value in self.owner.items() if wrapper and isinstance(value, Tensor)}

    def read(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.owner.items()
            if name not in self._parts and not name.startswith(self._private)
        }

    def differs(self, before: Mapping[str, Any]) -> bool:
        return not _is_same(before, self.read())


class Gradient(Slots):
    """The `.grad` of a leaf."""

    kind = GuardKind.GRADIENT

    def __init__(self, path: str, leaf: Tensor) -> None:
        super().__init__(path, leaf, {"grad": Tensor.grad})


class Cell(Variables):
    """The variable of a closure."""

    kind = GuardKind.CELL
    named = "cells"

    def __init__(self, name: str, cell: types.CellType) -> None:
        super().__init__("", cell)
        self._name = name

    def read(self) -> dict[str, Any]:
        content = content_of(self.owner)
        return {} if content is MISSING else {self._name: content}

    def store(self, name: str, value: Any) -> None:
        self.owner.cell_contents = value

    def delete(self, name: str) -> None:
        del self.owner.cell_contents

    def differs(self, before: Mapping[str, Any]) -> bool:
        return content_of(self.owner) is not before.get(self._name, MISSING)


class Context(Variables):
    """A `ContextVar`."""

    kind = GuardKind.CONTEXT

    def read(self) -> dict[str, Any]:
        content = self.owner.get(MISSING)
        return {} if content is MISSING else {"": content}

    def where(self, name: str) -> str:
        return f"{self.path}.get()"

    def store(self, name: str, value: Any) -> None:
        self.owner.set(value)

    def differs(self, before: Mapping[str, Any]) -> bool:
        return self.owner.get(MISSING) is not before.get("", MISSING)

    def write(self, before: Mapping[str, Any]) -> bool:
        if "" in before:
            self.owner.set(before[""])
        return True  # without a value before, it has none again when this context is left


class LocalVariables(Variables):
    """The calling thread's variables of a `threading.local`."""

    kind = GuardKind.LOCAL

    def read(self) -> dict[str, Any]:
        return dict(self.owner.__dict__)

    def store(self, name: str, value: Any) -> None:
        self.owner.__dict__[name] = value

    def delete(self, name: str) -> None:
        self.owner.__dict__.pop(name, None)

    def differs(self, before: Mapping[str, Any]) -> bool:
        return not _is_same(before, self.owner.__dict__)


class Entries:
    """The entries of a dict; a state is a dict."""

    kind = GuardKind.ENTRIES

    def __init__(self, path: str, owner: Any) -> None:
        self.path = path
        self.owner = owner
        self._own: Any = OrderedDict if isinstance(owner, OrderedDict) else dict

    def read(self) -> dict[Any, Any]:
        return dict(builtin_view(self.owner).items())

    def differs(self, before: Mapping[Any, Any]) -> bool:
        return not _is_same(before, builtin_view(self.owner))

    def write(self, before: Mapping[Any, Any]) -> bool:
        self._own.clear(self.owner)
        for key, value in before.items():
            self._own.__setitem__(self.owner, key, value)
        return True

    def store(self, key: Any, value: Any) -> None:
        """Set an entry."""
        self._own.__setitem__(self.owner, key, value)


class Items:
    """The items of a list, a deque or a set; a state is a tuple."""

    kind = GuardKind.ITEMS

    def __init__(self, path: str, owner: Any) -> None:
        self.path = path
        self.owner = owner
        self._own: Any = next(own for own in SEQUENCES if isinstance(owner, own))

    def read(self) -> tuple[Any, ...]:
        return tuple(builtin_view(self.owner))

    def differs(self, before: tuple[Any, ...]) -> bool:
        now = builtin_view(self.owner)
        return len(now) != len(before) or not all(map(operator.is_, now, before))

    def write(self, before: tuple[Any, ...]) -> bool:
        self._own.clear(self.owner)
        self.extend(before)
        return True

    @property
    def is_list(self) -> bool:
        """Whether the items can be set by their index."""
        return self._own is list

    def store(self, number: int, value: Any) -> None:
        """Set an item of a list."""
        self._own.__setitem__(self.owner, number, value)

    def extend(self, items: tuple[Any, ...]) -> None:
        """Put more in, at the end."""
        (set.update if self._own is set else self._own.extend)(self.owner, items)


class Memory:
    """The bytes of an array or a `bytearray`; a state is (what guards compare, the bytes)."""

    kind = GuardKind.BYTES

    def __init__(self, path: str, owner: Any) -> None:
        self.path = path
        self.owner = owner

    def read(self) -> tuple[object, bytes]:
        """The value that guards compare, and the bytes."""
        content = contents(self.owner)
        return content, content[2]

    def differs(self, before: tuple[object, bytes]) -> bool:
        return bool(contents(self.owner) != before[0])

    def write(self, state: tuple[object, bytes]) -> bool:
        view, before = memoryview(self.owner), state[1]
        if view.readonly or view.nbytes != len(before):
            return False
        if view.c_contiguous and view.nbytes:
            view.cast("B")[:] = before
        elif view.nbytes and isinstance(self.owner, numpy.ndarray):
            self.owner[...] = numpy.frombuffer(before, self.owner.dtype).reshape(self.owner.shape)
        return not self.differs(state)


class Objects:
    """The elements of a numpy array of objects; a state is a tuple."""

    kind = GuardKind.BYTES

    def __init__(self, path: str, owner: Any) -> None:
        self.path = path
        self.owner = owner

    def read(self) -> tuple[Any, ...]:
        return tuple(self.owner.flat)

    def expected(self, before: tuple[Any, ...]) -> object:
        """The state as guards know it."""
        memory = memoryview(self.owner)
        return memory.format, memory.shape, numpy.array(before, object).tobytes()

    def differs(self, before: tuple[Any, ...]) -> bool:
        return not all(map(operator.is_, self.owner.flat, before))

    def write(self, before: tuple[Any, ...]) -> bool:
        for i, one in enumerate(before):
            self.owner.flat[i] = one
        return True


class Queued:
    """The items of a queue; a state is a tuple."""

    kind = GuardKind.STATE

    def __init__(self, path: str, owner: Any) -> None:
        self.path = path
        self.owner = owner

    def read(self) -> tuple[Any, ...]:
        if isinstance(self.owner, queue.Queue):
            return tuple(self.owner.queue)
        items = self._emptied()
        self.extend(items)
        return items

    def expected(self, before: tuple[Any, ...]) -> object:
        """The state as guards know it."""
        known = isinstance(self.owner, queue.Queue)
        return len(before), [id(one) for one in before] if known else []

    def differs(self, before: tuple[Any, ...]) -> bool:
        now = self.read()
        return len(now) != len(before) or not all(map(operator.is_, now, before))

    def write(self, before: tuple[Any, ...]) -> bool:
        self._emptied()
        self.extend(before)
        return True

    def extend(self, items: tuple[Any, ...]) -> None:
        """Put more in, at the end."""
        for one in items:
            self.owner.put(one)

    def _emptied(self) -> tuple[Any, ...]:
        items: list[Any] = []
        while not self.owner.empty():
            items.append(self.owner.get_nowait())
            if isinstance(self.owner, queue.Queue):
                self.owner.task_done()
        return tuple(items)


class State:
    """The position of an iterator, or the next draws of a random generator."""

    kind = GuardKind.STATE

    def __init__(self, path: str, owner: Any) -> None:
        self.path = path
        self.owner = owner

    def read(self) -> tuple[object, Any]:
        """A value that tells states apart, and a value that restores the state, or None if nothing does."""
        return state_of(self.owner), self._settable_state()

    def differs(self, before: tuple[object, Any]) -> bool:
        return bool(state_of(self.owner) != before[0])

    def write(self, before: tuple[object, Any]) -> bool:
        owner, state = self.owner, before[1]
        if state is None:
            return False
        if isinstance(owner, random.Random):
            owner.setstate(state)
        elif isinstance(owner, torch.Generator):
            with mode_stacks.dispatch_modes_off():
                owner.set_state(state)
        elif isinstance(owner, numpy.random.RandomState):
            owner.set_state(state)
        elif isinstance(owner, numpy.random.Generator):
            owner.bit_generator.state = state
        elif isinstance(owner, numpy.random.BitGenerator):
            owner.state = state
        else:
            owner.__setstate__(state)
        return not self.differs(before)

    def _settable_state(self) -> Any:
        owner = self.owner
        if isinstance(owner, random.SystemRandom):
            return None
        if isinstance(owner, random.Random):
            return owner.getstate()
        if isinstance(owner, torch.Generator):
            with mode_stacks.dispatch_modes_off():
                return owner.get_state()
        if isinstance(owner, numpy.random.RandomState):
            return owner.get_state(legacy=False)
        if isinstance(owner, numpy.random.Generator):
            return owner.bit_generator.state
        if isinstance(owner, numpy.random.BitGenerator):
            return owner.state
        if type(owner) in _ITERATORS:
            reduced = owner.__reduce__()
            return reduced[2] if len(reduced) == 3 else None
        return None


_ITERATED: tuple[Any, ...] = ([], (), range(0), "", b"", bytearray())
_ITERATORS = tuple(type(iter(one)) for one in _ITERATED)


class Memo:
    """The cache of a ``functools.lru_cache``; a state is (number of misses, keys and results)."""

    def __init__(self, path: str, owner: Any) -> None:
        self.path = path
        self.owner = owner

    def read(self) -> tuple[int, list[Any]]:
        return self.owner.cache_info().misses, self._kept()

    def differs(self, before: tuple[int, list[Any]]) -> bool:
        return bool(self.owner.cache_info().misses != before[0])

    def write(self, before: tuple[int, list[Any]]) -> bool:
        self.owner.cache_clear()  # there is no way to remove single entries
        return not before[1]

    def _kept(self) -> list[Any]:
        """Keys and results. The wrapper of a bounded cache refers to them itself."""
        own = (self.owner.__dict__, self.owner.__wrapped__)
        found = [one for one in gc.get_referents(self.owner) if not any(one is part for part in own)]
        if self.owner.cache_parameters()["maxsize"] is None:
            return [part for one in found if type(one) is dict for part in (*one, *one.values())]
        return [one for one in found if not isinstance(one, type)]


def _is_same(before: Mapping[Any, Any], now: Any) -> bool:
    """Whether the same keys lead to the same objects, in the same order."""
    return (
        len(before) == len(now)
        and all(map(operator.is_, before.values(), now.values()))
        and all(map(operator.is_, before, now))
    )


def changed_keys(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> list[Any]:
    """The keys whose value has changed: first those that are gone, then new and changed ones."""
    gone = [key for key in before if key not in now]
    return gone + [key for key, value in now.items() if before.get(key, MISSING) is not value]


def variable_holders_of(
    path: str, value: Any, space_of: Mapping[type, Mapping[str, Any]]
) -> Iterator[Holder]:
    """The holders of an object's state.

    Args:
        space_of: the namespaces of classes that guards look into.
    """
    kind = type(value)
    if isinstance(value, types.FunctionType):
        if not is_library(value.__globals__.get("__name__")):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                yield Cell(name, cell)
            yield Variables(path, value.__dict__)
        return
    if isinstance(value, types.ModuleType):
        yield ModuleVariables(path, vars(value))
        return
    if isinstance(value, type):
        yield ClassVariables(path, value, space_of.get(value) or vars(value))
        return
    if isinstance(value, ContextVar):
        yield Context(path, value)
        return
    if isinstance(value, _LRU):
        yield Memo(path, value)
        return
    if isinstance(value, threading.local):
        yield LocalVariables(path, value)
        return
    if isinstance(value, dict):
        if kind is dict and not path and "__builtins__" in value:
            yield ModuleVariables(path, value)
            return
        yield Entries(path, value)
    elif isinstance(value, SEQUENCES):
        yield Items(path, value)
    elif isinstance(value, Tensor):
        if value.is_leaf:  # torch warns when the `.grad` of another tensor is read
            yield Gradient(path, value)
        yield TensorAttributes(path, value)
        return
    elif not isinstance(value, (tuple, frozenset)):
        if isinstance(value, QUEUES):
            yield Queued(path, value)
            return
        if has_state(value):
            yield State(path, value)
            return
        if has_introspectable_memory(value):
            if "O" not in memoryview(value).format:
                yield Memory(path, value)
            elif isinstance(value, numpy.ndarray):
                yield Objects(path, value)
    yield from _instance_variables(path, value, kind)


def _instance_variables(path: str, value: Any, kind: Any) -> Iterator[Holder]:
    space = namespace_of(value)
    library = is_library(kind.__module__) and not isinstance(value, nn.Module)
    if library and (space is None or is_compiler(kind.__module__)):
        return
    if library and kind.__module__.split(".", 1)[0] != "torch" and kind.__module__ not in _RECORDS:
        return
    if space is not None:
        yield Variables(path, space)
        if isinstance(value, nn.Module):
            for name in _REGISTRIES & space.keys():
                if isinstance(space[name], dict):
                    yield Entries(f"{path}.{name}", space[name])
        elif library:
            for name, one in space.items():
                yield from _nested_containers(f"{path}.{name}", one, set())
    if not library:
        slots = {
            name: slot
            for base in reversed(kind.__mro__)
            if "__slots__" in vars(base) and not is_library(base.__module__)
            for name, slot in vars(base).items()
            if isinstance(slot, types.MemberDescriptorType)
        }
        if slots:
            yield Slots(path, value, slots)


_RECORDS = ("types", "argparse", "collections")


def _nested_containers(path: str, value: Any, seen: set[int]) -> Iterator[Holder]:
    """The containers in an object of torch's, such as the state of an optimizer."""
    if id(value) in seen or not isinstance(value, (dict, list, deque, set, tuple)):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        yield Entries(path, value)
    elif not isinstance(value, tuple):
        yield Items(path, value)
    for one in builtin_view(value).values() if isinstance(value, dict) else builtin_view(value):
        yield from _nested_containers(f"{path}[...]", one, seen)
