"""Exceptions that a function catches: a graph that raises one does not do what the function would do.

A trace takes the way on which nothing is raised. So the regions of `try` and `with` in which operations are
recorded are noted, with the exceptions that are caught there. When a graph raises such a one, for the values
that it is given, the call is refused: what the function would have done was not compiled.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import functools
import inspect
import itertools
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any

import torch

from aot.errors import AotError, DataDependentValue, DataSizesDiffer
from aot.graph.symint_inputs import OTHER_NUMBERS
from aot.guards.bytecode import is_compiler, is_library
from aot.torch_internals import dynamo_api, rng

Scope = Mapping[str, Any]
_UNKNOWN: Any = object()
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_ON_THE_STACK = re.compile(r'File "(.+)", line (\d+), in (\S+)')
# What ends a `finally` other than by going on with the exception.
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise)


@dataclass(frozen=True, slots=True)
class Handler:
    """A region of code in which exceptions are caught.

    Attributes:
        where: the file and the line.
        types: the classes that are caught, as `except` takes them; None if they are not known.
    """

    where: str
    types: Any

    def catches(self, error: Exception) -> bool:
        try:
            return self.types is None or isinstance(error, self.types)
        except TypeError:  # no classes
            return True


def with_handler_check(
    call: Callable[..., Any], handlers: Iterable[Handler], acts: bool = False
) -> Callable[..., Any]:
    """The same call, which refuses values for which it raises what one of the handlers catches.

    Args:
        acts: whether it acts outside (it prints).

    Raises:
        DataDependentValue: when called, instead of such an exception. Random generators are as before.
        DataSizesDiffer: when called, as `call` raises it. Where it comes of such an exception, its cause is
            the refusal.
    """
    caught = tuple(handlers)
    if not caught:
        return call

    @functools.wraps(call)
    def checked(*args: Any) -> Any:
        generators = rng.default_generators()
        states = [generator.get_state() for generator in generators]
        try:
            return call(*args)
        except DataSizesDiffer as difference:
            cause = difference.__cause__
            refusal = _refusal_of_caught(cause, caught) if isinstance(cause, Exception) else None
            if refusal is None or OTHER_NUMBERS in str(cause):
                raise
            raise DataSizesDiffer(*difference.args) from refusal
        except AotError:
            raise
        except Exception as error:
            refusal = _refusal_of_caught(error, caught)
            if refusal is None:
                raise
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            refusal.acted = acts
            raise refusal from error

    return dynamo_api.skip(checked)  # type: ignore[no-any-return]


def _refusal_of_caught(error: Exception, handlers: Iterable[Handler]) -> DataDependentValue | None:
    """The refusal of values for which a graph raises what the function catches; None if it does not."""
    for handler in handlers:
        if handler.catches(error):
            return DataDependentValue(
                f"an operation raises {type(error).__name__} for these values ({str(error)[:200]}), which "
                f"the function catches at {handler.where}, and what it does then was not compiled; test the "
                f"values with operations (torch.where, cholesky_ex), or call the original function"
            )
    return None


class Handlers:
    """The handlers of one trace.

    Attributes:
        found: those around operations, by where they are.
    """

    def __init__(self) -> None:
        self.found: dict[str, Handler] = {}
        self._seen: set[tuple[Any, int]] = set()

    def note_handlers(self) -> None:
        """Note what is around the operation that is being recorded."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code, module = frame.f_code, frame.f_globals.get("__name__")
            if is_compiler(module):
                if code.co_name == "flat" and module == "aot.frontends.function":  # where the function begins
                    return
            elif (
                code.co_exceptiontable
                and str(module).split(".", 1)[0] != "torch"  # which tidies up, and lets exceptions go on
                and (code, frame.f_lasti) not in self._seen
                and _is_covered(code, frame.f_lasti)
            ):
                self._seen.add((code, frame.f_lasti))
                if not linecache.getlines(code.co_filename):
                    if _catches_by_code(code, frame.f_lasti):
                        where = f"{code.co_filename}:{frame.f_lineno}"
                        self.found[where] = Handler(where, None)
                    frame = frame.f_back
                    continue
                scope = {**vars(builtins), **frame.f_globals, **frame.f_locals}
                for handler in handlers_at(code.co_filename, frame.f_lineno, code.co_name, scope):
                    self.found[handler.where] = handler
            frame = frame.f_back


def _is_covered(code: CodeType, instruction: int) -> bool:
    """Whether an exception that an instruction raises goes on within the code."""
    entries: Any = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return any(entry.start <= instruction < entry.end for entry in entries)


def _catches_by_code(code: CodeType, instruction: int) -> bool:
    """Whether an `except` is around an instruction, of code without a source. (Of what `with` does with
    exceptions there is nothing to tell, but for a name.)"""
    bytecode = dis.Bytecode(code)
    every = [*bytecode]
    instructions = {one.offset: i for i, one in enumerate(every)}
    targets = [
        every[instructions[entry.target] :]
        for entry in bytecode.exception_entries  # type: ignore[attr-defined]
        if entry.start <= instruction < entry.end
    ]
    names = [[one.opname for one in itertools.islice(target, 40)] for target in targets]
    with_statement = any("WITH_EXCEPT_START" in found[:3] for found in names)
    if with_statement:
        return "suppress" in code.co_names
    first = (list(itertools.takewhile(lambda name: name != "RERAISE", found)) for found in names)
    return any("CHECK_EXC_MATCH" in found or found[1:2] == ["POP_TOP"] for found in first)


def handlers_of(graph: torch.fx.Graph) -> tuple[Handler, ...]:
    """Those around the operations of a front end's graph, as far as its nodes tell where they come from."""
    found: dict[str, Handler] = {}
    for trace in {node.meta.get("stack_trace") or "" for node in graph.nodes}:
        for file, line, name in _ON_THE_STACK.findall(trace):
            for handler in handlers_at(file, int(line), name, _scope_of(file), doubts=False):
                found[handler.where] = handler
    return tuple(found.values())


def _scope_of(file: str) -> Scope:
    """What is behind the global names in a file."""
    for module in tuple(sys.modules.values()):
        if getattr(module, "__file__", None) == file:
            return {**vars(builtins), **vars(module)}
    return vars(builtins)


def handlers_at(file: str, line: int, name: str, scope: Scope, *, doubts: bool = True) -> Iterator[Handler]:
    """Those around a line of a function, as far as there is a source.

    Args:
        name: of the function.
        scope: what is behind the names there.
        doubts: whether a context manager that is not in there counts as one that may catch exceptions.
    """
    tree = _tree(file, "".join(linecache.getlines(file)))
    if tree is None:
        return
    for node in _statements_around_line(tree, line, name):
        where = f"{file}:{node.lineno}"
        if isinstance(node, ast.Try):
            yield from _handlers_of_try(node, line, where, scope)
        elif _is_in(node.body, line):
            managers = (_resolve_handled_type(item.context_expr, scope) for item in node.items)
            if any(_may_swallow_exceptions(one) for one in managers if doubts or one is not _UNKNOWN):
                yield Handler(where, None)


def _handlers_of_try(node: ast.Try, line: int, where: str, scope: Scope) -> Iterator[Handler]:
    if _is_in(node.body, line):
        for handler in node.handlers:
            if not _raises_it_again(handler):
                types = Exception if handler.type is None else _types(handler.type, scope)
                yield Handler(where, types)
    if not _is_in(node.finalbody, line):
        ends = (one for part in node.finalbody for one in ast.walk(part))
        if any(isinstance(one, _LEAVES) for one in ends):
            yield Handler(where, None)


def _raises_it_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    if not isinstance(last, ast.Raise):
        return False
    return last.exc is None or (isinstance(last.exc, ast.Name) and last.exc.id == handler.name)


def _types(expression: ast.expr, scope: Scope) -> Any:
    if isinstance(expression, ast.Tuple):
        found = [_resolve_handled_type(one, scope) for one in expression.elts]
        return None if any(one is _UNKNOWN for one in found) else tuple(found)
    found_one = _resolve_handled_type(expression, scope)
    return None if found_one is _UNKNOWN else found_one


@functools.lru_cache(maxsize=256)
def _tree(file: str, source: str) -> ast.Module | None:
    try:
        return ast.parse(source) if source else None
    except SyntaxError:
        return None


def _statements_around_line(tree: ast.Module, line: int, name: str) -> list[ast.Try | ast.With]:
    """The statements around a line, within the innermost function of that name that has it."""
    best: list[ast.Try | ast.With] = []
    stack: list[tuple[ast.AST, list[ast.Try | ast.With], bool]] = [(tree, [], name == "<module>")]
    while stack:
        node, around, inside = stack.pop()
        if isinstance(node, _FUNCTIONS):
            around, inside = [], getattr(node, "name", "<lambda>") == name
        elif isinstance(node, (ast.Try, ast.With)):
            around = [*around, node]
        if inside and hasattr(node, "lineno"):
            best = around
        for child in ast.iter_child_nodes(node):
            first, last = getattr(child, "lineno", line), getattr(child, "end_lineno", line)
            if first <= line <= last:
                stack.append((child, around, inside))
    return best


def _is_in(body: list[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or line)


def _resolve_handled_type(expression: ast.expr, scope: Scope) -> Any:
    """What an expression of names is, or, of a call, what is called."""
    if isinstance(expression, ast.Call):
        called = expression.func
        if isinstance(called, ast.Attribute) and called.attr == "_recreate_cm":  # of a decorated function
            called = called.value
        return _resolve_handled_type(called, scope)
    if isinstance(expression, ast.Name):
        return scope.get(expression.id, _UNKNOWN)
    if isinstance(expression, ast.Attribute):
        value = _resolve_handled_type(expression.value, scope)
        return _UNKNOWN if value is _UNKNOWN else inspect.getattr_static(value, expression.attr, _UNKNOWN)
    return _UNKNOWN


def _may_swallow_exceptions(manager: Any) -> bool:
    """Whether a context manager, its class, or the function that makes it, may catch exceptions."""
    if manager is _UNKNOWN or manager in (contextlib.suppress, contextlib.ExitStack):
        return True
    if isinstance(manager, contextlib._GeneratorContextManager):
        return _catches_at_a_yield(manager.func)
    maker = getattr(manager, "__wrapped__", None)
    if maker is not None and not isinstance(manager, type):
        return _catches_at_a_yield(maker)
    if isinstance(manager, (FunctionType, BuiltinFunctionType)):  # which makes one
        return not (isinstance(manager, BuiltinFunctionType) or is_library(manager.__module__))
    kind = manager if isinstance(manager, type) else type(manager)
    end = getattr(kind, "__exit__", None)
    if end is None:
        return True
    if is_library(kind.__module__) and kind is not contextlib.ExitStack:
        return isinstance(manager, contextlib.suppress)
    return _returns_something(end)


def _returns_something(function: Any) -> bool:
    tree = _source_of(function)
    if tree is None:
        return hasattr(function, "__code__")  # what is written in C, as a lock, lets exceptions go on
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Return))
    falsy = (value is None or (isinstance(value, ast.Constant) and not value.value) for value in values)
    return not all(falsy)


def _catches_at_a_yield(function: Any) -> bool:
    tree = _source_of(function)
    if tree is None:
        return True
    code = function.__code__
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, (ast.Yield, ast.YieldFrom))]
    scope = {**vars(builtins), **function.__globals__}
    first = code.co_firstlineno - 1
    found = (handlers_at(code.co_filename, first + line, code.co_name, scope) for line in lines)
    return any(map(any, map(tuple, found)))


def _source_of(function: Any) -> ast.Module | None:
    try:
        lines = inspect.getsource(function)
    except (OSError, TypeError):
        return None
    return _tree("", textwrap.dedent(lines))
