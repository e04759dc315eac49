"""Computed attributes: the objects whose attributes a code object reads under names that it computes.

Examples are ``getattr(self, name)``, ``vars(config)`` and ``settings.inner.__dict__``. If the code writes the
object as a path of names, the bytecode shows which object it is. Otherwise it may be any object, and then
every attribute of every object counts as read.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType

BY_NAME = frozenset(("getattr", "hasattr"))
_FOR_ALL = frozenset(("vars", "dir"))
_DEEP = frozenset(("asdict", "astuple", "getmembers"))  # of dataclasses and inspect
_GETTERS = frozenset(("attrgetter", "methodcaller"))
_NAMED = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "LOAD_DEREF"))
_STARTS = {
    "LOAD_GLOBAL": "global",
    "LOAD_NAME": "global",
    "LOAD_DEREF": "cell",
    "LOAD_FAST": "local",
    "LOAD_FAST_CHECK": "local",
}


@dataclass(frozen=True, slots=True)
class ComputedAccess:
    """An object whose attributes are read under computed names.

    Attributes:
        start: the kind of name that the path begins with: "global", "cell", or "first" for the first
            parameter; "" if the object is not known.
        path: the names from there to the object.
        absent: the result also depends on names that the object does not have, as of `hasattr` and `dir`.
    """

    start: str
    path: tuple[str, ...]
    absent: bool


def computed_accesses(code: CodeType, instructions: Sequence[dis.Instruction]) -> Iterator[ComputedAccess]:
    """The computed accesses of the code itself, without those of functions in it."""
    for i, one in enumerate(instructions):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval in BY_NAME | _FOR_ALL:
            last = _end_of_path(instructions, i + 1)
            call = None if last is None else attribute_call_with(instructions, last)
            if last is None or call is None:
                if one.argval in BY_NAME or not instructions[i + 1].opname.endswith("CALL"):
                    yield ComputedAccess("", (), True)
            elif one.argval not in BY_NAME or _name_for(instructions, last, call) is None:
                yield _attribute_path(code, instructions, last, one.argval != "getattr" or call.argval != 2)
        elif one.opname in _NAMED and (
            one.argval in _DEEP
            or (one.argval in _GETTERS and _constant_attribute_names(instructions, i) is None)
        ):
            yield ComputedAccess("", (), True)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD") and one.argval == "__dict__":
            yield _attribute_path(code, instructions, i - 1, True)


def _constant_attribute_names(instructions: Sequence[dis.Instruction], i: int) -> list[str] | None:
    """The names in the arguments of the call at `i`; None unless all arguments are constant strings."""
    found: list[str] = []
    for one in instructions[i + 1 :]:
        if one.opname in ("PRECALL", "CALL"):
            return found
        if one.opname != "LOAD_CONST" or not isinstance(one.argval, str):
            return None
        found += one.argval.split(".")
    return None


def constant_names(instructions: Sequence[dis.Instruction]) -> Iterator[str]:
    """The attribute names that `getattr`, `hasattr`, `attrgetter` and `methodcaller` get as constants."""
    for i, one in enumerate(instructions):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval in BY_NAME:
            last = _end_of_path(instructions, i + 1)
            call = None if last is None else attribute_call_with(instructions, last)
            name = None if last is None or call is None else _name_for(instructions, last, call)
            if name is not None:
                yield name
        elif one.opname in _NAMED and one.argval in _GETTERS:
            yield from _constant_attribute_names(instructions, i) or ()


def accesses_seen_from_outer(code: CodeType, access: ComputedAccess) -> ComputedAccess:
    """The access of a function that is defined in the code, as seen from the code.

    If the path begins with a variable of the code, the access starts at the code's first parameter, or at any
    object. The inner function's own first parameter may be any object.
    """
    if access.start == "cell" and access.path[0] in code.co_cellvars:
        first = code.co_argcount and access.path[0] == code.co_varnames[0]
        return (
            replace(access, start="first", path=access.path[1:])
            if first
            else ComputedAccess("", (), access.absent)
        )
    return ComputedAccess("", (), access.absent) if access.start == "first" else access


def attribute_call_with(instructions: Sequence[dis.Instruction], i: int) -> dis.Instruction | None:
    """The call that gets the loaded object as an argument, unchanged; None if there is no such call."""
    depth = 1  # of the stack, counted from the loaded object
    for one in instructions[i + 1 :]:
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            return None
        depth += dis.stack_effect(one.opcode, one.arg, jump=False)
        if depth < 2:
            return one if one.opname in ("PRECALL", "CALL") else None
    return None


def _end_of_path(instructions: Sequence[dis.Instruction], i: int) -> int | None:
    """The last instruction of the path of names that begins at `i`; None if no path begins there."""
    if instructions[i].opname not in _STARTS:
        return None
    while instructions[i + 1].opname == "LOAD_ATTR" and not _is_method(instructions[i + 1]):
        i += 1
    return None if _is_method(instructions[i + 1]) else i


def _is_method(one: dis.Instruction) -> bool:
    return one.opname == "LOAD_METHOD" or (one.opname == "LOAD_ATTR" and "NULL|self" in one.argrepr)


def _name_for(instructions: Sequence[dis.Instruction], last: int, call: dis.Instruction) -> str | None:
    one = instructions[last + 1]
    constant = one.opname == "LOAD_CONST" and isinstance(one.argval, str)
    return one.argval if constant and attribute_call_with(instructions, last + 1) is call else None


def _attribute_path(
    code: CodeType, instructions: Sequence[dis.Instruction], i: int, absent: bool
) -> ComputedAccess:
    """The access to the path that ends at `i`. A local that is assigned once stands for its value."""
    names: list[str] = []
    while instructions[i].opname == "LOAD_ATTR" and not _is_method(instructions[i]):
        names.insert(0, instructions[i].argval)
        i -= 1
    start = _STARTS.get(instructions[i].opname, "")
    name = instructions[i].argval
    parameter = code.co_varnames[:1] if code.co_argcount else ()
    stores = [k for k, o in enumerate(instructions) if o.opname.startswith("STORE_") and o.argval == name]
    if start in ("global", "cell") and name not in code.co_cellvars:
        return ComputedAccess(start, (name, *names), absent)
    if start in ("local", "cell") and not stores and (name,) == parameter:
        return ComputedAccess("first", tuple(names), absent)
    if start == "local" and len(stores) == 1 and name not in code.co_varnames[: _parameters(code)]:
        source = _attribute_path(code, instructions, stores[0] - 1, absent)
        return replace(source, path=(*source.path, *names)) if source.start else source
    return ComputedAccess("", (), absent)


def _parameters(code: CodeType) -> int:
    flags = (0x04, 0x08)  # *args and **kwargs
    return code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in flags)
