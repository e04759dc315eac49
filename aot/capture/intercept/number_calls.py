"""`float(tensor)` and `int(tensor)`, and the same of numbers that depend on values, as symbols.

Python makes a number of what `__float__` returns, so that no symbol comes out of a call of `float`. A trace
in which that is called is given up, and made again with other code in the functions that call it. There
the names `float` and `int` stand for functions of ours wherever they are called, and for themselves where
they are not (``isinstance(x, float)``).

In: the frame that makes such a call. Out: `NumberAsked`, which has the functions and their other code.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor

from aot.errors import DataDependentValue
from aot.guards.call_tracing import nested_code
from aot.tensors.symbolic_sizes import SYMBOLIC
from aot.torch_internals import plain_fakes

Redirections = MutableMapping[FunctionType, tuple[CodeType, CodeType]]
"""Functions, with their own code and that which a trace runs."""

_METHODS = ("__float__", "__int__", "__index__")  # the last of symbols of ints, by `float`
_LARGEST = 255  # what an instruction has for its argument, without another one before it


class _Redirecting(threading.local):
    """What a thread that traces has redirected, None where it cannot; and what the function may call."""

    known: Redirections | None = None
    reached: Callable[[], Iterable[FunctionType]] = tuple


_now = _Redirecting()


class NumberAsked(DataDependentValue):
    """A function has called `float` or `int` of something that depends on values.

    Attributes:
        redirections: the functions that call it, and what a trace can run of them.
    """

    def __init__(self, message: str, redirections: Redirections) -> None:
        super().__init__(message)
        self.redirections = redirections


def no_redirections() -> Redirections:
    """None so far. (Those of functions that a trace has made go with these.)"""
    return weakref.WeakKeyDictionary()


def value_refusal(frame: FrameType | None, method: str, message: str) -> DataDependentValue:
    """The refusal of a conversion to a number by `method`, made in that frame: one that says how the trace
    can go on when it is made again, if there is a way."""
    if frame is None or _now.known is None or method not in _METHODS:
        return DataDependentValue(message)
    found = no_redirections()
    for function in _callers(frame):
        changed = _redirected(function.__code__)
        if function not in _now.known and changed != function.__code__:
            found[function] = function.__code__, changed
    return NumberAsked(message, found) if found else DataDependentValue(message)


@contextlib.contextmanager
def calls_redirected(
    redirections: Redirections | None, reached: Callable[[], Iterable[FunctionType]]
) -> Iterator[None]:
    """While this lasts, these functions have their other code, and `NumberAsked` tells of further ones, of
    libraries or among those that are `reached`. (With None, nothing is redirected.)"""
    before = _now.known, _now.reached
    _now.known, _now.reached = redirections, reached
    changed = [] if redirections is None else list(redirections.items())
    try:
        for function, (code, other) in changed:
            if function.__code__ is code:
                function.__code__ = other
        yield
    finally:
        for function, (code, other) in changed:
            if function.__code__ is other:
                function.__code__ = code
        _now.known, _now.reached = before


def _callers(frame: FrameType) -> Iterator[FunctionType]:
    """The functions of which a frame runs code: its own, and those that have made that one."""
    code = frame.f_code
    around: FrameType | None = frame
    while around is not None:
        if code in nested_code(around.f_code) and not _CALLED.keys() & around.f_globals.keys():
            yield from _functions_of(around.f_code, around.f_globals)
        around = around.f_back


def _functions_of(code: CodeType, scope: dict[str, Any]) -> Iterator[FunctionType]:
    """The functions with that code: by its name, or among those that the function reaches."""
    found: Any = None
    for i, name in enumerate(code.co_qualname.split(".")):
        found = scope.get(name) if i == 0 else inspect.getattr_static(found, name, None)
    found = inspect.unwrap(getattr(found, "__func__", found)) if callable(found) else None
    named = (found,) if isinstance(found, FunctionType) else ()
    yield from {id(one): one for one in (*named, *_now.reached()) if one.__code__ is code}.values()


def _redirected(code: CodeType) -> CodeType:
    """The code, and that within it, with our functions where it calls `float` and `int`."""
    names, raw = list(code.co_names), bytearray(code.co_code)
    for one in dis.get_instructions(code):
        if one.opname != "LOAD_GLOBAL" or one.argval not in _CALLED or not (one.arg or 0) & 1:
            continue  # (The lowest bit says that it is loaded to be called.)
        alias = _CALLED[one.argval]
        if alias not in names:
            names.append(alias)
        argument = names.index(alias) << 1 | 1
        if max(argument, one.arg or 0) <= _LARGEST:
            raw[one.offset + 1] = argument
    constants = tuple(_redirected(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    if bytes(raw) == code.co_code and constants == code.co_consts:
        return code
    for name, alias in _CALLED.items():  # to stay: a thread may run the code when the trace is over
        vars(builtins).setdefault(alias, _FUNCTIONS[name])
    return code.replace(co_code=bytes(raw), co_names=tuple(names), co_consts=constants)


def _as_symbol(kind: type, symbolic: Callable[[Any], Any]) -> Callable[..., Any]:
    """A type of numbers as a function, which gives symbols of what has no value in a trace."""

    def call(*args: Any, **kwargs: Any) -> Any:
        value = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(value, Tensor) and plain_fakes.is_fake(value) and plain_fakes.are_fakes_allowed():
            value = value.item()
            args = (value,)
        return symbolic(value) if isinstance(value, SYMBOLIC) else kind(*args, **kwargs)

    call.__name__ = call.__qualname__ = kind.__name__
    return call


_FUNCTIONS = {"float": _as_symbol(float, torch.sym_float), "int": _as_symbol(int, torch.sym_int)}
# The names of these, which no Python can write.
_CALLED = {name: f"{name}()" for name in _FUNCTIONS}
