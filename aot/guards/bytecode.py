"""Bytecode analysis: the names that a code object may read from outside of its own locals.

In: a code object. Out: `CodeReads`. The bytecode needs no source, and exists for generated code too. It gives
names only: the object that an attribute is read from is known only when the code runs.

Some names are only written, as in ``count += 1``, ``log.append(x)`` and ``seen[key] = x``. They do not count
as reads, because nothing that the code computes depends on their values. The trace makes such writes when it
runs the code.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from aot.guards.computed_attributes import (
    ComputedAccess,
    accesses_seen_from_outer,
    computed_accesses,
    constant_names,
)

KINDS = ("names", "cells", "attributes")
# Methods of containers and variables whose result does not depend on what was there.
WRITES = frozenset(
    ("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "discard", "clear")
) | {"set", "reset", "put", "put_nowait"}  # of a ContextVar, of a queue
_COMPILER = __name__.split(".", 1)[0]
_LIBRARIES = frozenset(("torch", "numpy", "sympy", "mpmath", _COMPILER, *sys.stdlib_module_names)) - {
    "__main__"
}
_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_CELLS = frozenset(("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"))
_TEXT = ("__repr__", "__str__", "__format__")
_EQUAL = ("__eq__", "__ne__")
_ORDER = ("__lt__", "__le__", "__gt__", "__ge__")
# Special methods that code calls without naming them: by an instruction, a builtin or a container's method.
_IMPLIED = {
    **dict.fromkeys(("FORMAT_VALUE", "FORMAT_SIMPLE", "str", "repr", "format", "print"), _TEXT),
    **dict.fromkeys(("==", "!=", "CONTAINS_OP", "index", "count", "remove"), _EQUAL),
    **dict.fromkeys(("<", "<=", ">", ">=", "min", "max", "sorted", "sort"), _ORDER),
}
OPTIONAL = frozenset(name for names in _IMPLIED.values() for name in names) | {"__hash__"}
_STORE = {"STORE_GLOBAL": "names", "STORE_NAME": "names", "STORE_DEREF": "cells", "STORE_ATTR": "attributes"}
_MAKES = frozenset(("__init__", "__new__", "__post_init__", "__setstate__"))
_STORES = {
    **dict.fromkeys(_GLOBALS, frozenset(("STORE_GLOBAL", "STORE_NAME"))),
    **dict.fromkeys(_CELLS, frozenset(("STORE_DEREF",))),
    **dict.fromkeys(_ATTRIBUTES, frozenset(("STORE_ATTR",))),
}


@dataclass(frozen=True, slots=True)
class Names:
    """Names that are read, and names that are only written.

    A name of `written` counts as read if its object has Python code that decides what a write means.
    """

    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CodeReads:
    """What a code object may read, with the functions, classes and comprehensions in it.

    Attributes:
        names: globals or builtins.
        cells: variables of enclosing functions.
        attributes: attributes of any object.
        computed: objects whose attributes are read under names that the code computes.
        modules: imports, each as its level and name.
        writes: how names are written, as (one of `KINDS`, name, way). The way is a method of `WRITES`, ``[]``
            for an entry that is stored, ``[]=`` for one that is updated, an operator such as ``+=``, or
            ``=``.
    """

    names: Names
    cells: Names
    attributes: Names
    computed: frozenset[ComputedAccess]
    modules: frozenset[tuple[int, str]]
    writes: frozenset[tuple[str, str, str]]


def is_library(module: object) -> bool:
    """Whether a module, given by name, is of a library whose code is not analyzed (`_LIBRARIES`)."""
    return isinstance(module, str) and module.split(".", 1)[0] in _LIBRARIES


def is_compiler(module: object) -> bool:
    """Whether a module, given by name, belongs to this compiler."""
    return isinstance(module, str) and module.split(".", 1)[0] == _COMPILER


@functools.lru_cache(maxsize=8192)
def analyze_code(code: CodeType) -> CodeReads:
    """Find what a code object may read and how it writes, including the code objects in it."""
    found: dict[str, tuple[set[str], set[str]]] = {k: (set(), set()) for k in KINDS}
    modules: set[tuple[int, str]] = set()
    writes: set[tuple[str, str, str]] = set()
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
    accesses = set(computed_accesses(code, instructions))
    found["attributes"][0].update(constant_names(instructions))
    for kind, opnames in zip(KINDS, (_GLOBALS, _CELLS, _ATTRIBUTES), strict=True):
        at = [i for i, one in enumerate(instructions) if one.opname in opnames]
        for name in {instructions[i].argval for i in at}:
            loads = [i for i in at if instructions[i].argval == name]
            ways = [_instruction_writing_into(instructions, i) for i in loads]
            updates = _update_instructions(instructions, name, opnames)
            found[kind][ways.count(None) <= len(updates)].add(name)
            writes.update((kind, name, way) for way in (*ways, *updates) if way is not None)
    for i, one in enumerate(instructions):
        if one.opname in _GLOBALS | _ATTRIBUTES or one.opname == "COMPARE_OP":
            found["attributes"][0].update(_IMPLIED.get(one.argval, ()))
        found["attributes"][0].update(_IMPLIED.get(one.opname, ()))
        if one.opname == "IMPORT_NAME":
            level = next(k.argval for k in reversed(instructions[: i - 1]) if k.opname == "LOAD_CONST")
            modules.add((level, one.argval))
        elif one.argval in ("import_module", "__import__") and instructions[i + 1].opname == "LOAD_CONST":
            modules.add((0, instructions[i + 1].argval))
    if code.co_name not in _MAKES:  # a constructor stores each attribute of its new object
        writes |= _stored_names(code, instructions)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = analyze_code(constant)
            for kind in found:
                names: Names = getattr(inner, kind)
                found[kind][0].update(names.read)
                found[kind][1].update(names.written)
            accesses |= {accesses_seen_from_outer(code, one) for one in inner.computed}
            modules |= inner.modules
            writes |= inner.writes
    names_by_kind = {
        k: Names(frozenset(read), frozenset(written - read)) for k, (read, written) in found.items()
    }
    return CodeReads(
        **names_by_kind, computed=frozenset(accesses), modules=frozenset(modules), writes=frozenset(writes)
    )


def all_names(code: CodeType) -> Iterator[str]:
    """Every name that the code uses for globals and attributes, with the code objects in it, in no order."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from all_names(constant)


def _instruction_writing_into(instructions: Sequence[dis.Instruction], i: int) -> str | None:
    """The way in which the loaded object is written to; None if the code does anything else with it.

    The way is a method of `WRITES`, ``[]`` for an entry that is stored, ``[]=`` for one that is updated.
    """
    depth = 1  # of the stack, counted from the loaded object
    for k, one in enumerate(instructions[i + 1 :], i + 1):
        if depth == 1 and one.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            return str(one.argval) if one.argval in WRITES else None
        if depth == 2 and one.opname == "STORE_SUBSCR":
            return "[]"
        if depth == 2 and [o.opname for o in instructions[k : k + 3]] == ["COPY", "COPY", "BINARY_SUBSCR"]:
            return "[]="
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs or one.opname in ("COPY", "SWAP"):
            return None
        depth += dis.stack_effect(one.opcode, one.arg, jump=False)
        if depth < 2:
            return None
    return None


def _stored_names(code: CodeType, instructions: Sequence[dis.Instruction]) -> set[tuple[str, str, str]]:
    """The names that ``=`` stores, and those that `setattr`, `__dict__`, `train` and `eval` may store."""
    stored = {
        (_STORE[one.opname], one.argval)
        for i, one in enumerate(instructions)
        if one.opname in _STORE and not _is_update(instructions, i)
    }
    used = {one.argval for one in instructions if one.opname in _GLOBALS | _ATTRIBUTES}
    if not used.isdisjoint(("setattr", "__setattr__", "__dict__")):
        constants = (one for one in code.co_consts if isinstance(one, str) and one.isidentifier())
        stored.update(("attributes", one) for one in constants)
    if not used.isdisjoint(("train", "eval")):
        stored.add(("attributes", "training"))
    return {(kind, name, "=") for kind, name in stored}


def _update_instructions(
    instructions: Sequence[dis.Instruction], name: str, loads: frozenset[str]
) -> list[str]:
    """The operators of all updates of a name, such as ``name += ...``. Each has one load that is no read."""
    stores = frozenset().union(*(_STORES[opname] for opname in loads))
    return [
        operator
        for i, one in enumerate(instructions)
        if one.opname in stores and one.argval == name and (operator := _is_update(instructions, i))
    ]


def _is_update(instructions: Sequence[dis.Instruction], i: int) -> str:
    """The operator if a store is part of an update such as ``... += ...``, else ""."""
    before = instructions[i - 1]
    if before.opname == "SWAP":
        before = instructions[i - 2]
    updates = before.opname == "BINARY_OP" and before.argrepr.endswith("=")
    return str(before.argrepr) if updates else ""
