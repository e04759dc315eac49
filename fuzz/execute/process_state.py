"""What a call may leave otherwise than it was in its process, besides what the oracles compare.

A compiler that replaces a function of torch's, leaves a mode on or changes the current folder is wrong in
itself, and makes all that runs later in its process wrong: cases of other targets, and eager. So this is
looked at around each call of a target. What has changed is a finding, and the process runs no other case.

    before = Surroundings()
    ...
    before.left()           # what is otherwise now
    before.restore()
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from oracles.object_names import class_name
from oracles.observation.mode_stacks import active_modes

# Where torch has what programs call.
_SPACES: Mapping[str, Any] = MappingProxyType(
    {
        "torch": torch,
        "torch.Tensor": torch.Tensor,
        "torch.nn.functional": torch.nn.functional,
        "torch.autograd": torch.autograd,
        "torch.nn.Module": torch.nn.Module,
        "torch.autograd.Function": torch.autograd.Function,
    }
)
_TORCH = str(Path(torch.__file__).parent) + os.sep
_AS_BEFORE = "as before the call"
_INHERITED = object()  # stands for what a class had of its bases alone


@dataclass(frozen=True, slots=True)
class Change:
    """What is otherwise than before a call: in words, what it was and is, and the clause that says so."""

    clause: str
    what: str
    before: str
    after: str


def recursion_limit_lowered(limit: int) -> Change:
    """A recursion limit that was lowered. (Raising it takes nothing from anybody; Dynamo does.)"""
    return Change("ambient", "the recursion limit", f"{limit}", "lowered")


class ProcessState:
    """The state of this process and thread at one moment."""

    def __init__(self) -> None:
        self._limit = sys.getrecursionlimit()
        self._folder = _folder()
        self._streams = (sys.stdout, sys.stderr)
        self._files = _files()
        self._modes = active_modes()
        self._threads = _threads()
        self._functions = _functions()

    def left(self) -> tuple[Change, ...]:
        """What is otherwise now; not threads, which may be there for a reason (`new_threads`)."""
        return tuple(self._changed_process_state())

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
        for space, name, _ in self._replaced_torch_functions():
            yield Change("ambient", f"{space}.{name}", _AS_BEFORE, "another function")

    def new_threads(self) -> int:
        """How many threads of Python's run that did not."""
        return len(_threads() - self._threads)

    def restore_process_state(self) -> None:
        """Put back what can be, for what is left to be said in this process."""
        if sys.getrecursionlimit() < self._limit:
            sys.setrecursionlimit(self._limit)
        sys.stdout, sys.stderr = self._streams
        if self._folder is not None and _folder() != self._folder:
            os.chdir(self._folder)
        for space, name, before in tuple(self._replaced_torch_functions()):
            if before is _INHERITED:
                delattr(_SPACES[space], name)
            else:
                setattr(_SPACES[space], name, before)

    def _replaced_torch_functions(self) -> Iterator[tuple[str, str, Any]]:
        """Functions of torch's that are others now, each with what it was, or _INHERITED."""
        functions = _functions()
        if functions == self._functions:  # as is said at once where all are the very same
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
    """Whether torch has replaced something of its own by what calls it: Dynamo does when it is first used."""
    if not callable(before):
        return not callable(now)
    code = getattr(now, "__code__", None)
    named = getattr(before, "__name__", "") == getattr(now, "__name__", None)
    if code is None or not code.co_filename.startswith(_TORCH):
        return False
    return named or code.co_filename.startswith(f"{_TORCH}_")


def _functions() -> dict[str, tuple[list[str], list[Any]]]:
    """The names that programs call torch by, and what has these names."""
    return {space: (list(vars(where)), list(vars(where).values())) for space, where in _SPACES.items()}


def _is(one: object, other: object) -> bool:
    return one is other


def _is_closed(stream: Any) -> bool:
    return stream is None or bool(getattr(stream, "closed", False))


def _folder() -> str | None:
    """The current folder; None where that is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _files() -> tuple[tuple[int, int] | None, ...]:
    """What the descriptors of standard output and error lead to."""
    return tuple(map(_file, (1, 2)))


def _file(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _threads() -> set[threading.Thread]:
    """The threads that Python code has started. (Autograd's own, in which Python runs, count as dummies.)"""
    return {one for one in threading.enumerate() if not isinstance(one, threading._DummyThread)}
