"""What each output is: a root or a view of one, an earlier output once more, or a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from aot import errors
from aot.analysis.context import AnalysisContext, is_function_view, root_of
from aot.analysis.effect_summary import (
    AliasRoot,
    ArgumentRoot,
    BaseRoot,
    Constant,
    FunctionViewRoot,
    IsRoot,
    Memory,
    Output,
    Root,
    SameAsOutput,
    ValueRoot,
    View,
    ViewTime,
)
from aot.analysis.histories import (
    has_history_of_a_view,
)
from aot.analysis.view_facts import ViewFacts
from aot.analysis.view_rules import choose_view
from aot.capture.memory.metadata_log import ViewOrigin
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
        leaves: the tensors that the function has made leaves of.
        moving: arguments whose version counter the making of an output moves.
    """

    def __init__(self, world: AnalysisContext, required: tuple[int, ...]) -> None:
        self.world = world
        self._required = frozenset(id(world.fakes[i]) for i in required)
        self.recorder = world.recorder
        self.roots: list[Root] = []
        self.fakes: list[Tensor] = []
        self.moving: set[int] = set()
        self.leaves: list[Tensor] = []
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
        return choose_view(ViewFacts(self.world, value, root, self._required), self)

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
        origin, version = self.world.view_origin(value), version_of(value)
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

    def check_output_leaves(self) -> None:
        """Refuse leaves that the function made and that something else depends on: their gradient would have
        to be accumulated into what the call returns.

        Raises:
            LeafCreatedInside: there is one.
        """
        leaves = {get_gradient_edge(leaf).node for leaf in self.leaves}
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
                self.leaves += [fake] if leaf else []
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
