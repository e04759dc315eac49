"""What a trace has recorded so far, and the words in which it goes on: values, storages, calls.

The recorder is this and, on top of it, what records writes (`mutations`), what records changes of tensors
besides their data (`metadata_mutations`), and the dispatch of operations to these (`recorder`).
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node

from aot import errors
from aot.capture.intercept.hooks import HookRegistrations
from aot.capture.memory.metadata_log import MetadataLog
from aot.capture.memory.storage import Storage
from aot.capture.memory.subclass_views import SubclassViews
from aot.capture.recorder.backward_writes import BackwardWrites
from aot.capture.recorder.data_numbers import DataNumbers
from aot.capture.recorder.escapes import EscapeCheck
from aot.capture.recorder.functional_rng import RngStates
from aot.capture.recorder.leaf_views import LeafViews
from aot.capture.recorder.random_draws import RngTrace
from aot.capture.recorder.symbolic_views import SymbolicViewMode
from aot.capture.recorder.threads import OtherThreads
from aot.graph.builder import GraphBuilder
from aot.graph.constant_values import ConstantValues
from aot.graph.layout import with_rng_layout
from aot.graph.value_meta import Number, ResultMeta, lookup
from aot.ops.call_targets import by_name
from aot.ops.classify import LEAVE_ROOM, call_on_clones, has_external_effect, may_raise, operation_of
from aot.tensors.geometry import Geometry, geometry
from aot.tensors.symbolic_sizes import SymbolicSizes, has_symbols
from aot.torch_internals import (
    autograd_graph,
    mode_stacks,
    plain_fakes,
    script_objects,
    tensor_impl,
    torch_fakes,
)


class TraceSession(mode_stacks.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A graph under construction, and the storages whose values its nodes are.

    Attributes:
        builder: the graph so far.
        journal: what changed about tensors besides their data, and how views came to be.
        joined: storages of what an in-place operation on a view read besides that view, in grad mode.
        resolved: clones of what is lazily conjugated or negated; many an operation in place on such a view is
            done to one, which is then copied to it.
        renewed: edges that views of the trace have now, by which their earlier ones are meant.
        backward_reads: what a recorded backward has read, and at which node of the autograd graph.
        unfreed: the sequence numbers of nodes that free nothing after a backward, as what they stand for in
            eager does not.
        under_hooks: by the sequence numbers of nodes of the autograd graph, the saved-tensor hooks that there
            were when they were made, as in a checkpoint.
        unpacked: the custom functions of which a recorded backward has asked for all that they have saved.
        known: the values that depend on no argument.
        data: the sizes and numbers that depend on values.
        acts: the operations of the backward recorded last that somebody outside sees, and at which node of
            the autograd graph.
        backward_writes: what the backward writes to that the forward has left.
        draws: the random draws so far.
        rng_states: the states that they start from and leave, if these are values of the graph.
        hooks: the hooks registered so far.
        threads: what happens in other threads.
        inference: whether the call is made in inference mode.
        results: the tensors that the function has returned.
        parts: arguments that are leaves, and views of a tensor that does not require grad.
        symbols: which numbers of the arguments are symbols, if some are.
        apart: arguments of which the base has been detached since.
        wrapper_views: the views among wrapper subclasses.
        inside: of how many wrapper subclasses' code, one within the other, an operation comes. Autograd has
            been there already: there it makes no view, and moves no version counter.
        inside_reads: what a recorded backward has read there, by storage, and at which node.
        branches: the traces of functions that are graphs of their own.
    """

    def __init__(
        self,
        lifetimes: EscapeCheck,
        inference: bool = False,
        functionalize_rng: bool = False,
        symbols: SymbolicSizes | None = None,
        mode: torch_fakes.FakeTensorMode | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.symbols = symbols
        self._viewing: list[SymbolicViewMode | None] = []  # for each time that this was entered
        self.lifetimes = lifetimes
        self.inference = inference
        self._inference_tensors = inference
        mode = mode if symbols is None else symbols.mode
        self.builder = GraphBuilder(mode or torch_fakes.FakeTensorMode())
        self.states: dict[int, Storage] = {}
        self.journal = MetadataLog(self.state)
        self.joined: set[int] = set()
        self.resolved: list[weakref.ref[Tensor]] = []
        self.renewed: dict[tuple[Node, int], tuple[Node, int]] = {}
        self.backward_reads: list[tuple[Tensor, Node | None]] = []
        self.unfreed: list[range] = []
        self.under_hooks: dict[int, tuple[Any, Any]] = {}
        self.unpacked: set[Node] = set()
        self.acts: list[tuple[fx.Node, Node | None]] = []
        self.backward_writes = BackwardWrites()
        self.known = ConstantValues(self.builder)
        self.draws = RngTrace()
        self.data = DataNumbers(self.builder, symbols, self.draws.set_callers_states)
        self.rng_states = RngStates(self.builder) if functionalize_rng else None
        self.hooks = HookRegistrations(lambda: self.builder.backward)
        self.threads = OtherThreads(self.states, self, self.builder, self.read)
        self.results: tuple[Tensor, ...] = ()
        self.parts = LeafViews()
        self.apart: list[Tensor] = []
        self.wrapper_views = SubclassViews()
        self.inside = 0
        self._counts = True  # whether autograd counts writes; not those that a batch norm is decomposed into
        self.inside_reads: list[tuple[int, Node]] = []
        self.branches: list[TraceSession] = []

    def __enter__(self) -> Any:
        self._viewing.append(None)
        self.view_symbolically()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        viewing = self._viewing.pop()
        if viewing is not None:
            viewing.__exit__(*raised)  # type: ignore[no-untyped-call]

    def view_symbolically(self) -> None:
        """From now on, operations below this mode take symbols for sizes, if there are some."""
        if self.symbols is not None and self._viewing[-1] is None:
            self._viewing[-1] = viewing = SymbolicViewMode(self.symbols)
            viewing.__enter__()  # type: ignore[no-untyped-call]

    def with_view_mode(self, modes: list[Any]) -> list[Any]:
        """The dispatch modes of before, with what has come to be on below this one since."""
        viewing = self._viewing[-1]
        if viewing is None or any(mode is viewing for mode in modes):
            return modes
        return [one for mode in modes for one in ((viewing, mode) if mode is self else (mode,))]

    def adopt_symbols(self, symbols: SymbolicSizes) -> SymbolicSizes:
        """Let sizes be symbols from now on."""
        self.symbols = symbols
        self.builder.adopt_mode(symbols.mode)
        self.view_symbolically()
        return symbols

    def release_all(self) -> None:
        """Let go of every tensor, when the trace is over: the recorder itself is part of reference cycles."""
        self.release_trace()
        self.states.clear()
        self.results = ()
        self.parts.clear()
        self.apart.clear()
        self.wrapper_views.clear()
        self.renewed.clear()
        self.backward_writes.release()
        for branch in self.branches:
            branch.release_all()
        self.branches.clear()

    def traced_references(self) -> Iterator[Tensor]:
        """The tensors that a trace which lives on holds: each as often as there is a reference to it.

        What is left out costs a search, in `EscapeCheck.refuse_stored_escapes`; what is too much would hide
        an escape.
        """
        yield from self.parts.references()
        traces: list[TraceSession] = [self]
        holders: dict[int, Sequence[Tensor]] = {}  # by identity: a state may stand under several keys
        for trace in traces:
            traces += trace.branches
            members = (state.members for state in trace.states.values())
            holders |= {id(holder): holder for holder in (trace.results, trace.apart, *members)}
        for holder in holders.values():
            yield from holder
        for node in _function_nodes(self.results):
            yield from (value for value in vars(node).values() if isinstance(value, Tensor))

    def release_trace(self) -> None:
        """Let go of what the function, or a backward, has let go of, as eager does.

        What an operation in place on a view saves of its result leads, in a further derivative, to what the
        view shows now if the view is still there, and else to what it showed before.
        """
        self.journal.forget_tensors()
        self.backward_reads.clear()
        self.inside_reads.clear()
        self.unpacked.clear()
        self.acts.clear()
        for state in self.states.values():
            state.let_go()
        for branch in self.branches:
            branch.release_trace()

    def state(self, fake: Tensor) -> Storage:
        """The storage of a fake tensor; one that no recorded operation made is refused."""
        state = self.states.get(tensor_impl.storage_key(fake))
        if state is None:
            raise errors.ClosureTensor(
                f"the function uses a tensor of shape {tuple(fake.shape)} and dtype {fake.dtype} that is "
                f"neither one of its arguments nor made by an operation on them (a tensor of a closure, an "
                f"argument's .grad, a tensor from numpy or from a custom kernel); pass it as an argument, "
                f"or let aot_module do so if an attribute of a module holds it"
            )
        return state

    def track_storage(self, fake: Tensor) -> Storage:
        """Start to follow the storage of `fake`."""
        storage = fake.untyped_storage()
        state = Storage(self.builder, storage, fake.is_inference())
        self._inference_tensors |= state.inference
        self.states[tensor_impl.storage_key(fake)] = state
        state.of_backward = self.builder.backward
        return state

    def read(self, fake: Tensor) -> fx.Node:
        """The node for what `fake` shows now."""
        if self.builder.backward:
            node = autograd_graph.current_node()
            if not self.inside:
                self.backward_reads.append((fake, node))
            elif node is not None:
                self.inside_reads.append((tensor_impl.storage_key(fake), node))
        return self.state(fake).read(geometry(fake))

    def literal(self, value: Tensor) -> fx.Node:
        """The node for a tensor that is written out in the function."""
        return self.builder.constant(value)

    def _new_fake(self, node: fx.Node, meta: Any) -> Tensor:
        size, stride, dtype, device = lookup(meta)
        where = Geometry(size, stride, 0, dtype)
        if node.target is torch.ops.aten._efficientzerotensor.default and not has_symbols(size):
            fake = tensor_impl.make_zero_tensor(size, dtype, device)
        else:
            fake = fake_of(where, device, self.builder.symbolic)
        state = self.track_storage(fake)
        state.define(where, node)
        made = node.args[0] if node.target is operator.getitem else node
        state.has_room = isinstance(made, fx.Node) and made.target in LEAVE_ROOM
        return self.lifetimes.track(fake)

    def _wrap_result(self, node: fx.Node, meta: Any) -> Any:
        """What the function gets for a node: a tensor, None, a number, or a list of such."""
        if isinstance(meta, tuple):
            return [self._result(node, i, m) for i, m in enumerate(meta)]
        if isinstance(meta, Number):
            return meta.value
        return None if meta is None else self._new_fake(node, meta)

    def _result(self, node: fx.Node, index: int, meta: Any) -> Any:
        """The same for one of its results."""
        tensors = isinstance(meta, (int, tuple))
        return self._wrap_result(self.builder.item(node, index) if tensors else node, meta)

    def _nodes(self, values: tuple[Any, ...], to_draw: bool = False) -> tuple[Any, ...]:
        return tuple([self._argument_nodes(v, to_draw) for v in values])

    def _argument_nodes(self, value: Any, to_draw: bool = False) -> Any:
        """The nodes of an argument of an operation, which is one that draws or not."""
        if isinstance(value, Tensor):
            node = self.read(value)
            return with_rng_layout(self.builder, node, geometry(value)) if to_draw else node
        if isinstance(value, (list, tuple)):
            return type(value)([self._argument_nodes(v, to_draw) for v in value])
        if script_objects.is_script_object(value):
            raise errors.UnsupportedOperation(
                f"an operation takes a ScriptObject of class {value._type().name()}, whose state no graph "
                f"holds; compute it outside of the function"
            )
        if isinstance(value, torch.Generator):
            raise errors.UnsupportedOperation(
                "a random operation with an explicit generator; use torch.manual_seed and the default one"
            )
        return value

    def _call(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        metas: ResultMeta,
        random: bool,
        overwrites: bool = False,
    ) -> fx.Node:
        """Append a call; of a random one, only if it does not repeat an earlier draw, or if that can be done
        where the user wants it. One that `overwrites` its first argument reads nothing of it but how it lies.
        """
        if not random:
            node = self.builder.call(op, args, kwargs, metas)
            if self.builder.backward and has_external_effect(operation_of(node)):
                self.acts.append((node, autograd_graph.current_node()))
            if not self.builder.backward and self._may_raise(op, args, metas):
                node.meta["may_raise"] = True  # so that it runs although nobody reads it, as in eager
            return node
        read = (self.builder.metas[args[0]], *args[1:]) if overwrites else args

        states, late = self.rng_states, self.builder.backward

        def make() -> fx.Node:
            if states is None:
                return self.builder.call(op, args, kwargs, metas)
            return states.draw(op, args, kwargs, metas)

        def repeat(draw: fx.Node) -> fx.Node:
            if states is None or not late:
                return draw
            return states.draw(op, args, kwargs, metas, draw)

        return self.draws.record((op, read, kwargs), metas.device, make, repeat, again=not late)

    def _may_raise(self, op: Any, args: tuple[Any, ...], metas: ResultMeta) -> bool:
        called = args[0] if op is call_on_clones else op
        if isinstance(called, str):
            called = by_name(called)
        meta = None if metas.many else metas.metas[0]
        dtype = lookup(meta).dtype if isinstance(meta, int) else None
        return may_raise(called, dtype is not None and not (dtype.is_floating_point or dtype.is_complex))


def fake_of(where: Geometry, device: torch.device, symbolic: bool) -> Tensor:
    """A tensor without memory, on a storage of its own that ends where it ends."""
    storage = plain_fakes.make_storage(where.stop * where.dtype.itemsize, device, symbolic=symbolic)
    return plain_fakes.make_tensor(storage, where.size, where.stride, where.offset, where.dtype, device)


def _function_nodes(results: Sequence[Tensor]) -> Iterator[Node]:
    """The nodes of custom functions behind some tensors: their contexts, which keep what is set on them."""
    # (A view that is asked for its node may make a new one.)
    roots = [result if result._base is None else result._base for result in results]
    ahead = [node for root in roots if (node := root.grad_fn) is not None]
    seen = set(ahead)
    while ahead:
        node = ahead.pop()
        if autograd_graph.is_function_node(node):
            yield node
        above = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= above
        ahead.extend(above)
