"""Dynamic code: refuse code that the function makes with `eval`, `exec` or `compile` while it is traced.

Guard collection looks at code before it runs, so it cannot see what such code reads. Python calls audit hooks
for the events `compile` and `exec`. An audit hook cannot be removed, so this one does nothing outside of a
trace.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from aot.errors import UnsupportedOperation
from aot.guards.bytecode import is_library

_thread = threading.local()
_lock = threading.Lock()
_hooked = False


@contextlib.contextmanager
def dynamic_code_refused() -> Iterator[None]:
    """While it lasts, refuse dynamic code in this thread, unless a library makes it.

    Raises:
        UnsupportedOperation: the function makes such code. It comes out of `eval`, `exec` or `compile`.
    """
    global _hooked
    with _lock:
        if not _hooked:
            sys.addaudithook(_audit_dynamic_code)
            _hooked = True
    before = getattr(_thread, "refuses", False)
    _thread.refuses = True
    try:
        yield
    finally:
        _thread.refuses = before


def _audit_dynamic_code(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("compile", "exec") or not getattr(_thread, "refuses", False):
        return
    frame = sys._getframe(1)
    if not is_library(frame.f_globals.get("__name__")):
        what = "compiles" if event == "compile" else "executes"
        raise UnsupportedOperation(
            f"{frame.f_code.co_qualname} {what} code that is made as it goes (eval, exec); what that reads "
            f"cannot be told beforehand; do it outside of the function"
        )
