"""Modules that a function gets under names that it computes, by `import_module` or `__import__`.

The walk from the function does not come to them. So while the function runs, or Python of its in a backward,
it is noted which modules it gets; each is walked from there and then, before anything is read of it.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from aot import torch_internals as internals
from aot.errors import UnsupportedOperation
from aot.guards import Guard, Guards, Kind, compile_guards
from aot.reads import is_library
from aot.surroundings import guards_of

_now = threading.local()
_lock = threading.Lock()
_running = 0


class Noted:
    """What functions read besides their arguments, noted before they run and as they get modules.

    Attributes:
        roots: the functions, and the modules that they got.
        surroundings: what the walk from the functions has come to.
    """

    def __init__(self, *roots: Any) -> None:
        self.roots = list(roots)
        guards, self.surroundings = guards_of(*roots)
        self._guards = guards

    @property
    def guards(self) -> Guards:
        """All that was noted so far."""
        return self._guards

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While the functions run in this thread: note which modules they get."""
        before = getattr(_now, "noted", None)
        _now.noted = self
        try:
            with _replaced():
                yield
        finally:
            _now.noted = before

    def note(self, module: types.ModuleType) -> None:
        """A module was got.

        Raises:
            UnsupportedOperation: its code reads what the function has written to before, perhaps.
        """
        reached = (value for _, value in self.surroundings.objects)
        if any(module is one for one in (*reached, *self.roots)):
            return
        self.roots.append(module)
        with internals.modes_off():
            guards, _ = guards_of(*self.roots)
        name = module.__name__
        if sys.modules.get(name) is module:
            entry = Guard(f"sys.modules[{name!r}]", Kind.ENTRY, sys.modules, name, module)
            guards = replace(guards, guards=(entry, *guards.guards))
        known = {_place(guard) for guard in self._guards.guards}
        new = [guard for guard in guards.guards if _place(guard) not in known]
        for guard in new:
            if guard.name in self.surroundings.written:
                raise UnsupportedOperation(
                    f"the function gets the module {name} under a name that it computes, whose "
                    f"code reads {guard.path}, which the function writes to; import it outside"
                )
        every = tuple(sorted((*self._guards.guards, *new), key=lambda guard: guard.kind))
        self._guards = Guards(every, compile_guards(every))


def _place(guard: Guard) -> object:
    return id(guard.owner), guard.kind, guard.name, guard.expected if guard.kind is Kind.ABSENT else None


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get(*args: Any, **kwargs: Any) -> Any:
        noted = getattr(_now, "noted", None)
        _now.noted = None  # what modules get while they are loaded is theirs
        try:
            module = original(*args, **kwargs)
        finally:
            _now.noted = noted
        if noted is not None and isinstance(module, types.ModuleType) and not is_library(module.__name__):
            frame: Any = sys._getframe(1)
            while frame.f_globals.get("__name__") in ("importlib", "pkgutil"):
                frame = frame.f_back
            if not is_library(frame.f_globals.get("__name__")):
                noted.note(module)
        return module

    return get


# (`import_module` calls the first, under whatever name it is called itself.)
_REPLACED: tuple[tuple[Any, str], ...] = (
    (vars(importlib)["_bootstrap"], "_gcd_import"),
    (builtins, "__import__"),
)


@contextlib.contextmanager
def _replaced() -> Iterator[None]:
    """The functions that import, replaced while any thread traces."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            for owner, name in _REPLACED:
                setattr(owner, name, _noting(getattr(owner, name)))
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                for owner, name in _REPLACED:
                    setattr(owner, name, getattr(owner, name).__wrapped__)
