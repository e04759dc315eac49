"""Compiler source: a compiler that was passed as a function, as lines of a script.

In: a callable. Out: a `Compiler` of `fuzz.repro.compilers`. If possible the lines need torch only.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import json
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from fuzz.minify.script_text import constant_text
from fuzz.repro.script import Compiler

_PLACE = """
def compiler(function):
    print({said})
    sys.exit(2)
""".strip()


def compiler_source(name: str, compiler: Any) -> Compiler:
    """A compiler in a script.

    The first possible form of these is taken:

    - a call of torch;
    - the compiler's source, if it needs torch only;
    - an import;
    - a place where the reader inserts the compiler.

    >>> import torch
    >>> compiler_source("mine", functools.partial(torch.compile, backend="aot_eager")).compiled
    "torch.compile(f, backend='aot_eager')"
    """
    call = _torch_compiler_source(compiler)
    if call is not None:
        return Compiler(name, "", call)
    source = _compiler_definition(compiler)
    if source is not None:
        return Compiler(name, source, "compiler(f)")
    module, function = getattr(compiler, "__module__", None), getattr(compiler, "__qualname__", "")
    if module and module != "__main__" and _imported_compiler_source(module, function) is compiler:
        setup = f'sys.path.insert(0, "")  # the current folder, too\nimport {module}'
        return Compiler(name, setup, f"{module}.{function}(f)")
    return Compiler(name, _PLACE.format(said=json.dumps(f"put your compiler here: {name}")), "compiler(f)")


def _imported_compiler_source(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def _torch_compiler_source(compiler: Any) -> str | None:
    """A function of torch, or a partial of one with constants, as a call; None for another compiler."""
    given: list[str | None] = []
    if isinstance(compiler, functools.partial):
        if compiler.args:
            return None
        given = [
            None if (text := constant_text(value)) is None else f"{key}={text}"
            for key, value in compiler.keywords.items()
        ]
        compiler = compiler.func
    module, name = getattr(compiler, "__module__", None) or "", getattr(compiler, "__qualname__", "")
    if (
        module.split(".")[0] != "torch"
        or _imported_compiler_source(module, name) is not compiler
        or None in given
    ):
        return None
    return f"{module}.{name}({', '.join(['f', *map(str, given)])})"


def _compiler_definition(compiler: Any) -> str | None:
    """The definition of `compiler`, if it uses only torch and Python's builtins; else None."""
    if not isinstance(compiler, FunctionType) or compiler.__code__.co_freevars or compiler.__defaults__:
        return None
    known = {name for code in _codes(compiler.__code__) for name in code.co_names}
    if not {name for name in known if name in compiler.__globals__} <= {"torch", *vars(builtins)}:
        return None
    try:
        if compiler.__name__ == "<lambda>":
            return _lambda_compiler_source(compiler)
        text = textwrap.dedent(inspect.getsource(compiler))
    except (OSError, TypeError):
        return None
    if not text.startswith(f"def {compiler.__name__}("):
        return None  # it is decorated
    return f"{text.rstrip()}\n\n\ncompiler = {compiler.__name__}"


def _lambda_compiler_source(compiler: FunctionType) -> str | None:
    """The text of a lambda, found by its position in its file."""
    lines, _ = inspect.findsource(compiler)
    places = {(line, column) for line, _, column, _ in compiler.__code__.co_positions() if line and column}
    whole = "".join(lines)
    for node in ast.walk(ast.parse(whole)):
        if isinstance(node, ast.Lambda) and (node.body.lineno, node.body.col_offset) in places:
            text = " ".join((ast.get_source_segment(whole, node) or "").split())
            _, own, *_ = _codes(compile(text, "<compiler>", "eval"))
            if _words(own) == _words(compiler.__code__):  # the file may have changed since it was imported
                return f"compiler = {text}"
    return None


def _words(code: CodeType) -> list[object]:
    """The names and constants of a code object. Instructions would depend on the module's imports."""
    constants = [one for one in code.co_consts if not isinstance(one, CodeType)]
    return [code.co_names, code.co_varnames, repr(constants)]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
