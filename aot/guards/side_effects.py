"""Side effects: what a function changes of the Python program around it, and how each call repeats it.

In: the objects of the walk (`Writable`). Out: `SideEffects`, which make the changes of the traced run again
at each call. Before that, the changes of the run itself are undone.

A call sets the value that the run left, if a guard fixes the old value, or if that does not matter. A number
that the function only updates gets the same steps. A list that only grows gets the same items at its end. In
all other cases the old value becomes a guard. Some changes cannot be repeated, such as a new object or the
position of an iterator. They stay, and the compile answers this one call.
Invariant: after a refusal everything is as it was before the call.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from aot.errors import EscapedTensor, Unsupported, UnsupportedOperation
from aot.guards.bytecode import KINDS, is_library
from aot.guards.containers import SEQUENCES, builtin_view
from aot.guards.guard import Guard, GuardKind, guard
from aot.guards.introspection import referents
from aot.guards.opaque_state import QUEUES
from aot.guards.process_settings import read_settings, restore_process_settings
from aot.guards.scalar_updates import Update, make_tracked_scalar, replay_updates
from aot.guards.variables import (
    Entries,
    Holder,
    Items,
    Memo,
    Memory,
    ModuleVariables,
    Objects,
    Queued,
    State,
    Variables,
    changed_keys,
    variable_holders_of,
)
from aot.tensors.constants import CONSTANTS
from aot.torch_internals import plain_fakes

Place = tuple[int, GuardKind, str]
"""The place of a guard: its owner's id, its kind and its name."""
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_LASTING = (*CONSTANTS, bytes, range, slice, type(...), type(NotImplemented), enum.Enum, types.ModuleType)
_GROWING = frozenset(("append", "extend", "+=", "put", "put_nowait"))
_STORING = frozenset(("[]", "[]=", "update"))


@dataclass(frozen=True, slots=True)
class Writable:
    """The objects that a function may change.

    Attributes:
        objects: (path, object) of each object that can hold others.
        caches: (namespace's id, name) of each private attribute of torch's modules.
        guarded: the places of guards.
        written: places that the function only writes to, with path and value.
        ways: how the function writes to names (`CodeReads.writes`), by kind and name.
        spaces: the namespaces of classes that guards look into.
        read: the attributes that the function reads of any object.
    """

    objects: tuple[tuple[str, Any], ...]
    caches: frozenset[tuple[int, str]]
    guarded: Collection[Place]
    written: Mapping[Place, tuple[str, Any]]
    ways: Mapping[tuple[str, str], Set[str]]
    spaces: Mapping[type, Mapping[str, Any]]
    read: Set[str]


@dataclass(frozen=True, slots=True)
class SideEffects:
    """The changes that each call makes.

    Attributes:
        effects: (path, function that makes the change).
        guards: the values that must be there before.
        once: paths that the run itself has changed for good, so that the compile answers no other call.
        resting: paths whose new value depends on the old one.
        put_back: undoes what was changed for good; empty after the call that the run belongs to.
    """

    effects: tuple[tuple[str, Callable[[], None]], ...] = ()
    guards: tuple[Guard, ...] = ()
    once: tuple[str, ...] = ()
    resting: tuple[str, ...] = ()
    put_back: list[Callable[[], None]] = field(default_factory=list)

    def with_side_effects(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call` so that it makes these changes when it returns. If they are made already, it undoes
        them when it is refused for its values."""
        if self.once:
            return self._taken_back_if_refused(call)
        if not self.effects:
            return call
        changes = tuple(change for _, change in self.effects)

        def changing(*args: Any, **options: Any) -> Any:
            result = call(*args, **options)
            for change in changes:
                change()
            return result

        return changing

    def _taken_back_if_refused(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def refusable(*args: Any, **options: Any) -> Any:
            try:
                return call(*args, **options)
            except Unsupported:
                for put_back in self.put_back:
                    put_back()
                raise
            finally:
                self.put_back.clear()  # it holds the whole state from before

        return refusable


NO_SIDE_EFFECTS = SideEffects()


_Stored = Variables | Entries | Items


class Snapshot:
    """The state of a program before a function runs, and its changes since.

    Until the changes are read, numbers that the function only updates are replaced by values that record the
    updates (`aot.guards.scalar_updates`).

    Args:
        of_backward: a backward runs. The trace has changed torch's settings by then; they are not restored.

    Attributes:
        places: names, keys or indices where fakes stand for a module's tensors, by the id of their owner.
    """

    def __init__(self, of_backward: bool = False) -> None:
        self._held: dict[tuple[type, int], tuple[Holder, Any]] = {}
        self._seen: dict[int, Any] = {}
        self._settings = () if of_backward else read_settings()
        self.places: Mapping[int, Set[Any]] = {}
        self.of_backward = of_backward
        self._noted: dict[tuple[int, GuardKind, Any], tuple[_Stored, Any, Update, Any]] = {}

    def extend(self, writable: Writable) -> None:
        """Add the state of objects that the walk has visited since."""
        fresh: list[tuple[Holder, Any]] = []
        for path, value in writable.objects:
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            for holder in variable_holders_of(path, value, writable.spaces):
                key = type(holder), id(holder.owner)
                if key not in self._held:
                    self._held[key] = holder, holder.read()
                    fresh.append(self._held[key])
        self._put_tracked_scalars(writable, fresh)

    def _put_tracked_scalars(self, writable: Writable, fresh: Iterable[tuple[Holder, Any]]) -> None:
        """Replace scalars that are only written to by values that record updates."""
        names = _names_of_containers(writable)
        written = _stored(writable, updated=True)
        for holder, before in fresh:
            if isinstance(holder, Variables):
                here = written[holder.named]
                for name in before.keys() & here:
                    if (id(holder.owner), holder.kind, name) not in writable.guarded:
                        self._watch(holder, name, before[name])
            elif (
                (isinstance(holder, Entries) or (isinstance(holder, Items) and holder.is_list))
                and _ways(writable, names, holder.owner) & _STORING
                and (id(holder.owner), holder.kind, "") not in writable.guarded
            ):
                entries = before.items() if isinstance(holder, Entries) else enumerate(before)
                for key, value in entries:
                    self._watch(holder, key, value)

    def _watch(self, holder: Variables | Entries | Items, name: Any, value: Any) -> None:
        noted = make_tracked_scalar(value)
        if noted is not None:
            holder.store(name, noted)
            self._noted[id(holder.owner), holder.kind, name] = holder, name, noted, value

    def _settle_tracked_scalars(self) -> dict[tuple[int, GuardKind, Any], Callable[[], None] | None]:
        """Put plain values back. Returns each place's update, or None where it was not recorded."""
        found: dict[tuple[int, GuardKind, Any], Callable[[], None] | None] = {}
        for place, (holder, name, noted, value) in self._noted.items():
            now = _at(holder, name)
            if now is noted:
                holder.store(name, value)
            elif isinstance(now, Update):
                holder.store(name, now.plain)
                known = now.origin is noted and not noted.leaked
                found[place] = functools.partial(_update, holder, name, now, noted) if known else None
        if self._noted:
            self._settle_copied_scalars(found)
        self._noted.clear()
        return found

    def _settle_copied_scalars(
        self, found: dict[tuple[int, GuardKind, Any], Callable[[], None] | None]
    ) -> None:
        """Put plain values where a recording value was copied to. An instance gets an attribute of its own
        when that of its class is updated."""
        places = {id(noted): place for place, (_, _, noted, _) in self._noted.items()}
        for holder, before in self._held.values():
            if isinstance(holder, (Variables, Entries, Items)) and holder.differs(before):
                state: Any = holder.read()
                entries: Any = enumerate(state) if isinstance(state, tuple) else state.items()
                for name, now in entries:
                    if isinstance(now, Update):
                        holder.store(name, now.plain)
                        found[id(holder.owner), holder.kind, name] = None
                        found[places[id(now.origin)]] = None

    def put_back_settings(self) -> None:
        """Restore torch's settings."""
        if self._settings:
            restore_process_settings(self._settings)

    def put_back(self) -> None:
        """Restore everything else."""
        self._settle_tracked_scalars()
        for holder, before in self._held.values():
            self._put_back(holder, before)

    def _put_back(self, holder: Holder, before: Any) -> bool:
        """Restore one object's state. Returns whether that was possible."""
        if self.state_of(holder, before) is before:
            return True
        return holder.write(self._state_but_for_places(holder, before, holder.read()))

    def state_of(self, holder: Holder, before: Any) -> Any:
        """An object's present state; `before` itself if nothing has changed. `places` are ignored, because
        fakes of the trace are there."""
        if not holder.differs(before):
            return before
        now = self._state_but_for_places(holder, holder.read(), before)
        return before if now is not before and _are_same(now, before) else now

    def _state_but_for_places(self, holder: Holder, state: Any, other: Any) -> Any:
        """A state with the values of another one at `places`."""
        names = self.places.get(id(holder.owner), ())
        if not names or not isinstance(holder, (Variables, Entries, Items)):
            return state
        if isinstance(holder, Items):
            both = range(min(len(state), len(other)))
            return tuple(other[i] if i in names and i in both else one for i, one in enumerate(state))
        return {name: other[name] if name in names and name in other else one for name, one in state.items()}

    def may_effects_stay(self, writable: Writable) -> bool:
        """Whether no value of the trace is stored, if the function ends here."""
        self._settle_tracked_scalars()
        try:
            self.refuse_stored_trace_values(writable)
        except (EscapedTensor, UnsupportedOperation):
            return False
        return True

    def refuse_stored_trace_values(self, writable: Writable) -> None:
        """Refuse a function that has stored a value of the trace.

        Raises:
            EscapedTensor: it has stored a tensor.
            UnsupportedOperation: it has stored a size that is a symbol.
        """
        known: set[int] | None = None
        for holder, path, value in self._changes_since_snapshot(writable):
            if isinstance(value, _LASTING) and not isinstance(value, _SYMBOLIC):
                continue
            known = self._objects_in_snapshot() if known is None else known
            for where, one in _trace_values_within(path, value, known):
                if isinstance(one, Tensor):
                    kept = " in what functools.lru_cache keeps" if isinstance(holder, Memo) else ""
                    raise EscapedTensor(
                        f"the function stores a tensor somewhere else than in its result, at {where}{kept}; "
                        f"return it instead, or let it be stored before the function is compiled"
                    )
                raise UnsupportedOperation(
                    f"the function stores a size that is a symbol, at {where}; compile it for each size"
                )

    def _changes_since_snapshot(self, writable: Writable) -> Iterator[tuple[Holder, str, Any]]:
        """The objects that are somewhere now and were not there before, each with its holder and path."""
        for holder, before in self._held.values():
            now = self.state_of(holder, before)
            if now is before:
                continue
            if isinstance(holder, Variables):
                for name in changed_keys(before, now):
                    if name in now and (id(holder.owner), name) not in writable.caches:
                        yield holder, holder.where(name), now[name]
            elif isinstance(holder, Entries):
                for key in changed_keys(before, now):
                    if key in now:
                        yield holder, f"{holder.path}[{key!r:.40}]", now[key]
                        yield holder, f"a key of {holder.path}", key
            elif isinstance(holder, (Items, Queued, Objects, Memo)):
                memo = isinstance(holder, Memo)
                old, new = (before[1], now[1]) if memo else (before, now)
                ids = set(map(id, old))
                for i, one in enumerate(new):
                    if id(one) not in ids:
                        yield holder, f"{holder.path}(...)" if memo else f"{holder.path}[{i}]", one

    def find_side_effects(self, writable: Writable) -> SideEffects:
        """The changes of the function.

        Raises:
            EscapedTensor, UnsupportedOperation: see `refuse_stored_trace_values`.
        """
        updates = self._settle_tracked_scalars()
        self.refuse_stored_trace_values(writable)
        found = _Found(self, writable, updates)
        for holder, before in tuple(self._held.values()):
            found.add(holder, before)
        return found.summary()

    def undo_side_effects(self, changes: SideEffects) -> SideEffects:
        """Restore everything, unless it is changed for good."""
        if changes.once:
            return replace(changes, put_back=[self.put_back])
        once: list[str] = []
        for holder, before in self._held.values():
            if not isinstance(holder, Memo) and not self._put_back(holder, before):
                once.append(holder.path)
        if once:  # everything else was restored, so make the changes again: all of them stay
            for _, change in changes.effects:
                change()
        return replace(changes, once=tuple(once), put_back=[self.put_back] if once else [])

    def _objects_in_snapshot(self) -> set[int]:
        """The ids of the objects that existed before, here or in a container."""
        known = set(self._seen)
        for holder, before in self._held.values():
            if isinstance(holder, (Variables, Entries)):
                known.update(map(id, before.values()))
                known.update(map(id, before))
            elif isinstance(holder, (Items, Queued, Objects)):
                known.update(map(id, before))
            elif isinstance(holder, Memo):
                known.update(map(id, before[1]))
        return known

    @functools.cached_property
    def known(self) -> set[int]:
        return self._objects_in_snapshot()


class _Found:
    """The changes of one run, collected holder by holder."""

    def __init__(
        self,
        snapshot: Snapshot,
        writable: Writable,
        updates: Mapping[tuple[int, GuardKind, Any], Callable[[], None] | None],
    ) -> None:
        self.effects: list[tuple[str, Callable[[], None]]] = []
        self.guards: list[Guard] = []
        self.once: list[str] = []
        self.resting: list[str] = []
        self._snapshot = snapshot
        self._writable = writable
        self._updates = updates
        self._names = _names_of_containers(writable)
        self._stored = _stored(writable)

    def summary(self) -> SideEffects:
        """The changes as data."""
        lists = (self.effects, self.guards, self.once, self.resting)
        return SideEffects(*map(tuple, lists))  # type: ignore[arg-type]

    def add(self, holder: Holder, before: Any) -> None:
        """Add the changes of one holder."""
        if isinstance(holder, Variables):
            self._changed_variables(holder, before)
        elif isinstance(holder, Entries):
            self._changed_entries(holder, before)
        elif isinstance(holder, (Items, Queued)):
            self._changed_items(holder, before)
        elif isinstance(holder, Objects) and holder.differs(before):
            self._pin(holder, holder.expected(before))
            self.resting.append(holder.path)
            makers = [self._maker(holder.path, one) for one in holder.read()]
            self.effects.append((holder.path, functools.partial(_refill, holder, makers)))
        elif isinstance(holder, (Memory, State)) and holder.differs(before):
            if self._snapshot.of_backward and holder.differs(holder.read()):
                return  # its state cannot be compared, and the forward answers one call already
            self._pin(holder, before[0])
            self.resting.append(holder.path)
            now = holder.read()
            if isinstance(holder, State) and (now[1] is None or before[1] is None):
                self.once.append(holder.path)
            self.effects.append((holder.path, functools.partial(_write, holder, now)))

    def _is_guarded(self, holder: Any, name: str = "") -> bool:
        return (id(holder.owner), holder.kind, name) in self._writable.guarded

    def _pin(self, holder: Any, before: Any, name: str = "") -> None:
        """Guard the value from before, unless it is guarded."""
        path = holder.where(name) if isinstance(holder, Variables) else holder.path
        if not self._is_guarded(holder, name):
            self.guards.append(guard(path, holder.kind, holder.owner, name, before))

    def _changed_variables(self, holder: Variables, before: Mapping[str, Any]) -> None:
        now = self._snapshot.state_of(holder, before)
        names = [] if now is before else changed_keys(before, now)
        whole = isinstance(holder, ModuleVariables)
        for name in names:
            imported = isinstance(now.get(name), types.ModuleType)
            own = (id(holder.owner), name) in self._writable.caches  # torch's own
            if not own and not (whole and (name.startswith("__") or imported)):
                self._changed_variable(holder, name, before, now)
        for name, value in before.items():
            if self._updates.get((id(holder.owner), holder.kind, name), _NONE) is None and name not in names:
                self._pin(holder, value, name)
        for name in self._stored[holder.named]:
            # The function may have stored the value that was there, which leaves no difference.
            if name in before and name not in names and make_tracked_scalar(before[name]) is None:
                self._pin(holder, before[name], name)

    def _changed_variable(
        self, holder: Variables, name: str, before: Mapping[str, Any], now: Mapping[str, Any]
    ) -> None:
        where, place = holder.where(name), (id(holder.owner), holder.kind, name)
        if name not in now:
            self._pin(holder, before[name], name)
            self.resting.append(where)
            self.effects.append((where, functools.partial(holder.delete, name)))
            return
        update = self._updates.get(place, _NONE)
        if update not in (_NONE, None) and not self._is_guarded(holder, name):
            assert callable(update)
            self.effects.append((where, update))
            return
        rests = update is not _NONE or self._may_update(holder, name)  # the result depends on the old value
        if name in before and (rests or self._is_guarded(holder, name)):
            self._pin(holder, before[name], name)
            self.resting.append(where)
        elif name not in before and rests and holder.kind is GuardKind.ENTRY:
            self.resting.append(where)
            self.guards.append(guard(where, GuardKind.ABSENT, holder.owner, "", frozenset((name,))))
        elif rests or self._is_read(holder, name):
            self.resting.append(where)
        make = self._maker(where, now[name])
        self.effects.append((where, functools.partial(_store, holder, name, make)))

    def _is_read(self, holder: Variables, name: str) -> bool:
        """Whether the absence of a variable matters."""
        return holder.named != "attributes" or name in self._writable.read

    def _may_update(self, holder: Variables, name: str) -> bool:
        ways = self._writable.ways.get((holder.named, name), ())
        return any(map(_is_operator, ways))

    def _changed_keys(
        self, holder: Entries | Items, before: Mapping[Any, Any], now: Mapping[Any, Any]
    ) -> bool:
        """Add a container's changes key by key, if the function only stores and updates entries, and return
        whether it did. All values must be scalars: these alone show if an equal value was stored."""
        ways = _ways(self._writable, self._names, holder.owner)
        if not ways or not ways <= _STORING or self._is_guarded(holder):
            return False
        if (
            any(make_tracked_scalar(value) is None for value in before.values())
            or not before.keys() <= now.keys()
        ):
            return False
        found: list[tuple[str, Callable[[], None]]] = []
        names = changed_keys(before, now)
        if "[]=" in ways and not before.keys() >= set(names):
            return False  # a `defaultdict` has made a new entry for the update
        for key in names:
            update = self._updates.get((id(holder.owner), holder.kind, key), _NONE)
            where = f"{holder.path}[{key!r:.40}]"
            if update is None:
                return False
            if update is _NONE:
                make, name = self._maker(where, now[key]), self._maker(where, key)
                update = functools.partial(_enter, holder, name, make)
            found.append((where, update))
        self.effects += found
        return True

    def _changed_entries(self, holder: Entries, before: Mapping[Any, Any]) -> None:
        now = self._snapshot.state_of(holder, before)
        differs = now is not before
        ways = _ways(self._writable, self._names, holder.owner)
        if (not differs and not ways) or self._changed_keys(holder, before, now):
            return
        self._pin(holder, (tuple(before), tuple(before.values())))
        if differs:
            self.resting.append(holder.path)
            entries = [(self._maker(holder.path, k), self._maker(holder.path, v)) for k, v in now.items()]
            self.effects.append((holder.path, functools.partial(_rewrite, holder, entries)))

    def _changed_items(self, holder: Items | Queued, before: tuple[Any, ...]) -> None:
        ways = _ways(self._writable, self._names, holder.owner)
        now = self._snapshot.state_of(holder, before)
        differs = now is not before
        if not differs and (not ways or (not before and "clear" not in ways)):
            return
        most = getattr(holder.owner, "maxlen", None)  # a deque drops items beyond it
        only_grows = ways and ways <= _GROWING and (most is None or len(now) < most)
        begins = len(now) >= len(before) and all(a is b for a, b in zip(before, now, strict=False))
        if only_grows and begins and not self._is_guarded(holder):
            makers = [self._maker(holder.path, one) for one in now[len(before) :]]
            if makers:
                self.effects.append((holder.path, functools.partial(_extend, holder, makers)))
            return
        numbered = dict(enumerate(before)), dict(enumerate(now))
        if isinstance(holder, Items) and holder.is_list and self._changed_keys(holder, *numbered):
            return
        self._pin(holder, before if isinstance(holder, Items) else holder.expected(before))
        if differs:
            self.resting.append(holder.path)
            makers = [self._maker(holder.path, one) for one in now]
            self.effects.append((holder.path, functools.partial(_refill, holder, makers)))

    def _maker(self, path: str, value: Any) -> Callable[[], Any]:
        """A function that gives this value at each call. Without one, the change is for this call only."""
        make = _side_effect_value_maker(value, self._snapshot.known)
        if make is None:
            self.once.append(path)
            return lambda: value
        return make


_NONE: Any = object()


def _are_same(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return list(first) == list(second) and not changed_keys(first, second)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(operator.is_, first, second))
    return False


def _side_effect_value_maker(value: Any, known: Set[int]) -> Callable[[], Any] | None:
    kind = type(value)
    if id(value) in known or isinstance(value, _LASTING):
        return lambda: value
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return (lambda: value) if is_library(getattr(value, "__module__", None)) else None
    if kind in (tuple, list, set, frozenset, deque, torch.Size):
        makers = [_side_effect_value_maker(one, known) for one in value]
        if None in makers:
            return None
        return lambda: kind([make() for make in makers])  # type: ignore[misc]
    if kind in (dict, OrderedDict):
        pairs = [
            (_side_effect_value_maker(key, known), _side_effect_value_maker(one, known))
            for key, one in value.items()
        ]
        if any(None in pair for pair in pairs):
            return None
        return lambda: kind((key(), one()) for key, one in pairs)  # type: ignore[misc]
    return None


def _stored(writable: Writable, updated: bool = False) -> Mapping[str, Set[str]]:
    """The names that are stored with ``=``, and with an update if `updated`, by kind."""
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for (kind, name), ways in writable.ways.items():
        if "=" in ways or (updated and any(map(_is_operator, ways))):
            found[kind].add(name)
    return found


def _is_operator(way: str) -> bool:
    return way.endswith("=") and way not in ("=", "[]=")


def _names_of_containers(writable: Writable) -> dict[int, set[str]]:
    """The names under which the function writes to containers, by their ids."""
    found: dict[int, set[str]] = {}
    for (_, _, name), (_, value) in writable.written.items():
        if isinstance(value, (dict, *SEQUENCES, *QUEUES)):
            found.setdefault(id(value), set()).add(name)
    return found


def _ways(writable: Writable, names: Mapping[int, set[str]], owner: Any) -> frozenset[str]:
    """The ways in which the function writes to a container that it only writes to."""
    own = names.get(id(owner), ())
    ways = (writable.ways.get((kind, name), ()) for name in own for kind in KINDS)
    return frozenset(way for some in ways for way in some if way != "=")


def _trace_values_within(path: str, value: Any, known: Set[int]) -> Iterator[tuple[str, Any]]:
    """The tensors and symbols of a trace that an object leads to through objects that are new."""
    ahead, seen = [(path, value)], set[int]()
    while ahead:
        path, value = ahead.pop()
        if isinstance(value, _SYMBOLIC) or (isinstance(value, Tensor) and plain_fakes.is_fake(value)):
            yield path, value
        if isinstance(value, (*_LASTING, Tensor)) or id(value) in known or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.MethodType):
            ahead.append((path, value.__self__))
        elif isinstance(value, functools.partial):
            ahead += [(path, one) for one in (*value.args, *value.keywords.values())]
        elif isinstance(value, (set, frozenset)):
            ahead += [(path, one) for one in builtin_view(value)]
        elif not (isinstance(value, type) and is_library(value.__module__)):
            ahead += [(f"{path}{part}", one) for part, one in referents(value)]


def _at(holder: _Stored, name: Any) -> Any:
    """The value under a name, a key or an index."""
    state = holder.read()
    if isinstance(state, tuple):
        return state[name] if name < len(state) else None
    return state.get(name)


def _update(holder: _Stored, name: Any, made: Update, noted: Update) -> None:
    state: Any = holder.read()
    holder.store(name, replay_updates(made, noted, state[name]))


def _store(holder: Variables, name: str, make: Callable[[], Any]) -> None:
    holder.store(name, make())


def _enter(holder: Entries | Items, key: Callable[[], Any], make: Callable[[], Any]) -> None:
    holder.store(key(), make())


def _write(holder: Memory | State, state: Any) -> None:
    holder.write(state)


def _rewrite(holder: Entries, entries: Sequence[tuple[Callable[[], Any], Callable[[], Any]]]) -> None:
    holder.write({key(): make() for key, make in entries})


def _extend(holder: Items | Queued, makers: Sequence[Callable[[], Any]]) -> None:
    holder.extend(tuple(make() for make in makers))


def _refill(holder: Items | Queued | Objects, makers: Sequence[Callable[[], Any]]) -> None:
    holder.write(tuple(make() for make in makers))
