"""Which Python functions are called while a function runs, told as each begins."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from aot.errors import UnsupportedOperation


@contextlib.contextmanager
def told(begins: Callable[[FrameType], None]) -> Iterator[None]:
    """While this lasts, `begins` gets every frame of this thread before its first instruction; what it raises
    comes out of the call.

    Raises:
        UnsupportedOperation: a profiler is on, which is told the same.
    """
    if sys.getprofile() is not None:
        raise UnsupportedOperation(
            "the function reaches so much code that it has to be looked through as it is called, which a "
            "profiler keeps from happening; compile without it"
        )

    def tell(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            begins(frame)

    sys.setprofile(tell)
    try:
        yield
    finally:
        sys.setprofile(None)


def within(code: CodeType) -> Iterator[CodeType]:
    """A code object, and those of the functions, classes and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from within(constant)
