"""A tensor of a program and a statement on tensors, as far as they are followed without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from fuzz.operators.row import Attributes, Change, Constant, Meta, Operator


class InvalidProgram(Exception):
    """A statement that is no part of any valid program; the text says why."""


class VersionCounter:
    """A version counter, shared by the views of one tensor and its detached aliases."""

    __slots__ = ("split", "version", "viewed")

    def __init__(self) -> None:
        self.version = 0
        self.viewed = False  # some tensor has it because it is a differentiable view
        self.split = False  # a view and its base no longer have one storage or one history


class AbstractTensor:
    """One tensor object. Two names may stand for it.

    `grad_fn` is whether autograd has a history at hand: a view whose base has got one in the meantime gets
    its own when it is next used, and until then eager takes it for a leaf.
    """

    __slots__ = (
        *(
            "base",
            "born",
            "clock",
            "grad_fn",
            "hidden",
            "inference",
            "made",
            "memory",
            "meta",
            "nested",
            "own",
            "parts",
            "several",
            "taken",
        ),
    )

    def __init__(self, meta: Meta, memory: int, clock: VersionCounter, *, own: bool, grad_fn: bool) -> None:
        self.meta = meta
        self.memory = memory  # tensors of equal memory may share elements
        self.clock = clock
        self.own = own  # requires grad by itself
        self.grad_fn = grad_fn
        self.inference = False  # it was made under inference mode, on memory that was
        self.parts: VersionCounter | None = (
            None  # that of the plain tensor on its memory that a wrapper is made of
        )
        self.nested = False  # what a wrapper is made of is one itself
        self.hidden = False  # it may be a view of a tensor that nobody sees
        self.several = False  # it is one of several results
        self.base: AbstractTensor | None = None  # what it is a differentiable view of
        self.made = "plain"  # a view's making: "plain", "multi" (one of several results) or "no_grad"
        self.born = clock.version  # the version that a view's history belongs to
        self.taken = clock.version  # the version at which it was made

    @property
    def wrapped(self) -> bool:
        """Whether it is a wrapper subclass."""
        return self.parts is not None

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


Value: TypeAlias = "AbstractTensor | Constant"


class SavedForBackward:
    """What autograd has noted of a program's tensors so far."""

    __slots__ = ("asked", "fragile", "hooked", "once", "reread", "retained", "saved", "unsafe")

    def __init__(self) -> None:
        # Memory, clock and version that a backward needs, and whether it reads the values, too.
        self.saved: list[tuple[int, VersionCounter, int, bool]] = []
        self.fragile: list[AbstractTensor] = []  # views that a write to their base makes stale
        self.hooked: set[int] = set()  # memories with a tensor that has a hook
        self.retained: set[int] = set()  # memories with a tensor that is to keep its gradient
        self.unsafe: set[int] = set()  # memories with aliases whose writes autograd leaves undefined
        self.asked: set[int] = set()  # memories of which a backward asks whether the tensor requires grad
        # Whether a backward acts outside, or is that of an operator that takes functions: a compiler may
        # refuse to differentiate it, and eager's second derivatives of `scan` are wrong (torch 2.13).
        self.once = False
        self.reread: set[int] = set()  # memories that a repeated statement reads again in the backward


class AbstractCall:
    """A statement on the tensors at hand.

    `grad` and `inference` are the modes that it runs in; `needs` says for each operand that autograd sees
    whether it requires grad, and `followed` whether autograd follows the statement because one does.
    `handles_inference` tells that one of them was made under inference mode, `wraps` that one is a wrapper
    subclass, `repeated` that a backward repeats the statement, `contained` that a mode which it sets is put
    back by a block around it;
    `converted` are the operands that autocast makes copies of.
    """

    __slots__ = (
        *("attributes", "contained", "converted", "followed", "grad", "handles_inference", "inference"),
        *("metas", "needs", "repeated", "row", "tensors", "wraps"),
    )

    def __init__(
        self,
        row: Operator,
        metas: Sequence[Meta],
        tensors: list[AbstractTensor],
        attributes: Attributes,
        grad: bool,
        inference: bool,
    ) -> None:
        self.row = row
        self.metas = metas  # the operands', Python numbers included
        self.tensors = tensors
        self.attributes = attributes
        self.grad = grad
        self.inference = inference
        self.repeated = self.contained = False
        self.converted: set[int] = set()
        self.needs: list[bool] = []
        self.handles_inference = self.wraps = False
        for tensor in tensors:
            self.needs.append(tensor.requires_grad)
            if tensor.inference:
                self.handles_inference = True
            if tensor.wrapped:
                self.wraps = True
        if row.change is Change.UNTYPED:
            del self.needs[1:]
        self.followed = grad and True in self.needs

    @property
    def target(self) -> AbstractTensor:
        """Operand 0, which a row may change."""
        return self.tensors[0]
