"""What the run did to the wrapper subclasses: to those among the arguments, and what those among the outputs
are.

What they are made of are tensors like others, and what happens to their data is told of these. Here it is
told what autograd knows of the wrapper subclasses themselves: their histories, their version counters, and
which of them are views of others.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from aot import errors
from aot.analysis.context import is_current, root_of
from aot.analysis.effect_summary import (
    ArgumentRoot,
    Change,
    IsRoot,
    Output,
    Root,
    SameAsOutput,
    View,
    ViewTime,
    WrapperRebound,
    WrapperRoot,
    Write,
)
from aot.capture.memory.metadata_log import MetadataMutation, SubclassStorageRebind
from aot.capture.memory.view_ops import ViewOp
from aot.capture.run import Traced
from aot.capture.subclass_inputs import FakeSubclassInput
from aot.tensors.fake_tensors import edge_of
from aot.tensors.geometry import geometry
from aot.tensors.jagged_views import JaggedView
from aot.tensors.subclasses import all_inner_tensors, flatten_subclass, has_nested_ints, inner_wrappers
from aot.torch_internals import autograd_graph, autograd_state, tensor_impl


class SubclassEffects:
    """The effects on wrapper subclasses.

    Args:
        values: how many values the graph returns; histories are numbered after these.
        roots: how many roots the plain outputs have; more are numbered after these.

    Attributes:
        histories: the wrapper subclasses that carry an autograd history.
        writes: those among the arguments that get one.
        moves: those of which the version counter moves alone.
        changes: changes of their metadata, in order, each with the argument.
        roots, fakes: what the outputs are, or are views of; and the tensors inside the trace.
        outputs: those among the outputs, by position.
    """

    def __init__(self, forward: Traced, values: int, roots: int) -> None:
        self.forward = forward
        self.histories: list[Tensor] = []
        self.writes: list[Write] = []
        self.moves: list[int] = []
        self.changes: list[tuple[int, Change]] = []
        self._made: dict[int, int] = {}  # the numbers of storages that the function made, by their address
        self.roots: list[Root] = []
        self.fakes: list[Tensor] = []
        self.outputs: dict[int, Output] = {}
        self._values = values
        self._first_root = roots
        self._root_of: dict[int, int] = {}
        self._first = len(forward.entry.fakes)
        self._numbers = {id(w.fake): self._first + i for i, w in enumerate(forward.entry.wrappers)}
        self._parts = {
            id(part): ArgumentRoot(self._first + i, path)
            for i, w in enumerate(forward.entry.wrappers)
            for path, part in w.inner.items()
            if id(part) not in self._numbers
        }
        entry = forward.entry
        self._written = {
            id(base)
            for (base, _), edge in zip(entry.bases, entry.base_edges, strict=True)
            if edge_of(base) != edge
        }
        plain = zip(entry.fakes, entry.edges, strict=True)
        wrapped = ((w.fake, w.edge) for w in entry.wrappers)
        self._written |= {
            id(one) for one, edge in (*plain, *wrapped) if not one._is_view() and edge_of(one) != edge
        }
        for i, wrapper in enumerate(entry.wrappers):
            self._note_subclass_argument(self._first + i, wrapper)
        for base, view in entry.bases:
            if view >= self._first and id(base) in self._written:
                self._note_subclass_write(view, base, entry.wrappers[view - self._first], base=True)
        self._entered = {id(w.fake): w.version for w in forward.entry.wrappers}
        self._positions: dict[int, int] = {}
        for position, value in forward.wrapped.items():
            self._positions.setdefault(id(value), position)
        for position, value in forward.wrapped.items():
            first = self._positions[id(value)]
            self.outputs[position] = self._subclass_output(value, first if first < position else None)
        self._check_inner_tensors_of_outputs()

    def _check_inner_tensors_of_outputs(self) -> None:
        """Refuse outputs that are what another one is made of, a view that is made anew in each call."""
        views = (
            self.forward.wrapped[position] for position, o in self.outputs.items() if isinstance(o, View)
        )
        made_of = {id(part): type(view).__name__ for view in views for _, part in all_inner_tensors(view)}
        for position, value in enumerate(self.forward.outputs[: self.forward.num_user_outputs]):
            kind = made_of.get(id(self.forward.wrapped.get(position, value)))
            if kind is not None:
                raise errors.UnsupportedOutput(
                    f"output {position} (counting the leaves of the output tree) is what another one is made "
                    f"of, which is a {kind} and a view; return the one, and take it apart outside"
                )

    def _history(self, fake: Tensor) -> int:
        self.histories.append(fake)
        return self._values + len(self.histories) - 1

    def _note_subclass_argument(self, number: int, wrapper: FakeSubclassInput) -> None:
        fake, edge = wrapper.fake, wrapper.edge
        kind = type(fake).__name__
        views = self.forward.recorder.wrapper_views
        self.changes.extend((number, self._change(one)) for one in views.changes_of(fake))
        for path, part in wrapper.inner.items():
            if id(part) in self._parts:
                changes = (self._change(replace(one, path=path)) for one in views.changes_of(part))
                self.changes.extend((number, change) for change in changes)
        if is_current(fake) and fake.is_leaf and fake.grad is not wrapper.grad:
            raise errors.AutogradStateMutation(
                f"backward() inside the function accumulated into the .grad of an argument of type {kind}; "
                f"use autograd.grad"
            )
        if wrapper.is_linked and id(root_of(fake)) in self._written:
            if edge is not None and is_current(fake) and fake.is_leaf:
                raise errors.AutogradStateMutation(
                    f"the function writes in grad mode to what an argument of type {kind} is a view of, and "
                    f"which is a leaf that requires grad; write to it outside"
                )
            return  # its history follows from that of its base
        # (Autograd derives the edge of a view anew once its base was written to, or refuses to.)
        now = edge_of(fake) if is_current(fake) else edge
        if now == edge or (wrapper.is_linked and None not in (now, edge) and not fake.is_leaf):
            apart = wrapper.is_view and not wrapper.is_linked and self.forward.recorder.symbols is not None
            if apart and edge is not None and fake._version != wrapper.version:
                raise errors.AutogradStateMutation(
                    f"the function writes to an argument of type {kind} that is a view and requires grad, "
                    f"with symbols for sizes: of the history that autograd derives anew then the trace sees "
                    f"nothing; compile each size for itself (dynamic=False)"
                )
            # (Views of one share a counter.)
            if fake._version != wrapper.version and self._first + wrapper.base_group not in self.moves:
                self.moves.append(number)
        elif now is None or fake.is_leaf:
            raise errors.AutogradStateMutation(
                f"the function changes whether an argument of type {kind} requires grad or is a leaf; do it "
                f"outside"
            )
        else:
            self._note_subclass_write(number, fake, wrapper)

    def _change(self, change: MetadataMutation | SubclassStorageRebind) -> Change:
        return change if isinstance(change, MetadataMutation) else self._subclass_rebind(change)

    def _subclass_rebind(self, change: SubclassStorageRebind) -> WrapperRebound:
        key = change.storage._cdata
        number, source = self.forward.recorder.wrapper_views.entered.get(key, (None, ()))
        return WrapperRebound(
            None if number is None else self._first + number,
            source,
            self._made.setdefault(key, len(self._made)) if number is None else 0,
            change.storage.nbytes(),
            change.where,
            change.path,
        )

    def _note_subclass_write(
        self, number: int, fake: Tensor, wrapper: FakeSubclassInput, base: bool = False
    ) -> None:
        """An argument, or its base, has got a history.

        Raises:
            AutogradStateMutation: there is a view of it that does not follow.
        """
        family = [one for one in self.forward.entry.wrappers if one.base_group == wrapper.base_group]
        if any(one.is_view and not one.is_linked for one in family):
            raise errors.AutogradStateMutation(
                f"the function writes in grad mode to an argument of type {type(fake).__name__} that is a "
                f"view by a custom function, or lies elsewhere than its base, or that of which another "
                f"argument is such a view; take the view inside of the function. With symbols for sizes it "
                f"may be no view at all: compile each size for itself (dynamic=False)"
            )
        # (Eager does not count what `_foreach_mul_` and the like write to wrapper subclasses.)
        counted = wrapper.fake._version != wrapper.version
        history = self._history(fake)
        self.writes.append(Write(number, history, tracked=True, counted=counted, carried=True, base=base))

    def _subclass_output(self, value: Tensor, earlier: int | None) -> Output:
        if earlier is not None:
            return SameAsOutput(earlier)
        views = self.forward.recorder.wrapper_views
        root = views.root(value, {*self._numbers, *self._parts})
        if root is value:
            return IsRoot(self._root(root))
        steps: list[ViewOp] = []
        # Of the views whose making autograd remembers: whether they are older, or newer, than a write.
        older: list[bool] = []
        newer: list[bool] = []
        first = view = value
        while view is not root:
            origin = views.origin(view)
            assert origin is not None
            if views.changes_of(view):
                raise _changed(value)
            followed = view.requires_grad or (view._is_view() and root.requires_grad)
            stale = followed and view._version != origin.version
            made = autograd_state.creation_meta(view) if view._is_view() else "DEFAULT"
            _refuse_view_step(value, view, origin.step, made, stale)
            if followed and made != "DEFAULT":
                older.append(stale)
                newer.append(origin.version != self._entered.get(id(root)))
            steps.insert(0, origin.step)
            first, view = view, origin.parent
            # (A detached one is what autograd takes for the base of views of it.)
            through = self._positions.get(id(view)) if view is not root and not view._is_view() else None
            if through is not None:
                if any(older):
                    raise _written(value)
                return View(self._root(root), tuple(steps), None, True, through=through)
        taken = self._subclass_view_time(value, first, root, any(older), any(newer))
        # (Should its root come to require grad after the call, autograd derives a history for a view that was
        # there before a write, and none for one that was not.)
        origin = views.origin(value)
        assert origin is not None
        before = value._is_view() and not value.requires_grad and value._version != origin.version
        given = id(root) in self._numbers and not views.changed_before(first)
        if (
            before
            and taken is ViewTime.AT_END
            and given
            and self._inner_tensor_view_time(first, root) is None
        ):
            taken = ViewTime.BEFORE_WRITES
        return View(
            self._root(root), tuple(steps), None, True, taken, stale=before and taken is ViewTime.AT_END
        )

    def _subclass_view_time(
        self, value: Tensor, first: Tensor, root: Tensor, older: bool, newer: bool
    ) -> ViewTime:
        """When a view is to be taken, by way of the `first` one: before anything happens to its root, or
        after all that does.

        Args:
            older: whether it may not be taken after what was written to the root.
            newer: whether it may not be taken before.
        """
        views, parts = self.forward.recorder.wrapper_views, self._inner_tensor_view_time(first, root)
        early = older or views.subclass_changed_since(first) or parts is ViewTime.BEFORE_WRITES
        if not early:
            return ViewTime.AT_END
        known = id(root) in self._numbers
        if newer or (older and not known):
            raise _written(value)
        if views.changed_before(first) or parts is ViewTime.AT_END or not known:
            raise _changed(value)
        return ViewTime.BEFORE_WRITES

    def _inner_tensor_view_time(self, view: Tensor, root: Tensor) -> ViewTime | None:
        """Whether a view is one of what an argument was made of, or of what it is made of now; None if that
        is the same."""
        number = self._numbers.get(id(root))
        if number not in {replaced for replaced, _, _ in self.forward.replaced}:
            return None
        assert number is not None
        entry = self.forward.entry
        now = [tensor_impl.storage_key(part) for part in flatten_subclass(root)[1]]
        positions = entry.wrappers[number - self._first].meta.positions
        before = [tensor_impl.storage_key(entry.fakes[position]) for position in positions]
        there = [tensor_impl.storage_key(part) for part in flatten_subclass(view)[1]]
        if len(there) == len(now):
            if there == now:
                return ViewTime.AT_END
            if there == before:
                return ViewTime.BEFORE_WRITES
        raise _changed(view)

    def _root(self, fake: Tensor) -> int:
        known = self._root_of.get(id(fake))
        if known is None:
            known = self._root_of[id(fake)] = self._first_root + len(self.roots)
            self.roots.append(self._make_subclass_root(fake))
            self.fakes.append(fake)
        return known

    def _make_subclass_root(self, fake: Tensor) -> Root:
        if id(fake) in self._numbers:
            return ArgumentRoot(self._numbers[id(fake)])
        if id(fake) in self._parts:
            return self._parts[id(fake)]
        if fake.requires_grad and fake.is_leaf:
            raise _leaf(fake)
        meta = next(meta for made, meta in self.forward.made if made is fake)
        if meta.kind is JaggedView:
            return WrapperRoot(meta, None)
        if fake._is_view():
            raise _by_function(fake)
        # (Of those that `set_` has put nothing onto, nobody sees which storage it is.)
        shared = {change.storage._cdata for change in self.forward.recorder.wrapper_views.rebinds()}
        wrappers = (((), fake), *inner_wrappers(fake))
        rebound = tuple(
            self._subclass_rebind(SubclassStorageRebind(one.untyped_storage(), geometry(one), path))
            for path, one in wrappers
            if tensor_impl.storage_key(one) in shared
        )
        return WrapperRoot(meta, self._history(fake) if fake.requires_grad else None, rebound)


def _leaf(value: Tensor) -> errors.LeafCreatedInside:
    return errors.LeafCreatedInside(
        f"an output of type {type(value).__name__} is, or is a view of, a leaf that the function made; make "
        f"the leaf outside and pass it in"
    )


def _refuse_view_step(
    value: Tensor, view: Tensor, step: ViewOp, made: autograd_state.CreationMeta, stale: bool
) -> None:
    """Refuse an output that a step does not lead to by which a wrapper of one subclass comes to `view`.

    Raises:
        Unsupported: autograd knows more of it than that it is a view.
    """
    # (Autograd derives a stale one's history anew when it is asked, or raises.)
    if made == "IN_CUSTOM_FUNCTION" or (not stale and autograd_graph.is_function_node(view.grad_fn)):
        raise _by_function(value)
    # (A view of a leaf that is taken without grad mode says that it is one that requires grad.)
    if not stale and view.is_leaf and autograd_state.can_accumulate_grad(view):
        raise _leaf(value)
    if view.requires_grad and not view._is_view():
        raise errors.UnsupportedOutput(
            f"an output of type {type(value).__name__} is, or is a view of, a detached tensor that "
            f"got a history when it was written to; return a new tensor (clone it)"
        )
    if has_nested_ints((*step.args, *step.kwargs.values())):
        raise errors.UnsupportedOutput(
            f"an output of type {type(value).__name__} is a view that depends on a size of a nested "
            f"tensor; return a new tensor (clone it)"
        )


def _changed(value: Tensor) -> errors.UnsupportedOutput:
    return errors.UnsupportedOutput(
        f"an output of type {type(value).__name__} is a view, and the shape or strides of it, or of what it "
        f"is a view of and the function made, were changed in place since, or those of an argument before "
        f"and since; take the view afterwards"
    )


def _written(value: Tensor) -> errors.UnsupportedOutput:
    return errors.UnsupportedOutput(
        f"an output of type {type(value).__name__} is a view, taken without grad mode or with others by one "
        f"call, of another that was written to; take the view afterwards, by itself"
    )


def _by_function(value: Tensor) -> errors.UnsupportedOutput:
    return errors.UnsupportedOutput(
        f"an output of type {type(value).__name__} is a view, but not by an operation on such (by a custom "
        f"autograd.Function, or of a plain tensor); return a new tensor"
    )


def with_subclasses(outputs: tuple[Output, ...], wrappers: SubclassEffects) -> tuple[Output, ...]:
    """The outputs, with those that are wrapper subclasses in their places."""
    return tuple(wrappers.outputs.get(position, output) for position, output in enumerate(outputs))
