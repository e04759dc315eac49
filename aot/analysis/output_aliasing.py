"""What each output is: a root or a view of one, an earlier output once more, or a constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from aot import errors
from aot.analysis.context import AnalysisContext, is_current, is_function_view, made_a_leaf, root_of
from aot.analysis.effect_summary import (
    AliasRoot,
    ArgumentRoot,
    BaseRoot,
    Constant,
    FunctionViewRoot,
    IsRoot,
    Memory,
    Output,
    Rebound,
    Root,
    SameAsOutput,
    ValueRoot,
    View,
    ViewTime,
)
from aot.analysis.histories import (
    BY_STRIDES,
    has_history_of_a_view,
    history_leads_to,
    is_of_stale,
    made_by_function,
    regenerated_view,
)
from aot.capture.memory.metadata_log import StorageRebind, ViewOrigin
from aot.capture.memory.storage import Storage
from aot.capture.memory.view_ops import CreationMode, ViewOp
from aot.tensors.geometry import Geometry, geometry, same_interpretation
from aot.tensors.version_counters import has_counter, version_of
from aot.torch_internals import autograd_graph, autograd_state

_NOWHERE = Geometry((0,), (1,), 0, torch.float32)
_WITHOUT_GRAD = ("NO_GRAD_MODE", "INFERENCE_MODE")


class OutputAliasing:
    """The outputs, one by one.

    Attributes:
        roots, fakes: the roots so far, in order, and their tensors inside the trace.
        moving: arguments whose version counter the making of an output moves.
    """

    def __init__(self, world: AnalysisContext, required: tuple[int, ...]) -> None:
        self.world = world
        self._required = {id(world.fakes[i]) for i in required}
        self.recorder = world.recorder
        self.roots: list[Root] = []
        self.fakes: list[Tensor] = []
        self.moving: set[int] = set()
        self._leaves: list[Tensor] = []
        self._root_of: dict[int, int] = {}
        self._on: dict[Storage, dict[int, Tensor]] = {}  # roots on a storage, one for each counter
        self._counters: dict[Storage, dict[int, int]] = {}
        self._sharing = self._count_output_roots_on_storages()

    def output(self, position: int, value: Any, seen: dict[int, int]) -> Output:
        """What the output `value` at `position` is; `seen` are the earlier ones, by identity."""
        if not isinstance(value, Tensor):
            return Constant(value)
        if id(value) in seen:
            return SameAsOutput(seen[id(value)])
        seen[id(value)] = position
        root = self.world.root(value)
        if id(value) in self.world.index_of or root is value:
            return IsRoot(self.root(value))
        return self._output_view(value, root)

    def _output_view(self, value: Tensor, root: Tensor) -> View:
        start, steps, reshapes, version, place = self._output_view_chain(value, root)
        other = not same_interpretation(geometry(value), geometry(root))
        given = id(root) in self.world.index_of or id(root) in self.world.base_of
        since = self.recorder.journal.reshaped(root) - (0 if given else reshapes)
        if other and value.requires_grad and since:
            raise errors.AutogradStateMutation(
                f"an output of shape {tuple(value.shape)} shows a tensor as another dtype, or conjugated, "
                f"whose metadata the function changes: autograd repeats such a view, and may fail; use "
                f"out-of-place operations"
            )
        origin = self._origin(value)
        # (Nothing else notices that `.data` of a tensor of the function's own was assigned.)
        elsewhere = bool(steps) and not steps[0].in_place and geometry(start) != place
        state = self.recorder.state(value) if origin is None else origin.state
        rebound = self._output_view_rebind(value, origin)
        if self.recorder.state(start) is not state:
            index = self.world.index_of.get(id(start))
            if index is not None and steps and not reshapes and version_of(value) == version:
                self._leaves += [value] if steps[-1].leaf else []
                return View(
                    self.root(start), steps, None, True, taken=ViewTime.BEFORE_METADATA, rebound=rebound
                )
            return self._view_of_rebound_tensor(value, start, state, rebound)
        moved = origin is not None and version_of(value) != origin.version
        stale = moved and root.requires_grad
        # (Autograd had to derive the history of what it is a view of anew, from how that lies.)
        derived = root.requires_grad and is_of_stale(value, origin)
        if rebound is not None and (stale or derived):
            raise errors.StorageMutation(
                f"an output of shape {tuple(value.shape)} is a view that was put onto other memory, and what "
                f"it is a view of was changed as well: autograd derives its history from how it lies when it "
                f"is asked; make a new tensor instead"
            )
        owner = self.world.index_of.get(id(root))
        forgets = (
            owner in self.world.forward.entry.loses_history_on_write
            and not self.recorder.journal.reshaped(root)
        )
        if forgets and (stale or derived) and steps and rebound is None:
            # What it is a view of, for autograd, has no history any more, and so has this one.
            assert owner is not None
            first = version == self.world.forward.entry.versions[owner]
            return View(
                self.root(start),
                steps,
                None,
                True,
                ViewTime.BEFORE_WRITES if first else ViewTime.AT_END,
                stale=not first,
            )
        leaf = is_current(value) and value.is_leaf
        if moved and not root.requires_grad and not leaf and value.requires_grad:
            raise errors.AutogradStateMutation(
                f"an output of shape {tuple(value.shape)} is a view of a view that requires grad, and the "
                f"base of both, which does not, was changed since; take the view afterwards"
            )
        index = self.world.index_of.get(id(start))
        if self._passes_leaf(value, root):
            raise errors.AutogradStateMutation(
                f"an output of shape {tuple(value.shape)} is a view that was taken while its base did not "
                f"require grad; call requires_grad_ outside of the function"
            )
        if start is not root and id(start) in self._required and not value.requires_grad:
            if not steps or stale or reshapes != self.recorder.journal.reshaped(start):
                raise errors.AutogradStateMutation(
                    f"an output of shape {tuple(value.shape)} is a view of a view that the function lets "
                    f"require grad, and not simply that; call requires_grad_ outside of the function"
                )
            view = View(self.root(start), steps, None, True)
            return replace(view, taken=ViewTime.BEFORE_REQUIRES_GRAD, required=index, rebound=rebound)
        if start is not root and id(start) in self._required and not history_leads_to(value, start):
            raise errors.AutogradStateMutation(
                f"an output of shape {tuple(value.shape)} was taken of a view, before the function let that "
                f"require grad; call requires_grad_ outside of the function"
            )
        begins = id(root) in self._required or (root.requires_grad and root.is_leaf and not given)
        # (Of a view that was taken before a write autograd derives the history now, or cannot tell it.)
        if begins and not (stale and not leaf):
            reshaped = reshapes != self.recorder.journal.reshaped(start) or state.grown
            # (Of two views, one is taken before and one after.)
            parted = not leaf and self._view_passes_input(value, lambda v: v.is_leaf and v is not start)
            if stale or reshaped or parted or (start is not root and not steps):
                raise errors.AutogradStateMutation(
                    f"an output of shape {tuple(value.shape)} is a view of a tensor that the function lets "
                    f"require grad, and not simply that; call requires_grad_ outside of the function"
                )
            if leaf:
                view = View(self.root(start), steps, None, True)
                if not steps:
                    view = self._output_view_by_geometry(value, start, root, False)
                owner = self.world.index_of.get(id(root))
                return replace(view, taken=ViewTime.BEFORE_REQUIRES_GRAD, required=owner, rebound=rebound)
        if any(step.leaf for step in steps) and self.recorder.journal.reshaped(start) == reshapes:
            self._leaves += [value] if steps[-1].leaf else []
            return View(self.root(start), steps, None, True, rebound=rebound)
        if leaf and value.requires_grad and not root.requires_grad:
            self._leaves.append(value)
            return replace(
                self._output_view_by_geometry(value, start, root, False), requires_grad=True, rebound=rebound
            )
        after = start is not root and id(start) in self._required
        if not leaf and value.requires_grad and not root.requires_grad and not after:
            owner = self.world.index_of.get(id(root))
            later = owner is None or (
                not self.world.forward.entry.leaves[owner] and history_leads_to(value, root)
            )
            changed = (
                reshapes != self.recorder.journal.reshaped(start) or id(root) in state.written_in_grad_mode
            )
            if index is None or changed or later or not self._required_grad(root):
                raise errors.AutogradStateMutation(
                    f"an output of shape {tuple(value.shape)} is a view of a tensor that was detached in "
                    f"place since, or of a view that was made a leaf; use detach(), or make it outside"
                )
            view = View(self.root(start), steps, None, True, taken=ViewTime.BEFORE_RELEASE, rebound=rebound)
            return replace(view, required=owner)
        elsewhere = elsewhere or self.recorder.journal.reshaped(start) != reshapes
        first = index is not None and not reshapes and version == self.world.forward.entry.versions[index]
        if elsewhere and index is not None and steps and not reshapes and not (stale or derived):
            taken = ViewTime.BEFORE_WRITES if first else ViewTime.BEFORE_METADATA
            return View(self.root(start), steps, None, True, taken, rebound=rebound)
        if elsewhere and steps and value.requires_grad and not (stale or derived):
            # (That went past autograd, for which the view is what its operations make of the indices.)
            if geometry(start).size != place.size or any(step.op in BY_STRIDES for step in steps):
                raise errors.StorageMutation(
                    f"an output of shape {tuple(value.shape)} is a view of a tensor that was put elsewhere "
                    f"since (.data = ...), with another shape, or where the view cannot be taken (`view`, "
                    f"`as_strided`); return a new tensor"
                )
            if rebound is None:
                here = geometry(value)
                rebound = self.world.rebound(StorageRebind(state, here, True, CreationMode.GRAD), here)
            return View(self.root(start), steps, None, True, rebound=rebound)
        noticed = any(step.in_place and step.mode is CreationMode.GRAD for step in steps)
        made = autograd_state.creation_meta(value)
        special = made if made == "MULTI_OUTPUT_NODE" and not stale else None  # (stale, it has no history)
        if (stale or derived) and steps and (made == "DEFAULT" or special) and not noticed:
            assert origin is not None
            where, repeated = regenerated_view(root, origin, stale)
            if repeated:
                other = where is not None and not same_interpretation(where, geometry(root))
                view = View(self.root(root), repeated, where, True, reinterpreted=other, made=special)
                return replace(view, rebound=rebound)
        if stale or derived or not steps or elsewhere:
            source = start if not steps else root
            view = self._output_view_by_geometry(value, source, root, stale)
            if rebound is not None and not value.requires_grad:
                # (Where it lay then there may be nothing any more.)
                view = replace(view, where=_NOWHERE._replace(dtype=source.dtype), reinterpreted=False)
            return replace(view, rebound=rebound)
        # (Should what it is a view of come to require grad after the call, autograd derives a history for a
        # view that was there before a write, and none for one that was not.)
        before = moved and not value.requires_grad and value._is_view()
        passed = index is not None or id(start) in self.world.base_of
        taken = ViewTime.BEFORE_WRITES if before and passed and not reshapes else ViewTime.AT_END
        # (To move the counter once more would have it derive those of arguments that share it anew as well.)
        stale = before and taken is ViewTime.AT_END and not self._counts_with_a_followed_view(value)
        if first and any(step.in_place for step in steps) and index is not None:
            # Taken from the argument before it moved its version counter, and taken note of since.
            taken = ViewTime.BEFORE_WRITES
        view = View(self.root(start), steps, None, True, taken, stale=stale, rebound=rebound)
        if view.bumps_version and index is not None:
            self.moving.add(index)
        return view

    def _counts_with_a_followed_view(self, value: Tensor) -> bool:
        """Whether an argument that is a view with a history shares a tensor's version counter."""
        return any(
            fake.requires_grad and fake._is_view() and self.world.count_together(fake, value)
            for fake in self.world.fakes
        )

    def _passes_leaf(self, value: Tensor, root: Tensor) -> bool:
        """Whether `value`, or what it is a view of, is cut off from a root that requires grad, as one that
        was taken before that did."""
        if not root.requires_grad or id(root) in self._required or not self._required_grad(root):
            return False
        return self._view_passes_input(
            value, lambda v: v.is_leaf and autograd_state.creation_meta(v) == "DEFAULT"
        )

    def _view_passes_input(self, value: Tensor, is_such: Callable[[Tensor], bool]) -> bool:
        """Whether a view, or one on the way to it from an argument or its base, is such a one."""
        root, view, origin = self.world.root(value), value, self._origin(value)
        while view is not root and id(view) not in self.world.index_of:
            if is_current(view) and is_such(view):
                return True
            if origin is None:
                return False
            view, origin = origin.parent, origin.before
        return False

    def _required_grad(self, root: Tensor) -> bool:
        """Whether a root was one that required grad when the function began."""
        entry = self.world.forward.entry
        if id(root) in self.world.index_of:
            return entry.requires_grad[self.world.index_of[id(root)]]
        return any(
            base is root and edge is not None
            for (base, _), edge in zip(entry.bases, entry.base_edges, strict=True)
        )

    def link_output_views(self, outputs: Sequence[Output], seen: dict[int, int]) -> tuple[Output, ...]:
        """Take views of views that are outputs themselves from these."""
        return tuple(
            self._view_of_earlier_output(output, self.world.forward.outputs[p], outputs, seen)
            if isinstance(output, View) and output.taken is ViewTime.AT_END
            else output
            for p, output in enumerate(outputs)
        )

    def _view_of_earlier_output(
        self, view: View, value: Tensor, outputs: Sequence[Output], seen: dict[int, int]
    ) -> View:
        steps: list[ViewOp] = []
        origin, version = self._origin(value), version_of(value)
        ordinary = has_history_of_a_view(value) and view.rebound is None
        root, parent = self.world.root(value), value
        while origin is not None and parent is not root:  # (which may be an alias that is no view)
            step, parent = origin.step, origin.parent
            # (An older one has been derived anew from the root by now.)
            ordinary = (
                ordinary
                and origin.version == version
                and step.mode is CreationMode.GRAD
                and not step.in_place
            )
            steps.insert(0, step)
            position = seen.get(id(parent))
            other = None if position is None else outputs[position]
            if isinstance(other, View) and other.rebound is None:
                before = len(view.steps) - len(steps)
                if before > 0 and view.where is other.where is None and view.steps[:before] == other.steps:
                    return replace(view, steps=view.steps[before:], through=position)
                if ordinary and self._is_unchanged_output_view(origin):
                    return View(other.root, tuple(steps), None, True, through=position)
            origin = origin.before
        return view

    def _is_unchanged_output_view(self, origin: ViewOrigin) -> bool:
        """Whether what a view was taken of is a view that lies as it did then, with the history of one."""
        parent = origin.parent
        return (
            origin.reshapes == self.recorder.journal.reshaped(parent)
            and origin.parent_where == geometry(parent)
            and self.recorder.state(parent) is origin.state
            and has_history_of_a_view(parent)
        )

    def _output_view_rebind(self, value: Tensor, origin: ViewOrigin | None) -> Rebound | None:
        """Where a view was put after it was made, by ``set_`` or ``.data =``."""
        state, where = self.recorder.state(value), geometry(value)
        if origin is None or (origin.state is state and origin.where == where):
            return None
        known = [e for e in self.recorder.journal.changes_of(value) if isinstance(e, StorageRebind)]
        event = known[-1] if known else StorageRebind(state, where, True, CreationMode.GRAD)
        return self.world.rebound(event, where)

    def _view_of_rebound_tensor(
        self, value: Tensor, start: Tensor, state: Storage, rebound: Rebound | None
    ) -> View:
        """A view of a tensor that has been put onto another storage since."""
        index = self.world.index_of.get(id(start))
        origin = self._origin(value)
        where = geometry(value) if origin is None else origin.where
        if index is not None and self.world.forward.entry.states[index] is state:
            other = not same_interpretation(self.world.forward.entry.before[index], where)
            made = made_a_leaf(value)
            self._leaves += [value] if made else []
            taken = (
                ViewTime.BEFORE_METADATA if version_of(start) == version_of(value) else ViewTime.BEFORE_WRITES
            )
            if origin is None or origin.version != version_of(value):
                taken = ViewTime.BEFORE_WRITES
            grad = autograd_state.creation_meta(value) not in _WITHOUT_GRAD
            return View(self.root(start), (), where, grad, taken, other, requires_grad=made, rebound=rebound)
        if value.requires_grad:
            raise errors.StorageMutation(
                f"an output of shape {tuple(value.shape)} is a view that requires grad of a tensor that was "
                f"put onto another storage since (set_, .data = ...); take the view afterwards"
            )
        if rebound is None:
            rebound = self.world.rebound(StorageRebind(state, where, True, CreationMode.GRAD), where)
        return View(self.root(start), (), _NOWHERE._replace(dtype=start.dtype), True, rebound=rebound)

    def _output_view_by_geometry(self, value: Tensor, start: Tensor, root: Tensor, stale: bool) -> View:
        """A view that was made some way that cannot be repeated, or whose root was written since: autograd
        derives the history of such a view from its geometry as well."""
        made = autograd_state.creation_meta(value)
        origin = self._origin(value)
        where = geometry(value) if origin is None else origin.where
        number = self.root(start)
        other = not same_interpretation(geometry(start), where)
        given = id(start) in self.world.index_of or id(start) in self.world.base_of
        special = None if made in ("DEFAULT", "NO_GRAD_MODE") else made
        without = is_current(value) and value.requires_grad and value.grad_fn is None
        grad = made not in _WITHOUT_GRAD and not (made == "IN_CUSTOM_FUNCTION" and without)
        if not stale and made in _WITHOUT_GRAD and is_current(value) and value.grad_fn is not None:
            # Taken in grad mode of one that was not.
            steps = (ViewOp(torch.ops.aten.alias.default, (), {}, None, CreationMode.GRAD),)
            return View(number, steps, where, False, ViewTime.AT_END, other, special)
        if not stale or made == "DEFAULT":
            return View(number, (), where, grad, ViewTime.AT_END, other, special)
        # Of the history of such a view autograd says that it cannot be told any more.
        taken = ViewTime.BEFORE_WRITES if given else ViewTime.AT_END
        return View(number, (), where, grad, taken, other, special, stale=not given)

    def _origin(self, value: Tensor) -> ViewOrigin | None:
        known = self.recorder.journal.origins.get(id(value))
        return None if known is None else known[1]

    def _output_view_chain(
        self, value: Tensor, root: Tensor
    ) -> tuple[Tensor, tuple[ViewOp, ...], int, int, Geometry]:
        """The steps that make `value`, where they start (at an argument that they pass through, else at the
        root), how often that had been reshaped by then, its version counter and its geometry then. No steps
        where they do not lead there."""
        steps: list[ViewOp] = []
        origin, view = self._origin(value), value
        while origin is not None:
            parent = origin.parent
            by_function = view is not parent and made_by_function(view, parent)
            made = value.requires_grad and view is not parent and made_a_leaf(view)
            step = origin.step
            if by_function or made:
                step = replace(step, by_custom_function=by_function, leaf=made)
            steps.insert(0, step)
            if origin.put and value.requires_grad and parent is not root:
                raise errors.StorageMutation(
                    f"an output of shape {tuple(value.shape)} is a view of a view that was put elsewhere "
                    f"(.data = ..., set_), where its history does not tell; do it under torch.no_grad"
                )
            if parent is root or id(parent) in self.world.index_of:
                return parent, tuple(steps), origin.reshapes, origin.version, origin.parent_where
            origin, view = origin.before, parent
        return root, (), 0, 0, geometry(root)

    def check_output_leaves(self) -> None:
        """Refuse leaves that the function made and that something else depends on: their gradient would have
        to be accumulated into what the call returns.

        Raises:
            LeafCreatedInside: there is one.
        """
        leaves = {get_gradient_edge(leaf).node for leaf in self._leaves}
        stack = [value.history.grad_fn for value in self.world.values if value.history is not None]
        seen: set[Node | None] = {None}
        while stack and leaves:
            node = stack.pop()
            if node in leaves:
                raise errors.LeafCreatedInside(
                    "an output is a leaf that the function made and that another output depends on; make the "
                    "leaf outside and pass it in"
                )
            if node is not None and node not in seen:
                seen.add(node)
                stack.extend(child for child, _ in node.next_functions)

    def check_output_version_counters(self) -> None:
        """Refuse results of the function's own making that share a version counter with another one, or with
        an argument, and no memory.

        Raises:
            StorageMutation: there are some.
        """
        world = self.world
        lying: dict[int, set[Storage]] = {}
        for fake, state in zip(world.fakes, world.forward.entry.states, strict=True):
            if has_counter(fake):
                lying.setdefault(world.counter(fake), set()).update((state, self.recorder.state(fake)))
        for root, fake in zip(self.roots, self.fakes, strict=True):
            if isinstance(root, (ValueRoot, AliasRoot)) and has_counter(fake):
                state = self.recorder.state(fake)
                if state not in lying.setdefault(world.counter(fake), {state}):
                    raise errors.StorageMutation(
                        f"an output of shape {tuple(fake.shape)} shares its version counter with another "
                        f"one, or with an argument, that lies on other memory, as one of them was put there "
                        f"(set_, .data = ...) after the other was made of it; make a new tensor instead"
                    )

    # ---- roots

    def root(self, fake: Tensor) -> int:
        """The number of the root that `fake` is."""
        known = self._root_of.get(id(fake))
        if known is None:
            self.roots.append(self._make_output_root(fake))
            self.fakes.append(fake)
            self._on.setdefault(self.recorder.state(fake), {}).setdefault(self.world.counter(fake), fake)
            known = self._root_of[id(fake)] = len(self.roots) - 1
        return known

    def _make_output_root(self, fake: Tensor) -> Root:
        if id(fake) in self.world.index_of:
            return ArgumentRoot(self.world.index_of[id(fake)])
        if id(fake) in self.world.base_of:
            return BaseRoot(self.world.base_of[id(fake)])
        leaf = fake.requires_grad and fake.grad_fn is None
        state = self.recorder.state(fake)
        where = geometry(fake)
        if is_function_view(fake):
            owner = root_of(fake)
            if self.recorder.state(owner) is not state:
                raise errors.StorageMutation(
                    f"an output of shape {tuple(fake.shape)} is a view that a custom autograd.Function made "
                    f"of a view that was put onto another storage; call it on a clone"
                )
            carried = self.world.value(state.read(where), where, fake)
            other = not same_interpretation(geometry(owner), where)
            return FunctionViewRoot(
                self.root(owner), where, carried, autograd_state.creation_meta(fake), other
            )
        history = fake if fake.requires_grad and fake.grad_fn is not None else None
        if history is not None and autograd_graph.grad_fn_shape(history) != fake.shape:
            raise errors.StorageMutation(
                f"an output of shape {tuple(fake.shape)} has a history of another shape, as it was put onto "
                f"other memory past autograd (set_ under torch.no_grad, .data = ...); return a new tensor"
            )
        if not self.world.is_registered(state):
            base, _ = state.base()
            alone = self._sharing[state] == 1 and state not in self.world.inputs_now_on and not state.grown
            counts_apart = state.inference and has_counter(fake)
            if (alone or base == where) and not counts_apart and not where.is_lazy:
                value = self.world.value(state.read(where), where, history, state.inference)
                self.world.register_value(state, value)
                self._leaves += [fake] if leaf else []
                return ValueRoot(value, leaf)
        if leaf:
            raise errors.LeafCreatedInside(
                f"an output of shape {tuple(fake.shape)} is a leaf that the function made on memory that "
                f"something else shows as well; make the leaf outside and pass it in"
            )
        own = None if history is None else self.world.value(state.read(where), where, history)
        return self._output_alias(state, fake, where, own)

    def _output_alias(self, state: Storage, fake: Tensor, where: Geometry, history: int | None) -> AliasRoot:
        """An alias with the version counter that it has in eager: an argument's, an earlier root's, or the
        one of the memory that nobody else shows; else its own."""

        def alias(
            other: Geometry, counted: bool, memory: Memory | None = None, root: int | None = None
        ) -> AliasRoot:
            if state.inference:
                counted = not has_counter(fake)
            return AliasRoot(
                where, memory, root, counted, history, not same_interpretation(other, where), state.inference
            )

        world = self.world
        counter = world.counter(fake)
        given = self._argument_on_storage(state).get(counter)
        if given is not None:
            moved = self.recorder.state(world.fakes[given]) is not state
            place = world.forward.entry.before[given] if moved else geometry(world.fakes[given])
            return alias(place, True, Memory(tensor=given, entry=moved))
        relatives = self._on.get(state, {})
        if counter in relatives and not state.inference:
            other = relatives[counter]
            number = self._root_of[id(other)]
            value = _counting(self.roots[number])
            if value is not None:
                return alias(world.values[value].where, True, Memory(value=value))
            number = self._alias_carrier(number)
            if history is None or isinstance(self.roots[number], AliasRoot):
                return alias(geometry(other), True, root=number)
        memory = world.memory(state)
        if memory.tensor is None:
            assert memory.value is not None
            return alias(world.values[memory.value].where, not relatives, memory)
        before, now = world.forward.entry.before[memory.tensor], geometry(world.fakes[memory.tensor])
        return alias(before if memory.entry else now, False, memory)

    def _alias_carrier(self, number: int) -> int:
        """For an alias with a history, a root that has its version counter and no history, and that it is
        made of from now on: what is to share the counter may be what the history leads to. Else the root."""
        root = self.roots[number]
        if not isinstance(root, AliasRoot) or root.history is None:
            return number
        if root.root is not None:
            return root.root
        carrier = len(self.roots)
        self.roots.append(replace(root, history=None))
        self.fakes.append(self.fakes[number])
        self.roots[number] = replace(root, memory=None, root=carrier, counted=True, reinterpreted=False)
        return carrier

    def _argument_on_storage(self, state: Storage) -> dict[int, int]:
        """The first argument that lay on a storage, or lies there now, for each version counter."""
        if state not in self._counters:
            found = self._counters[state] = {}
            for i in (*self.world.inputs_entered_on.get(state, ()), *self.world.inputs_now_on.get(state, ())):
                if not self.world.fakes[i].is_inference():
                    found.setdefault(self.world.counter(self.world.fakes[i]), i)
        return self._counters[state]

    def _count_output_roots_on_storages(self) -> dict[Storage, int]:
        """How many different roots of outputs lie on each storage."""
        roots: dict[Storage, dict[int, Tensor]] = {}
        for value in self.world.forward.outputs:
            if isinstance(value, Tensor):
                root = self.world.root(value)
                if root.is_nested and not value.is_nested:
                    raise errors.UnsupportedOperation(
                        "the function returns the values of a nested tensor (values(), or a view of them), "
                        "of which the nested tensor is the base; return that, or a clone of its values"
                    )
                roots.setdefault(self.recorder.state(root), {})[id(root)] = root
        return {state: len(found) for state, found in roots.items()}


def _counting(root: Root) -> int | None:
    """The value of the graph whose version counter a root has, if it is that of one."""
    if isinstance(root, ValueRoot):
        return root.value
    if isinstance(root, AliasRoot) and root.counted and root.memory is not None:
        return root.memory.value
    return None
