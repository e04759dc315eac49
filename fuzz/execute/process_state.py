"""Process state: what a call may change in its process, besides what the oracles compare.

A compiler may replace a function of torch's, leave a mode on, or change the current folder. That is wrong in
itself, and makes everything wrong that runs later in the process: cases of other targets, and eager. So the
state is checked around each call of a target. A change is a finding, and the process runs no other case.

    before = ProcessState()
    ...
    before.left()                       # the changes since
    before.restore_process_state()
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from oracles.object_names import class_name
from oracles.observation.mode_stacks import active_modes, active_transforms

# Namespaces with the functions of torch that programs call, and those of Python that the fuzzer calls.
_SPACES: Mapping[str, Any] = MappingProxyType(
    {
        "torch": torch,
        "torch.Tensor": torch.Tensor,
        "torch.nn.functional": torch.nn.functional,
        "torch.autograd": torch.autograd,
        "torch.nn.Module": torch.nn.Module,
        "torch.autograd.Function": torch.autograd.Function,
        "gc": gc,
        "json": json,
        "signal": signal,
        "threading": threading,
        "time": time,
        "warnings": warnings,
    }
)
_BUILTINS = vars(builtins)
# The signals that a worker ignores, that end it, and that end a case which hangs.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
_TORCH = str(Path(torch.__file__).parent) + os.sep
_AS_BEFORE = "as before the call"
_INHERITED = object()  # a class had the attribute only from its bases


@dataclass(frozen=True, slots=True)
class Change:
    """A change since before a call: what it is, its old and new value, and the clause that it breaks."""

    clause: str
    what: str
    before: str
    after: str


def recursion_limit_lowered(limit: int) -> Change:
    """The change of a recursion limit that was lowered. To raise it harms nobody, and Dynamo does that."""
    return Change("ambient", "the recursion limit", f"{limit}", "lowered")


class Builtins:
    """Python's built-in functions at one moment, to be restored before other code calls one.

    builtins_before = Builtins()
    ...
    builtins_before.restore()    # the changes, which are undone
    """

    def __init__(self) -> None:
        self._before = {**_BUILTINS}

    def restore(self) -> list[Change]:
        """Restore functions that were replaced or deleted, and return the changes. Added ones harm nobody.

        Until they are restored, code here must not call a built-in function: it may be any other function by
        then.
        """
        before = self._before
        if before == _BUILTINS:
            return []
        names = [name for name in before if name not in _BUILTINS or _BUILTINS[name] is not before[name]]
        _BUILTINS.update(before)
        return [Change("ambient", f"builtins.{name}", _AS_BEFORE, "another function") for name in names]


class ProcessState:
    """The state of this process and thread at one moment."""

    def __init__(self) -> None:
        self._builtins = Builtins()
        self._limit = sys.getrecursionlimit()
        self._folder = _folder()
        self._streams = (sys.stdout, sys.stderr)
        self._files = _files()
        self._modes = active_modes()
        self._transforms = active_transforms()
        self._anomalies = torch.is_anomaly_enabled()
        self._threads = _threads()
        self._path = [*sys.path]
        self._filters = [*warnings.filters]
        self._handlers = [*map(signal.getsignal, _SIGNALS)]
        self._mask = _blocked_signals()
        self._functions = _functions()

    def left(self) -> tuple[Change, ...]:
        """The changes since, without threads, which may have a reason (`new_threads`)."""
        return (*self._builtins.restore(), *self._changed_process_state(), *self._changed_interpreter_state())

    def _changed_process_state(self) -> Iterator[Change]:
        if sys.getrecursionlimit() < self._limit:
            yield recursion_limit_lowered(self._limit)
        if _folder() != self._folder:
            yield Change("ambient", "the current folder", _AS_BEFORE, "another")
        if _files() != self._files or any(map(_is_closed, (sys.stdout, sys.stderr))):
            yield Change("ambient", "standard output and error", _AS_BEFORE, "closed or elsewhere")
        elif not all(map(_is, (sys.stdout, sys.stderr), self._streams)):
            yield Change("ambient", "sys.stdout and sys.stderr", _AS_BEFORE, "others")
        now = active_modes()
        if len(now) != len(self._modes) or not all(map(_is, now, self._modes)):
            new = [class_name(type(mode)) for mode in now if not any(mode is one for one in self._modes)]
            yield Change("ambient", "modes of torch that are on", _AS_BEFORE, ", ".join(new) or "fewer")
        transforms = active_transforms()
        if transforms != self._transforms:
            after = ", ".join(transforms) or "none"
            yield Change("ambient", "transforms of torch that are on", _AS_BEFORE, after)
        if torch.is_anomaly_enabled() != self._anomalies:
            yield Change("ambient", "the anomaly mode of autograd", _AS_BEFORE, "switched")
        for space, name, _ in self._replaced_torch_functions():
            yield Change("ambient", f"{space}.{name}", _AS_BEFORE, "another function")

    def _changed_interpreter_state(self) -> Iterator[Change]:
        """The changes of Python's own state.

        A library may add entries to the path or to the filters of warnings when it is imported. A filter that
        makes errors of warnings is a change.
        """
        if any(entry not in sys.path for entry in self._path):
            yield Change("ambient", "sys.path", _AS_BEFORE, "entries are gone")
        filters = [*warnings.filters]
        if filters != self._filters and any(
            one[0] == "error" and one not in self._filters for one in filters
        ):
            yield Change("ambient", "warnings.filters", _AS_BEFORE, "warnings are errors")
        for number, before in zip(_SIGNALS, self._handlers, strict=True):
            if signal.getsignal(number) != before:
                yield Change("ambient", f"the handler of {number.name}", _AS_BEFORE, "another")
        if _blocked_signals() != self._mask:
            yield Change("ambient", "the signals that are blocked", _AS_BEFORE, "others")

    def new_threads(self) -> int:
        """The number of Python threads that did not run before."""
        return len(_threads() - self._threads)

    def restore_process_state(self) -> None:
        """Restore what can be restored, for the checks that are left in this process."""
        self._builtins.restore()
        if sys.getrecursionlimit() < self._limit:
            sys.setrecursionlimit(self._limit)
        sys.stdout, sys.stderr = self._streams
        if self._folder is not None and _folder() != self._folder:
            os.chdir(self._folder)
        sys.path[:] = self._path
        for number, before in zip(_SIGNALS, self._handlers, strict=True):
            with contextlib.suppress(ValueError):  # only the main thread may set signal handlers
                if before is not None and signal.getsignal(number) != before:
                    signal.signal(number, before)
        for space, name, before in tuple(self._replaced_torch_functions()):
            if before is _INHERITED:
                delattr(_SPACES[space], name)
            else:
                setattr(_SPACES[space], name, before)

    def _replaced_torch_functions(self) -> Iterator[tuple[str, str, Any]]:
        """The functions of torch that were replaced, each with the original, or _INHERITED."""
        functions = _functions()
        if functions == self._functions:  # the fast answer, if all are identical
            return
        for space, (names, before) in self._functions.items():
            now = dict(zip(*functions[space], strict=True))
            for name, function in zip(names, before, strict=True):
                if now.get(name) is not function and not _is_torchs(function, now.get(name)):
                    yield space, name, function
            inherited = {name for base in getattr(_SPACES[space], "__mro__", ())[1:] for name in vars(base)}
            for name in inherited & now.keys() - {*names}:
                yield space, name, _INHERITED


def _is_torchs(before: Any, now: Any) -> bool:
    """Whether torch itself has wrapped a function, as Dynamo does when it is first used."""
    if not callable(before):
        return not callable(now)
    code = getattr(now, "__code__", None)
    named = getattr(before, "__name__", "") == getattr(now, "__name__", None)
    if code is None or not code.co_filename.startswith(_TORCH):
        return False
    return named or code.co_filename.startswith(f"{_TORCH}_")


def _functions() -> dict[str, tuple[list[str], list[Any]]]:
    """The names by which programs call torch, with their present values."""
    return {space: (list(vars(where)), list(vars(where).values())) for space, where in _SPACES.items()}


def _is(one: object, other: object) -> bool:
    return one is other


def _is_closed(stream: Any) -> bool:
    return stream is None or bool(getattr(stream, "closed", False))


def _folder() -> str | None:
    """The current folder; None if it no longer exists."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _files() -> tuple[tuple[int, int] | None, ...]:
    """The files behind the descriptors of standard output and error."""
    return tuple(map(_file, (1, 2)))


def _file(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _blocked_signals() -> set[signal.Signals]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())  # type: ignore[return-value]


def _threads() -> set[threading.Thread]:
    """The threads that Python code has started.

    Autograd's threads, in which Python runs, count as dummies.
    """
    return {one for one in threading.enumerate() if not isinstance(one, threading._DummyThread)}
