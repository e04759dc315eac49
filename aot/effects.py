"""What the run did: to each argument, and what each output is.

In: a `Forward`. Out: `Effects`, which names the *values* that the graph must return, and says how the
caller's world is rebuilt from them: which arguments are written, whose metadata is changed, and for every
output the *root* that it hangs on and the views that lead to it.

A root is a tensor with an autograd history of its own: an argument, the hidden base of an argument, a
tensor made by the function, or a detached alias of any of these. An output is a root or a view of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from aot import errors
from aot import torch_internals as internals
from aot.capture.forward import Forward
from aot.capture.recorder import Reshape, ViewOrigin
from aot.capture.storages import StorageState, ViewStep
from aot.geometry import Geometry, alike, covers, geometry


@dataclass(frozen=True, slots=True)
class Value:
    """Something that the forward graph returns.

    Attributes:
        node: where it is computed.
        where: its size, stride and dtype as the caller must see them.
        history: the fake tensor whose autograd history it carries; None where it carries none.
    """

    node: fx.Node
    where: Geometry
    history: Tensor | None


@dataclass(frozen=True, slots=True)
class Write:
    """Copy a value into an argument.

    Attributes:
        tracked: the write carries the value's autograd history; the others go past autograd.
        counted: the write moves the argument's version counter.
        early: done before metadata mutations are repeated, to the geometry on entry.
        through: write through a new view of this geometry. A tracked write to a view goes through a new
            view of the same base: that moves the history of all views alike, and spares the engine an
            assertion that fails when a gradient at the view's old edge is asked for. A write to a tensor
            that shows elements several times goes through one that shows them once.
        base: whether that is a view of the argument's base.
        reinterpreted: whether it shows the base as another dtype, or lazily as other numbers.
    """

    tensor: int
    value: int
    tracked: bool
    counted: bool
    early: bool = False
    through: Geometry | None = None
    base: bool = False
    reinterpreted: bool = False


@dataclass(frozen=True, slots=True)
class ArgumentRoot:
    """The argument itself."""

    tensor: int


@dataclass(frozen=True, slots=True)
class BaseRoot:
    """The base of an argument that is a view, where the base is not an argument."""

    tensor: int


@dataclass(frozen=True, slots=True)
class ValueRoot:
    """A value of the graph."""

    value: int


@dataclass(frozen=True, slots=True)
class AliasRoot:
    """A detached alias of other memory.

    Attributes:
        tensor, value, root: the argument, value or earlier root whose memory it is; one of the three.
        counted: whether it shares that tensor's version counter (`detach`) or has its own (`.data`).
        history: the value whose autograd history it carries.
        reinterpreted: whether it shows that memory as another dtype, or lazily as other numbers.
    """

    where: Geometry
    tensor: int | None
    value: int | None
    root: int | None
    counted: bool
    history: int | None
    reinterpreted: bool = False


Root = ArgumentRoot | BaseRoot | ValueRoot | AliasRoot


@dataclass(frozen=True, slots=True)
class Constant:
    """An output that is not a tensor."""

    value: Any


@dataclass(frozen=True, slots=True)
class Whole:
    """An output that is a root itself."""

    root: int


@dataclass(frozen=True, slots=True)
class View:
    """An output that is a differentiable view of a root.

    Attributes:
        steps: the operations that made it; empty where they do not lead there.
        where: without steps, its geometry.
        grad: whether a view by geometry is taken in grad mode.
        early: the view is taken before the argument is written or reshaped. Autograd treats a view that
            was there before a write in its own way, and so meets the same situation as in eager.
        reinterpreted: whether a view by geometry shows the root as another dtype, or lazily as other numbers.
        through: the output that the steps start from, where another one lies on the way: its gradient is to
            have the part that comes through this one.
    """

    root: int
    steps: tuple[ViewStep, ...]
    where: Geometry | None
    grad: bool
    early: bool = False
    reinterpreted: bool = False
    through: int | None = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """An output that is the same object as an earlier one."""

    output: int


Output = Constant | Whole | View | Repeat


@dataclass(frozen=True, slots=True)
class Effects:
    """What is to be done at every call, besides running the graph.

    Attributes:
        values: what the forward graph returns, in order.
        writes: in order; the early ones come first.
        reshapes: metadata mutations of arguments, in order, by argument.
        moves: arguments of which only the version counter moves.
        roots, outputs: how the outputs are made.
        root_fakes: the roots' tensors inside the trace.
        written: arguments that lie in a storage that a write changes.
        several_counters: arguments in a storage that others show under another version counter.
        retaining, retaining_outputs: the arguments and outputs on which `retain_grad` was called.
    """

    values: tuple[Value, ...]
    writes: tuple[Write, ...]
    reshapes: tuple[tuple[int, tuple[Reshape, ...]], ...]
    moves: tuple[int, ...]
    roots: tuple[Root, ...]
    root_fakes: tuple[Tensor, ...]
    outputs: tuple[Output, ...]
    written: frozenset[int]
    several_counters: frozenset[int]
    retaining: tuple[int, ...]
    retaining_outputs: tuple[int, ...]


class _Analysis:
    """The working state of `analyze`."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.recorder = forward.recorder
        self.fakes = forward.entry.fakes
        self.values: list[Value] = []
        self.roots: list[Root] = []
        self.root_of: dict[int, int] = {}
        self.index_of = {id(f): i for i, f in enumerate(self.fakes)}
        self.base_of = {id(b): i for b, i in forward.entry.bases}
        self.base_edges = {
            id(base): edge
            for (base, _), edge in zip(forward.entry.bases, forward.entry.base_edges, strict=True)
        }
        self.argument_storages: dict[int, list[int]] = {}
        for i, fake in enumerate(self.fakes):
            self.argument_storages.setdefault(internals.storage_key(fake), []).append(i)
        self.providers: dict[int, int] = {}
        self.keep: list[Any] = []

    def value(self, node: fx.Node, where: Geometry, history: Tensor | None) -> int:
        self.values.append(Value(node, where, history))
        return len(self.values) - 1

    def history(self, fake: Tensor) -> Tensor | None:
        return fake if fake.requires_grad and fake.grad_fn is not None else None

    # ---- arguments

    def check_arguments(self) -> None:
        entry = self.forward.entry
        for i, (fake, before) in enumerate(zip(self.fakes, entry.before, strict=True)):
            if (
                internals.storage_key(fake) not in self.recorder.states
                or geometry(fake).dtype != before.dtype
            ):
                raise errors.StorageMutation(f"the storage of tensor {i} was replaced (set_ or .data = ...)")
            state = self.recorder.state(fake)
            if all(e.geometry != before.physical for e in state.entries):
                raise errors.StorageMutation(f"the storage of tensor {i} was replaced (set_ or .data = ...)")
            if id(fake) not in self.recorder.reshapes and geometry(fake) != before:
                raise errors.StorageMutation(f"the storage of tensor {i} was replaced (set_ or .data = ...)")
            if not is_current(fake):
                continue
            if fake.is_leaf and fake.grad is not entry.grads[i]:
                raise errors.AutogradStateMutation(
                    f"backward() inside the function accumulated into tensor {i}'s .grad; use autograd.grad"
                )
            if fake.is_leaf and fake.requires_grad != entry.requires_grad[i]:
                raise errors.AutogradStateMutation(
                    f"requires_grad of tensor {i} was changed; change it outside"
                )

    def changed_history(self, i: int) -> bool:
        """Whether the argument's place in the autograd graph moved: an in-place operation in grad mode on
        it, its base or another view of its base."""
        root = root_of(self.fakes[i])
        if root.grad_fn is None:
            return False
        if id(root) in self.index_of:
            edge = self.forward.entry.edges[self.index_of[id(root)]]
        else:
            edge = self.base_edges.get(id(root))
        return edge is None or root.grad_fn is not edge.node or root.output_nr != edge.output_nr

    def moved(self, i: int) -> bool:
        """Whether the argument's version counter moved."""
        return self.fakes[i]._version != self.forward.entry.versions[i]

    def silent_moves(self, writes: list[Write]) -> tuple[int, ...]:
        """Arguments whose version counter moved and that nothing else of the epilogue touches."""
        touched = [w.tensor for w in writes if w.counted or w.tracked]
        touched += [i for i, fake in enumerate(self.fakes) if id(fake) in self.recorder.reshapes]
        silent: list[int] = []
        for i in range(len(self.fakes)):
            if self.moved(i) and not any(
                _count_together(self.fakes[i], self.fakes[j]) for j in touched + silent
            ):
                silent.append(i)
        return tuple(silent)

    def several_counters(self) -> frozenset[int]:
        """The arguments in storages that are not all counted together."""
        found: set[int] = set()
        for members in self.argument_storages.values():
            if not all(_count_together(self.fakes[members[0]], self.fakes[other]) for other in members[1:]):
                found.update(members)
        return frozenset(found)

    def write_arguments(self) -> tuple[list[Write], frozenset[int]]:
        """One copy for each argument that a write went through, so that together they cover all writes."""
        early: list[Write] = []
        late: list[Write] = []
        written: set[int] = set()
        for key, members in self.argument_storages.items():
            state = self.recorder.states[key]
            if not state.writes:
                continue
            written.update(members)
            chosen: dict[int, None] = {}
            for (where, _), target in state.writes.items():
                member = self._member_for(members, where, target, final=True)
                if member is None:
                    member = self._member_for(members, where, target, final=False)
                    if member is None:
                        raise errors.WriteOutsideArguments(
                            f"a write to elements {where.offset}..{where.stop - 1} of a storage is not "
                            f"covered by any argument; pass a tensor that shows them"
                        )
                    if self.changed_history(member):
                        raise errors.ReshapedView(
                            f"a write to tensor {member} that carries gradients, followed by a metadata "
                            f"change that hides what was written; use the out-of-place view operation"
                        )
                    before = self.forward.entry.before[member]
                    if all(w.tensor != member for w in early):
                        value = self.value(state.read(before), before, None)
                        early.append(Write(member, value, False, self._counted(member), early=True))
                else:
                    chosen[member] = None
            for member in members:
                if self.changed_history(member) and not self._follows(member, members):
                    chosen[member] = None
            for member in chosen:
                late.append(self._write(member, state))
        return early + late, frozenset(written)

    def _write(self, member: int, state: StorageState) -> Write:
        fake = self.fakes[member]
        tracked = self.changed_history(member)
        base = tracked and root_of(fake) is not fake
        where = geometry(fake)
        through = where if base else None
        if where.overlaps_itself:
            steps = zip(where.size, where.stride, strict=True)
            where = where._replace(size=tuple(1 if s == 0 else n for n, s in steps))
            through = where
            if tracked:
                with self.recorder, torch.enable_grad():
                    fake = fake.as_strided(where.size, where.stride, where.offset)
        value = self.value(state.read(where), where, fake if tracked else None)
        other = base and not alike(geometry(root_of(fake)), where)
        return Write(member, value, tracked, self._counted(member), False, through, base, other)

    def _member_for(self, members: list[int], where: Geometry, target: Tensor, final: bool) -> int | None:
        candidates = [
            m
            for m in members
            if covers(geometry(self.fakes[m]) if final else self.forward.entry.before[m], where)
        ]
        if not candidates:
            return None
        # The member whose version counter the write moved; one whose history moved, to carry the write for
        # autograd; among those, the smallest is cheapest.
        return min(
            candidates,
            key=lambda m: (
                not _count_together(self.fakes[m], target),
                not self.changed_history(m),
                self.fakes[m].numel(),
                m,
            ),
        )

    def _counted(self, member: int) -> bool:
        """Whether a write to the storage moved the member's version counter."""
        counted = self.recorder.state(self.fakes[member]).counted
        return any(_count_together(self.fakes[member], target) for target in counted)

    def _follows(self, member: int, members: list[int]) -> bool:
        """Whether the real tensor's history moves by itself: another member is its base, or a write goes
        through a view of the same base."""
        root = root_of(self.fakes[member])
        return any(other != member and root_of(self.fakes[other]) is root for other in members)

    # ---- outputs

    def output(self, position: int, value: Any, seen: dict[int, int]) -> Output:
        if not isinstance(value, Tensor):
            return Constant(value)
        if id(value) in seen:
            return Repeat(seen[id(value)])
        seen[id(value)] = position
        if id(value) in self.index_of:
            return Whole(self.root(value))
        root = root_of(value)
        if root is value:
            return Whole(self.root(root))
        made = internals.creation_meta(value)
        origin = self._origin(value)
        stale = origin is not None and root.requires_grad and value._version != origin.version
        start, steps, reshapes = self._chain(value, root)
        given = id(start) in self.index_of or id(start) in self.base_of
        if given and root.requires_grad and self._is_reshaped_view(value):
            raise errors.ReshapedView(
                f"output {position} is a view of an argument that requires grad, and had its metadata "
                f"changed in place; use the out-of-place operation"
            )
        reshaped = self.recorder.reshaped(start) != reshapes
        if stale and steps and given and reshapes == 0:
            return View(self.root(start), steps, None, True, early=True)
        if (stale and made != "DEFAULT") or (reshaped and made == "MULTI_OUTPUT_NODE"):
            raise errors.StaleView(
                f"output {position} is a view that was made under no_grad or by an operation with several "
                f"results, and its base has been written or reshaped since; take the view afterwards"
            )
        if steps and not reshaped and not (stale and value.dtype == root.dtype):
            return View(self.root(start), steps, None, True)
        where = geometry(value)
        other = not alike(geometry(root), where)
        return View(self.root(root), (), where, made != "NO_GRAD_MODE", reinterpreted=other)

    def link(self, outputs: Sequence[Output], seen: dict[int, int]) -> tuple[Output, ...]:
        """Take views of views that are outputs themselves from these."""
        return tuple(
            self._linked(output, self.forward.outputs[p], outputs, seen)
            if isinstance(output, View) and output.steps and not output.early
            else output
            for p, output in enumerate(outputs)
        )

    def _linked(self, view: View, value: Tensor, outputs: Sequence[Output], seen: dict[int, int]) -> View:
        origin = self._origin(value)
        for count in reversed(range(1, len(view.steps))):
            assert origin is not None
            position = seen.get(id(origin.parent))
            other = None if position is None else outputs[position]
            if isinstance(other, View) and other.steps == view.steps[:count]:
                return replace(view, steps=view.steps[count:], through=position)
            origin = origin.before
        return view

    def _is_reshaped_view(self, value: Tensor) -> bool:
        """Whether an in-place metadata change lies among the steps from an argument to `value`: it counts on
        the argument's version counter between the making of one view and the next."""
        origin = self._origin(value)
        while origin is not None and id(origin.parent) not in self.index_of:
            if self.recorder.reshaped(origin.parent) > 0:
                return True
            origin = origin.before
        return False

    def _origin(self, value: Tensor) -> ViewOrigin | None:
        known = self.recorder.origins.get(id(value))
        return None if known is None else known[1]

    def _chain(self, value: Tensor, root: Tensor) -> tuple[Tensor, tuple[ViewStep, ...], int]:
        """The steps that make `value`, where they start (at an argument that they pass through, else at the
        root), and how often that had been reshaped by then. No steps where they do not lead there."""
        steps: list[ViewStep] = []
        origin = self._origin(value)
        while origin is not None:
            steps.insert(0, origin.step)
            if origin.parent is root or id(origin.parent) in self.index_of:
                return origin.parent, tuple(steps), origin.reshapes
            origin = origin.before
        return root, (), 0

    def root(self, fake: Tensor) -> int:
        known = self.root_of.get(id(fake))
        if known is None:
            self.roots.append(self._make_root(fake))
            self.keep.append(fake)
            known = self.root_of[id(fake)] = len(self.roots) - 1
        return known

    def _make_root(self, fake: Tensor) -> Root:
        if id(fake) in self.index_of:
            return ArgumentRoot(self.index_of[id(fake)])
        if id(fake) in self.base_of:
            return BaseRoot(self.base_of[id(fake)])
        if fake.requires_grad and fake.grad_fn is None:
            raise errors.LeafCreatedInside(
                f"an output of shape {tuple(fake.shape)} requires grad through a leaf that the function made "
                f"(requires_grad_ on a new or detached tensor); make the leaf outside and pass it in"
            )
        key = internals.storage_key(fake)
        where = geometry(fake)
        history = self.history(fake)
        state = self.recorder.state(fake)
        if fake._is_view():
            raise errors.UnsupportedOutput(
                "an output is a view that was made by a custom autograd.Function; return a clone from it"
            )
        if key not in self.argument_storages and key not in self.providers:
            if self.sharing[key] == 1:
                self.providers[key] = self.value(state.read(where), where, history)
                return ValueRoot(self.providers[key])
            base, node = state.base()
            if base == where:
                self.providers[key] = self.value(node, base, history)
                return ValueRoot(self.providers[key])
            self.providers[key] = self.value(node, base, None)
        carried = None if history is None else self.value(state.read(where), where, history)
        return self._alias(key, fake, where, carried)

    def _alias(self, key: int, fake: Tensor, where: Geometry, history: int | None) -> AliasRoot:
        """An alias with the version counter that it has in eager: an argument's, an earlier root's, or the
        one of the memory that nobody else shows; else its own."""

        def alias(
            other: Geometry,
            counted: bool,
            *,
            tensor: int | None = None,
            value: int | None = None,
            root: int | None = None,
        ) -> AliasRoot:
            return AliasRoot(where, tensor, value, root, counted, history, not alike(other, where))

        members = self.argument_storages.get(key, [])
        for i in members:
            if internals.share_version_counter(self.fakes[i], fake):
                return alias(geometry(self.fakes[i]), True, tensor=i)
        relatives = [other for other in self.keep if internals.storage_key(other) == key]
        if history is None:
            for other in relatives:
                if other is not fake and internals.share_version_counter(other, fake):
                    return alias(geometry(other), True, root=self.root_of[id(other)])
        if members:
            return alias(geometry(self.fakes[members[0]]), False, tensor=members[0])
        provider = self.providers[key]
        return alias(self.values[provider].where, relatives == [], value=provider)

    def count_sharing(self) -> None:
        """How many different roots lie on each storage that the function made."""
        roots: dict[int, dict[int, Tensor]] = {}
        for value in self.forward.outputs:
            if isinstance(value, Tensor):
                root = root_of(value)
                roots.setdefault(internals.storage_key(root), {})[id(root)] = root
        self.sharing = {key: len(found) for key, found in roots.items()}


def _count_together(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors share a version counter."""
    if first is second or root_of(first) is root_of(second):
        return True
    same_storage = internals.storage_key(first) == internals.storage_key(second)
    return same_storage and internals.share_version_counter(first, second)


def _retaining(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, value in enumerate(values) if isinstance(value, Tensor) and value.retains_grad)


def is_current(fake: Tensor) -> bool:
    """Whether autograd can tell the tensor's history: of a view made under no_grad or by an operation with
    several results it refuses to, once its base was written."""
    try:
        _ = fake.grad_fn
    except RuntimeError:
        return False
    return True


def root_of(fake: Tensor) -> Tensor:
    """The tensor whose history `fake` shares. A view made by a custom `autograd.Function` has its own."""
    if fake._is_view() and internals.creation_meta(fake) != "IN_CUSTOM_FUNCTION":
        base = fake._base
        assert base is not None
        return base
    return fake


def analyze(forward: Forward) -> Effects:
    """Classify what the run did.

    Raises:
        Unsupported: an effect that the wrapper could not repeat exactly.
    """
    analysis = _Analysis(forward)
    analysis.check_arguments()
    writes, written = analysis.write_arguments()
    reshapes = []
    for i, fake in enumerate(forward.entry.fakes):
        if id(fake) in forward.recorder.reshapes:
            reshapes.append((i, tuple(forward.recorder.reshapes[id(fake)][1])))
    analysis.count_sharing()
    seen: dict[int, int] = {}
    outputs = [analysis.output(p, v, seen) for p, v in enumerate(forward.outputs)]
    return Effects(
        values=tuple(analysis.values),
        writes=tuple(writes),
        reshapes=tuple(reshapes),
        moves=analysis.silent_moves(writes),
        roots=tuple(analysis.roots),
        root_fakes=tuple(analysis.keep),
        outputs=analysis.link(outputs, seen),
        written=written,
        several_counters=analysis.several_counters(),
        retaining=_retaining(forward.entry.fakes),
        retaining_outputs=_retaining(forward.outputs),
    )
