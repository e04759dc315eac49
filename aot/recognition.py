"""Calls that are known again without making their key: a generated test for each key that is asked for often.

A key is made of some fifteen attributes of each tensor, read one by one and hashed. The test of a key reads
most of them in C (`torch_internals.tensor_test`), and the rest cheapest first, up to the first that differs.
It passes only for calls that have this key; it need not pass for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from aot import torch_internals as internals
from aot.constants import key_of
from aot.inputs import Arguments
from aot.versions import has_counter

MOST = 8  # tests that one function has: each costs some 0.1 us in a call that it does not pass for
EVERY = 16  # once so many calls had to make their key, there is a test too few, or one for nothing

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Recognition(Generic[_T]):
    """The test of one key.

    Attributes:
        tree: of the arguments, as `flattened` gives it.
        ambient: `torch_internals.ambient_key()`.
        tensors: takes the leaves of a call with this tree. Gives its tensors, each object once and in order,
            if the call has this key; otherwise None.
        found: what answers such calls.
    """

    tree: object
    ambient: tuple[object, ...]
    tensors: Callable[..., tuple[Tensor, ...] | None]
    found: _T


class Recognitions(Generic[_T]):
    """The tests of the keys that a function is called with.

    Attributes:
        newest_first: the one that passed last first.

    Example:
        >>> seen = Recognitions[str]()
        >>> seen.note(1, internals.ambient_key(), take_apart((torch.ones(2),)), "found")
        >>> seen.newest_first[0].found, seen.newest_first[0].tensors(torch.zeros(2))
        ('found', (tensor([0., 0.]),))
        >>> seen.newest_first[0].tensors(torch.zeros(3)) is None
        True
    """

    def __init__(self) -> None:
        self.newest_first: tuple[Recognition[_T], ...] = ()
        self._missed = 0

    def passed(self, one: Recognition[_T]) -> None:
        """Try it first from now on."""
        self.newest_first = (one, *(other for other in self.newest_first if other is not one))

    def note(self, tree: object, ambient: tuple[object, ...], arguments: Arguments, found: _T) -> None:
        """A call had to make its key, although there is something that answers it: have a test for the next,
        perhaps instead of the one that was of no use for longest."""
        self._missed += 1
        if len(self.newest_first) < MOST or self._missed % EVERY == 0:
            test = compile_test(arguments)
            if test is not None:
                one = Recognition(tree, ambient, test, found)
                self.newest_first = (one, *self.newest_first[: MOST - 1])


def compile_test(arguments: Arguments) -> Callable[..., tuple[Tensor, ...] | None] | None:
    """A function of the leaves of a call with the same tree, under the same `torch_internals.ambient_key` and
    outside of transforms: the tensors among them, each object once, if the key of the call is that of
    `arguments`; otherwise None, perhaps also where the key is the same.

    None for arguments that have none: where wrapper subclasses are among them, or several tensors with a
    history of their own on one storage (which share a version counter, or not).
    """
    return None if arguments.metas else _Test(arguments).compiled()


class _Test:
    """The parts of one test, as source."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._tests: list[str] = []
        self._scope: dict[str, Any] = {"key_of": key_of}

    def compiled(self) -> Callable[..., tuple[Tensor, ...] | None] | None:
        leaves = self._arguments.leaves
        names: dict[int, str] = {}
        for position, (number, value) in enumerate(leaves):
            if number is None:
                self._constant(f"a{position}", value)
            elif number in names:
                self._tests.append(f"a{position} is {names[number]}")
            else:
                names[number] = f"a{position}"
        shown = [names[number] for number in range(len(names))]
        if shown:
            self._in_c("like", self._arguments.tensors, shown)
            for name, tensor in zip(shown, self._arguments.tensors, strict=True):
                self._tensor(name, tensor)
            if not self._bases(shown):
                return None
            self._storages(shown)
        body = "\n        and ".join(self._tests) or "True"
        parameters = ", ".join(f"a{position}" for position in range(len(leaves)))
        passed = f"({', '.join(shown)},)" if shown else "()"
        lines = (
            f"def test({parameters}):",
            f"    if ({body}):",
            f"        return {passed}",
            "    return None",
        )
        exec(compile("\n".join(lines), "<recognition>", "exec"), self._scope)
        test: Callable[..., tuple[Tensor, ...] | None] = self._scope["test"]
        return test

    def _constant(self, name: str, value: object) -> None:
        if value is None or value is True or value is False:
            self._tests.append(f"{name} is {value}")
            return
        kind = type(value)
        self._scope[f"{name}_type"], self._scope[f"{name}_key"] = kind, value
        if kind in (int, str, torch.dtype):
            self._tests.append(f"type({name}) is {name}_type and {name} == {name}_key")
        else:
            self._scope[f"{name}_key"] = key_of(value)
            self._tests.append(f"type({name}) is {name}_type and key_of({name}) == {name}_key")

    def _in_c(self, test: str, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        self._scope[test] = internals.tensor_test(tensors)
        self._tests.append(f"{test}({', '.join(names)})")

    def _tensor(self, name: str, tensor: Tensor) -> None:
        offset = tensor.storage_offset()
        self._tests.append(
            f"{name}.storage_offset() == {offset}" if offset else f"not {name}.storage_offset()"
        )
        if tensor.requires_grad:  # what does not is a leaf
            self._tests.append(f"{name}.is_leaf" if tensor.is_leaf else f"not {name}.is_leaf")
        if tensor.is_leaf:
            self._tests.append(f"{name}.grad is {'None' if tensor.grad is None else 'not None'}")
        if torch.is_inference_mode_enabled():  # where the test in C does not tell
            self._tests.append(f"{name}.is_inference() is {tensor.is_inference()}")
        if tensor.is_inference():  # what has a counter is refused
            self._scope["has_counter"] = has_counter
            self._tests.append(f"not has_counter({name})")
        self._tests.append(f"{name}._is_view()" if tensor._is_view() else f"not {name}._is_view()")

    def _bases(self, shown: Sequence[str]) -> bool:
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
                self._scope.update(made=internals.creation_meta, accumulates=internals.accumulates)
                same = root.untyped_storage()._cdata == tensor.untyped_storage()._cdata
                its, own = (f"{one}.untyped_storage()._cdata" for one in (roots[id(root)], name))
                self._tests += [
                    f"made({name}) == {internals.creation_meta(tensor)!r}",
                    f"accumulates({name}) is {internals.accumulates(tensor)}",
                    f"({its} == {own}) is {same}",
                ]
        return True

    def _storages(self, shown: Sequence[str]) -> None:
        """Which tensors share a storage, and how large each storage is."""
        first: dict[int, str] = {}
        for name, tensor in zip(shown, self._arguments.tensors, strict=True):
            storage = tensor.untyped_storage()
            group = first.get(storage._cdata)
            if group is None:
                first[storage._cdata] = f"{name}_storage"
                self._tests.append(f"(s := {name}.untyped_storage()).nbytes() == {storage.nbytes()}")
                if len(shown) > 1:
                    self._tests.append(f"({name}_storage := s._cdata)")
            else:
                self._tests.append(f"{name}.untyped_storage()._cdata == {group}")
        if len(first) > 1:
            self._tests.append(f"len({{{', '.join(first.values())}}}) == {len(first)}")
