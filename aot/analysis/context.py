"""Who is who when the function has returned: arguments, bases, storages, and the values asked for so far."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, fx

from aot.analysis.effect_summary import Memory, Rebound, Value
from aot.capture.memory.metadata_log import StorageRebind, ViewOrigin
from aot.capture.memory.storage import Storage
from aot.capture.run import Traced
from aot.tensors.geometry import Geometry
from aot.tensors.version_counters import counter_groups
from aot.torch_internals import autograd_graph, autograd_state


class AnalysisContext:
    """What the two analyses share.

    Attributes:
        fakes: the arguments' tensors inside the trace.
        index_of: argument number by the identity of its fake.
        base_of: number of one view by the identity of the fake of its hidden base.
        inputs_now_on: the arguments that lie on a storage now; entered: that lay on it when the function
            began.
        values: what the graph has to return.
    """

    def __init__(self, forward: Traced) -> None:
        self.forward = forward
        self.recorder = forward.recorder
        self.fakes = forward.entry.fakes
        self.index_of = {id(f): i for i, f in enumerate(self.fakes)}
        self.base_of = {id(b): i for b, i in forward.entry.bases}
        self.inputs_now_on: dict[Storage, list[int]] = {}
        self.inputs_entered_on: dict[Storage, list[int]] = {}
        for i, fake in enumerate(self.fakes):
            self.inputs_now_on.setdefault(self.recorder.state(fake), []).append(i)
            self.inputs_entered_on.setdefault(forward.entry.states[i], []).append(i)
        self.values: list[Value] = []
        self._whole: dict[Storage, int] = {}
        self._counters: dict[int, tuple[Tensor, int]] = {}
        states = dict.fromkeys((*self.inputs_entered_on, *self.inputs_now_on))
        self._number_counters(
            [
                *self.fakes,
                *(target for state in states for target in (*state.version_bumped, *state.writes.values())),
                *(self.root(value) for value in forward.outputs if isinstance(value, Tensor)),
            ]
        )

    def _number_counters(self, tensors: Iterable[Tensor]) -> None:
        known = [tensor for tensor, _ in self._counters.values()]
        roots = list({id(root): root for root in (*known, *map(root_of, tensors))}.values())
        groups = counter_groups(roots)
        # (The first ones keep their numbers.)
        self._counters = {id(root): (root, k) for root, k in zip(roots, groups, strict=True)}

    def counter(self, tensor: Tensor) -> int:
        """A number that two tensors have in common exactly when they share a version counter."""
        root = root_of(tensor)
        if id(root) not in self._counters:
            self._number_counters([root])
        return self._counters[id(root)][1]

    def count_together(self, first: Tensor, second: Tensor) -> bool:
        """Whether two tensors share a version counter."""
        return self.counter(first) == self.counter(second)

    def root(self, fake: Tensor) -> Tensor:
        """The tensor whose history `fake` shares."""
        view, origin = fake, self.view_origin(fake)
        while view._is_view() and id(view) not in self.index_of:
            if is_function_view(view):
                return view
            if origin is None:
                break
            view, origin = origin.parent, origin.before
        return root_of(fake)

    def view_origin(self, fake: Tensor) -> ViewOrigin | None:
        """How a tensor came to lie as it does, if it is a view."""
        known = self.recorder.journal.origins.get(id(fake))
        return None if known is None else known[1]

    def value(self, node: fx.Node, where: Geometry, history: Tensor | None, inference: bool = False) -> int:
        """The number of a value that the graph returns."""
        self.values.append(Value(node, where, history, inference and not self.recorder.inference))
        return len(self.values) - 1

    def memory(self, state: Storage) -> Memory:
        """Where a storage is to be found at the end of a call. One that the function made becomes a value."""
        here = self.inputs_now_on.get(state, ())
        for i in here:
            moves = (
                isinstance(event, StorageRebind) for event in self.recorder.journal.changes_of(self.fakes[i])
            )
            if self.forward.entry.states[i] is state and not any(moves):  # nor went elsewhere and came back
                return Memory(tensor=i)
        entered = self.inputs_entered_on.get(state)
        if entered:
            return Memory(tensor=entered[0], entry=True)
        if state not in self._whole:
            base, node = state.base()
            self._whole[state] = self.value(node, base, None, state.inference)
        return Memory(value=self._whole[state])

    def rebound(self, event: StorageRebind, where: Geometry) -> Rebound:
        """How the wrapper repeats that a tensor was put onto another storage, to lie there as `where`."""
        return Rebound(self.memory(event.state), where, event.assigned, event.mode)

    def register_value(self, state: Storage, value: int) -> None:
        """The value `value` is what a storage that the function made holds, all of it."""
        self._whole.setdefault(state, value)

    def is_registered(self, state: Storage) -> bool:
        """Whether a storage is to be found without the graph returning it once more."""
        return state in self._whole or state in self.inputs_entered_on


def is_current(fake: Tensor) -> bool:
    """Whether autograd can tell the tensor's history: of a view made under no_grad or by an operation with
    several results it refuses to, once its base was written; one of a wrapper subclass that is smaller by now
    it cannot take anew."""
    try:
        _ = fake.grad_fn
    except (RuntimeError, IndexError):
        return False
    return True


def root_of(fake: Tensor) -> Tensor:
    """The tensor whose history `fake` shares, views that a custom `autograd.Function` made aside."""
    if fake._is_view():
        base = fake._base
        assert base is not None
        return base
    return fake


def is_function_view(fake: Tensor) -> bool:
    """Whether a tensor is a view with a history of its own, as a custom `autograd.Function` makes them."""
    return fake._is_view() and is_current(fake) and autograd_graph.is_function_node(fake.grad_fn)


def made_a_leaf(view: Tensor) -> bool:
    """Whether the function has made a leaf of a view, by `requires_grad_`."""
    return is_current(view) and autograd_state.can_accumulate_grad(view)
