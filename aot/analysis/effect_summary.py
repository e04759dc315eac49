"""What the run did, as plain data: the vocabulary that the later stages are written in.

A *root* is a tensor with an autograd history of its own: an argument, the hidden base of an argument, a
tensor made by the function, a detached alias of any of these, or a view that a custom `autograd.Function`
made. An output is a root or a view of one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from aot.capture.memory.metadata_log import MetadataMutation
from aot.capture.memory.view_ops import CreationMode, ViewOp
from aot.graph.graph_text import argument_text, labels, layout_text, section
from aot.tensors.geometry import Geometry
from aot.tensors.subclasses import SubclassCreationMeta
from aot.torch_internals import autograd_state


@dataclass(frozen=True, slots=True)
class Value:
    """Something that the forward graph returns.

    Attributes:
        node: where it is computed.
        where: its size, stride and dtype as the caller must see them.
        history: the fake tensor whose autograd history it carries; None where it carries none. Of what is
            written to a part of a tensor, that is all of the tensor.
        inference: whether the caller gets it as an inference tensor.
    """

    node: fx.Node
    where: Geometry
    history: Tensor | None
    inference: bool = False

    def __str__(self) -> str:
        words = [f"{self.node.name}, {layout_text(self.where)}"]
        words += [] if self.history is None else ["has a history"]
        return ", ".join([*words, *labels(self, "inference")])


@dataclass(frozen=True, slots=True)
class Write:
    """Copy a value into an argument.

    Attributes:
        tracked: the tensor that is written to, the base for a view, gets the value's autograd history. (No
            operation in grad mode writes: it would add zeros of its own to the gradient at the old edge.)
        counted: the write moves the argument's version counter.
        early: done before changes of metadata and storage are repeated.
        through: write through a new view of this geometry. A write to a tensor that shows elements several
            times goes through one that shows them once.
        base: whether that is a view of the argument's base.
        entry: whether it is one of the storage that the argument lay in when the call began.
        reinterpreted: whether it shows the base as another dtype, or lazily as other numbers.
        inference: whether the argument is an inference tensor.
        carried: whether the argument is a wrapper subclass, which gets the history alone: its data is that of
            what it is made of.
    """

    tensor: int
    value: int
    tracked: bool
    counted: bool
    early: bool = False
    through: Geometry | None = None
    base: bool = False
    entry: bool = False
    reinterpreted: bool = False
    inference: bool = False
    carried: bool = False

    def __str__(self) -> str:
        flags = labels(
            self, "tracked", "counted", "early", "base", "entry", "reinterpreted", "inference", "carried"
        )
        through = [] if self.through is None else [f"through {layout_text(self.through)}"]
        return ", ".join([f"t{self.tensor} <- v{self.value}", *through, *flags])


@dataclass(frozen=True, slots=True)
class Memory:
    """A storage, at the end of a call: where argument `tensor` lay when the call began (`entry`) or lies now,
    or where a value of the graph lies."""

    tensor: int | None = None
    value: int | None = None
    entry: bool = False

    def __str__(self) -> str:
        if self.tensor is None:
            return f"memory of v{self.value}"
        return f"memory of t{self.tensor}{' on entry' if self.entry else ''}"


@dataclass(frozen=True, slots=True)
class Rebound:
    """An argument was put onto another storage.

    Attributes:
        memory, where: that storage, and how it lies there.
        assigned: by ``x.data = y``, which autograd does not see; otherwise by ``set_``.
        mode: in which mode that was done.
    """

    memory: Memory
    where: Geometry
    assigned: bool
    mode: CreationMode

    def __str__(self) -> str:
        how = ".data =" if self.assigned else "set_"
        place = f"put onto the {self.memory} as {layout_text(self.where)} by {how}"
        return ", ".join([place, *self.mode.labels])


@dataclass(frozen=True, slots=True)
class WrapperRebound:
    """A wrapper subclass, or the part of it at the end of `path`, was put onto another storage, which has no
    memory.

    Attributes:
        tensor, source: the argument that lay there when the call began, and the way to the part of it that
            did; None for a storage that the function made.
        made, nbytes: the number of that storage, and its size in bytes.
        where: how it lies there.
    """

    tensor: int | None
    source: tuple[str, ...]
    made: int
    nbytes: int
    where: Geometry
    path: tuple[str, ...] = ()
    mode: CreationMode = CreationMode.BELOW_SUBCLASS

    def __str__(self) -> str:
        source = f"new storage {self.made}" if self.tensor is None else _path_text(self.tensor, self.source)
        part = f".{'.'.join(self.path)} " if self.path else ""
        return f"{part}put onto the storage of {source} as {layout_text(self.where)}"


Change = MetadataMutation | Rebound | WrapperRebound


@dataclass(frozen=True, slots=True)
class ArgumentRoot:
    """The argument itself, or the wrapper subclass at the end of `path` that it is made of."""

    tensor: int
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return _path_text(self.tensor, self.path)


@dataclass(frozen=True, slots=True)
class BaseRoot:
    """The base of an argument that is a view, where the base is not an argument."""

    tensor: int

    def __str__(self) -> str:
        return f"base of t{self.tensor}"


@dataclass(frozen=True, slots=True)
class ValueRoot:
    """A value of the graph; with `requires_grad`, as a leaf that the function made."""

    value: int
    requires_grad: bool = False

    def __str__(self) -> str:
        return ", ".join([f"v{self.value}", *labels(self, "requires_grad")])


@dataclass(frozen=True, slots=True)
class AliasRoot:
    """A detached alias of other memory.

    Attributes:
        memory, root: the memory, or another root whose memory it is; one of the two.
        counted: whether it shares that tensor's version counter (`detach`) or has its own (`.data`). An
            inference tensor has none, nor has a view of it; but what is detached from it outside of inference
            mode has.
        history: the value whose autograd history it carries.
        reinterpreted: whether it shows that memory as another dtype, or lazily as other numbers.
        inference: whether that memory is one of inference tensors.
    """

    where: Geometry
    memory: Memory | None
    root: int | None
    counted: bool
    history: int | None
    reinterpreted: bool = False
    inference: bool = False

    def __str__(self) -> str:
        of = f"r{self.root}" if self.memory is None else f"the {self.memory}"
        words = [f"alias of {of} as {layout_text(self.where)}"]
        words += [] if self.history is None else [f"history of v{self.history}"]
        return ", ".join([*words, *labels(self, "counted", "reinterpreted", "inference")])


@dataclass(frozen=True, slots=True)
class FunctionViewRoot:
    """A view that a custom `autograd.Function` made: it lies in the memory of an earlier root and is a view
    of it, but has a history of its own.

    Attributes:
        base: the root that it is a view of.
        where: how it lies there.
        history: the value whose autograd history it carries.
        made: how autograd has to remember its making.
        reinterpreted: whether it shows that memory as another dtype, or lazily as other numbers.
    """

    base: int
    where: Geometry
    history: int
    made: autograd_state.CreationMeta
    reinterpreted: bool = False

    def __str__(self) -> str:
        words = [f"view of r{self.base} by a custom function as {layout_text(self.where)}"]
        words += [f"history of v{self.history}", str(self.made)]
        return ", ".join([*words, *labels(self, "reinterpreted")])


@dataclass(frozen=True, slots=True)
class WrapperRoot:
    """A wrapper subclass that the function made.

    Attributes:
        meta: how it is made of outputs.
        history: the number of its autograd history, if it has one: see `EffectSummary.histories`.
        rebound: onto which storages it, and what it is made of, are put then.
    """

    meta: SubclassCreationMeta
    history: int | None
    rebound: tuple[WrapperRebound, ...] = ()

    def __str__(self) -> str:
        made = ", ".join(f"o{position}" for position in self.meta.positions)
        words = [f"{self.meta.kind.__name__} of ({made})"]
        words += [] if self.history is None else [f"history {self.history}"]
        return ", ".join([*words, *map(str, self.rebound)])


Root = ArgumentRoot | BaseRoot | ValueRoot | AliasRoot | FunctionViewRoot | WrapperRoot


def value_of(root: Root) -> int | None:
    """The value that reaches the caller as this root, with its autograd history if it has one."""
    if isinstance(root, ValueRoot):
        return root.value
    return root.history if isinstance(root, (AliasRoot, FunctionViewRoot, WrapperRoot)) else None


@dataclass(frozen=True, slots=True)
class Constant:
    """An output that is not a tensor."""

    value: Any

    def __str__(self) -> str:
        return argument_text(self.value)


@dataclass(frozen=True, slots=True)
class IsRoot:
    """An output that is a root itself."""

    root: int

    def __str__(self) -> str:
        return f"r{self.root}"


class ViewTime(enum.Enum):
    """When a view is taken: autograd treats one that was there before a change of its base in its own way."""

    BEFORE_WRITES = "before the argument is written or changed"
    BEFORE_REQUIRES_GRAD = "just before its root begins to require grad"
    BEFORE_METADATA = "when the argument is written, before its metadata and storage are changed"
    BEFORE_RELEASE = "just before its root ceases to require grad"
    AT_END = "when everything is done"


@dataclass(frozen=True, slots=True)
class View:
    """An output that is a differentiable view of a root.

    Attributes:
        steps: the operations that made it; empty where they do not lead there.
        where: its geometry, where they do not; what steps there are then follow.
        grad: whether a view by geometry is taken in grad mode.
        taken: when the view is taken.
        reinterpreted: whether a view by geometry shows the root as another dtype, or lazily as other numbers.
        made: how autograd has to remember the making of a view by geometry, if not as usual.
        stale: whether the root's version counter is to move after the view was made: it is one whose
            history autograd cannot tell any more.
        requires_grad: whether it is a leaf that the function made.
        required: the argument that begins or ceases to require grad, if the view is taken just before.
        rebound: where the view was put after it was made.
        through: the output that the steps start from, where another one lies on the way: its gradient is to
            have the part that comes through this one.
    """

    root: int
    steps: tuple[ViewOp, ...]
    where: Geometry | None
    grad: bool
    taken: ViewTime = ViewTime.AT_END
    reinterpreted: bool = False
    made: autograd_state.CreationMeta | None = None
    stale: bool = False
    requires_grad: bool = False
    required: int | None = None
    rebound: Rebound | None = None
    through: int | None = None

    def __str__(self) -> str:
        start = f"r{self.root}" if self.through is None else f"o{self.through} (of r{self.root})"
        words = [] if self.where is None else [layout_text(self.where)]
        words = [f"view of {start}: {'; '.join([*words, *map(str, self.steps)])}"]
        words += [] if self.taken is ViewTime.AT_END else [self.taken.value]
        words += [] if self.required is None else [f"t{self.required}"]
        words += [] if self.grad else ["without grad"]
        words += [] if self.made is None else [str(self.made)]
        words += labels(self, "reinterpreted", "stale", "requires_grad")
        return ", ".join([*words, *([] if self.rebound is None else [str(self.rebound)])])

    @property
    def bumps_version(self) -> bool:
        """Whether making it moves the version counter that it shares with its root."""
        put = self.rebound is not None and not self.rebound.assigned
        return self.stale or put or any(step.in_place for step in self.steps)


@dataclass(frozen=True, slots=True)
class SameAsOutput:
    """An output that is the same object as an earlier one."""

    output: int

    def __str__(self) -> str:
        return f"o{self.output}"


Output = Constant | IsRoot | View | SameAsOutput


def _path_text(tensor: int, path: tuple[str, ...]) -> str:
    return ".".join((f"t{tensor}", *path))


def version_bumps_by_outputs(
    outputs: Sequence[Output], roots: Sequence[Root], storages: Sequence[int]
) -> dict[int, tuple[int, ...]]:
    """By storage of the arguments: the outputs whose making moves the version counter of an argument on it,
    so that the edges of views there are derived anew."""
    found: dict[int, tuple[int, ...]] = {}
    for position, output in enumerate(outputs):
        if isinstance(output, View) and output.bumps_version:
            root = roots[output.root]
            if isinstance(root, (ArgumentRoot, BaseRoot)):
                storage = storages[root.tensor]
                found[storage] = (*found.get(storage, ()), position)
    return found


@dataclass(frozen=True, slots=True)
class EffectSummary:
    """What is to be done at every call, besides running the graph.

    Attributes:
        values: what the forward graph returns, in order.
        writes: by the wrapper, in order; the early ones come first.
        kept: writes that the graph does itself; it does not return their values.
        changes: changes of metadata and storage, in order, each with its argument.
        begin_requires_grad: leaves that the function lets require grad.
        end_requires_grad: leaves that the function lets require no grad any more.
        detached: arguments whose history the function cuts off.
        pinned_views: arguments that are views of released or detached ones, each with that one, and lead to
            where it was: autograd derived their history after the last write and before that.
        grown_storages: storages that grow, each as an argument on it on entry, and their size in bytes.
        version_bumps_only: arguments of which only the version counter moves.
        roots, outputs: how the outputs are made.
        root_fakes: the roots' tensors inside the trace.
        written: arguments that lie in a storage that a write changes.
        inference: arguments that are inference tensors.
        several_counters: arguments in a storage that others show under another version counter.
        retaining, retaining_outputs: the arguments and outputs on which `retain_grad` was called.
        views_with_history: arguments that are views, had no history, and were themselves written to in grad
            mode: they know the one that they have now, where another view derives it when it is asked.
        histories: the wrapper subclasses in the trace that carry an autograd history, numbered after the
            values.
        replaced: what wrapper subclasses among the arguments are made of from now on: the argument, the way
            to the part by its names, and the output that becomes it.
        num_user_outputs: how many of the outputs the caller gets; the others are what wrapper subclasses are
            made of.

    (Arguments and their storages are numbered as in `Arguments.tensors_and_subclasses`.)
    """

    values: tuple[Value, ...]
    writes: tuple[Write, ...]
    kept: tuple[Write, ...]
    changes: tuple[tuple[int, Change], ...]
    begin_requires_grad: tuple[int, ...]
    end_requires_grad: tuple[int, ...]
    detached: tuple[int, ...]
    pinned_views: tuple[tuple[int, int], ...]
    grown_storages: tuple[tuple[int, int], ...]
    version_bumps_only: tuple[int, ...]
    roots: tuple[Root, ...]
    root_fakes: tuple[Tensor, ...]
    outputs: tuple[Output, ...]
    written: frozenset[int]
    inference: frozenset[int]
    several_counters: frozenset[int]
    retaining: tuple[int, ...]
    retaining_outputs: tuple[int, ...]
    views_with_history: tuple[int, ...]
    histories: tuple[Tensor, ...]
    replaced: tuple[tuple[int, tuple[str, ...], int], ...]
    num_user_outputs: int

    def __str__(self) -> str:
        return "".join([section("values", numbered("v", self.values)), *effect_sections(self)])


def numbered(letter: str, parts: Iterable[object]) -> Iterator[str]:
    """A line for each, with its number, as the wrapper names them."""
    return (f"{letter}{number}: {part}" for number, part in enumerate(parts))


# The effects that are tensors of the call by their numbers, and nothing else.
_TENSORS = (
    *("begin_requires_grad", "end_requires_grad", "detached", "version_bumps_only", "retaining"),
    "views_with_history",
)


def effect_sections(effects: Any) -> Iterator[str]:
    """What is done to arguments, and what outputs are: of an `EffectSummary` or its `Plan`."""
    yield section("writes by the wrapper", effects.writes)
    yield section("writes by the graph", effects.kept)
    yield section("changes", (f"t{tensor}: {change}" for tensor, change in effects.changes))
    for name in _TENSORS:
        tensors = ", ".join(f"t{tensor}" for tensor in getattr(effects, name))
        yield section(name.replace("_", " "), [tensors])
    yield section("pinned views", (f"t{view} to t{base}" for view, base in effects.pinned_views))
    yield section("grown storages", (f"t{one}: {nbytes} bytes" for one, nbytes in effects.grown_storages))
    yield section("replaced", (f"{_path_text(i, path)} <- o{new}" for i, path, new in effects.replaced))
    yield section("roots", numbered("r", effects.roots))
    yield section("outputs", numbered("o", effects.outputs))
    yield section("retaining outputs", [", ".join(f"o{i}" for i in effects.retaining_outputs)])
