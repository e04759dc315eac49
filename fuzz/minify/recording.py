"""Recording: a recorded function as data: its inputs, the calls that it makes, and its result.

Constants are kept as Python source, so that `1`, `1.0` and `True` differ. Inputs have the names `x0`, `x1`,
... by position, and results of calls the names `v0`, `v1`, ...
Invariant: a recording holds no live tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from oracles.observation.ambient import record_ambient
from oracles.observation.records import Ambient

Size = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ref:
    """A leaf of a tree: the name of an input or of a result."""

    name: str


@dataclass(frozen=True, slots=True)
class Lit:
    """A leaf of a tree: a constant, as Python source."""

    text: str


@dataclass(frozen=True, slots=True)
class Seq:
    """A tuple, a list, or a slice with its three parts."""

    kind: Literal["tuple", "list", "slice"]
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Dict:
    """A dict in its order. Its keys are constants."""

    items: tuple[tuple[Lit, Tree], ...]


Tree = Ref | Lit | Seq | Dict
NONE = Lit("None")
IGNORED = Ref("_")  # in a pattern: this part of a result has a name already, or is no tensor


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation of `length` elements of a dtype, on a device.

    `values` is "ones", "zeros", "ramp" (the formula of generated programs,
    `fuzz.program.argument_text.root_values_text`), or the bytes of the elements.
    """

    dtype: str
    length: int
    device: str
    values: str | bytes


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the function gets or reads, or a base of such a tensor.

    `stride` and `offset` count elements of its dtype. `via` says how it was made. "own" is the tensor of its
    storage. The others are made from the input number `base`, on the same storage: "view", "no_grad" (a view
    taken under `torch.no_grad()`), "detach" or "data". A tensor that requires grad and is no leaf is `leaf *
    1` or a view.
    """

    storage: int
    dtype: str
    size: Size
    stride: Size
    offset: int
    requires_grad: bool = False
    leaf: bool = True
    via: str = "own"
    base: int | None = None
    parameter: bool = False


@dataclass(frozen=True, slots=True)
class Mode:
    """The modes of a call: grad mode, inference mode, and autocast of each kind of device."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, bool, str], ...]

    @staticmethod
    def of(ambient: Ambient) -> Mode:
        """The modes in an observer's record."""
        autocast = tuple((device, on, str(dtype)) for device, on, dtype in ambient.autocast)
        return Mode(ambient.grad_mode, ambient.inference_mode, autocast)

    @staticmethod
    def now() -> Mode:
        """The present modes of this thread."""
        return Mode.of(record_ambient())


@dataclass(frozen=True, slots=True)
class Call:
    """One call, such as `torch.add`, `torch.Tensor.mul_`, or for an attribute `torch.Tensor.T.__get__`.

    `results` is the pattern that names the new tensors of its result; None if there are none.
    """

    callee: str
    operands: tuple[Tree, ...]
    keywords: tuple[tuple[str, Tree], ...]
    results: Tree | None
    mode: Mode


@dataclass(frozen=True, slots=True)
class Recording:
    """A function without branches.

    `parameters` are trees of inputs. An input that is used, and is in none of them, is read from outside as a
    global. `mode` is the mode in which the function is called.
    """

    storages: tuple[Storage, ...]
    inputs: tuple[Input, ...]
    parameters: tuple[Tree, ...]
    calls: tuple[Call, ...]
    returns: Tree
    mode: Mode


def dtype_of(name: str) -> torch.dtype:
    """The dtype of that name.

    >>> dtype_of("float32")
    torch.float32
    """
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def recording_leaves(tree: Tree | None) -> Iterator[Ref | Lit]:
    """The leaves of a tree, from left to right."""
    match tree:
        case Ref() | Lit():
            yield tree
        case Seq(_, items):
            for item in items:
                yield from recording_leaves(item)
        case Dict(entries):
            for _, item in entries:
                yield from recording_leaves(item)


def names(*trees: Tree | None) -> Iterator[str]:
    """The names in trees, from left to right, without those that a pattern ignores.

    >>> list(names(Seq("tuple", (Ref("x0"), Lit("2"))), Ref("v1")))
    ['x0', 'v1']
    """
    return (
        leaf.name
        for tree in trees
        for leaf in recording_leaves(tree)
        if isinstance(leaf, Ref) and leaf != IGNORED
    )


def operands(call: Call) -> Iterator[Tree]:
    """The positional and keyword arguments of a call."""
    yield from call.operands
    for _, tree in call.keywords:
        yield tree


def map_recording_leaves(tree: Tree, change: Callable[[Ref | Lit], Tree]) -> Tree:
    """The tree with each leaf changed by `change`."""
    match tree:
        case Seq(kind, items):
            return Seq(kind, tuple(map_recording_leaves(item, change) for item in items))
        case Dict(entries):
            return Dict(tuple((key, map_recording_leaves(item, change)) for key, item in entries))
        case _:
            return change(tree)


def with_operands(call: Call, change: Callable[[Ref | Lit], Tree]) -> Call:
    """The call with each leaf of its arguments changed by `change`."""
    return replace(
        call,
        operands=tuple(map_recording_leaves(tree, change) for tree in call.operands),
        keywords=tuple((name, map_recording_leaves(tree, change)) for name, tree in call.keywords),
    )


def used_names(recording: Recording) -> set[str]:
    """The names that the function uses. An argument that it only gets is not used."""
    given = (tree for call in recording.calls for tree in operands(call))
    return set(names(*given, recording.returns))


def arguments(recording: Recording) -> list[str]:
    """The names of the inputs that are arguments, each once, in their order."""
    return list(dict.fromkeys(names(*recording.parameters)))


def globals_of(recording: Recording) -> list[str]:
    """The names of the inputs that the function reads from outside, in their order."""
    known = used_names(recording) - set(names(*recording.parameters))
    return [name for i in range(len(recording.inputs)) if (name := f"x{i}") in known]


def tidy_recording(recording: Recording) -> Recording:
    """The recording without unused inputs and storages, with names and numbers without gaps."""
    needed = used_names(recording) | set(names(*recording.parameters))
    kept = {i for i in range(len(recording.inputs)) if f"x{i}" in needed}
    for i in sorted(kept, reverse=True):
        while (base := recording.inputs[i].base) is not None and base not in kept:
            kept.add(base)
            i = base
    order = _inputs_with_bases_first(recording.inputs, sorted(kept))
    inputs = {old: new for new, old in enumerate(order)}
    lying = list(dict.fromkeys(recording.inputs[i].storage for i in order))
    renamed = {f"x{old}": f"x{new}" for old, new in inputs.items()}
    for call in recording.calls:
        for name in names(call.results):
            renamed[name] = f"v{len(renamed) - len(inputs)}"

    def rename(leaf: Ref | Lit) -> Tree:
        return Ref(renamed.get(leaf.name, leaf.name)) if isinstance(leaf, Ref) else leaf

    return replace(
        recording,
        storages=tuple(recording.storages[i] for i in lying),
        inputs=tuple(
            replace(
                one, storage=lying.index(one.storage), base=None if one.base is None else inputs[one.base]
            )
            for one in (recording.inputs[i] for i in order)
        ),
        parameters=tuple(map_recording_leaves(tree, rename) for tree in recording.parameters),
        calls=tuple(
            replace(
                with_operands(call, rename),
                results=None if call.results is None else map_recording_leaves(call.results, rename),
            )
            for call in recording.calls
        ),
        returns=map_recording_leaves(recording.returns, rename),
    )


def _inputs_with_bases_first(inputs: Sequence[Input], kept: Sequence[int]) -> list[int]:
    """The inputs in an order in which each comes after its base."""
    order: list[int] = []
    for i in kept:
        chain = []
        at: int | None = i
        while at is not None and at not in order:
            chain.append(at)
            at = inputs[at].base
        order += reversed(chain)
    return order
