"""Call tracing: a callback for each Python function that is called while a function runs.

The callback runs before the callee's first instruction, so that the compiler can look through its code first.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from aot.errors import UnsupportedOperation


@contextlib.contextmanager
def calls_traced(begins: Callable[[FrameType], None]) -> Iterator[None]:
    """While it lasts, call `begins` with every new frame of this thread before its first instruction.

    An exception of `begins` comes out of the call that made the frame.

    Raises:
        UnsupportedOperation: Python's trace function and its profile function are both in use, by a debugger
            (or coverage) and a profiler.
    """
    # The trace function is preferred: Python calls a profile function for C functions and returns as well.
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
    """A code object and all code objects in it: of functions, classes and comprehensions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_code(constant)
