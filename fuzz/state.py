"""What is known of a program's tensors at each statement, without running it.

The generator builds a program on a `State`, and `program.check` replays one. It follows metadata (by the
operator table's rules), memory (which tensors share it, and which elements), and as much of autograd as
decides whether eager raises: leaves, views and how they were made, version counters, what backward keeps.

Three kinds of trouble are told apart:

* a *breach*: shapes or dtypes do not fit, or eager's result is undefined (`apply` raises `Breach`); memory
  that `resize_` has added is `undefined` until it is written, and a program must leave none;
* *illegal*: eager raises at this statement, and so must a compiler (`illegal` says why);
* a *hazard*: eager raises later, in backward or when a view is next used (`hazard` says why).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from fuzz.operators.dtypes import DTYPES, INEXACT, ITEM_SIZE, reads_bytes
from fuzz.operators.layout import contiguous, covered, end, overlaps_itself, shares_elements
from fuzz.operators.parts import as_number
from fuzz.operators.row import (
    MAX_ELEMENTS,
    MAX_RANK,
    Attributes,
    Change,
    Constant,
    Expanded,
    Kind,
    Link,
    Meta,
    Mismatch,
    Operator,
    Result,
    Size,
)


class Breach(Exception):
    """A statement that is no part of any valid program; the text says why."""


class Clock:
    """A version counter, shared by the views of one tensor and its detached aliases."""

    __slots__ = ("split", "version", "viewed")

    def __init__(self) -> None:
        self.version = 0
        self.viewed = False  # some tensor has it because it is a differentiable view
        self.split = False  # a view and its base no longer have one storage or one history


class Tensor:
    """One tensor object. Two names may stand for it.

    `grad_fn` is whether autograd has a history at hand: a view whose base has got one in the meantime gets
    its own when it is next used, and until then eager takes it for a leaf.
    """

    __slots__ = ("base", "born", "clock", "grad_fn", "inference", "made", "memory", "meta", "own")

    def __init__(self, meta: Meta, memory: int, clock: Clock, *, own: bool, grad_fn: bool) -> None:
        self.meta = meta
        self.memory = memory  # tensors of equal memory may share elements
        self.clock = clock
        self.own = own  # requires grad by itself
        self.grad_fn = grad_fn
        self.inference = False  # it was made under inference mode, on memory that was
        self.base: Tensor | None = None  # what it is a differentiable view of
        self.made = "plain"  # a view's making: "plain", "multi" (one of several results) or "no_grad"
        self.born = clock.version  # the version that a view's history belongs to

    @property
    def requires_grad(self) -> bool:
        return self.own or self.grad_fn or (self.base is not None and self.base.requires_grad)

    @property
    def stale(self) -> bool:
        """A view whose history cannot be made anew after a write to its base: any use raises."""
        base = self.base
        return (
            base is not None
            and self.made != "plain"
            and self.born != self.clock.version
            and base.requires_grad
        )


Value: TypeAlias = "Tensor | Constant"

_READS = (Link.FRESH, Link.MAYBE)  # results that are made of their operands' elements
_MOVES = (Change.STORAGE, Change.UNTYPED)
_SILENT = (Change.DATA, Change.DETACH, Change.REQUIRE)  # changes that no version counter notices


def _resolved(result: Result) -> Result:
    """A result of lazily conjugated or negated operands: it is resolved, and its strides are left open."""
    if result.link not in _READS:
        return result
    return result._replace(meta=result.meta._replace(stride=None, offset=0, conj=False, neg=False))


def _seen(row: Operator, tensors: list[Tensor]) -> list[Tensor]:
    """The operands that autograd sees."""
    return tensors[:1] if row.change is Change.UNTYPED else tensors


class State:
    """The tensors of a program after some of its statements."""

    __slots__ = (
        "_fragile",
        "_roots",
        "_saved",
        "_sizes",
        "_unsafe",
        "grad",
        "hazards",
        "inference",
        "names",
        "undefined",
    )

    def __init__(self, grad: bool = True, inference: bool = False) -> None:
        self.grad = grad and not inference
        self.inference = inference
        self.names: dict[str, Value] = {}
        self.hazards = 0  # statements after which eager raises later
        self._roots: list[Tensor] = []
        self.undefined: dict[int, frozenset[int]] = {}  # memory -> bytes that nothing has written yet
        self._unsafe: set[int] = set()  # memories with aliases whose writes autograd leaves undefined
        self._sizes: list[int] = []  # memory -> bytes
        self._saved: list[tuple[int, Clock, int]] = []  # memory, clock and version that a backward needs
        self._fragile: list[Tensor] = []  # views that a write to their base makes stale

    # ----------------------------------------------------------------------------------------------------
    # arguments

    def allocate(self, dtype: str, size: Size, requires_grad: bool, leaf: bool) -> int:
        """A storage and its root; returns the storage's number."""
        meta = Meta(dtype, size, contiguous(size))
        self._roots.append(self._fresh(meta, requires_grad))
        self._roots[-1].grad_fn = requires_grad and not leaf
        return len(self._roots) - 1

    def bind_root(self, name: str, storage: int) -> None:
        self.names[name] = self._roots[storage]

    def bind_view(
        self,
        name: str,
        storage: int,
        size: Size,
        stride: Size,
        offset: int,
        via: str,
        dtype: str | None,
        leaf: bool,
    ) -> None:
        root = self._roots[storage]
        meta = Meta(dtype or root.meta.dtype, size, stride, offset)
        if reads_bytes(root.meta.dtype, meta.dtype):
            root = self._linked(root, Result(root.meta._replace(dtype=meta.dtype), Link.DETACHED))
        link = {"detach": Link.DETACHED, "data": Link.DATA}.get(via, Link.VIEW)
        value = self._linked(root, Result(meta, link), grad=via != "no_grad")
        value.own = leaf
        self.names[name] = value

    def bind_same(self, name: str, earlier: str) -> None:
        self.names[name] = self.names[earlier]

    def bind_scalar(self, name: str, value: Constant) -> None:
        self.names[name] = value

    # ----------------------------------------------------------------------------------------------------
    # statements

    def tensor(self, name: str) -> Tensor:
        """The tensor of a name; Breach if it is not defined or no tensor."""
        value = self.names.get(name)
        if not isinstance(value, Tensor):
            raise Breach(f"{name} is not {'a tensor' if name in self.names else 'defined'}")
        return value

    def meta(self, name: str) -> Meta:
        """The metadata of a tensor or Python number."""
        value = self.names[name]
        return value.meta if isinstance(value, Tensor) else as_number(value)

    def is_stale(self, name: str) -> bool:
        """Whether a name stands for a view that raises when used."""
        value = self.names[name]
        return isinstance(value, Tensor) and value.stale

    def is_unwatched(self, name: str) -> bool:
        """Whether a name stands for memory that a backward has kept under another version counter: a write
        to it later on, which autograd does not notice, would leave gradients undefined."""
        value = self.names[name]
        return isinstance(value, Tensor) and any(
            memory == value.memory and clock is not value.clock for memory, clock, _ in self._saved
        )

    def inputs(self, row: Operator, operands: Sequence[str]) -> list[Meta]:
        """The metadata of a statement's operands; Breach if they are not what the row takes."""
        metas = []
        for name, operand in zip(operands, row.operands, strict=True):
            if operand.number:
                value = self.names.get(name)
                if not isinstance(value, (int, float)) or isinstance(value, bool):
                    raise Breach(f"{name} is not a Python number")
                meta = as_number(value)
            else:
                meta = self.tensor(name).meta
            if meta.dtype not in operand.dtypes:
                raise Breach(f"{name} is {meta.dtype}, which {row.name} does not take there")
            metas.append(meta)
        return metas

    def grad_mode(self, mode: str) -> bool:
        return self.grad if mode == "inherit" else mode == "enable_grad" and not self.inference

    def inference_mode(self, mode: str) -> bool:
        return self.inference or mode == "inference_mode"

    def apply(
        self,
        row: Operator,
        operands: Sequence[str],
        attributes: Attributes,
        results: Sequence[str],
        mode: str,
    ) -> None:
        """Append a statement. Raises Breach, and then nothing has changed, where it is not valid."""
        outcome = self.infer(row, operands, attributes, mode)
        count = 0 if row.metadata else len(outcome)
        if len(results) != count:
            raise Breach(f"it has {count} results, not {len(results)}")
        if len(set(results)) < len(results) or any(name in self.names for name in results):
            raise Breach(f"of the results {', '.join(results)} one is defined already")
        self.commit(row, operands, attributes, outcome, results, mode)

    def infer(
        self,
        row: Operator,
        operands: Sequence[str],
        attributes: Attributes,
        mode: str,
        metas: Sequence[Meta] | None = None,
    ) -> tuple[Result, ...]:
        """What a statement would give. Raises Breach where it is not valid; changes nothing.

        `metas` are the operands' (what `inputs` gives), where the caller knows them already.
        """
        if metas is None:
            metas = self.inputs(row, operands)
        try:
            outcome = row.rule(metas, attributes)
        except Mismatch as mismatch:
            raise Breach(str(mismatch)) from None
        if any(meta.conj or meta.neg for meta in metas):
            outcome = tuple(map(_resolved, outcome))
        for result in outcome:
            if result.meta.dtype not in DTYPES:
                raise Breach(f"a {result.meta.dtype} result")
            if len(result.meta.size) > MAX_RANK or prod(result.meta.size) > MAX_ELEMENTS:
                raise Breach(f"a result of size {result.meta.size} is larger than any program's tensor")
        if row.mutates:
            undefined = self._undefined_write(row, self._tensors(operands), attributes)
            if undefined:
                raise Breach(undefined)
        if self.inference_mode(mode) or any(tensor.inference for tensor in self._tensors(operands)):
            self._check_inference(row, operands, outcome)
        if row.change is Change.RESIZE and outcome[0].meta.stride is not None:
            meta = outcome[0].meta
            start = meta.offset * ITEM_SIZE[meta.dtype]
            if end(meta) > start > self._sizes[self.tensor(operands[0]).memory]:
                raise Breach("its storage grows by elements that the tensor does not cover")
        if self.undefined and (row.mutates or any(result.link in _READS for result in outcome)):
            for tensor in self._tensors(operands)[1 if row.fills else 0 :]:
                if self._is_undefined(tensor):
                    raise Breach("it reads memory that nothing has been written to")
        return outcome

    def commit(
        self,
        row: Operator,
        operands: Sequence[str],
        attributes: Attributes,
        outcome: tuple[Result, ...],
        results: Sequence[str],
        mode: str,
    ) -> None:
        """Append a statement whose outcome `infer` gave, under new names."""
        tensors = self._tensors(operands)
        grad = self.grad_mode(mode)
        needs = [tensor.requires_grad for tensor in _seen(row, tensors)]
        tracked = grad and row.differentiable and any(needs)
        made: list[Tensor] = []
        if row.mutates or row.metadata:
            target = tensors[0]
            if self.hazard(row, operands, mode):
                self.hazards += 1
            if row.change is not None:
                self._change(row.change, tensors, outcome[0].meta, attributes)
            if row.change not in _SILENT:
                self._write(target, tracked and target.meta.dtype in INEXACT)
            if row.fills is not None and target.memory in self.undefined:
                self._fill(target.memory, row.fills([tensor.meta for tensor in tensors], attributes))
            made.append(target)
        for name, result in zip(results, outcome, strict=False):
            if result.link is Link.FRESH:
                needed = tracked and result.meta.dtype in INEXACT
                value = self._fresh(result.meta, needed)
                value.grad_fn = needed
                value.inference = self.inference_mode(mode)
            else:
                multi = row.kind is Kind.MULTI_VIEW
                value = self._linked(tensors[0], result, grad and not row.defines, multi)
                if row.defines and tracked:
                    value.grad_fn = True
            self.names[name] = value
            made.append(value)
        if tracked:
            for tensor in tensors:
                if tensor.base is not None and tensor.base.grad_fn:
                    tensor.grad_fn = True
            for which, when in row.saves:
                if any(needs[i] for i in when):
                    if isinstance(which, int):
                        kept = tensors[which]
                    else:
                        kept = made[0 if which == "result" else 1]
                    self._saved.append((kept.memory, kept.clock, kept.clock.version))

    def _tensors(self, operands: Sequence[str]) -> list[Tensor]:
        values = self.names
        return [value for name in operands if isinstance(value := values[name], Tensor)]

    # ----------------------------------------------------------------------------------------------------
    # what eager would say

    def illegal(
        self, row: Operator, operands: Sequence[str], attributes: Attributes, mode: str
    ) -> str | None:
        """Why eager raises at this statement, or None."""
        tensors = self._tensors(operands)
        if row.differentiable and self.grad_mode(mode) and any(tensor.stale for tensor in tensors):
            return "an operand is a view whose base was written to"
        if row.differentiable and self.grad_mode(mode) and self._saves_inference(row, tensors):
            return "a backward would need a tensor that was made under inference mode"
        if not (row.mutates or row.metadata):
            return None
        target = tensors[0]
        meta = target.meta
        if target.inference and not self.inference_mode(mode) and row.change not in _SILENT:
            return "the tensor written to was made under inference mode"
        if row.mutates and row.expanded is Expanded.REFUSED:
            written = (
                meta if row.fills is None else row.fills([tensor.meta for tensor in tensors], attributes)
            )
            if written.stride is not None and overlaps_itself(written):
                return "the tensor written to is expanded"
        match row.change:
            case Change.RESIZE if target.requires_grad:
                return "the tensor resized requires grad"
            case Change.DETACH if target.base is not None:
                return "the tensor detached is a view"
            case Change.REQUIRE if target.grad_fn and not attributes["value"]:
                return "the tensor that is not to require grad has a history"
            case Change.RESIZE | Change.DETACH | Change.REQUIRE | Change.DATA:
                return None
        if self.grad_mode(mode) and any(tensor.requires_grad for tensor in _seen(row, tensors)):
            if target.base is not None:
                if target.made != "plain":
                    return "the tensor written to is a view taken under no_grad or one of several views"
                if target.requires_grad and not target.base.grad_fn:
                    return "the tensor written to is a view of a leaf that requires grad"
            if target.requires_grad and not target.grad_fn:
                return "the tensor written to is a leaf that requires grad, as far as autograd knows"
        return None

    def hazard(self, row: Operator, operands: Sequence[str], mode: str) -> str | None:
        """Why eager raises later, in backward or at the next use of a view, or None."""
        if not (row.mutates or row.metadata):
            return None
        tensors = self._tensors(operands)
        target = tensors[0]
        tracked = self.grad_mode(mode)
        followed = tracked and any(tensor.requires_grad for tensor in _seen(row, tensors))
        if row.change in _SILENT:
            if (
                row.change is Change.DATA
                and target.requires_grad
                and target.meta.size != tensors[1].meta.size
            ):
                return "its history does not know of the new size"
            if row.change is Change.DETACH and target.requires_grad:
                if target.clock.viewed:
                    return "its views have a history that goes nowhere"
                if any(memory == target.memory for memory, _, _ in self._saved):
                    return "a backward needs the history that it loses"
            return None
        if row.metadata and target.requires_grad and not tracked:
            return "its history does not know of the new metadata"
        if row.change in _MOVES and followed:
            return "set_ has no derivative"
        if target.clock.split and followed:
            return "a view and its base no longer go together"
        for memory, clock, version in self._saved:
            if memory == target.memory and clock is target.clock and version == clock.version:
                return "a backward needs the old values"
        for view in self._fragile:
            if view.clock is target.clock and view.base is not None and view is not target:
                return "a view whose history cannot be made anew would be stale"
        if tracked and row.differentiable:
            for which, when in row.saves:
                # What is kept of the target itself is cloned first; of another name for it, it is not.
                if not isinstance(which, int) or which == 0 or tensors[which].clock is not target.clock:
                    continue
                if any(tensors[i].requires_grad for i in when):
                    return "its own backward needs an operand that it writes to"
        return None

    def _saves_inference(self, row: Operator, tensors: Sequence[Tensor]) -> bool:
        if not any(tensor.inference for tensor in tensors):
            return False
        return any(
            tensors[which].inference and any(tensors[i].requires_grad for i in when)
            for which, when in row.saves
            if isinstance(which, int)
        )

    def _check_inference(self, row: Operator, operands: Sequence[str], outcome: tuple[Result, ...]) -> None:
        """Breach for what behaves otherwise under inference mode, or with tensors made there."""
        metas = [tensor.meta for tensor in self._tensors(operands)]
        recast = any(link is Link.DETACHED and meta.dtype != metas[0].dtype for meta, link in outcome)
        if recast or row.defines or row.change in _SILENT or row.change in _MOVES:
            raise Breach("what it makes under inference mode, or of a tensor made there, is not modelled")
        if row.change is Change.RESIZE and self.tensor(operands[0]).requires_grad:
            raise Breach("under inference mode eager does not notice that the tensor requires grad")
        if any(link is Link.UNSAFE for _, link in outcome):
            raise Breach("an unsafe view under inference mode is not modelled")

    def corrupts(self, row: Operator, target: Tensor) -> bool:
        """Whether what a backward needs is changed without autograd's noticing: undefined gradients."""
        if row.change is Change.DATA:
            return any(memory == target.memory and clock is target.clock for memory, clock, _ in self._saved)
        if row.change in _SILENT:
            return False
        if target.memory in self._unsafe:
            return True
        return any(memory == target.memory and clock is not target.clock for memory, clock, _ in self._saved)

    # ----------------------------------------------------------------------------------------------------

    def _fresh(self, meta: Meta, requires_grad: bool) -> Tensor:
        return Tensor(meta, self._allocate(meta), Clock(), own=requires_grad, grad_fn=False)

    def _allocate(self, meta: Meta) -> int:
        self._sizes.append(prod(meta.size) * ITEM_SIZE[meta.dtype])
        return len(self._sizes) - 1

    def _linked(self, parent: Tensor, result: Result, grad: bool = True, multi: bool = False) -> Tensor:
        if result.link is Link.SELF:
            return parent
        own_clock = result.link in (Link.DATA, Link.UNSAFE)
        clock = Clock() if own_clock else parent.clock
        value = Tensor(result.meta, parent.memory, clock, own=False, grad_fn=False)
        value.inference = parent.inference
        if result.link is Link.UNSAFE:
            value.own = value.grad_fn = grad and parent.requires_grad
            if value.own:
                self._unsafe.add(value.memory)
        if result.link in (Link.DETACHED, Link.DATA, Link.UNSAFE):
            return value
        value.base = parent.base or parent
        clock.viewed = True
        value.grad_fn = grad and parent.requires_grad
        if parent.made != "plain":
            value.made = parent.made
        elif not grad:
            value.made = "no_grad"
        elif multi:
            value.made = "multi"
        if value.made != "plain":
            self._fragile.append(value)
        return value

    def _change(self, change: Change, tensors: Sequence[Tensor], meta: Meta, attributes: Attributes) -> None:
        """What a row does to its first operand as an object."""
        target = tensors[0]
        target.meta = meta
        match change:
            case Change.RESIZE if meta.stride is not None:
                grown = range(self._sizes[target.memory], end(meta))
                if grown:
                    known = self.undefined.get(target.memory, frozenset())
                    self.undefined[target.memory] = known.union(grown)
                    self._sizes[target.memory] = end(meta)
            case Change.STORAGE | Change.UNTYPED | Change.DATA:
                target.memory = tensors[1].memory if len(tensors) > 1 else self._allocate(meta)
                target.clock.split |= target.clock.viewed
            case Change.DETACH:
                target.own = target.grad_fn = False
                target.clock.split |= target.clock.viewed
            case Change.REQUIRE if not target.requires_grad or not attributes["value"]:
                target.own = bool(attributes["value"])

    def _fill(self, memory: int, written: Meta) -> None:
        if written.stride is None:
            return
        left = self.undefined.pop(memory) - covered(written)
        if left:
            self.undefined[memory] = left

    def _is_undefined(self, tensor: Tensor) -> bool:
        bytes_left = self.undefined.get(tensor.memory)
        if not bytes_left:
            return False
        return tensor.meta.stride is None or not bytes_left.isdisjoint(covered(tensor.meta))

    def _write(self, target: Tensor, tracked: bool) -> None:
        target.clock.version += 1
        if not tracked:
            return
        target.grad_fn = True
        target.born = target.clock.version
        owner = target.base or target
        owner.own = owner.grad_fn = True

    def _undefined_write(self, row: Operator, tensors: list[Tensor], attributes: Attributes) -> str | None:
        target, *others = tensors
        meta = target.meta
        if meta.stride is None:
            if target.base is not None or any(other.memory == target.memory for other in others):
                return "a write to a view whose strides are not modelled"
            return None
        if row.fills is not None:
            meta = row.fills([tensor.meta for tensor in tensors], attributes)
        assert meta.stride is not None
        if row.expanded is not Expanded.ALLOWED and overlaps_itself(meta):
            if row.expanded is Expanded.DEPRECATED:
                return "a write to a tensor whose elements overlap is deprecated"
            if not any(n > 1 and s == 0 for n, s in zip(meta.size, meta.stride, strict=True)):
                return "a write to a tensor whose elements overlap has no defined result"
        for other in others:
            if other.memory != target.memory:
                continue
            if other is target and overlaps_itself(meta):
                return "a tensor that overlaps itself is written to itself, which some operators do not do"
            if other.meta.stride is None:
                return "a write beside a view whose strides are not modelled"
            same = other.meta == meta
            if row.overlap and same:
                continue
            if same or shares_elements(meta, other.meta):
                return "a write to a tensor that overlaps an operand has no defined result"
        return None
