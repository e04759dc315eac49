"""Code that the function makes as it goes, by `eval`, `exec` or `compile`: what that reads cannot be told
beforehand.

Python tells an audit hook what it compiles and executes. A hook cannot be taken away again; this one does
nothing but while a function is traced.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from aot.errors import UnsupportedOperation
from aot.guards.bytecode import is_library

_now = threading.local()
_lock = threading.Lock()
_hooked = False


@contextlib.contextmanager
def dynamic_code_refused() -> Iterator[None]:
    """While this lasts, such code is refused in this thread, unless a library runs it.

    Raises:
        UnsupportedOperation: there is some.
    """
    global _hooked
    with _lock:
        if not _hooked:
            sys.addaudithook(_audit_dynamic_code)
            _hooked = True
    before = getattr(_now, "refused", False)
    _now.refused = True
    try:
        yield
    finally:
        _now.refused = before


def _audit_dynamic_code(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("compile", "exec") or not getattr(_now, "refused", False):
        return
    frame = sys._getframe(1)
    if not is_library(frame.f_globals.get("__name__")):
        what = "compiles" if event == "compile" else "executes"
        raise UnsupportedOperation(
            f"{frame.f_code.co_qualname} {what} code that is made as it goes (eval, exec); what that reads "
            f"cannot be told beforehand; do it outside of the function"
        )
