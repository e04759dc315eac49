"""What a code object may read from outside of its own locals, by name.

Told from the bytecode, so it needs no source and holds for generated code. Names are all that is told: which
object an attribute is read from is only known when the code runs. A name that the code does nothing with but
write (``count += 1``, ``log.append(x)``, ``seen[key] = x``) is no read: what is written happens when the code
runs, and nothing that the code computes depends on it.
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
# Methods of containers and variables that tell nothing of what was there.
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
# Methods that are called without being named: by an instruction, or by a builtin or a method of a container.
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
    """Names that are read, and among `written` those with which nothing is done but write.

    The latter are reads all the same if what they lead to is an object whose Python decides what a write is.
    """

    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CodeReads:
    """What a code object, and those of the functions and comprehensions in it, may read.

    Attributes:
        names: of globals, or else of builtins.
        cells: of variables of enclosing functions.
        attributes: of whatever objects.
        computed: of which objects attributes are read under names that the code computes.
        modules: what it imports: the level and the name.
        writes: how names are written: which of `KINDS` they are, the name, and a method of `WRITES`, ``[]``
            for an entry that is stored, ``[]=`` for one that is updated, an operator as ``+=``, or ``=``.
    """

    names: Names
    cells: Names
    attributes: Names
    computed: frozenset[ComputedAccess]
    modules: frozenset[tuple[int, str]]
    writes: frozenset[tuple[str, str, str]]


def is_library(module: object) -> bool:
    """Whether the code of a module, given by name, is taken as it is."""
    return isinstance(module, str) and module.split(".", 1)[0] in _LIBRARIES


def is_compiler(module: object) -> bool:
    """Whether a module, given by name, is one of this compiler's."""
    return isinstance(module, str) and module.split(".", 1)[0] == _COMPILER


@functools.lru_cache(maxsize=8192)
def analyze_code(code: CodeType) -> CodeReads:
    """What the code may read."""
    found: dict[str, tuple[set[str], set[str]]] = {k: (set(), set()) for k in KINDS}
    modules: set[tuple[int, str]] = set()
    writes: set[tuple[str, str, str]] = set()
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
    asked = set(computed_accesses(code, instructions))
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
    if code.co_name not in _MAKES:  # (What makes an object stores everything once.)
        writes |= _stored_names(code, instructions)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = analyze_code(constant)
            for kind in found:
                names: Names = getattr(inner, kind)
                found[kind][0].update(names.read)
                found[kind][1].update(names.written)
            asked |= {accesses_seen_from_outer(code, one) for one in inner.computed}
            modules |= inner.modules
            writes |= inner.writes
    told = {k: Names(frozenset(read), frozenset(written - read)) for k, (read, written) in found.items()}
    return CodeReads(**told, computed=frozenset(asked), modules=frozenset(modules), writes=frozenset(writes))


def all_names(code: CodeType) -> Iterator[str]:
    """Every name that the code uses for something, in no order."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from all_names(constant)


def _instruction_writing_into(instructions: Sequence[dis.Instruction], i: int) -> str | None:
    """How what the instruction loads is written into, if nothing else is done with it: a method that returns
    nothing is called, or an entry is stored or updated."""
    depth = 1  # of the stack, from what is loaded on
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
    """The names that are stored without being updated, and those that methods of torch's modules store."""
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
    """The operators of all ``name += ...`` and the like; each of these has one load that is not a read."""
    stores = frozenset().union(*(_STORES[opname] for opname in loads))
    return [
        operator
        for i, one in enumerate(instructions)
        if one.opname in stores and one.argval == name and (operator := _is_update(instructions, i))
    ]


def _is_update(instructions: Sequence[dis.Instruction], i: int) -> str:
    """The operator of a store that is part of ``... += ...`` or the like; "" for another one."""
    before = instructions[i - 1]
    if before.opname == "SWAP":
        before = instructions[i - 2]
    updates = before.opname == "BINARY_OP" and before.argrepr.endswith("=")
    return str(before.argrepr) if updates else ""
