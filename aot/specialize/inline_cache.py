"""Calls that are known again without making their key: a generated test for each key that is asked for often.

A key is made of some fifteen attributes of each tensor, read one by one and hashed. The test of a key reads
most of them in C (`tensor_impl.compile_tensor_test`), and the rest cheapest first, up to the first that
differs. It passes only for calls that have this key, or one that means the same to what answers
(`CacheTarget.placement`); it need not pass for all of them. What answers the call is called from the same
generated function, so that a call that is known runs that, and what answers it.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aot.errors import RECORDING, Unsupported
from aot.specialize.call import Arguments
from aot.tensors.constants import constant_key
from aot.tensors.tensor_attributes import AttributeNames
from aot.tensors.version_counters import has_counter
from aot.torch_internals import ambient_state, autograd_state, dynamo_api, tensor_impl

MOST = 8  # tests that one function has: each costs some 0.1 us in a call that it does not pass for
EVERY = 16  # once so many calls had to make their key, there is a test too few, or one for nothing
FEW = 4  # so many tensors are asked one by one

MISS: Any = object()
"""What a test gives for a call that it does not pass for."""


class PlacementSensitivity(enum.Enum):
    """What of a call's tensors matters besides their elements, layouts and standing with autograd."""

    NONE = "none of the rest"  # they are read, and that is all
    ALIASING = "which share a storage, and what they are views of"  # they are written to or returned, too
    FULL = "the sizes of storages as well, and whether they hold gradients"


@dataclass(frozen=True, slots=True)
class CacheTarget:
    """What answers the calls of one key.

    Attributes:
        hold: whether it still does.
        call: takes the call's tensors, and then some leaves of its arguments.
        numbers: the positions of these leaves.
        unflatten: makes the result of what `call` gives; None where that is the result.
        placement: what of the tensors matters to it. If that is not all, it answers calls as well of which
            the keys differ in the rest.
        attributes: the Python attributes of tensors that it may have read, of which these have none.
        casts: gives further tensors that `call` takes after those of the call, or None where it does not
            answer it.
    """

    hold: Callable[[], bool]
    call: Callable[..., Any]
    numbers: tuple[int, ...]
    unflatten: Callable[[Any], Any] | None
    placement: PlacementSensitivity = PlacementSensitivity.FULL
    attributes: AttributeNames = field(default_factory=AttributeNames)
    casts: Callable[[Sequence[Tensor]], tuple[Tensor, ...] | None] | None = None


@dataclass(frozen=True, slots=True)
class ImplicitLeaves:
    """Leaves that a call is not given, but finds.

    Attributes:
        tests: expressions that are true while they are found where they were.
        leaves: expressions for them, in order.
        names: what all of these name.
    """

    tests: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    names: dict[str, Any] = field(default_factory=dict)


NOTHING = ImplicitLeaves()


@dataclass(frozen=True, slots=True)
class InlineCacheEntry:
    """The test of one key.

    Attributes:
        tree: of the arguments.
        flat: whether the call's arguments are leaves.
        answer: takes the leaves of a call with this tree, but for those that it finds. Gives the call's
            result, if it has this key and what answers it still does; otherwise `MISS`.
    """

    tree: Hashable
    flat: bool
    answer: Callable[[Sequence[Any]], Any]


class InlineCache:
    """The tests of the keys that a function is called with.

    Attributes:
        newest_first: the one that passed last first.
        flat: of these, what takes a call's arguments as they are.

    Example:
        >>> from aot.specialize.call import analyze_arguments
        >>> seen = InlineCache()
        >>> answer = CacheTarget(lambda: True, torch.neg, (), None)
        >>> seen.note(1, True, analyze_arguments((torch.ones(2),)), answer)
        >>> seen.flat[0]((torch.ones(2),))
        tensor([-1., -1.])
        >>> seen.flat[0]((torch.ones(3),)) is MISS
        True
    """

    def __init__(self) -> None:
        self.newest_first: tuple[InlineCacheEntry, ...] = ()
        self.flat: tuple[Callable[[Sequence[Any]], Any], ...] = ()
        self._missed = 0

    def _set(self, *newest_first: InlineCacheEntry) -> None:
        self.newest_first = newest_first
        self.flat = tuple(one.answer for one in newest_first if one.flat)

    def promote(self, answer: Callable[[Sequence[Any]], Any]) -> None:
        """Try it first from now on."""
        now = self.newest_first
        self._set(*sorted(now, key=lambda one: one.answer is not answer))

    def note(
        self,
        tree: Hashable,
        flat: bool,
        arguments: Arguments,
        answer: CacheTarget,
        found: ImplicitLeaves = NOTHING,
    ) -> None:
        """A call had to make its key, although there is something that answers it: have a test for the next,
        perhaps instead of the one that was of no use for longest."""
        self._missed += 1
        if len(self.newest_first) < MOST or self._missed % EVERY == 0:
            test = compile_cache_entry(arguments, answer, found)
            if test is not None:
                self._set(InlineCacheEntry(tree, flat, test), *self.newest_first[: MOST - 1])


def with_inline_cache(
    seen: InlineCache,
    otherwise: Callable[..., Any],
    note_refusal: Callable[[Unsupported], None],
    eager: Callable[..., Any],
) -> Callable[..., Any]:
    """A function of positional arguments: what answers them if they are known again, else `otherwise`.

    Args:
        note_refusal: is given what refuses a call; it raises that, or `eager` answers the call.
    """

    def call(*args: Any) -> Any:
        try:
            flat = seen.flat
            for answer in flat:
                result = answer(args)
                if result is not MISS:
                    if answer is not flat[0]:
                        seen.promote(answer)
                    return result
            return otherwise(*args)
        except Unsupported as refusal:
            note_refusal(refusal)
        return eager(*args)

    # (As of all that is called from code that Dynamo may compile.)
    dynamo_api.skip(call)
    return call


def compile_cache_entry(
    arguments: Arguments, answer: CacheTarget, found: ImplicitLeaves
) -> Callable[[Sequence[Any]], Any] | None:
    """What `InlineCacheEntry.answer` is, for the calls that have the key of `arguments` under what is around
    it now; None for arguments that have no test (`compile_inline_test`), or of which Python attributes may be
    read."""
    if arguments.metas or not answer.attributes.none_of(arguments.tensors_and_subclasses):
        return None
    return _Test(arguments, answer.placement).make_cache_entry(answer, found)


def compile_inline_test(arguments: Arguments) -> Callable[..., tuple[Tensor, ...] | None] | None:
    """A function of the leaves of a call with the same tree, under the same `ambient_state.current_key` and
    outside of transforms: the tensors among them, each object once, if the key of the call is that of
    `arguments`; otherwise None, perhaps also where the key is the same.

    None for arguments that have none: where wrapper subclasses are among them, or several tensors with a
    history of their own on one storage (which share a version counter, or not).
    """
    return None if arguments.metas else _Test(arguments).write_whole_test()


class _Test:
    """The parts of one test, as source."""

    def __init__(self, arguments: Arguments, lying: PlacementSensitivity = PlacementSensitivity.FULL) -> None:
        self._arguments = arguments
        self._anywhere = lying is PlacementSensitivity.NONE
        self._in_full = lying is PlacementSensitivity.FULL
        self._tests: list[str] = []
        self._scope: dict[str, Any] = {"key_of": constant_key, "missed": MISS, "recording": RECORDING}
        self._leaves = [f"a{position}" for position in range(len(arguments.leaves))]
        self._shown: list[str] = []  # the tensors, each once

    def write_whole_test(self) -> Callable[..., tuple[Tensor, ...] | None] | None:
        if not self._write_tests():
            return None
        test: Callable[..., tuple[Tensor, ...] | None] = self._function(
            f"def test({', '.join(self._leaves)}):",
            *self._together(),
            f"    if ({self._all()}):",
            f"        return ({''.join(name + ', ' for name in self._shown)})",
            "    return None",
        )
        return test

    def make_cache_entry(
        self, answer: CacheTarget, found: ImplicitLeaves
    ) -> Callable[[Sequence[Any]], Any] | None:
        if not self._write_tests():
            return None
        ambient, names = ambient_state.compile_key_test(self._arguments.tensors)
        self._scope.update(found.names)
        self._scope.update(names)
        self._scope.update(hold=answer.hold, call=answer.call, together=answer.unflatten)
        self._tests.insert(0, "not recording")
        self._tests.insert(2, ambient)
        self._write_attribute_test(answer.attributes)
        self._tests.append("hold()")
        count = len(self._leaves) - len(found.leaves)
        further = [] if answer.casts is None else ["*further"]
        given = [*self._shown, *further, *(f"a{position}" for position in answer.numbers)]
        as_they_are = given == self._leaves and not found.leaves
        result = "call(*given)" if as_they_are else f"call({', '.join(given)})"
        if answer.unflatten is not None:
            result = f"together({result})"
        lines = [
            "def recognised(given):",
            f"    if {' or '.join([f'len(given) != {count}', *(f'not ({t})' for t in found.tests)])}:",
            "        return missed",
        ]
        if self._leaves:
            names_of_all = "".join(name + ", " for name in self._leaves)
            if found.leaves:
                lines += [
                    "    try:",
                    f"        {names_of_all} = {', '.join([*found.leaves, '*given'])}",
                    "    except (LookupError, TypeError):",  # one was taken away meanwhile
                    "        return missed",
                ]
            else:
                lines.append(f"    {names_of_all} = given")
        recognised: Callable[[Sequence[Any]], Any] = self._function(
            *lines,
            *self._together("given" if as_they_are else None),
            f"    if ({self._all()}):",
            *self._further_tensors_source(answer),
            f"        return {result}",
            "    return missed",
        )
        return recognised

    def _further_tensors_source(self, answer: CacheTarget) -> tuple[str, ...]:
        """What gets the further tensors."""
        if answer.casts is None:
            return ()
        self._scope["casts"] = answer.casts
        shown = "".join(name + ", " for name in self._shown)
        return (
            f"        further = casts(({shown}))",
            "        if further is None:",
            "            return missed",
        )

    def _function(self, *lines: str) -> Any:
        exec(compile("\n".join(lines), "<recognition>", "exec"), self._scope)
        return self._scope.pop(lines[0].partition("(")[0].removeprefix("def "))  # it would keep itself alive

    def _all(self) -> str:
        return "\n        and ".join(self._tests) or "True"

    def _many(self) -> bool:
        return len(self._shown) >= FEW

    def _together(self, given: str | None = None) -> tuple[str, ...]:
        """All tensors, where they are asked together."""
        return (f"    all = {given or '(' + ', '.join(self._shown) + ')'}",) if self._many() else ()

    def _write_tests(self) -> bool:
        """Find all tests; false where there is none."""
        names: dict[int, str] = {}
        for name, (number, value) in zip(self._leaves, self._arguments.leaves, strict=True):
            if number is None:
                self._write_constant_test(name, value)
            elif number in names:
                self._tests.append(f"{name} is {names[number]}")
            else:
                names[number] = name
        shown = self._shown = [names[number] for number in range(len(names))]
        if shown:
            tensors = self._arguments.tensors
            self._in_c("like", tensors, ["*all"] if self._many() else shown)
            if self._many():
                self._write_common_tensor_test()
            for name, tensor in zip(shown, tensors, strict=True):
                self._write_tensor_test(name, tensor)
            if not self._anywhere:
                if not self._write_base_test(shown):
                    return False
                self._write_storage_test(shown)
        return True

    def _write_constant_test(self, name: str, value: object) -> None:
        if value is None or value is True or value is False:
            self._tests.append(f"{name} is {value}")
            return
        kind = type(value)
        self._scope[f"{name}_type"], self._scope[f"{name}_key"] = kind, value
        if kind in (int, str, torch.dtype):
            self._tests.append(f"type({name}) is {name}_type and {name} == {name}_key")
        else:
            self._scope[f"{name}_key"] = constant_key(value)
            self._tests.append(f"type({name}) is {name}_type and key_of({name}) == {name}_key")

    def _in_c(self, test: str, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        self._scope[test] = tensor_impl.compile_tensor_test(tensors)
        self._tests.append(f"{test}({', '.join(names)})")

    def _write_common_tensor_test(self) -> None:
        """What is asked of all tensors together, most of which are no views and lie at the start."""
        tensors = self._arguments.tensors
        self._scope.update(offset=tensor_impl.offset_of, is_view=tensor_impl.is_view)
        offsets = [tensor.storage_offset() for tensor in tensors]
        self._tests.append(
            f"[*map(offset, all)] == {offsets}" if any(offsets) else "not any(map(offset, all))"
        )
        views = [tensor._is_view() for tensor in tensors]
        if self._anywhere and not all(tensor.requires_grad for tensor in tensors):
            pairs = zip(self._shown, tensors, strict=True)
            self._tests += [f"not {name}._is_view()" for name, tensor in pairs if tensor.requires_grad]
        else:
            asked = f"[*map(is_view, all)] == {views}" if any(views) else "not any(map(is_view, all))"
            self._tests.append(asked)

    def _write_tensor_test(self, name: str, tensor: Tensor) -> None:
        if not self._many():
            offset = tensor.storage_offset()
            self._tests.append(
                f"{name}.storage_offset() == {offset}" if offset else f"not {name}.storage_offset()"
            )
            if tensor.requires_grad or not self._anywhere:
                self._tests.append(f"{name}._is_view()" if tensor._is_view() else f"not {name}._is_view()")
        if tensor.requires_grad:  # what does not is a leaf
            self._tests.append(f"{name}.is_leaf" if tensor.is_leaf else f"not {name}.is_leaf")
        if tensor.is_leaf and self._in_full:
            self._tests.append(f"{name}.grad is {'None' if tensor.grad is None else 'not None'}")
        if torch.is_inference_mode_enabled():  # where the test in C does not tell
            self._tests.append(f"{name}.is_inference() is {tensor.is_inference()}")
        if tensor.is_inference():  # what has a counter is refused
            self._scope["has_counter"] = has_counter
            self._tests.append(f"not has_counter({name})")

    def _write_attribute_test(self, names: AttributeNames) -> None:
        """No tensor has a Python attribute that was read; most have none at all."""
        if not self._shown or not (names.names or names.every):
            return
        self._scope["without"] = names.none_of
        if self._many():
            self._scope.update(any=any, map=map, space=operator.attrgetter("__dict__"))
            self._tests.append("(not any(map(space, all)) or without(all))")
        else:
            self._tests += [f"(not {name}.__dict__ or without(({name},)))" for name in self._shown]

    def _write_base_test(self, shown: Sequence[str]) -> bool:
        """Views: what they are views of, and how. False where two that count writes are on one storage."""
        tensors = self._arguments.tensors
        roots = {id(tensor): name for name, tensor in zip(shown, tensors, strict=True)}
        lying: dict[int, int] = {}
        hidden: dict[str, Tensor] = {}
        for name, tensor in zip(shown, tensors, strict=True):
            root = tensor._base if tensor._is_view() else tensor
            assert root is not None
            where = tensor.untyped_storage()._cdata
            if not root.is_inference() and lying.setdefault(where, id(root)) != id(root):
                return False
            if root is tensor:
                continue
            base = roots.get(id(root))
            if base is None:
                base = roots[id(root)] = f"{name}_base"
                self._tests.append(f"({base} := {name}._base) is not None")
                hidden[base] = root
            else:
                self._tests.append(f"{name}._base is {base}")
        if hidden:
            self._in_c("like_with_bases", [*tensors, *hidden.values()], [*shown, *hidden])
        for base, root in hidden.items():
            self._tests.append(f"{base}.storage_offset() == {root.storage_offset()}")
            self._tests.append(f"{base}.is_leaf is {root.is_leaf}")
        for name, tensor in zip(shown, tensors, strict=True):
            if tensor._is_view():
                root = tensor._base
                assert root is not None
                self._scope.update(
                    made=autograd_state.creation_meta, accumulates=autograd_state.can_accumulate_grad
                )
                same = root.untyped_storage()._cdata == tensor.untyped_storage()._cdata
                its, own = (f"{one}.untyped_storage()._cdata" for one in (roots[id(root)], name))
                self._tests += [
                    f"made({name}) == {autograd_state.creation_meta(tensor)!r}",
                    f"accumulates({name}) is {autograd_state.can_accumulate_grad(tensor)}",
                    f"({its} == {own}) is {same}",
                ]
        return True

    def _write_storage_test(self, shown: Sequence[str]) -> None:
        """Which tensors share a storage, and how large each storage is. (Storages are one object in Python,
        too, for as long as somebody has it.)"""
        storages = [tensor.untyped_storage() for tensor in self._arguments.tensors]
        firsts: dict[int, int] = {}
        names = [f"{name}_storage" for name in shown]
        if self._many():
            self._scope.update(storage=tensor_impl.storage_of, nbytes=tensor_impl.nbytes_of)
            self._tests.append("(storages := [*map(storage, all)])")
            if self._in_full:
                self._tests.append(f"[*map(nbytes, storages)] == {[one.nbytes() for one in storages]}")
            names = [f"storages[{i}]" for i in range(len(shown))]
        for i, (name, storage) in enumerate(zip(shown, storages, strict=True)):
            first = firsts.setdefault(storage._cdata, i)
            if not self._many() and (self._in_full or len(shown) > 1):
                known = f".nbytes() == {storage.nbytes()}" if self._in_full else ""
                self._tests.append(f"({names[i]} := {name}.untyped_storage()){known}")
            if first != i:
                self._tests.append(f"{names[i]} is {names[first]}")
        if len(firsts) > 1:
            apart = "*storages" if self._many() else ", ".join(names[i] for i in firsts.values())
            self._tests.append(f"len({{{apart}}}) == {len(firsts)}")
