"""What the walk from a function does not come to, noted while Python of it runs.

Modules that it gets under names that it computes, by `import_module` or `__import__`: each is walked from
there and then, before anything is read of it. And code, where more is reached than can be looked through (a
registry of all attentions there are, of which a model calls one): what is called is looked through first.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from aot import torch_internals as internals
from aot.called import told, within
from aot.errors import UnsupportedOperation
from aot.guards import Guard, Guards, Kind, compile_guards
from aot.reads import is_library
from aot.surroundings import Surroundings, TooMuchCode, guards_of

_now = threading.local()
_lock = threading.Lock()
_running = 0


class Noted:
    """What functions read besides their arguments, noted before they run and as they get modules.

    Attributes:
        roots: the functions, and the modules that they got.
        surroundings: what the walk from the functions has come to.

    Args:
        runs: whether `running` will be on whenever the functions run.
    """

    def __init__(self, *roots: Any, runs: bool = False) -> None:
        self.roots = list(roots)
        self._called: set[types.CodeType] | None = None
        self._libraries: set[types.CodeType] = set()
        try:
            guards, self.surroundings = guards_of(*roots)
        except TooMuchCode as error:
            if not runs:
                raise UnsupportedOperation(str(error)) from None
            self._called = set()
            guards, self.surroundings = self._walk()
        self._found = {_place(guard): guard for guard in guards.guards}
        self._guards: Guards | None = guards
        self._unread = {_place(guard): guard for guard in self.surroundings.unread}

    @property
    def guards(self) -> Guards:
        """All that was noted so far."""
        if self._guards is None:
            every = tuple(sorted(self._found.values(), key=lambda guard: guard.kind))
            self._guards = Guards(every, compile_guards(every))
        return self._guards

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While the functions run in this thread: note which modules they get."""
        before = getattr(_now, "noted", None)
        _now.noted = self
        watched = contextlib.nullcontext() if self._called is None else told(self._begins)
        try:
            with _replaced(), watched:
                yield
        finally:
            _now.noted = before

    def _walk(self) -> tuple[Guards, Surroundings]:
        try:
            return guards_of(*self.roots, called=self._called)
        except TooMuchCode as error:
            raise UnsupportedOperation(str(error)) from None

    def _begins(self, frame: types.FrameType) -> None:
        """Code is about to run: note what it may read, if that has not been done."""
        assert self._called is not None
        code = frame.f_code
        if code in self._called or code in self._libraries:
            return
        if is_library(frame.f_globals.get("__name__")):
            self._libraries.add(code)
            return
        self._called.update(within(code))
        with internals.modes_off():
            guards, found = self._walk()
        self._add(guards, f"{code.co_qualname} is called, which")
        known = {(id(space), name) for space, name, _ in self.surroundings.caches}
        new = (cache for cache in found.caches if (id(cache[0]), cache[1]) not in known)
        self.surroundings = replace(found, caches=(*self.surroundings.caches, *new))
        self._unread = {_place(guard): guard for guard in found.unread} | self._unread

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
            guards, _ = self._walk()
        name = module.__name__
        if sys.modules.get(name) is module:
            entry = Guard(f"sys.modules[{name!r}]", Kind.ENTRY, sys.modules, name, module)
            guards = replace(guards, guards=(entry, *guards.guards))
        self._add(guards, f"the function gets the module {name} under a name that it computes, whose code")

    def _add(self, guards: Guards, how: str) -> None:
        for place, guard in ((_place(guard), guard) for guard in guards.guards):
            known = self._found.get(place)
            if known is not None:
                if guard.kind is Kind.ABSENT and not guard.expected <= known.expected:
                    self._found[place] = replace(known, expected=known.expected | guard.expected)
                    self._guards = None
                continue
            # (What was written to before it turned out to be read was noted before it was written to.)
            if guard.name in self.surroundings.written and place not in self._unread:
                raise UnsupportedOperation(
                    f"{how} reads {guard.path}, which the function writes to; import it outside"
                )
            self._found[place] = guard if guard.kind is Kind.ABSENT else self._unread.get(place, guard)
            self._guards = None


def _place(guard: Guard) -> object:
    """Where a guard looks. (A class shows its namespace as another object each time.)"""
    owner = guard.owner
    if isinstance(owner, types.MappingProxyType):
        (owner,) = gc.get_referents(owner)
    return id(owner), guard.kind, guard.name


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get(*args: Any, **kwargs: Any) -> Any:
        noted = getattr(_now, "noted", None)
        if noted is None:
            return original(*args, **kwargs)
        _now.noted = None  # what modules get while they are loaded is theirs
        try:
            module = original(*args, **kwargs)
        finally:
            _now.noted = noted
        if isinstance(module, types.ModuleType) and not is_library(module.__name__):
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
