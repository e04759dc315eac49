"""What a function reads besides its arguments, and whether it still finds there what it found.

What is a constant is held against its value, all else against its identity. All guards of a specialization
are one generated expression. They keep no tensor alive: a module whose weight is replaced gives up the old
one. (A list or dict of tensors that is replaced as a whole lives on.)
"""

from __future__ import annotations

import enum
import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import Tensor

from aot.errors import ClosureMutation
from aot.guards.containers import builtin_view
from aot.guards.opaque_state import gradient_of, state_of, tensor_likeness
from aot.tensors.constants import CONSTANTS, constant_key
from aot.torch_internals import plain_fakes

MISSING: Any = object()


class GuardKind(enum.IntEnum):
    """How a guard looks; cheapest first."""

    ENTRY = 0  # the value under a name, in a namespace
    CELL = 1  # the value of a closure's variable
    ATTRIBUTE = 2  # an attribute that is in no namespace
    ABSENT = 3  # that a namespace has none of these names
    NAMES = 4  # the names in a namespace
    CONTEXT = 5  # the value of a ContextVar
    LOCAL = 6  # the value under a name, in what a thread has for itself
    LIKENESS = 7  # what a tensor is like
    ITEMS = 8  # what a list or a set holds, in order
    ENTRIES = 9  # the keys and values of a dict, in order
    BYTES = 10  # what is in a memory
    STATE = 11  # the state of an iterator or of a random generator
    REFERRED = 12  # what is behind a weak reference
    GRADIENT = 13  # the gradient that a tensor holds


# `{now}` is what was there, or those things one by one, as it is now; `{alive}` asks whether they still are.
_TESTS = {
    GuardKind.ENTRY: "(e := o{i}.get({name!r}, missing)) is {now} or same(e, v{i})",
    GuardKind.CELL: "(e := o{i}.cell_contents) is {now} or same(e, v{i})",
    GuardKind.ATTRIBUTE: "(e := o{i}.{name}) is {now} or same(e, v{i})",
    GuardKind.ABSENT: "o{i}.keys().isdisjoint(v{i})",
    GuardKind.ITEMS: (
        "len(o{i}) == {count} and ({alive}all(map(is_, o{i}, {now})) or same(tuple(o{i}), v{i}))"
    ),
    GuardKind.ENTRIES: (
        "len(o{i}) == {count}"
        " and ({alive}all(map(is_, o{i}.values(), {now})) or same(tuple(o{i}.values()), v{i}[1]))"
        " and (all(map(is_, o{i}, v{i}[0])) or same(tuple(o{i}), v{i}[0]))"
    ),
    GuardKind.NAMES: "names_of(o{i}) == v{i}",
    GuardKind.CONTEXT: "(e := o{i}.get(missing)) is {now} or same(e, v{i})",
    GuardKind.LOCAL: "(e := o{i}.__dict__.get({name!r}, missing)) is {now} or same(e, v{i})",
    GuardKind.LIKENESS: "(e := o{i}()) is None or likeness(e) == v{i}",
    GuardKind.BYTES: "contents(o{i}) == v{i}",
    GuardKind.STATE: "state_of(o{i}) == v{i}",
    GuardKind.GRADIENT: "(e := o{i}()) is None or (e := gradient_of(e)) is {now} or same(e, v{i})",
    GuardKind.REFERRED: "v{i}[0](o{i}(), objects={{}}) == v{i}[1]",
}


@dataclass(frozen=True, slots=True)
class GuardedTensor:
    """A tensor that was there, what it was like, and itself as long as somebody else has it."""

    now: Callable[[], Tensor | None]
    like: object


@dataclass(frozen=True, slots=True)
class Guard:
    """One place that the function reads, and what was there.

    Attributes:
        path: how the function gets there, as one would write it.
        owner: where to look; of a tensor, a weak reference.
        name: what to look for, if it has a name.
        expected: what was there, each tensor as `GuardedTensor`.
    """

    path: str
    kind: GuardKind
    owner: Any
    name: str
    expected: Any


@dataclass(frozen=True, slots=True)
class Guards:
    """Everything that a function reads besides its arguments, as it was.

    Attributes:
        hold: whether all of it is as it was. It costs some 30 ns for each value.
    """

    guards: tuple[Guard, ...]
    hold: Callable[[], bool]

    def functions(self) -> list[FunctionType]:
        """The functions whose code they have looked through."""
        return [one.owner for one in self.guards if one.name == "__code__"]

    def changed(self) -> list[str]:
        """The paths of what is not as it was."""
        return [guard.path for guard in self.guards if not compile_guards((guard,))()]

    def check(self) -> None:
        """Refuse a function that has changed what it reads, for good.

        One that has imported what it reads has not: the next call finds it there, and is compiled for that. A
        variable of the context that had no value has none again when this context is left.

        Raises:
            ClosureMutation: something is not as it was.
        """
        if self.hold():
            return
        failing = [one for one in self.guards if not compile_guards((one,))()]
        changed = [one.path for one in failing if not (_is_import(one) or _is_unset(one))]
        if changed:
            places = ", ".join(changed[:4])
            raise ClosureMutation(
                f"the function changes what it reads itself: {places}. A compiled call runs none of its "
                f"Python, and would leave that as it is; pass the value as an argument and return the new one"
            )


def guard(path: str, kind: GuardKind, owner: Any, name: str, expected: Any) -> Guard:
    """A guard that keeps no tensor alive."""
    if _has_memory(owner):
        owner = weakref.ref(owner)
    if kind is GuardKind.ENTRIES:
        keys, values = expected
        expected = keys, _known(values)
    elif kind is GuardKind.ITEMS:
        expected = _known(expected)
    elif isinstance(expected, Tensor):
        (expected,) = _known((expected,))
    return Guard(path, kind, owner, name, expected)


def _known(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not any(isinstance(one, Tensor) for one in values):
        return values
    return tuple(
        GuardedTensor(weakref.ref(one), tensor_likeness(one)) if _has_memory(one) else one for one in values
    )


def _has_memory(value: Any) -> bool:
    """Whether it is a tensor, and none of a trace, which may not be asked for anything."""
    return isinstance(value, Tensor) and not plain_fakes.is_fake(value)


def compile_guards(guards: tuple[Guard, ...]) -> Callable[[], bool]:
    """The test for all of them, as one expression. (Kinds of which there are many, as namespaces of
    modules have them, are one term of it each: to compile one for each guard takes longer than the walk.)"""
    if not guards:
        return lambda: True
    scope: dict[str, Any] = dict(_SCOPE)
    kinds: dict[str, list[Guard]] = {}
    for one in guards:
        kinds.setdefault(_guard_group(one), []).append(one)
    tests = []
    rest: list[Guard] = []
    for name, ones in kinds.items():
        if name and len(ones) >= _MANY:
            tests.append(_GROUPS[name](ones, scope))
        else:
            rest += ones
    for i, one in enumerate(rest):
        scope[f"o{i}"], scope[f"v{i}"] = _owner(one), one.expected
        count = _count(one)
        if count == 0:
            tests.append(f"(not o{i})")
        else:
            alive, now = _guarded_place_now(i, one, scope)
            test = _TESTS[one.kind].format(i=i, name=one.name, count=count, alive=alive, now=now)
            tests.append(f"({test})")
    body = "\n        and ".join(tests)
    source = (
        f"def hold():\n    try:\n        if ({body}):\n            return True\n"
        # An empty cell or slot, or another thread that writes.
        "    except (ValueError, AttributeError, RuntimeError):\n"
        "        pass\n"
        "    return False\n"
    )
    exec(_compiled(source), scope)
    hold: Callable[[], bool] = scope.pop("hold")  # which would keep itself alive
    return hold


@functools.lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    """(Functions that read the like, and one that is compiled again for another call, have the same test.)"""
    return compile(source, "<guards>", "exec")


def _guard_group(one: Guard) -> str:
    """What kind of test it can share with others; "" for none."""
    if one.kind in (GuardKind.ITEMS, GuardKind.ENTRIES):
        if _count(one) == 0:
            return "empty"
        return "entries" if one.kind is GuardKind.ENTRIES and type(one.owner) is dict else ""
    if (
        one.kind is GuardKind.ENTRY
        and type(one.owner) is dict
        and not isinstance(one.expected, GuardedTensor)
    ):
        return "entry"
    if one.kind is GuardKind.ABSENT and type(one.owner) is dict:
        return "absent"
    return "likeness" if one.kind is GuardKind.LIKENESS else ""


def _empty(guards: Sequence[Guard], scope: dict[str, Any]) -> str:
    scope["empty"] = tuple(map(_owner, guards))
    return "not any(empty)"


def _entry_guards_test(guards: Sequence[Guard], scope: dict[str, Any]) -> str:
    owners, names, values = zip(*((one.owner, one.name, one.expected) for one in guards), strict=True)

    def found() -> Iterator[Any]:
        return map(dict.get, owners, names, itertools.repeat(MISSING))

    scope["found"], scope["values"] = found, values
    return "(all(map(is_, found(), values)) or alike(found(), values))"


def _absent(guards: Sequence[Guard], scope: dict[str, Any]) -> str:
    scope["keys"], scope["absent"] = zip(*((one.owner.keys(), one.expected) for one in guards), strict=True)
    return "all(map(disjoint, keys, absent))"


def _entries_guards_test(guards: Sequence[Guard], scope: dict[str, Any]) -> str:
    owners = tuple(one.owner for one in guards)
    counts = tuple(len(one.expected[0]) for one in guards)
    keys = tuple(key for one in guards for key in one.expected[0])
    values = tuple(value for one in guards for value in one.expected[1])
    nows = _guarded_values_now(values)
    tensors = [value.now for value in values if isinstance(value, GuardedTensor)]

    def found() -> Iterator[Any]:
        return itertools.chain.from_iterable(map(dict.values, owners))

    def same() -> bool:
        if tuple(map(len, owners)) != counts:
            return False
        now = map(operator.call, nows) if nows else values
        held = _all_alive(tensors) and all(map(operator.is_, found(), now))
        if not held and not _alike(found(), values):
            return False
        within = itertools.chain.from_iterable(owners)
        return all(map(operator.is_, within, keys)) or _alike(itertools.chain.from_iterable(owners), keys)

    scope["entries"] = same
    return "entries()"


def _likeness_guard_test(guards: Sequence[Guard], scope: dict[str, Any]) -> str:
    pairs = tuple((one.owner, one.expected) for one in guards)

    def same() -> bool:
        for reference, like in pairs:
            tensor = reference()
            if tensor is not None and tensor_likeness(tensor) != like:
                return False
        return True

    scope["tensors"] = same
    return "tensors()"


def _alike(found: Iterator[Any], values: Sequence[Any]) -> bool:
    """Whether each of what is found is what was there, or the same for the function."""
    return all(
        _is_same_guarded_value(one, value)
        for one, value in zip(found, values, strict=True)
        if one is not value
    )


_GROUPS: dict[str, Callable[[Sequence[Guard], dict[str, Any]], str]] = {
    "empty": _empty,
    "entry": _entry_guards_test,
    "absent": _absent,
    "entries": _entries_guards_test,
    "likeness": _likeness_guard_test,
}
_MANY = 8  # guards of a kind from which on they share a test


def _guarded_place_now(i: int, one: Guard, scope: dict[str, Any]) -> tuple[str, str]:
    """Whether what was there is still anywhere, if that has to be asked, and what it is now: in words of the
    test. (Of a tensor that is gone there is None, which is not what was there.)"""
    if isinstance(one.expected, GuardedTensor):
        scope[f"r{i}"] = one.expected.now
        return "", f"(missing if e is None else r{i}())"
    if one.kind not in (GuardKind.ENTRIES, GuardKind.ITEMS):
        return "", f"v{i}"
    values = one.expected[1] if one.kind is GuardKind.ENTRIES else one.expected
    nows = _guarded_values_now(values)
    if nows is None:
        return "", f"v{i}[1]" if one.kind is GuardKind.ENTRIES else f"v{i}"
    scope[f"r{i}"], scope[f"t{i}"] = nows, [value.now for value in values if isinstance(value, GuardedTensor)]
    return f"all_alive(t{i}) and ", f"map(call, r{i})"


def _guarded_values_now(values: Sequence[Any]) -> list[Callable[[], Any]] | None:
    """What gives these as they are now; None where they are themselves."""
    if not any(isinstance(value, GuardedTensor) for value in values):
        return None
    return [
        value.now if isinstance(value, GuardedTensor) else itertools.repeat(value).__next__
        for value in values
    ]


def _all_alive(tensors: Sequence[Callable[[], Tensor | None]]) -> bool:
    return not any(map(operator.is_, map(operator.call, tensors), itertools.repeat(None)))


def _is_import(guard: Guard) -> bool:
    """Whether what is there now, and was not, are modules."""
    return guard.kind is GuardKind.ABSENT and all(
        isinstance(guard.owner[name], ModuleType) for name in guard.expected & guard.owner.keys()
    )


def _is_unset(guard: Guard) -> bool:
    """Whether it is of a variable of the context that had no value."""
    return guard.kind is GuardKind.CONTEXT and guard.expected is MISSING


def names_of(space: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in a namespace, but for Python's own."""
    return tuple(name for name in space if not name.startswith("__"))


def _owner(guard: Guard) -> Any:
    """What a guard looks into."""
    return builtin_view(guard.owner) if guard.kind in (GuardKind.ITEMS, GuardKind.ENTRIES) else guard.owner


def _count(guard: Guard) -> int | None:
    """How many things a container held; None for what is no container."""
    if guard.kind is GuardKind.ENTRIES:
        return len(guard.expected[0])
    return len(guard.expected) if guard.kind is GuardKind.ITEMS else None


def _is_same_guarded_value(value: Any, expected: Any) -> bool:
    """Whether the function can take the one for the other, without looking further."""
    if value is expected:
        return True
    if isinstance(expected, GuardedTensor):
        # To compute with a tensor is refused, but not to ask what it is like.
        return isinstance(value, Tensor) and (
            value is expected.now() or tensor_likeness(value) == expected.like
        )
    kind = type(value)
    if kind is not type(expected):
        return False
    if isinstance(value, CONSTANTS):
        return bool(constant_key(value) == constant_key(expected))
    if isinstance(value, (tuple, list)):  # guards see to it that `expected` is what it was
        now, then = builtin_view(value), builtin_view(expected)
        return len(now) == len(then) and all(map(_is_same_guarded_value, now, then))
    if isinstance(value, dict):
        now, then = builtin_view(value), builtin_view(expected)
        return _is_same_guarded_value(tuple(now), tuple(then)) and _is_same_guarded_value(
            tuple(now.values()), tuple(then.values())
        )
    return isinstance(value, Tensor) and tensor_likeness(value) == tensor_likeness(expected)


def contents(owner: Any) -> tuple[str, tuple[int, ...] | None, bytes]:
    memory = memoryview(owner)
    return memory.format, memory.shape, memory.tobytes()


_SCOPE: dict[str, Any] = {
    "same": _is_same_guarded_value,
    "alike": _alike,
    "all_alive": _all_alive,
    "disjoint": type({}.keys()).isdisjoint,
    "contents": contents,
    "call": operator.call,
    "is_": operator.is_,
    "missing": MISSING,
    "likeness": tensor_likeness,
    "gradient_of": gradient_of,
    "names_of": names_of,
    "state_of": state_of,
}
