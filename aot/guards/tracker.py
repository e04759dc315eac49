"""Guard tracker: collect guards for what only shows while the function runs.

In: functions, before and while they are traced. Out: guards, and the side effects of the run.

Two things show only then. A function may import a module under a computed name, with `import_module` or
`__import__`: the walk goes on from the module at once, before the function reads anything of it. And a
function may reach more code than can be looked through, such as a registry of all attention functions of
which a model calls one: then each function is looked through just before it is called.
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
_thread = threading.local()
_lock = threading.Lock()
_running = 0


class GuardTracker:
    """Collect what functions read besides their arguments, before they run and while they do.

    Args:
        roots: the functions.
        runs: `tracking_run` will be on whenever the functions run.
        in_places: gives (owner, name) of each place where a tensor of the trace stands for the caller's after
            the run; None if there are none.

    Attributes:
        roots: the functions, and the modules that they imported.
        changes: the side effects of the run, once `tracking_run` is over.
        changes_of_backward: the side effects of the backward that was recorded with it.
        wrote: the functions had written to tensors when they raised, or may have.

    Raises:
        UnsupportedOperation: the functions reach too much code, and `runs` is false.
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
        self._stays = False  # their side effects so far are not undone
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
        """The guards so far."""
        if self._guards is None:
            self._guards = self._walk.guards(self._entries)
        return self._guards

    @property
    def reachable_objects(self) -> ReachableObjects:
        """The objects that the walk has visited so far."""
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
        """The attributes of tensors that the code so far may read."""
        return self._walk.attribute_names

    def follow_attributes(self, tensors: Sequence[Tensor]) -> None:
        """Walk from the attributes of these tensors that the functions may read, before they run."""
        while True:
            before = self.attribute_names
            with _refused():
                self._walk.collect(*before.objects(tensors))
            if self.attribute_names == before:
                return

    def reads_attribute(self, attributes: frozenset[str]) -> bool:
        """Whether the code so far reads one of these attributes of any object."""
        return self._walk.names(attributes)

    @contextlib.contextmanager
    def tracking_run(self, again: bool = False) -> Iterator[None]:
        """While it lasts, the functions run in this thread: track their imports, calls and side effects.

        Args:
            again: the functions are run once more if they raise, so their side effects are undone.

        Raises:
            EscapedTensor: the functions have stored a tensor of the trace.
        """
        before = getattr(_thread, "tracker", None)
        _thread.tracker = self
        called = self._called
        call_trace = contextlib.nullcontext() if called is None else calls_traced(self._track_called_code)
        try:
            with (
                self._tracking_changes(again),
                _tracked_import_functions(),
                call_trace,
                contextlib.ExitStack() as self._types,
            ):
                self._check_types()
                yield
        finally:
            self._types = None
            _thread.tracker = before

    def noting_input_writes(self, flat: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Wrap the function so that `wrote` is set if it raises after it has written to its arguments."""

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
        """Call a function that runs the tracked ones, in a copy of the context, and return its result.

        ContextVars that it sets are set in the caller's context only if the side effects stay. A ContextVar
        that had no value cannot get back to none in any other way.
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
            # If the function raises, its side effects so far stay, as in eager. They are undone if it wrote
            # to a tensor: the trace has not done that write, and half of the effects would be wrong.
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
                self._of_backward = None  # it holds tensors of the trace
            self.changes = self._snapshot.undo_side_effects(self.changes)
        except BaseException:
            self.undo_tracked_changes()
            raise
        self._stays = bool(self.changes.once)
        if self.changes.guards:
            self._entries += self.changes.guards
            self._guards = None

    def track_backward(self) -> None:
        """End the side effects of the forward; later ones belong to the backward.

        Raises:
            EscapedTensor: the forward has stored a tensor of the trace.
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
        """Restore everything that the functions can change to what it was before `tracking_run`."""
        self._stays = False
        self._snapshot.put_back_settings()  # before the rest, because dispatch modes are among them
        with mode_stacks.dispatch_modes_off():
            if self._of_backward is not None:
                self._of_backward.put_back()
                self._of_backward = None
            self._snapshot.put_back()

    def _check_types(self) -> None:
        """Make checks of legacy types work for fakes from now on, if the code so far may make some."""
        if self._types is not None and self._walk.names_legacy_types():
            self._types.enter_context(checking_legacy_types())
            self._types = None  # not a second time

    def _track_called_code(self, frame: types.FrameType) -> None:
        """Look through the code of a new frame before it runs, unless that has been done."""
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
        """Add the objects that the walk has visited to the snapshots."""
        writable = self._walk.collected_writable()
        self._snapshot.extend(writable)
        if self._of_backward is not None:
            self._of_backward.extend(writable)

    def track_module_got(self, module: types.ModuleType) -> None:
        """Walk from a module that the function has imported.

        Raises:
            UnsupportedOperation: the module's code reads a name that the function may have written to.
        """
        if self._walk.reached(module):
            return
        self.roots.append(module)
        self._guards = None
        name = module.__name__
        reader = f"the function gets the module {name} under a name that it computes, whose code"
        with mode_stacks.dispatch_modes_off(), _refused():
            self._walk.collect(module, reader=reader)
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
        tracker = getattr(_thread, "tracker", None)
        if tracker is None:
            return original(*args, **kwargs)
        _thread.tracker = None  # imports of a module while it is loaded are not the function's
        try:
            module = original(*args, **kwargs)
        finally:
            _thread.tracker = tracker
        if isinstance(module, types.ModuleType) and not is_library(module.__name__):
            frame: Any = sys._getframe(1)
            while frame.f_globals.get("__name__") in ("importlib", "pkgutil"):
                frame = frame.f_back
            if not is_library(frame.f_globals.get("__name__")):
                tracker.track_module_got(module)
        return module

    return get


# `import_module` calls the first, so calls of it under another name are seen too.
_REPLACED: tuple[tuple[Any, str], ...] = (
    (vars(importlib)["_bootstrap"], "_gcd_import"),
    (builtins, "__import__"),
)


@contextlib.contextmanager
def _tracked_import_functions() -> Iterator[None]:
    """While it lasts in any thread, the functions that import are replaced by tracked ones."""
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
