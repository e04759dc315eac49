"""Which Python functions are called while a function runs, told as each begins."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from aot.errors import UnsupportedOperation


@contextlib.contextmanager
def calls_traced(begins: Callable[[FrameType], None]) -> Iterator[None]:
    """While this lasts, `begins` gets every frame of this thread before its first instruction; what it raises
    comes out of the call.

    Raises:
        UnsupportedOperation: a debugger (or what measures coverage) is on and a profiler as well, which are
            told the same.
    """
    # (A profile function is told of the calls of functions in C as well, and of every return.)
    if sys.gettrace() is None:
        install: Callable[[Any], None] = sys.settrace
    elif sys.getprofile() is None:
        install = sys.setprofile
    else:
        raise UnsupportedOperation(
            "the function reaches so much code that it has to be looked through as it is called, which a "
            "debugger and a profiler together keep from happening; compile without one of them"
        )

    def tell(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            begins(frame)

    install(tell)
    try:
        yield
    finally:
        install(None)


def nested_code(code: CodeType) -> Iterator[CodeType]:
    """A code object, and those of the functions, classes and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_code(constant)
