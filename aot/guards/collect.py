"""Guard collection: walk from a function to every place that its Python may read.

In: functions and objects. Out: `Guards` and `ReachableObjects`. The walk visits closures, globals, defaults,
attributes and entries of containers, and goes on through the functions and objects that it finds there. It
visits only attributes that some code on the way names (`bytecode`). It does not look into code of torch,
numpy and the standard library, nor into their objects, except for attributes that the function's own code
reads. An `nn.Module` of torch is visited like other objects, because the code of its class reads its
attributes.
"""

from __future__ import annotations

import argparse
import builtins
import functools
import importlib.util
import inspect
import operator
import os
import sys
import threading
import types
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from aot.errors import UnsupportedOperation
from aot.guards.bytecode import OPTIONAL, WRITES, Names, analyze_code, is_compiler, is_library
from aot.guards.classes import ClassSummaries
from aot.guards.containers import SEQUENCES, builtin_view
from aot.guards.guard import MISSING, Guard, GuardKind, Guards, compile_guards, contents, guard, names_of
from aot.guards.introspection import content_of, has_introspectable_memory, namespace_of
from aot.guards.opaque_state import (
    QUEUES,
    gradient_of,
    has_state,
    observable_opaque_content,
    parts_of,
    state_of,
    tensor_likeness,
)
from aot.guards.reachable import ReachableObjects
from aot.guards.side_effects import Writable
from aot.tensors.constants import CONSTANTS
from aot.tensors.tensor_attributes import AttributeNames
from aot.torch_internals import module_hooks, plain_fakes, torch_namespaces

_RECORDS = (types.SimpleNamespace, argparse.Namespace)  # library classes for data of users
_OWN_FORWARD = frozenset(("forward",))
_COMPUTED = (types.FunctionType, property, types.MemberDescriptorType, functools.cached_property)
ANY = 0  # no object has this id
MOST_FUNCTIONS = 3_000  # to look through the code of so many functions takes seconds
_VALUES = (*CONSTANTS, str, bytes)
_MANY_NAMES = 64
_CONTAINERS = (dict, tuple, frozenset, *SEQUENCES)
_TOLD = (*CONSTANTS, *SEQUENCES, dict, Tensor, ContextVar, *QUEUES)
_NAMELESS = frozenset((dict, list, set, tuple, frozenset, types.BuiltinFunctionType, types.CodeType))
_ENVIRONMENT = frozenset(("environ", "environb", "getenv", "getenvb"))
_IMPORT = builtins.__import__
_REFERENCES = (
    weakref.ReferenceType,
    *(weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet),
)
_ATTRIBUTES_OF_TENSORS = frozenset(dir(Tensor))
_REGISTRIES = frozenset(vars(torch.nn.Module()))


class TooMuchCode(Exception):
    """The walk reaches more functions than `MOST_FUNCTIONS`. The message is that of a refusal."""


def collect_guards(
    *roots: Any, called: Collection[types.CodeType] | None = None
) -> tuple[Guards, ReachableObjects]:
    """Collect the values that functions read besides their arguments.

    Args:
        roots: functions, modules and objects to start from.
        called: the code objects to look through; None for all that are reached.

    Raises:
        TooMuchCode: more than `MOST_FUNCTIONS` functions are reached.

    Example:
        >>> scale = {"by": 2.0}
        >>> guards, _ = collect_guards(lambda x: x * scale["by"])
        >>> guards.hold(), scale.update(by=3.0), guards.hold()
        (True, None, False)
    """
    walk = GuardCollector(called)
    walk.collect(*roots)
    return walk.guards(), walk.reachable_objects()


def _module_of(value: type | types.ModuleType) -> str | None:
    return value.__module__ if isinstance(value, type) else value.__name__


class GuardCollector:
    """The state of the walk, which can be continued from new roots.

    Each code object that is found may add names of attributes. The walk then visits again only those objects
    that have one of the new names, or depend on them in another way.

    Args:
        called: see `collect_guards`. Functions of other code wait until `call` gets their code.
    """

    def __init__(self, called: Collection[types.CodeType] | None = None) -> None:
        self._called = None if called is None else set(called)
        self._waiting: dict[types.CodeType, list[tuple[Any, str]]] = {}
        # `_names`: attributes that count. `_whole`: ids of objects of which all attributes count, and whether
        # absent ones do (`ANY`: all objects). `_attributes` and `_opened`: the same with later findings.
        self._names, self._attributes = Names(), Names()
        self._whole, self._opened = dict[int, bool](), dict[int, bool]()
        self._guards: dict[tuple[int, GuardKind, str], Guard] = {}
        self._objects: list[tuple[str, Any]] = []
        self._tensors: dict[int, tuple[str, weakref.ref[Tensor]]] = {}
        self._caches: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self._unread: dict[tuple[int, GuardKind, str], Guard] = {}
        self._written: dict[tuple[int, GuardKind, str], tuple[str, Any]] = {}
        self._writes: set[tuple[str, str, str]] = set()
        self._seen: set[int] = set()
        self._ordinary: set[type] = set()  # containers and modules, which need no special case
        self._functions = 0
        self._absent: dict[int, tuple[Mapping[str, Any], str, list[frozenset[str]]]] = {}
        self._by_names: dict[int, None] = {}
        self._spaces: dict[type, Mapping[str, Any]] = {}
        self._ahead: deque[tuple[Any, str]] = deque()
        self._by_name: list[tuple[Any, str]] = []
        self._late: tuple[str, frozenset[str]] | None = None
        self._forget()

    def collect(self, *roots: Any, reader: str | None = None) -> None:
        """Walk from these roots. `reader` names the code that reads, if the function is already running.

        Raises:
            TooMuchCode: see `collect_guards`.
            UnsupportedOperation: the new code reads a name that the running function writes to.
        """
        self._late = None if reader is None else (reader, self._names.written)
        for root in roots:
            self._collect_object(root, getattr(root, "__name__", type(root).__name__))
        self._collect_to_fixed_point()

    def call(self, codes: Collection[types.CodeType], reader: str) -> None:
        """Look through code objects that are about to be called; the errors are those of `collect`."""
        assert self._called is not None
        self._called.update(codes)
        self._late = reader, self._names.written
        self._forget()
        for code in codes:
            for value, path in self._waiting.pop(code, ()):
                self._collect_from_object(value, path)
            if any(one.start == "first" for one in analyze_code(code).computed):
                for value, path in tuple(self._by_name):
                    self._collect_named(value, path)
        self._collect_to_fixed_point()

    def guards(self, more: Collection[Guard] = ()) -> Guards:
        """The guards of all places so far, and `more`."""
        unions: dict[tuple[int, ...], frozenset[str]] = {}
        every = [*more, *self._guards.values()]
        for space, path, parts in self._absent.values():
            key = tuple(map(id, parts))
            if key not in unions:
                unions[key] = frozenset(filter(str.isidentifier, frozenset[str]().union(*parts)))
            if unions[key]:
                where = f"a new name in {path or 'the globals'}"
                every.append(guard(where, GuardKind.ABSENT, space, "", unions[key]))
        guards = tuple(sorted(every, key=lambda guard: guard.kind))
        return Guards(guards, compile_guards(guards))

    def reachable_objects(self) -> ReachableObjects:
        """The objects that the walk has visited."""
        caches = (cache for cache in self._caches.values() if cache[1] not in self._names.read)
        return ReachableObjects(tuple(self._objects), tuple(caches))

    def collected_writable(self) -> Writable:
        """The objects that the walk has visited, as places that the functions may change."""
        ways: dict[tuple[str, str], set[str]] = {}
        for kind, name, way in self._writes:
            ways.setdefault((kind, name), set()).add(way)
        written = {place: found for place, found in self._written.items() if place not in self._guards}
        caches = frozenset(cache for cache in self._caches if cache[1] not in self._names.read)
        return Writable(
            (*self._objects, *self._known_tensors()),
            caches,
            self._guards.keys(),
            written,
            ways,
            dict(self._spaces),
            self._names.read,
        )

    def names(self, attributes: frozenset[str]) -> bool:
        """Whether the code on the way reads one of these attributes of any object."""
        return not self._names.read.isdisjoint(attributes)

    def reached(self, module: types.ModuleType) -> bool:
        """Whether the walk has visited a module."""
        return id(module) in self._seen

    @property
    def attribute_names(self) -> AttributeNames:
        """The attributes of tensors that the code on the way may read or set. One that is set counts, because
        the write shows if the attribute was absent before."""
        names = self._names.read | {name for kind, name, _ in self._writes if kind == "attributes"}
        return AttributeNames(names - _ATTRIBUTES_OF_TENSORS, bool(self._whole))

    def names_legacy_types(self) -> bool:
        """Whether the code on the way may check for ``torch.FloatTensor`` or its like."""
        return self.names(torch_namespaces.LEGACY_TYPES) or not self._seen.isdisjoint(
            torch_namespaces.LEGACY_TYPE_IDS
        )

    def _collect_to_fixed_point(self) -> None:
        while True:
            while self._ahead:
                self._collect_from_object(*self._ahead.popleft())
            if (self._attributes, self._opened) == (self._names, self._whole):
                return
            before, self._names = self._names, self._attributes
            opened = {n for n, absent in self._opened.items() if self._whole.get(n) != absent}
            self._whole = dict(self._opened)
            self._collect_again(before, opened)

    def _collect_again(self, before: Names, opened: set[int]) -> None:
        """Visit again the objects that depend on new names, or of which all attributes count now."""
        classes = self._classes
        self._forget()
        read = self._names.read - before.read
        new = read | (self._names.written - before.written)
        for path, tensor in tuple(self._known_tensors()):  # their attributes may count now
            self._gradient(path, tensor)
            if not opened.isdisjoint((id(tensor), ANY)) or not vars(tensor).keys().isdisjoint(new):
                self._given(path, tensor)
        if read:
            for number in self._by_names:
                space, _, parts = self._absent[number]
                parts.append(read if space.keys().isdisjoint(read) else read - space.keys())
        touched: dict[type, bool] = {}

        def of_class(cls: type) -> bool:
            if cls not in touched:
                known, now = classes.read_by_libraries(cls), self._classes.read_by_libraries(cls)
                touched[cls] = known != now or not new.isdisjoint(self._classes.slots(cls))
            return touched[cls]

        for value, path in tuple(self._by_name):
            own = self._space(value)
            if (
                isinstance(value, (types.FunctionType, threading.local, *_REFERENCES))
                or not opened.isdisjoint((id(value), ANY))
                or (own is not None and not own.keys().isdisjoint(new))
                or (not isinstance(value, (type, types.ModuleType)) and of_class(type(value)))
            ):
                self._collect_named(value, path)

    def _forget(self) -> None:
        """Drop what is known of classes, which depends on the attributes that count and the code called."""
        self._wanted = self._names.read | self._names.written
        self._classes = ClassSummaries(self._names.read, self._counts)
        self._others_of: dict[tuple[frozenset[str], frozenset[str]], frozenset[str]] = {}

    def _space_of(self, cls: type) -> Mapping[str, Any]:
        """A class's namespace, always the same object: `vars` gives a new one each time."""
        return self._spaces.setdefault(cls, vars(cls))

    def _collect_object(self, value: Any, path: str) -> None:
        if isinstance(value, _VALUES):
            return
        if isinstance(value, Tensor):  # held by a weak reference, so its id may be used again
            if not plain_fakes.is_fake(value):  # a fake belongs to a trace
                self._tensors[id(value)] = path, weakref.ref(value)
                self._collect_guard(path, GuardKind.LIKENESS, weakref.ref(value), "", tensor_likeness(value))
                self._gradient(path, value)
                self._given(path, value)
            return
        if id(value) not in self._seen:
            self._seen.add(id(value))
            if isinstance(value, (type, types.ModuleType)) and is_library(_module_of(value)):
                return
            self._objects.append((path, value))
            self._ahead.append((value, path))

    def _gradient(self, path: str, tensor: Tensor) -> None:
        """Guard a tensor's gradient, if the code on the way reads `.grad` of any object."""
        if "grad" in self._names.read:
            self._collect_guard(
                f"{path}.grad", GuardKind.GRADIENT, weakref.ref(tensor), "grad", gradient_of(tensor)
            )

    def _given(self, path: str, tensor: Tensor) -> None:
        """Guard the Python attributes that were set on a tensor."""
        space = vars(tensor)
        self._collect_namespace(space, self._names, path, self._collect_whole_namespace(tensor, space, path))

    def _known_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The visited tensors that are still alive."""
        for path, reference in self._tensors.values():
            if (tensor := reference()) is not None:
                yield path, tensor

    def _collect_guard(self, path: str, kind: GuardKind, owner: Any, name: str, expected: Any) -> None:
        place = id(owner), kind, name
        if place in self._guards:
            return
        # `_unread` has the value from before the writes, if the place was first known as written only.
        unread = self._unread.get(place)
        if unread is None and self._late is not None and name in self._late[1]:
            raise UnsupportedOperation(
                f"{self._late[0]} reads {path}, which the function writes to; import it outside"
            )
        self._guards[place] = unread or guard(path, kind, owner, name, expected)

    def _note_by_name(self, value: Any, path: str) -> None:
        if type(value) not in _NAMELESS:
            self._by_name.append((value, path))
            self._collect_named(value, path)

    def _collect_named(self, value: Any, path: str) -> None:
        """Visit an object's attributes under the names that count."""
        if isinstance(value, types.FunctionType):
            self._collect_namespace(value.__dict__, self._names, path)
        elif isinstance(value, types.ModuleType):
            self._collect_namespace(
                vars(value), self._names, path, self._collect_whole_namespace(value, vars(value), path)
            )
        elif isinstance(value, type):
            self._collect_class(value, path)
        elif isinstance(value, weakref.ReferenceType):
            self._collect_weak_reference(value, f"{path}()", path)
        elif isinstance(value, (weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet)):
            kind = list if isinstance(value, weakref.WeakSet) else dict
            self._collect_weak_reference(functools.partial(kind, value), f"{path}[...]", path)
        else:
            self._collect_instance(value, path)

    def _space(self, value: Any) -> Mapping[str, Any] | None:
        if isinstance(value, type):
            return self._space_of(value)
        return None if isinstance(value, threading.local) else namespace_of(value)

    def _collect_from_object(self, value: Any, path: str) -> None:
        if type(value) in self._ordinary:
            self._collect_container(value, path)
            self._note_by_name(value, path)
        elif isinstance(value, types.FunctionType):
            self._collect_function(value, path)
        elif value is _IMPORT:
            raise UnsupportedOperation(
                f"{path} is Python's __import__ under another name; write __import__ or import_module"
            )
        elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)) or (
            isinstance(value, types.MethodType) and isinstance(value.__self__, QUEUES)
        ):
            if value.__name__ not in WRITES:
                self._collect_object(value.__self__, path)
            else:
                self._objects.append((path, value.__self__))
                called = f"{value.__name__}()"  # no name of a variable
                self._written[id(value), GuardKind.ENTRY, called] = path, value.__self__
                self._writes.add(("attributes", called, value.__name__))
        elif isinstance(value, types.MethodType):
            self._collect_object(value.__func__, path)
            self._collect_object(value.__self__, "self")
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._collect_object(part, path)
        elif isinstance(value, (staticmethod, classmethod)):
            if not isinstance(value.__func__, types.FunctionType):
                pass
            elif not self._counts(value.__func__):
                self._waiting.setdefault(value.__func__.__code__, []).append((value, path))
            else:
                for access in analyze_code(value.__func__.__code__).computed:
                    if access.start == "first":  # a class, or whatever it is called with
                        self._collect_all_attributes_of(MISSING, (), access.absent)
            self._collect_object(value.__func__, path)
        elif isinstance(value, (operator.attrgetter, operator.methodcaller)):
            names = (
                name for text in value.__reduce__()[1] if isinstance(text, str) for name in text.split(".")
            )
            self._read(frozenset(names))
        elif isinstance(value, property):
            self._collect_object(value.fget, path)
        elif isinstance(value, functools.cached_property):
            self._collect_object(value.func, path)
        elif isinstance(value, (type, types.ModuleType)):
            self._note_by_name(value, path)
        elif value is os.environ:
            self._collect_container(vars(value)["_data"], path)
        elif isinstance(value, ContextVar):
            content = value.get(MISSING)
            self._collect_guard(f"{path}.get()", GuardKind.CONTEXT, value, "", content)
            self._collect_object(content, f"{path}.get()")
        elif isinstance(value, _REFERENCES):
            self._note_by_name(value, path)
        elif isinstance(value, (UserDict, UserList, ChainMap)):
            name = "maps" if isinstance(value, ChainMap) else "data"
            self._collect_guard(path, GuardKind.ATTRIBUTE, value, name, getattr(value, name))
            self._collect_object(getattr(value, name), path)
            self._note_by_name(value, path)
        else:
            if has_state(value):
                self._collect_guard(f"the state of {path}", GuardKind.STATE, value, "", state_of(value))
                for part in parts_of(value):
                    self._collect_object(part, path)
            elif isinstance(value, (*_CONTAINERS, torch.nn.Module)):
                self._ordinary.add(type(value))
            elif isinstance(value, torch.optim.Optimizer):  # whose methods are torch's, and set gradients
                for group in value.param_groups:
                    for parameter in group["params"]:
                        self._collect_object(parameter, f"a parameter of {path}")
            self._collect_container(value, path)
            self._note_by_name(value, path)

    def _collect_weak_reference(self, reference: Callable[[], Any], where: str, path: str) -> None:
        """Guard what is seen behind a weak reference, without keeping that object alive."""
        names, ahead = self._wanted | _REGISTRIES, dict[int, Any]()
        seen = functools.partial(observable_opaque_content, names=names)
        how = f"by {len(names)} names"
        self._collect_guard(
            where, GuardKind.REFERRED, reference, how, (seen, seen(reference(), objects=ahead))
        )
        for value in ahead.values():
            self._collect_object(value if callable(value) and not namespace_of(value) else type(value), path)

    def _collect_function(self, function: types.FunctionType, path: str) -> None:
        if function is os.getenv:
            self._collect_object(os.environ, "os.environ")
        self._collect_object(getattr(function, "__wrapped__", None), path)
        if is_library(function.__globals__.get("__name__")):
            for cell in function.__closure__ or ():  # a library's decorator may hold the user's function
                content = content_of(cell)
                if callable(content):
                    self._collect_object(content, path)
            return
        if not self._counts(function):
            self._waiting.setdefault(function.__code__, []).append((function, path))
            return
        self._functions += 1
        if self._functions > MOST_FUNCTIONS:
            raise TooMuchCode(
                f"the function reaches more than {MOST_FUNCTIONS} others by what it reads (as {path}): too "
                f"many to look through; name what it needs, where it calls globals() or getattr, or pass it"
            )
        reads = analyze_code(function.__code__)
        self._writes |= reads.writes
        self._read(reads.attributes.read, reads.attributes.written)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            value = getattr(function, name)
            if value is not None:
                self._collect_guard(f"{path}.{name}", GuardKind.ATTRIBUTE, function, name, value)
                if name != "__code__":
                    self._collect_object(value, f"{path}.{name}")
        if function.__dict__:
            self._note_by_name(function, path)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = content_of(cell)
            if value is not MISSING and _counts(reads.cells, name, value):
                self._collect_guard(name, GuardKind.CELL, cell, name, value)
                self._collect_object(value, name)
            elif value is not MISSING:
                self._only_written(name, GuardKind.CELL, cell, name, value)
        space = function.__globals__
        self._objects.append(("", space))
        builtin = reads.names.read - space.keys()
        everything = names_of(space) if "globals" in builtin else ()
        self._collect_namespace(space, reads.names, "", everything)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for access in reads.computed:
            if access.start == "global":
                self._collect_all_attributes_of(
                    space.get(access.path[0], MISSING), access.path[1:], access.absent
                )
            elif access.start == "cell":
                self._collect_all_attributes_of(
                    content_of(cells[access.path[0]]), access.path[1:], access.absent
                )
            elif access.start != "first" or not _is_method(function):
                self._collect_all_attributes_of(MISSING, (), access.absent)
        if everything:
            self._collect_guard("the names of globals", GuardKind.NAMES, space, "", names_of(space))
        if _ENVIRONMENT & (reads.attributes.read | builtin):
            self._collect_object(os.environ, "os.environ")
        for level, name in reads.modules:
            self._collect_import("." * level + name, space.get("__package__") or space.get("__name__") or "")

    def _counts(self, function: types.FunctionType) -> bool:
        return self._called is None or function.__code__ in self._called

    def _collect_import(self, name: str, package: str) -> None:
        try:
            full = importlib.util.resolve_name(name, package)
        except ImportError:
            return  # the import raises when it runs
        parts = full.split(".")
        for count in range(1, len(parts) + 1):
            part = ".".join(parts[:count])
            if part in sys.modules and not is_library(part):
                self._collect_guard(
                    f"sys.modules[{part!r}]", GuardKind.ENTRY, sys.modules, part, sys.modules[part]
                )
            self._collect_object(sys.modules.get(part), part)
        if full not in sys.modules and not is_library(full):
            self._collect_guard(
                f"the import of {full}", GuardKind.ABSENT, sys.modules, full, frozenset((full,))
            )

    def _collect_all_attributes_of(self, value: Any, path: Sequence[str], absent: bool) -> None:
        """Let all attributes count of the object at the end of a path; of all objects, if it is not known."""
        for name in path:
            space = namespace_of(value) or {}
            found = inspect.getattr_static(type(value), name, MISSING) if value is not MISSING else MISSING
            value = space.get(name, space.get("_modules", {}).get(name, found))
        if isinstance(value, (type, types.ModuleType)) and is_library(_module_of(value)):
            return
        number = ANY if value is MISSING or isinstance(value, _COMPUTED) else id(value)
        self._opened[number] = self._opened.get(number, False) or absent

    def _collect_whole_namespace(self, value: Any, space: Mapping[str, Any], path: str) -> Collection[str]:
        """The names in an object's namespace if all its attributes count, else none."""
        # `ANY` does not include modules: `getattr` with a computed name counts for a module only if the code
        # names the module. Otherwise the walk would reach every module that was ever imported.
        any_one = () if isinstance(value, types.ModuleType) else (ANY,)
        numbers = self._whole.keys() & {id(value), *any_one}
        if any(self._whole[number] for number in numbers):
            self._collect_guard(f"the names in {path}", GuardKind.NAMES, space, "", names_of(space))
        elif numbers:
            above = value.__mro__[1:] if isinstance(value, type) else type(value).__mro__
            hidden = frozenset(name for cls in above for name in vars(cls) if name not in space)
            self._collect_guard(f"a new name in {path}", GuardKind.ABSENT, space, "of a class", hidden)
        return names_of(space) if numbers else ()

    def _read(self, names: frozenset[str], written: frozenset[str] = frozenset()) -> None:
        known = self._attributes
        if not (names <= known.read and written <= known.read | known.written):
            read = known.read | names
            self._attributes = Names(read, (known.written | written) - read)

    def _collect_namespace(
        self,
        space: Mapping[str, Any],
        names: Names,
        path: str,
        more: Collection[str] = (),
        *,
        public: bool = False,
    ) -> None:
        """Guard the values of these names in a namespace, and the absence of the names that it lacks.

        Args:
            more: further names.
            public: leave out private names, except those in `more`.
        """
        more = frozenset(more)
        wanted = self._wanted if names is self._names else names.read | names.written
        if len(space) > _MANY_NAMES:  # a module has thousands of names, and few are wanted
            present = sorted(name for name in wanted.union(more) if name in space)
        else:
            present = [name for name in space if name in wanted or name in more]
        for name in present:
            if not isinstance(name, str) or not name.isidentifier():
                continue  # the name is of a tool that rewrites code, as pytest does with assert
            if public and name.startswith("_") and name not in more:
                continue
            where, value = f"{path}.{name}" if path else name, space[name]
            if name in more or _counts(names, name, value):
                self._collect_guard(where, GuardKind.ENTRY, space, name, value)
                self._collect_object(value, where)
            else:
                self._only_written(where, GuardKind.ENTRY, space, name, value)
        _, _, parts = self._absent.setdefault(id(space), (space, path, []))
        if names is self._names:
            self._by_names[id(space)] = None
        absent = self._collect_absent_names(names.read, space)
        if not any(absent is part for part in parts):
            parts.append(absent)

    def _only_written(self, path: str, kind: GuardKind, owner: Any, name: str, value: Any) -> None:
        self._objects.append((path, value))
        self._written[id(owner), kind, name] = path, value
        if isinstance(value, ContextVar):
            self._unread.setdefault((id(owner), kind, name), Guard(path, kind, owner, name, value))
            place, where = (id(value), GuardKind.CONTEXT, ""), f"{path}.get()"
            self._unread.setdefault(place, Guard(where, GuardKind.CONTEXT, value, "", value.get(MISSING)))

    def _collect_absent_names(self, read: frozenset[str], space: Mapping[str, Any]) -> frozenset[str]:
        """The names that are read and not in a namespace. Namespaces with the same names share one set,
        because there are many namespaces, and few differ in this."""
        present = read.intersection(space)
        known = self._others_of.get((read, present))
        if known is None:
            known = self._others_of[read, present] = read - present
        return known

    def _collect_class(self, cls: type, path: str) -> None:
        below = [base for base in cls.__mro__[1:] if is_library(base.__module__)]
        called = [
            name
            for name, value in vars(cls).items()
            if isinstance(value, (types.FunctionType, staticmethod, classmethod))
            and (name.startswith("__") or any(name in vars(base) for base in below))
            and name not in OPTIONAL
        ]
        space = self._space_of(cls)
        self._collect_namespace(
            space, self._names, path, {*called, *self._collect_whole_namespace(cls, space, path)}
        )
        for base in cls.__mro__[1:]:
            self._collect_object(base, base.__name__)
        if type(cls) is not type:  # a metaclass's attributes are the class's too
            self._collect_object(type(cls), type(cls).__name__)

    def _collect_instance(self, value: Any, path: str) -> None:
        cls: Any = type(value)
        library = is_library(cls.__module__) and not isinstance(value, _RECORDS)
        names = self._names
        if isinstance(value, threading.local):
            self._collect_thread_local(value, path)
        space = None if isinstance(value, threading.local) else namespace_of(value)
        if not library:
            for access in self._classes.computed_accesses(cls):
                self._collect_all_attributes_of(value, access.path, access.absent)
        whole = not library and not self._whole.keys().isdisjoint((id(value), ANY))
        if space is not None:
            if "__wrapped__" in space:
                self._collect_object(space["__wrapped__"], path)
            more: frozenset[str] = frozenset()
            if whole:
                more |= {*self._collect_whole_namespace(value, space, path)}
            if not library or isinstance(value, torch.nn.Module):
                for name in self._classes.read_by_libraries(cls) & space.keys():
                    # Private attributes of torch's classes do not count, except the module's registries.
                    if not name.startswith("_") or name in _REGISTRIES:
                        more |= {name}
                    elif isinstance(value, torch.nn.Module) and name not in names.read:
                        self._caches.setdefault((id(space), name), (space, name, space[name]))
            # A compiled function's private attributes do not count: they may have names that others read.
            self._collect_namespace(space, names, path, more, public=is_compiler(cls.__module__))
            if isinstance(value, torch.nn.Module) and _OWN_FORWARD.isdisjoint(space):
                # torch's code calls `forward`, and an instance's attribute would hide that of its class.
                parts = self._absent[id(space)][2]
                if not any(part is _OWN_FORWARD for part in parts):
                    parts.append(_OWN_FORWARD)
        if isinstance(value, torch.nn.Module):
            for hooks in module_hooks.global_hook_registries():
                self._collect_object(hooks, "torch.nn.modules.module's hooks of all modules")
        if library:
            return
        if space is not None:
            self._collect_guard(f"{path}.__class__", GuardKind.ATTRIBUTE, value, "__class__", cls)
        self._collect_object(cls, cls.__name__)
        for name in self._classes.slots(cls):
            if whole or name in names.read:
                content = getattr(value, name, MISSING)
                if content is not MISSING:
                    self._collect_guard(f"{path}.{name}", GuardKind.ATTRIBUTE, value, name, content)
                    self._collect_object(content, f"{path}.{name}")

    def _collect_thread_local(self, value: threading.local, path: str) -> None:
        """Guard the calling thread's values of a `threading.local`."""
        space = value.__dict__
        for name in {
            *self._names.read,
            *self._names.written,
            *self._collect_whole_namespace(value, space, path),
        }:
            content = space.get(name, MISSING)
            if name.isidentifier() and _counts(self._names, name, content):
                self._collect_guard(f"{path}.{name}", GuardKind.LOCAL, value, name, content)
                self._collect_object(content, f"{path}.{name}")

    def _collect_container(self, value: Any, path: str) -> None:
        where = f"{path}[...]"
        if isinstance(value, (dict, types.MappingProxyType)):
            entries = builtin_view(value)
            keys, values = tuple(entries), tuple(entries.values())
            self._collect_guard(where, GuardKind.ENTRIES, value, "", (keys, values))
            for key, one in zip(keys, values, strict=True):
                self._collect_object(key, where)
                self._collect_object(one, f"{path}[{key!r}]" if isinstance(key, (str, int)) else where)
        elif isinstance(value, _CONTAINERS):
            items = builtin_view(value)
            if isinstance(value, SEQUENCES):
                self._collect_guard(where, GuardKind.ITEMS, value, "", tuple(items))
            for i, one in enumerate(items):
                self._collect_object(one, where if isinstance(value, (set, frozenset)) else f"{path}[{i}]")
        elif has_introspectable_memory(value):
            self._collect_guard(where, GuardKind.BYTES, value, "", contents(value))


def _counts(names: Names, name: str, value: Any) -> bool:
    """Whether the value of a name counts as read: the code reads it, or writes to an object whose own Python
    decides what a write means."""
    if name in names.read:
        return True
    return value is not MISSING and not isinstance(value, _TOLD)


def _is_method(function: types.FunctionType) -> bool:
    """Whether a function was defined in a class."""
    scope = function.__qualname__.rpartition(".")[0]
    return bool(scope) and not scope.endswith("<locals>")
