"""Functions that become graphs of their own, inside of a trace: branches of a condition, parts of a loop.

A function is run once, on the tensors of the trace, with a recorder of its own on top. What it reads of the
trace around it becomes an input of its graph, whether it was passed or is used from a closure; autograd goes
on from the one to the other, so that the branch can be differentiated up to the edges of those tensors. As
torch demands, it may change nothing outside, nor return what lies in the memory of something else.

In: a function, and the recorder of the trace around it. Out: a `SubgraphRecorder`, and graphs that take the
same values (`subgraph_modules`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import get_gradient_edge

from aot.capture.autograd.engine import record_unsegmented
from aot.capture.autograd.segments import Key, key_of
from aot.capture.intercept.patches import unsupported_higher_order_op
from aot.capture.recorder.recorder import Recorder
from aot.capture.recorder.session import fake_of
from aot.errors import UnsupportedOperation
from aot.graph.purity import is_impure
from aot.graph.value_meta import ResultMeta, meta_of
from aot.ops.classify import has_external_effect, operation_of
from aot.tensors.constants import constant_key as key_of_constant
from aot.tensors.geometry import geometry
from aot.tensors.subclasses import is_wrapper
from aot.tensors.views import may_alias
from aot.torch_internals import (
    autocast_state,
    autograd_state,
    fx_graphs,
    mode_stacks,
    op_queries,
    pytree,
    tensor_impl,
)

aten = torch.ops.aten


class Captures:
    """The tensors from outside that functions compute with, in the order in which they are come by."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._known: set[int] = set()

    def note(self, tensor: Tensor) -> None:
        """One of them is there, perhaps again."""
        if id(tensor) not in self._known:
            self._known.add(id(tensor))
            self.tensors.append(tensor)

    @property
    def require_grad(self) -> bool:
        """Whether one of them does."""
        return any(tensor.requires_grad for tensor in self.tensors)

    def edges(self) -> tuple[Key | None, ...]:
        """The edge of each; None for one to which no gradient comes."""
        with torch.enable_grad():
            return tuple(map(_edge, self.tensors))


def _edge(tensor: Tensor) -> Key | None:
    if not tensor.requires_grad or (tensor.is_leaf and not autograd_state.can_accumulate_grad(tensor)):
        return None
    return key_of(get_gradient_edge(tensor))


class SubgraphRecorder(Recorder):  # type: ignore[no-untyped-call]
    """Records a function that becomes a graph of its own.

    Args:
        outer: what records the trace around it.
        name: the operator that takes the function.
        entered: what is noted of the tensors from outside.

    Attributes:
        carried: the placeholders of what comes in with each turn of a loop.
        inputs: its other placeholders, and the nodes of the trace around it that they stand for.
    """

    def __init__(self, outer: Recorder, name: str, entered: Captures) -> None:
        super().__init__(outer._decompositions, outer.lifetimes, outer.inference, mode=outer.builder.mode)
        # (The trace around it holds results, whose history holds this.)
        self._outer = weakref.ref(outer)
        self._name = name
        self._entered: Captures | None = entered
        self.parts = outer.parts
        self.inputs: dict[fx.Node, fx.Node] = {}
        self._standing: dict[fx.Node, fx.Node] = {}
        self.carried: list[fx.Node] = []
        outer.branches.append(self)

    @property
    def outer(self) -> Recorder:
        """What records the trace around it."""
        outer = self._outer()
        assert outer is not None
        return outer

    def record_subgraph(self, function: Callable[..., Any], operands: Iterable[Any]) -> Any:
        """Record a function, once."""
        before = [(tensor, tensor.requires_grad) for tensor in self.lifetimes.alive()]
        # Below this one, operations are to reach no other; and what the branch saves is saved in no other
        # way, as its derivative computes it once more anyway.
        with (
            mode_stacks.dispatch_modes_off(),
            autograd_state.plain_autograd(),
            autocast_state.without_cast_cache(),
            self,
        ):
            results = function(*operands)
        self._entered = None
        if any(tensor.requires_grad != required for tensor, required in before):
            raise self._refused("in which a function changes whether a tensor from outside requires grad")
        return results

    def carry(self, like: Tensor) -> Tensor:
        """A tensor that comes in with each turn of a loop, and looks like another one."""
        where = geometry(like)._replace(offset=0)
        fake = self.lifetimes.track(fake_of(where, like.device, self.builder.symbolic))
        self.track_storage(fake).define(where, self.carried_as(meta_of(fake)))
        return fake

    def carried_as(self, meta: int) -> fx.Node:
        """The placeholder of what comes in with each turn, and lies so."""
        node = self.builder.placeholder(f"carried_{len(self.carried)}", meta)
        self.carried.append(node)
        return node

    def is_own(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in memory that was made here."""
        return tensor_impl.storage_key(tensor) in self.states

    def state(self, fake: Tensor) -> Any:
        """The storage of a tensor, which may be one of the trace around it."""
        return super().state(fake) if self.is_own(fake) else self.outer.state(fake)

    def read(self, fake: Tensor) -> fx.Node:
        """The node for what a tensor shows now."""
        return super().read(fake) if self.is_own(fake) else self.subgraph_input(self.outer.read(fake))

    def literal(self, value: Tensor) -> fx.Node:
        """The node for a tensor that is written out in the function."""
        return self.subgraph_input(self.outer.literal(value))

    def subgraph_input(self, outside: fx.Node) -> fx.Node:
        """What stands here for a node of the trace around it."""
        node = self._standing.get(outside)
        if node is None:
            builder = self.outer.builder
            meta = builder.metas[outside]
            assert isinstance(meta, int)
            name, offset = f"operand_{len(self.inputs)}", builder.offsets.get(outside, 0)
            node = self._standing[outside] = self.builder.placeholder(name, meta, offset)
            self.inputs[node] = outside
            value = self.outer.known.values(outside)
            if value is not None:
                self.known.note(node, value)
        return node

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._entered is not None:
            for leaf in pytree.tree_flatten((args, kwargs))[0]:
                if isinstance(leaf, Tensor) and not self.is_own(leaf) and not self._is_view_from_here(leaf):
                    self._entered.note(leaf)
        return super().dispatch(func, args, kwargs)

    def _is_view_from_here(self, tensor: Tensor) -> bool:
        known = self.journal.origins.get(id(tensor))
        return known is not None and known[0] is tensor

    def _dispatch_subclass(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise self._refused("of tensor subclasses")

    def _call(
        self, op: Any, args: Any, kwargs: Any, metas: Any, random: bool, overwrites: bool = False
    ) -> Any:
        if random:
            raise self._refused(f"in which a function draws random numbers ({op})")
        node = super()._call(op, args, kwargs, metas, random, overwrites)
        if has_external_effect(operation_of(node)):
            raise self._refused(f"in which a function acts outside ({op})")
        return node

    def _record_write(self, fake: Tensor, value: fx.Node, counted: bool = True) -> None:
        self._check_own(fake)
        super()._record_write(fake, value, counted)

    def reshape(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_own(args[0])
        return super().reshape(func, args, kwargs)

    def resize(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_own(args[0])
        return super().resize(func, args, kwargs)

    def rebind(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for tensor in args[:2]:
            if isinstance(tensor, Tensor):
                self._check_own(tensor)
        return super().rebind(func, args, kwargs)

    def _check_own(self, fake: Tensor) -> None:
        if not self.is_own(fake):
            raise self._refused("in which a function changes a tensor from outside")

    def _refused(self, why: str) -> UnsupportedOperation:
        return unsupported_higher_order_op(f"{self._name}, {why}")

    def record_subgraph_derivative(
        self, results: Sequence[Tensor], ends: Sequence[Key], given: Collection[int]
    ) -> tuple[list[Tensor | None], dict[int, fx.Node]]:
        """Record the derivative of some results: for each end, its gradient, or None where there is none;
        and the placeholders of the gradients that come in, by result.

        Args:
            ends: edges of tensors from outside, or of what is carried.
            given: the results that have a gradient.
        """
        with mode_stacks.dispatch_modes_off(), self, torch.enable_grad():
            edges = {j: _edge(results[j]) for j in given}
        entrances = {j: (edge, results[j]) for j, edge in edges.items() if edge is not None}
        self.builder.backward = True
        try:
            with mode_stacks.dispatch_modes_off():
                engine, found = record_unsegmented(self, entrances, ends, "tangents")
        finally:
            self.builder.backward = False
        gradients = [found.get(end) for end in range(len(ends))]
        return gradients, {j: engine.by_value[j].nodes[0] for j in entrances}


def subgraph_modules(
    branches: Sequence[SubgraphRecorder],
    results: Sequence[Sequence[fx.Node]],
    since: Sequence[fx.Node | None] = (),
) -> tuple[list[fx.GraphModule], list[fx.Node]]:
    """Graphs of their own that compute some nodes of each branch, and the nodes of the trace around them that
    all of them take, after what they carry.

    Args:
        since: for each, the last node before those that count if they may raise: what the forward has checked
            the backward does not check again.
    """
    lasts = since or [None] * len(branches)
    needed = [
        subgraph_nodes_needed_for(b, nodes, last)
        for b, nodes, last in zip(branches, results, lasts, strict=True)
    ]
    operands = list(
        dict.fromkeys(
            outside
            for branch, nodes in zip(branches, needed, strict=True)
            for node, outside in branch.inputs.items()
            if node in nodes
        )
    )
    return [
        _subgraph_module(*each, operands) for each in zip(branches, results, needed, strict=True)
    ], operands


def may_raise(module: fx.GraphModule) -> bool:
    """Whether a graph is to run although nobody reads its results."""
    return any("may_raise" in node.meta or is_impure(node) for node in module.graph.nodes)


def subgraph_nodes_needed_for(
    branch: SubgraphRecorder, results: Iterable[fx.Node], last: fx.Node | None
) -> set[fx.Node]:
    """What a graph of some nodes of a branch has in it: what they are computed from, and what may raise and
    comes after `last`."""
    stack = list(results)
    for node in reversed(branch.builder.graph.nodes):
        if node is last:
            break
        if "may_raise" in node.meta or is_impure(node):
            stack.append(node)
    found: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _subgraph_module(
    branch: SubgraphRecorder, results: Sequence[fx.Node], needed: set[fx.Node], operands: Sequence[fx.Node]
) -> fx.GraphModule:
    builder, graph = branch.builder, fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in branch.carried:
        copies[node] = graph.placeholder(node.name)
    given = {outside: graph.placeholder(f"operand_{i}") for i, outside in enumerate(operands)}
    outer = branch.outer.builder
    for outside, node in given.items():
        builder.metas[node] = outer.metas[outside]
        builder.offsets[node] = outer.offsets.get(outside, 0)
    copies.update((node, given[outside]) for node, outside in branch.inputs.items() if node in needed)
    for node in builder.graph.nodes:
        if node in needed and node.op != "placeholder":
            copies[node] = fx_graphs.copy_node(graph, node, copies)
            copies[node].meta.pop("partitioner_tag", None)
        if node in copies and node in builder.metas:
            builder.metas[copies[node]] = builder.metas[node]
    builder.annotate([*given.values(), *copies.values()])
    graph.output(tuple(copies[node] for node in results))
    return fx.GraphModule(builder.root, graph, "Branch")


def without_aliasing(branch: SubgraphRecorder, values: Sequence[fx.Node]) -> list[fx.Node]:
    """The same values, each in memory of its own: results of an operation lie neither in each other's nor in
    that of its arguments."""
    seen: set[fx.Node] = set()
    found = []
    for value in values:
        root = value
        while root.op == "call_function" and isinstance(root.target, op_queries.OpOverload):
            first = root.args[0] if root.args else None
            if not may_alias(root.target) or not isinstance(first, fx.Node):
                break
            root = first
        fresh = root.op == "call_function" and root not in seen
        seen.add(root)
        found.append(value if fresh else branch.builder.emit(aten.clone.default, value))
    return found


def is_followed() -> bool:
    """Whether autograd follows what is done: not in inference mode, whatever the grad mode is."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def append_higher_order_call(
    recorder: Recorder,
    op: Any,
    before: tuple[fx.Node, ...],
    graphs: Sequence[fx.GraphModule],
    after: tuple[tuple[fx.Node, ...], ...],
    metas: tuple[int, ...],
) -> list[fx.Node]:
    """Append an operator that takes functions; its results, which lie as `metas` says.

    Args:
        before, after: what it takes before and after the functions.
    """
    builder = recorder.builder
    functions = [builder.module(op.name(), graph) for graph in graphs]
    node = builder.call(op, (*before, *functions, *after), {}, ResultMeta(True, metas))
    if not builder.backward and any(map(may_raise, graphs)):
        node.meta["may_raise"] = True
    return [builder.item(node, i) for i in range(len(metas))]


def wrap_values(recorder: Recorder, nodes: Iterable[fx.Node]) -> list[Tensor]:
    """Tensors that show some values."""
    return [recorder._wrap_result(node, recorder.builder.metas[node]) for node in nodes]


def check_operands(recorder: Recorder, name: str, given: Sequence[Any]) -> None:
    """Refuse operands that none of these operators takes."""
    if recorder.symbols is not None:
        raise unsupported_higher_order_op(f"{name}, of tensors with symbols for sizes")
    if any(map(is_wrapper, given)):
        raise unsupported_higher_order_op(f"{name}, of tensor subclasses")


def check_subgraph_results(
    branch: SubgraphRecorder, name: str, leaves: Sequence[Any], given: Sequence[Tensor] = ()
) -> None:
    """Refuse results that are no tensors of the branch's own, each in memory of its own."""
    seen = {tensor_impl.storage_key(tensor) for tensor in given}
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            continue
        if is_wrapper(leaf):
            raise unsupported_higher_order_op(f"{name}, of which a result is a tensor subclass")
        key = tensor_impl.storage_key(leaf)
        if key in seen or not branch.is_own(leaf):
            raise unsupported_higher_order_op(
                f"{name}, of which a result shows the memory of an operand, of another result, or of a "
                f"tensor from outside"
            )
        if geometry(leaf).is_lazy:
            raise unsupported_higher_order_op(f"{name}, of which a result is lazily conjugated or negated")
        seen.add(key)


def same_result_type(first: Any, second: Any) -> bool:
    """Whether two results look alike, so that either may come of an operator."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return (
            type(first) is type(second)
            and not isinstance(first, Tensor)
            and key_of_constant(first) == key_of_constant(second)
        )
    strides = [
        tuple(s for n, s in zip(one.shape, one.stride(), strict=True) if n != 1) for one in (first, second)
    ]
    return (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device) and (
        strides[0] == strides[1] or not first.numel()
    )


def read_value(branch: SubgraphRecorder, tensor: Tensor) -> fx.Node:
    """The node for what a tensor shows."""
    with torch.no_grad():
        return branch.read(tensor)
