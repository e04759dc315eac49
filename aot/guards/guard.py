"""Guards: places that a function reads besides its arguments, and a generated test that they are unchanged.

In: owners, names and expected values. Out: `Guards`, whose `hold` is one generated expression. Constants are
compared by value, all other objects by identity; tensors that look alike count as the same.
Invariant: a guard keeps no tensor alive. If a module's weight is replaced, the old one is freed. A list or
dict of tensors that is replaced as a whole is kept alive.
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
    """What a guard compares. Guards are tested in this order, the cheapest first."""

    ENTRY = 0  # the value of a name in a namespace
    CELL = 1  # the value of a closure's variable
    ATTRIBUTE = 2  # an attribute that is in no namespace, such as a slot
    ABSENT = 3  # the absence of names in a namespace
    NAMES = 4  # the names in a namespace
    CONTEXT = 5  # the value of a ContextVar
    LOCAL = 6  # the value of a name in a `threading.local`
    LIKENESS = 7  # a tensor's `tensor_likeness`
    ITEMS = 8  # the items of a list, a set or a deque, in order
    ENTRIES = 9  # the keys and values of a dict, in order
    BYTES = 10  # the bytes of an array or another buffer
    STATE = 11  # the state of an iterator, a random generator or a queue
    REFERRED = 12  # the object behind a weak reference
    GRADIENT = 13  # a tensor's `.grad`


# `{now}` is the expected value, or the expected values one by one, where a tensor is behind a weak reference.
# `{alive}` tests that the expected tensors still exist.
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
    """An expected tensor.

    Attributes:
        now: gives the tensor, or None if it no longer exists. It is a weak reference.
        like: its `tensor_likeness`.
    """

    now: Callable[[], Tensor | None]
    like: object


@dataclass(frozen=True, slots=True)
class Guard:
    """One place that the function reads, and the value that it had.

    Attributes:
        path: the place as a user would write it.
        kind: what is compared.
        owner: the object to look into; for a tensor, a weak reference.
        name: the name to look up, or "".
        expected: the value, with a `GuardedTensor` for each tensor.
    """

    path: str
    kind: GuardKind
    owner: Any
    name: str
    expected: Any


@dataclass(frozen=True, slots=True)
class Guards:
    """All places that a function reads besides its arguments.

    Attributes:
        guards: one for each place.
        hold: tests that all places are unchanged. It costs about 30 ns for each value.
    """

    guards: tuple[Guard, ...]
    hold: Callable[[], bool]

    def functions(self) -> list[FunctionType]:
        """The functions whose code they have looked through."""
        return [one.owner for one in self.guards if one.name == "__code__"]

    def changed(self) -> list[str]:
        """The paths of the places that have changed."""
        return [guard.path for guard in self.guards if not compile_guards((guard,))()]

    def check(self) -> None:
        """Refuse a function that has changed a place that it reads.

        Two changes are allowed. If the function has imported a module, the next call finds it there, and is
        compiled for that. A ContextVar that had no value has none again when the context is left.

        Raises:
            ClosureMutation: a place has changed in another way.
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
    """Make a guard that keeps no tensor alive."""
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
    """Whether a value is a real tensor. A fake belongs to a trace, and its attributes must not be read."""
    return isinstance(value, Tensor) and not plain_fakes.is_fake(value)


def compile_guards(guards: tuple[Guard, ...]) -> Callable[[], bool]:
    """Compile the test of all guards, as one expression.

    A kind with many guards, as from the namespaces of modules, is one term of it that loops over them. To
    compile one term for each would take longer than the walk.
    """
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
    hold: Callable[[], bool] = scope.pop("hold")  # a function in its own globals would keep itself alive
    return hold


@functools.lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    """The code of a test. Specializations of one function, and similar functions, often share it."""
    return compile(source, "<guards>", "exec")


def _guard_group(one: Guard) -> str:
    """The name of the test that a guard can share with others (`_GROUPS`); "" for none."""
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
    """Whether each found value is the expected one, or the same for the function."""
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
_MANY = 8  # so many guards of a kind share a test


def _guarded_place_now(i: int, one: Guard, scope: dict[str, Any]) -> tuple[str, str]:
    """The `{alive}` and `{now}` of a test (`_TESTS`), as source text.

    The weak reference of a tensor that no longer exists gives None, which must not match a place with None.
    """
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
    """A function for each expected value that gives it; None if there is no tensor among them."""
    if not any(isinstance(value, GuardedTensor) for value in values):
        return None
    return [
        value.now if isinstance(value, GuardedTensor) else itertools.repeat(value).__next__
        for value in values
    ]


def _all_alive(tensors: Sequence[Callable[[], Tensor | None]]) -> bool:
    return not any(map(operator.is_, map(operator.call, tensors), itertools.repeat(None)))


def _is_import(guard: Guard) -> bool:
    """Whether all names that are there now, and were absent, are modules."""
    return guard.kind is GuardKind.ABSENT and all(
        isinstance(guard.owner[name], ModuleType) for name in guard.expected & guard.owner.keys()
    )


def _is_unset(guard: Guard) -> bool:
    """Whether a guard is for a ContextVar that had no value."""
    return guard.kind is GuardKind.CONTEXT and guard.expected is MISSING


def names_of(space: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in a namespace, except those that begin with two underscores."""
    return tuple(name for name in space if not name.startswith("__"))


def _owner(guard: Guard) -> Any:
    """The object that a guard looks into; for a container, its `builtin_view`."""
    return builtin_view(guard.owner) if guard.kind in (GuardKind.ITEMS, GuardKind.ENTRIES) else guard.owner


def _count(guard: Guard) -> int | None:
    """The number of items that a guarded container had; None for other kinds of guards."""
    if guard.kind is GuardKind.ENTRIES:
        return len(guard.expected[0])
    return len(guard.expected) if guard.kind is GuardKind.ITEMS else None


def _is_same_guarded_value(value: Any, expected: Any) -> bool:
    """Whether two values are the same for the function, so that it need not be compiled again."""
    if value is expected:
        return True
    if isinstance(expected, GuardedTensor):
        # The function may read a tensor's metadata; to compute with a tensor from outside is refused.
        return isinstance(value, Tensor) and (
            value is expected.now() or tensor_likeness(value) == expected.like
        )
    kind = type(value)
    if kind is not type(expected):
        return False
    if isinstance(value, CONSTANTS):
        return bool(constant_key(value) == constant_key(expected))
    if isinstance(value, (tuple, list)):  # other guards test that `expected` itself has not changed
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
