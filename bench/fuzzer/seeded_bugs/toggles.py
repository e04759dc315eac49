"""Faults that are made and taken back while `aot` runs, many at a time: their functions get other code.

    switches = Switches(FAULTS)         # `aot` has been imported, without a fault
    switches.turn({"grad mode is left off", "a product of conjugates is not conjugated"})
    ...
    switches.reached()                  # which of them have been run
    switches.turn(())

A fault of the catalogue lies in one function. Its module is compiled with the faults of that function that
are on, and what comes of the function's code is given to the function that is there already. What the module
has remembered meanwhile, in dictionaries, lists and sets of its own or in caches of functions, is forgotten:
it may be wrong. (What other modules remember of it is not; who finds something tries it again in a fresh
process. Nor are operators that a module has registered: torch has them for good, and takes none twice.)
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from bench.fuzzer.seeded_bugs.import_hook import NOTE, compiled
from bench.fuzzer.seeded_bugs.seeded_bug import Fault, FaultError, make, source_of

_OPERATOR = type(torch.ops.aten.add.Tensor)


class Switches:
    """The switches of some faults, all off.

    Raises:
        FaultError: a fault's module has not been imported, or the fault is not in one function.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._reached: set[str] = set()
        self._place: dict[str, _Place] = {}
        for module, ours in _by_module(faults).items():
            places: dict[str, _Place] = {}
            for fault in ours:
                name = _function_of(fault)
                if name not in places:
                    places[name] = _Place(module, name)
                places[name].add(fault)
                self._place[fault.name] = places[name]
            vars(_imported(module))[NOTE] = self._reached.add

    def turn(self, names: Iterable[str]) -> None:
        """These are on from now on, and no others; none has been reached."""
        on: defaultdict[_Place, set[str]] = defaultdict(set)
        for name in names:
            on[self._place[name]].add(name)
        for place in dict.fromkeys(self._place.values()):
            place.turn(frozenset(on[place]))
        self._reached.clear()

    def reached(self) -> frozenset[str]:
        """Those that were on whose lines have been run since."""
        return frozenset(self._reached)


class _Place:
    """A function that has faults, and which of them are on."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name
        self._function = _function(module, name)
        self._faults: dict[str, Fault] = {}
        self._on: frozenset[str] = frozenset()
        self._code = {self._on: self._function.__code__}
        self._forget = _memory(_imported(module))

    def add(self, fault: Fault) -> None:
        self._faults[fault.name] = fault

    def turn(self, on: frozenset[str]) -> None:
        if on == self._on:
            return
        if on not in self._code:
            faults = [fault for fault in self._faults.values() if fault.name in on]
            path = self._function.__code__.co_filename
            whole = compiled(faults, source_of(self._module), path)
            self._code[on] = _tops(whole)[self._name]
        self._function.__code__ = self._code[on]
        self._on = on
        self._forget()


def _by_module(faults: Sequence[Fault]) -> dict[str, list[Fault]]:
    found: defaultdict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        found[fault.module].append(fault)
    return found


def _imported(name: str) -> ModuleType:
    if name not in sys.modules:
        raise FaultError(f"module {name} has faults and has not been imported; import it first")
    return sys.modules[name]


def _function_of(fault: Fault) -> str:
    """The qualified name of the function that a fault is in, which is in no other function."""
    source = source_of(fault.module)
    texts = (source, make([fault], source).source)
    before, after = (compile(text, fault.module, "exec") for text in texts)
    ours, theirs = _tops(before), _tops(after)
    changed = [name for name in ours if name not in theirs or _what(ours[name]) != _what(theirs[name])]
    if len(changed) != 1 or ours.keys() != theirs.keys() or _rest(before) != _rest(after):
        raise FaultError(
            f"fault {fault.name!r} is not in one function of {fault.module}, but in {changed or 'none'}; it "
            f"cannot be switched: write it so that it is"
        )
    return changed[0]


def _tops(code: CodeType) -> dict[str, CodeType]:
    """The functions of a module or class body, those in classes too and those in functions not."""
    return {one.co_qualname: one for one in _inside(code) if _is_function(one)}


def _rest(code: CodeType) -> list[tuple[object, ...]]:
    """What a module and its classes do besides having functions."""
    return [_own(one) for one in (code, *_inside(code)) if not _is_function(one)]


def _inside(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            if not _is_function(one):
                yield from _inside(one)


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & 1)  # CO_OPTIMIZED: its names are local


def _what(code: CodeType) -> tuple[object, ...]:
    """What code does, wherever it stands."""
    return (*_own(code), *(_what(one) for one in code.co_consts if isinstance(one, CodeType)))


def _own(code: CodeType) -> tuple[object, ...]:
    constants = [(type(one), repr(one)) for one in code.co_consts if not isinstance(one, CodeType)]
    return (
        code.co_code,
        constants,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_exceptiontable,
    )


def _function(module: str, name: str) -> FunctionType:
    """The function of this qualified name in a module, whatever wraps it."""
    found: Any = _imported(module)
    for part in name.split("."):
        found = vars(found).get(part)
    while found is not None and not (type(found) is FunctionType and found.__code__.co_qualname == name):
        wrapped = getattr(found, "__wrapped__", None)  # of a cache, a class method, a context manager, ...
        found = wrapped or getattr(found, "fget", None) or getattr(found, "func", None)
    if found is None:
        raise FaultError(f"there is no function {name} in {module} as it runs; what wraps it may not show it")
    function: FunctionType = found
    return function


def _memory(module: ModuleType) -> Callable[[], None]:
    """What makes a module forget what it has remembered since."""
    tree = ast.parse(source_of(module.__name__)).body
    targets = [
        one.targets if isinstance(one, ast.Assign) else [one.target]
        for one in tree
        if isinstance(one, ast.Assign | ast.AnnAssign)
    ]
    names = {one.id for some in targets for one in some if isinstance(one, ast.Name)}
    own = [value for name, value in vars(module).items() if name in names]  # and not what it has imported
    dictionaries = [(one, dict(one)) for one in own if type(one) is dict]
    lists = [(one, list(one)) for one in own if type(one) is list]
    sets = [(one, set(one)) for one in own if type(one) is set]
    caches = [
        one
        for one in vars(module).values()
        if isinstance(one, functools._lru_cache_wrapper) and one.__module__ == module.__name__
    ]

    def forget() -> None:
        for dictionary, its in dictionaries:
            if len(dictionary) != len(its):
                operators = {key: one for key, one in dictionary.items() if type(one) is _OPERATOR}
                dictionary.clear()
                dictionary.update(its | operators)
        for some, elements in lists:
            if len(some) != len(elements):
                some[:] = elements
        for group, members in sets:
            if len(group) != len(members):
                group.clear()
                group.update(members)
        for cache in caches:
            cache.cache_clear()

    return forget
