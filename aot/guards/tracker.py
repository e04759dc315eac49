"""What the walk from a function does not come to, noted while Python of it runs.

Modules that it gets under names that it computes, by `import_module` or `__import__`: each is walked from
there and then, before anything is read of it. And code, where more is reached than can be looked through (a
registry of all attentions there are, of which a model calls one): what is called is looked through first.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import functools
import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from torch import Tensor

from aot.errors import Unsupported, UnsupportedOperation
from aot.guards.bytecode import is_library
from aot.guards.call_tracing import calls_traced, nested_code
from aot.guards.collect import GuardCollector, TooMuchCode
from aot.guards.guard import MISSING, Guard, GuardKind, Guards
from aot.guards.legacy_types import checking_legacy_types
from aot.guards.reachable import ReachableObjects
from aot.guards.side_effects import NO_SIDE_EFFECTS, Snapshot
from aot.tensors.tensor_attributes import AttributeNames
from aot.tensors.version_counters import has_counter, version_of
from aot.torch_internals import mode_stacks

_Result = TypeVar("_Result")
_now = threading.local()
_lock = threading.Lock()
_running = 0


class GuardTracker:
    """What functions read besides their arguments, noted before they run and as they get modules.

    Attributes:
        roots: the functions, and the modules that they got.
        changes: what they changed of that, when `tracking_run` is over.
        changes_of_backward: what the backward changes that was recorded with them.
        wrote: whether they had written to tensors when they raised, or may have.

    Args:
        runs: whether `tracking_run` will be on whenever the functions run.
        in_places: tells where tensors of the trace stand for the caller's when they have run, if some do.
    """

    def __init__(
        self,
        *roots: Any,
        runs: bool = False,
        in_places: Callable[[], Iterable[tuple[Any, Any]]] | None = None,
    ) -> None:
        self.roots = list(roots)
        self._called: set[types.CodeType] | None = None
        self._libraries: set[types.CodeType] = set()
        self._guards: Guards | None = None
        self._entries: list[Guard] = []
        self._snapshot = Snapshot(of_backward=True)
        self._of_backward: Snapshot | None = None
        self._stays = False  # what they have changed so far
        self.changes = self.changes_of_backward = NO_SIDE_EFFECTS
        self._in_places = in_places
        self.wrote = in_places is not None
        self._types: contextlib.ExitStack | None = None
        self._walk = GuardCollector()
        try:
            self._walk.collect(*roots)
        except TooMuchCode as error:
            if not runs:
                raise UnsupportedOperation(str(error)) from None
            self._called = set()
            self._walk = GuardCollector(())
            with _refused():
                self._walk.collect(*roots)

    @property
    def guards(self) -> Guards:
        """All that was noted so far."""
        if self._guards is None:
            self._guards = self._walk.guards(self._entries)
        return self._guards

    @property
    def reachable_objects(self) -> ReachableObjects:
        """What the walk has come to so far."""
        return self._walk.reachable_objects()

    @property
    def is_tracing_calls(self) -> bool:
        """Whether code is looked through as it is called, and not before."""
        return self._called is not None

    def reached_functions(self) -> list[types.FunctionType]:
        """The functions whose code has been looked through so far."""
        return self.guards.functions()

    @property
    def attribute_names(self) -> AttributeNames:
        """What the code that was looked through so far may read of tensors that are given to it."""
        return self._walk.attribute_names

    def follow_attributes(self, tensors: Sequence[Tensor]) -> None:
        """Look at what these tensors have under the names that are read, before the function runs."""
        while True:
            before = self.attribute_names
            with _refused():
                self._walk.collect(*before.objects(tensors))
            if self.attribute_names == before:
                return

    def reads_attribute(self, attributes: frozenset[str]) -> bool:
        """Whether the code that was looked through so far reads one of these of anything."""
        return self._walk.names(attributes)

    @contextlib.contextmanager
    def tracking_run(self, again: bool = False) -> Iterator[None]:
        """While the functions run in this thread: note which modules they get, and what they change.

        Args:
            again: whether they are run once more if they raise.

        Raises:
            EscapedTensor: they have stored a tensor of the trace.
        """
        before = getattr(_now, "noted", None)
        _now.noted = self
        watched = contextlib.nullcontext() if self._called is None else calls_traced(self._track_called_code)
        try:
            with (
                self._tracking_changes(again),
                _tracked_import_functions(),
                watched,
                contextlib.ExitStack() as self._types,
            ):
                self._check_types()
                yield
        finally:
            self._types = None
            _now.noted = before

    def noting_input_writes(self, flat: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """The function; where it raises, it is noted whether it has written to its arguments by then."""

        def run(leaves: list[Any]) -> Any:
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and has_counter(leaf)]
            before = [version_of(tensor) for tensor in tensors]
            try:
                return flat(leaves)
            except BaseException:
                self.wrote |= [version_of(tensor) for tensor in tensors] != before
                raise

        return run

    def track_within_context(self, function: Callable[..., _Result], *args: Any) -> _Result:
        """What a function returns, within which the others are `tracking_run`.

        The variables of the context that they set are set out here only if what they change stays: nothing
        else lets one have no value again.
        """
        context = contextvars.copy_context()
        try:
            return context.run(function, *args)
        finally:
            if self._stays:
                for variable, value in context.items():
                    if variable.get(MISSING) is not value:
                        variable.set(value)

    @contextlib.contextmanager
    def _tracking_changes(self, again: bool) -> Iterator[None]:
        self._snapshot = Snapshot()
        self._snapshot.extend(self._walk.collected_writable())
        try:
            yield
        except Unsupported:
            self.undo_tracked_changes()
            raise
        except BaseException:
            # What the function raises itself it raises in eager, where what it has changed by then stays.
            # (But nothing is written to a tensor here, and some of that without the rest would be neither.)
            self._stays = not (again or self.wrote) and self._snapshot.may_effects_stay(
                self._walk.collected_writable()
            )
            if not self._stays:
                self.undo_tracked_changes()
            raise
        try:
            if self._of_backward is None:
                self.changes = self._snapshot.find_side_effects(self._walk.collected_writable())
            else:
                self.changes_of_backward = self._of_backward.find_side_effects(
                    self._walk.collected_writable()
                )
                self._of_backward.put_back()
                self._of_backward = None  # which knows tensors of the trace
            self.changes = self._snapshot.undo_side_effects(self.changes)
        except BaseException:
            self.undo_tracked_changes()
            raise
        self._stays = bool(self.changes.once)
        if self.changes.guards:
            self._entries += self.changes.guards
            self._guards = None

    def track_backward(self) -> None:
        """What is changed from here on is changed by a backward.

        Raises:
            EscapedTensor: a tensor of the trace has been stored.
        """
        places: dict[int, set[Any]] = {}
        for owner, name in () if self._in_places is None else self._in_places():
            places.setdefault(id(owner), set()).add(name)
        self._snapshot.places = places
        self.changes = self._snapshot.find_side_effects(self._walk.collected_writable())
        self._of_backward = Snapshot(of_backward=True)
        self._of_backward.places = places
        self._of_backward.extend(self._walk.collected_writable())

    def undo_tracked_changes(self) -> None:
        """Let everything that the functions can change be as it was before `tracking_run`."""
        self._stays = False
        self._snapshot.put_back_settings()  # dispatch modes among them
        with mode_stacks.dispatch_modes_off():
            if self._of_backward is not None:
                self._of_backward.put_back()
                self._of_backward = None
            self._snapshot.put_back()

    def _check_types(self) -> None:
        """Have type checks know fakes from now on, if the code that was looked through may make some."""
        if self._types is not None and self._walk.names_legacy_types():
            self._types.enter_context(checking_legacy_types())
            self._types = None  # (once is enough)

    def _track_called_code(self, frame: types.FrameType) -> None:
        """Code is about to run: note what it may read, if that has not been done."""
        assert self._called is not None
        code = frame.f_code
        if code in self._called or code in self._libraries:
            return
        if is_library(frame.f_globals.get("__name__")):
            self._libraries.add(code)
            return
        codes = tuple(nested_code(code))
        self._called.update(codes)
        self._guards = None
        with mode_stacks.dispatch_modes_off(), _refused():
            self._walk.call(codes, f"{code.co_qualname} is called, which")
            self._extend()
        self._check_types()

    def _extend(self) -> None:
        """Take in what the walk has come to."""
        writable = self._walk.collected_writable()
        self._snapshot.extend(writable)
        if self._of_backward is not None:
            self._of_backward.extend(writable)

    def track_module_got(self, module: types.ModuleType) -> None:
        """A module was got.

        Raises:
            UnsupportedOperation: its code reads what the function has written to before, perhaps.
        """
        if self._walk.reached(module):
            return
        self.roots.append(module)
        self._guards = None
        name = module.__name__
        how = f"the function gets the module {name} under a name that it computes, whose code"
        with mode_stacks.dispatch_modes_off(), _refused():
            self._walk.collect(module, late=how)
            self._extend()
        self._check_types()
        if sys.modules.get(name) is module:
            self._entries.append(Guard(f"sys.modules[{name!r}]", GuardKind.ENTRY, sys.modules, name, module))


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except TooMuchCode as error:
        raise UnsupportedOperation(str(error)) from None


def _tracked_import(original: Callable[..., Any]) -> Callable[..., Any]:
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
                noted.track_module_got(module)
        return module

    return get


# (`import_module` calls the first, under whatever name it is called itself.)
_REPLACED: tuple[tuple[Any, str], ...] = (
    (vars(importlib)["_bootstrap"], "_gcd_import"),
    (builtins, "__import__"),
)


@contextlib.contextmanager
def _tracked_import_functions() -> Iterator[None]:
    """The functions that import, replaced while any thread traces."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            for owner, name in _REPLACED:
                setattr(owner, name, _tracked_import(getattr(owner, name)))
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                for owner, name in _REPLACED:
                    setattr(owner, name, getattr(owner, name).__wrapped__)
