"""What is behind a name in a graph, as data that changes when its code does.

Of functions of torch, of Python's operators and of `math` their name says it all, for one version of torch.
Of a custom operator (`torch.library.custom_op`) it is the code of all Python that was registered for it, and
of what that reads: constants, functions, libraries' modules. What reads anything else has no such data
(`Uncacheable`).
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from aot import torch_internals as internals
from aot.cache.data import OURS, Data, Packing, Uncacheable
from aot.reads import is_library

_SPACES = ("torch", "_operator", "operator", "builtins", "math", "_thread")


@functools.cache
def own_source() -> str:
    """A digest of the source of this package.

    Raises:
        Uncacheable: it has no files.
    """
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    try:
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    except OSError as error:
        raise Uncacheable("aot without its source", error) from None
    return digest.hexdigest()


def name_of(value: Any) -> str:
    """Where torch, or a library that graphs may name, has a function or a type.

    Raises:
        Uncacheable: none has it there.

    Example:
        >>> name_of(torch.nn.functional.relu)
        'torch.nn.functional.relu'
    """
    name = getattr(value, "__name__", "")
    is_method = isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType))
    if is_method and getattr(torch.Tensor, name, None) is value:
        return f"torch.Tensor.{name}"
    module = getattr(value, "__module__", None) or ""
    if module.split(".")[0] in _SPACES:
        for path in dict.fromkeys((getattr(value, "__qualname__", ""), name)):
            found: Any = sys.modules.get(module.split(".")[0])
            for part in (*module.split(".")[1:], *path.split(".")):
                found = getattr(found, part, None)
            if found is value:
                return f"{module}.{path}"
    raise Uncacheable("a function or an object of the user's", f"{module}.{name}" if name else type(value))


def operator_data(op: internals.OpOverload) -> Data:
    """A custom operator: its schema, and the code behind it.

    Raises:
        Uncacheable: there is code that is not known, or that reads what is no code.
    """
    found = internals.custom_definition(op)
    if found is None:
        raise Uncacheable("a custom operator of which the source is not known", op)
    definition, parts = found
    look = _Look(definition)
    tags = sorted(str(tag) for tag in op.tags)
    behind = [[name, look.data(value)] for name, value in sorted(parts.items())]
    return [str(op._schema), tags, internals.is_ordered(op), behind]


class _Look:
    """Goes through functions, and what they read."""

    def __init__(self, definition: Any) -> None:
        self._definition = definition
        self._known: dict[int, int] = {}
        self._packing = Packing()

    def data(self, value: Any, *, ours: bool = False) -> Data:
        """Anything that code reads; `ours`: the code is a library's, and what it holds is its own affair."""
        if value is self._definition:
            return ["itself"]
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType) and is_library(type(value.__self__).__module__):
            return ["method", self.data(value.__func__)]
        if isinstance(value, types.ModuleType) and is_library(value.__name__):
            return ["module", value.__name__, str(getattr(value, "__version__", ""))]
        if isinstance(value, internals.OpOverload):
            return ["op", str(value)] if value.namespace in OURS else operator_data(value)
        if isinstance(value, type) and is_library(value.__module__):
            return ["type", value.__module__, value.__qualname__]
        if isinstance(value, types.BuiltinFunctionType) and is_library(value.__module__):
            return ["builtin", value.__module__, value.__qualname__]
        if isinstance(value, dict):
            pairs = sorted(value.items(), key=lambda pair: str(pair[0]))
            return ["dict", *([str(key), self.data(one, ours=ours)] for key, one in pairs)]
        if isinstance(value, (tuple, list, set, frozenset)):
            parts = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
            return [type(value).__name__, *(self.data(one, ours=ours) for one in parts)]
        if ours and is_library(type(value).__module__):
            return ["library", type(value).__module__, type(value).__qualname__]
        try:
            return self._packing.constant(value)
        except Uncacheable as error:
            raise Uncacheable("a custom operator that reads Python objects", error) from None

    def _function(self, function: types.FunctionType) -> Data:
        number = self._known.get(id(function))
        if number is not None:
            return ["again", number]
        self._known[id(function)] = len(self._known)
        ours = is_library(function.__globals__.get("__name__"))
        cells = [self._cell(cell, ours) for cell in function.__closure__ or ()]
        if ours:
            return ["library", function.__module__, function.__code__.co_qualname, *cells]
        scope = function.__globals__
        codes = list(_codes(function.__code__))
        names = sorted({name for code in codes for name in code.co_names if name in scope})
        return [
            "function",
            list(map(self._code, codes)),
            self.data(function.__defaults__ or ()),
            self.data(function.__kwdefaults__ or {}),
            cells,
            [[name, self.data(scope[name])] for name in names],
        ]

    def _cell(self, cell: types.CellType, ours: bool) -> Data:
        try:
            return self.data(cell.cell_contents, ours=ours)
        except ValueError:  # nothing is in it yet
            return ["empty"]

    def _code(self, code: types.CodeType) -> Data:
        constants = [self.data(one) for one in code.co_consts if not isinstance(one, types.CodeType)]
        table = code.co_exceptiontable
        numbers = [code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount]
        names = [list(some) for some in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)]
        return [code.co_code.hex(), table.hex(), numbers, names, constants]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and that of the functions in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)
