"""A backward recorded again: under another ambient state than it was compiled for, or so that it can itself
be differentiated.

The autograd graph of a trace is kept with its specialization, and torch's engine runs it once more when a
caller asks for it. With ``create_graph=True`` the gradients get a history in the trace as they do in eager:
from the tangents, and from what the formulas read of the forward. So whatever the function's graph says
(custom functions, detached parts, hooks) holds for higher derivatives as well.

In: a `RetracePoint`, a piece of that graph. Out: a `RetracedBackward`, a graph of values that the forward has
saved, and what is needed to go on to the next level.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node

from aot.capture.autograd.engine import BackwardRecorder, RetracePoint, numbers_of, record_unsegmented
from aot.capture.autograd.segments import Key, key_of
from aot.capture.intercept.patches import patched
from aot.capture.recorder.recorder import Recorder
from aot.capture.recorder.symbolic_views import symbolic_views
from aot.errors import DataDependentValue, DoubleBackwardUnsupported, Unsupported
from aot.graph.builder import GraphBuilder
from aot.graph.purity import is_impure, is_random_node
from aot.graph.value_meta import ValueMeta, lookup
from aot.joint.linearity import Linearity
from aot.tensors.subclasses import (
    GradientLayout,
    flatten_subclass,
    inner_tensors,
    is_wrapper,
    layout_of,
    unflatten_subclass,
)
from aot.torch_internals import autograd_state, fx_graphs, symbolic_shapes

aten = torch.ops.aten
Failure = tuple[type[Exception], str]


@dataclass(frozen=True, slots=True)
class RetracedBackward:
    """A backward that was recorded again.

    Attributes:
        graph: values of the forward and tangents in, gradients out; and, if those have histories, their
            tangents in and the gradients of the gradients out, as in a joint graph.
        taken: the numbers of the values that it takes.
        tangents: the layout of each tangent.
        results: for each end, which gradient goes there.
        made: the layout of each gradient.
        second_order_tangents: by gradient, the layout of its tangent; of those that have a history that can
            be followed.
        failing: those whose history cannot be followed, and what eager raises.
        gradients: for each tangent that has a history, then for each of `own_targets`, and then for each end,
            which gradient of gradients goes there.
        reach: by gradient that has a history, to which of `gradients` it leads, be they there or not.
        higher: the layout of each gradient of gradients.
        own_targets: which of the level's `own_targets` gradients of gradients go to.
        cotangent_inputs, sinks: of the next level; the entrances by gradient.
        nodes: the trace's nodes by their names in the graph.
    """

    graph: fx.GraphModule
    taken: tuple[int, ...]
    tangents: tuple[GradientLayout, ...]
    results: tuple[int | None, ...]
    made: tuple[GradientLayout, ...]
    second_order_tangents: dict[int, GradientLayout]
    failing: dict[int, Failure]
    gradients: tuple[int | None, ...]
    reach: dict[int, frozenset[int]]
    higher: tuple[GradientLayout, ...]
    own_targets: tuple[int, ...]
    cotangent_inputs: dict[int, tuple[Key, Tensor]]
    sinks: tuple[Key, ...]
    nodes: dict[str, fx.Node]

    @property
    def count(self) -> int:
        """How many values of the graph the gradients are."""
        return sum(len(layout.wheres) for layout in self.made)


def retrace_backward(
    level: RetracePoint,
    incoming: Collection[int],
    create_graph: bool,
    tracked: Collection[int],
    own_targets: Sequence[int],
    other_examples: Mapping[int, Tensor],
    whole: bool = False,
) -> RetracedBackward:
    """Run a piece of the autograd graph under the ambient state of now.

    Args:
        incoming: the entrances that get a tangent.
        create_graph: whether the gradients get a history.
        tracked: the entrances whose tangents have one.
        own_targets: which of the level's `own_targets` gradients of the gradients may go to. They are added
            to what else comes in there before they go on, as in eager.
        other_examples: for the entrances whose tangents are of another type than was guessed, or made
            otherwise, a tensor that is as these are.
        whole: whether what is below the other entrances runs as well.

    Raises:
        DoubleBackwardUnsupported: it needs a value of the forward that is not saved; or the gradients get a
            history and the function has registered hooks, has let a leaf require no grad any more, or has
            called a custom function that is not known to be linear, which would have to see the sum of the
            first and of higher derivatives.
        Exception: whatever a node of the graph raises.
    """
    builder = level.recorder.builder
    if create_graph and level.recorder.hooks.any:
        raise DoubleBackwardUnsupported(
            "create_graph=True through a function that registers hooks, which would have to see the sum of "
            "the first and of higher derivatives; call the original function"
        )
    if create_graph and level.released:
        raise DoubleBackwardUnsupported(
            "create_graph=True through a function that calls requires_grad_(False) on an argument; call it "
            "outside of the function"
        )
    before = builder.graph, builder.backward
    builder.graph, builder.backward = fx.Graph(), True
    try:
        with autograd_state.plain_autograd(), symbolic_views(level.recorder.symbols), patched():
            return _record_retraced(
                level, incoming, create_graph, tracked, own_targets, other_examples, whole
            )
    finally:
        builder.graph, builder.backward = before
        # (Some nodes that have read something are the caller's, and would keep his tensors alive.)
        level.recorder.release_trace()
        level.recorder.lifetimes.poison()  # a traceback may hold some


def _record_retraced(
    level: RetracePoint,
    incoming: Collection[int],
    create_graph: bool,
    tracked: Collection[int],
    own_targets: Sequence[int],
    other_examples: Mapping[int, Tensor],
    whole: bool,
) -> RetracedBackward:
    recorder = level.recorder
    builder = recorder.builder
    engine, found = _run_first_derivative(level, incoming, create_graph, tracked, other_examples, whole)
    written = _end_retraced_writes(recorder, create_graph)
    acts = list(recorder.acts)
    tangents = [engine.by_value[j] for j in incoming]
    results = [found[end] for end in sorted(found)]
    values = [node for result in results for node in _read(recorder, result)]
    ends = _RetracedEnds((), (), level.sinks)
    roots: dict[int, tuple[Key, Tensor]] = {}
    if create_graph:
        cotangents = (engine.by_value[j].fake for j in incoming if j in tracked)
        ends = _RetracedEnds(
            tuple(key_of(autograd_state.gradient_edge(fake)) for fake in cotangents),
            tuple((e, level.own_targets[e]) for e in own_targets),
            level.sinks,
        )
        roots = _gradients_with_history(recorder, results)
    first = set(builder.graph.nodes)
    engine, higher, failing = _retrace_higher_gradients(recorder, roots, ends.every)
    further = {i: engine.by_value[i] for i in roots if i not in failing}
    inputs = [node for tangent in (*tangents, *further.values()) for node in tangent.nodes]
    outputs = [*values, *(node for end in sorted(higher) for node in _read(recorder, higher[end]))]
    _refuse_retraced_effects([*acts, *recorder.acts])
    graph, taken, nodes = _assemble_retraced_graph(builder, level.available, inputs, outputs, first, written)
    numbers = {end: k for k, end in enumerate(sorted(found))}
    higher_numbers = {end: k for k, end in enumerate(sorted(higher))}
    reached = ends.reached(higher)
    leads = _places_behind_history(roots, numbers_of(recorder, ends.every), reached)
    return RetracedBackward(
        graph=fx.GraphModule(builder.root, graph, "Again"),
        taken=taken,
        tangents=tuple(tangent.layout for tangent in tangents),
        results=tuple(numbers.get(end) for end in range(len(level.sinks))),
        made=tuple(map(layout_of, results)),
        second_order_tangents={i: tangent.layout for i, tangent in further.items()},
        failing=failing,
        gradients=tuple(higher_numbers.get(end) for end in reached) if create_graph else (),
        reach=leads,
        higher=tuple(layout_of(higher[end]) for end in sorted(higher)),
        own_targets=tuple(ends.places[end] for end in reached if end in ends.places),
        cotangent_inputs=roots,
        sinks=tuple(ends.every[end] for end in reached),
        nodes=nodes,
    )


def _end_retraced_writes(recorder: Recorder, create_graph: bool) -> dict[fx.Node, fx.Node]:
    """What the backward has written to what the forward has left: the values, by what was there.

    Raises:
        DoubleBackwardUnsupported: a further derivative would write again.
    """
    written = {live.node: value for live, value in recorder.backward_writes.end() if value is not live.node}
    if written and create_graph:
        raise DoubleBackwardUnsupported(
            "create_graph=True through a backward that writes to a tensor of the forward (a buffer, what a "
            "custom function keeps), which a further derivative must not write to again; call the original "
            "function"
        )
    return written


def _refuse_retraced_effects(acts: Sequence[object]) -> None:
    """Refuse to record operations again that act outside.

    Raises:
        DoubleBackwardUnsupported: there are some.
    """
    if acts:
        raise DoubleBackwardUnsupported(
            "a backward that calls an operator which acts outside (it prints, or is registered as effectful) "
            "would be recorded again, and call it in another order; call the original function"
        )


@dataclass(frozen=True, slots=True)
class _RetracedEnds:
    """Where gradients of gradients go.

    Attributes:
        cotangents: the edges of tangents that have a history.
        own_targets: edges of the segment's own, with their numbers.
        sinks: where its gradients go.
    """

    cotangents: tuple[Key, ...]
    own_targets: tuple[tuple[int, Key], ...]
    sinks: tuple[Key, ...]

    @property
    def every(self) -> list[Key]:
        """All of them, in order."""
        return [*self.cotangents, *(edge for _, edge in self.own_targets), *self.sinks]

    @property
    def places(self) -> dict[int, int]:
        """The numbers of the segment's own edges, by their places among all."""
        return {len(self.cotangents) + i: number for i, (number, _) in enumerate(self.own_targets)}

    def reached(self, higher: Collection[int]) -> list[int]:
        """The places to which something may come. (Hooks on a result would see that nothing comes where
        nothing can.)"""
        places = self.places
        return [end for end in range(len(self.every)) if end not in places or end in higher]


def _run_first_derivative(
    level: RetracePoint,
    incoming: Collection[int],
    create_graph: bool,
    tracked: Collection[int],
    other_examples: Mapping[int, Tensor],
    whole: bool,
) -> tuple[BackwardRecorder, dict[int, Tensor]]:
    """Run the segment once more, as `retrace_backward` has it; the gradients by end."""
    entrances = {j: level.cotangent_inputs[j] for j in incoming}
    entrances |= {j: (level.cotangent_inputs[j][0], like) for j, like in other_examples.items()}
    silent = [edge for j, (edge, _) in enumerate(level.cotangent_inputs) if whole and j not in incoming]
    with level.recorder.backward_writes.recording():
        return _run_retraced_engine(
            level.recorder,
            entrances,
            level.sinks,
            "cotangents",
            create_graph,
            tracked,
            exact_examples=other_examples,
            silent=silent,
        )


def _gradients_with_history(recorder: Recorder, results: Sequence[Tensor]) -> dict[int, tuple[Key, Tensor]]:
    """The gradients that have a history, by number, with their edges."""
    # Gradients that are one tensor, or a tangent as it came, are to be told apart.
    with recorder, torch.enable_grad():
        likes = {i: _apart(result) for i, result in enumerate(results) if result.requires_grad}
    return {i: (key_of(autograd_state.gradient_edge(like)), like) for i, like in likes.items()}


def _places_behind_history(
    roots: Mapping[int, tuple[Key, Tensor]], edges: Mapping[Key, int], reached: Sequence[int]
) -> dict[int, frozenset[int]]:
    """By gradient: where among the ends that are `reached` its history leads to."""
    places = {end: place for place, end in enumerate(reached)}
    leads = {i: _ends_behind_history(edge, edges) for i, (edge, _) in roots.items()}
    return {i: frozenset(places[end] for end in some if end in places) for i, some in leads.items()}


def _ends_behind_history(edge: Key, ends: Mapping[Key, int]) -> set[int]:
    """The ends that a history leads to."""
    found: set[int] = set()
    seen: set[Node] = set()
    stack = [edge]
    while stack:
        edge = stack.pop()
        if edge in ends:
            found.add(ends[edge])
        elif edge[0] not in seen:
            seen.add(edge[0])
            stack.extend((node, k) for node, k in edge[0].next_functions if node is not None)
    return found


def _run_retraced_engine(
    recorder: Recorder,
    entrances: dict[int, tuple[Key, Tensor]],
    ends: Sequence[Key],
    name: str,
    create_graph: bool = False,
    tracked: Collection[int] = (),
    once_more: bool = False,
    exact_examples: Collection[int] = (),
    silent: Sequence[Key] = (),
) -> tuple[BackwardRecorder, dict[int, Tensor]]:
    """Run the engine from entrances to ends; the gradients by end. What an earlier derivative has run is run
    `once_more`, and the results are added up. Of the entrances `exact_examples` the tangents are given."""

    def linear(engine: BackwardRecorder, nodes: Iterable[Node]) -> contextlib.AbstractContextManager[None]:
        tangents = [node for tangent in engine.by_value.values() for node in tangent.nodes]
        return Linearity(recorder, tangents).linearity_required(nodes)

    watching = linear if once_more else None
    return record_unsegmented(
        recorder, entrances, ends, name, create_graph, tracked, exact_examples, silent, watching
    )


def _retrace_higher_gradients(
    recorder: Recorder, roots: dict[int, tuple[Key, Tensor]], ends: Sequence[Key]
) -> tuple[BackwardRecorder, dict[int, Tensor], dict[int, Failure]]:
    """Differentiate gradients; where that raises, find out which of them do."""
    try:
        return *_run_retraced_engine(recorder, roots, ends, "tangents", once_more=True), {}
    except DataDependentValue as error:
        raise DoubleBackwardUnsupported(
            "create_graph=True where the second derivative makes tensors whose sizes depend on values, which "
            "are known on the call alone; call the original function"
        ) from error
    except Unsupported:
        raise
    except symbolic_shapes.GuardOnDataDependentSymNode as error:
        raise DoubleBackwardUnsupported(
            "create_graph=True where the second derivative makes tensors whose sizes depend on values, "
            "and these on the call's sizes; call the original function, or compile it with dynamic=False"
        ) from error
    except Exception as error:
        if symbolic_shapes.is_symint_unsupported(error):
            raise DoubleBackwardUnsupported(
                "create_graph=True where a formula of the second derivative takes no symbols for sizes; call "
                "the original function, or compile it with dynamic=False"
            ) from error
        failing: dict[int, Failure] = {}
        for i, root in roots.items():
            try:
                _run_retraced_engine(recorder, {i: root}, ends, "tangents", once_more=True)
            except Exception as its:
                failing[i] = (type(its), str(its))
        if not failing:
            raise error
        good = {i: root for i, root in roots.items() if i not in failing}
        return *_run_retraced_engine(recorder, good, ends, "tangents", once_more=True), failing


def _read(recorder: Recorder, fake: Tensor) -> list[fx.Node]:
    with torch.no_grad():
        return [recorder.read(part) for part in inner_tensors(fake)]


class _Same(torch.autograd.Function):
    """A wrapper subclass as it is, with an edge of its own: its own code need not know views."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return unflatten_subclass(*flatten_subclass(tensor))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _apart(result: Tensor) -> Tensor:
    """A gradient with an edge of its own."""
    if is_wrapper(result):
        return _Same.apply(result)  # type: ignore[no-any-return, no-untyped-call]
    return result.view_as(result)


def _assemble_retraced_graph(
    builder: GraphBuilder,
    available: dict[fx.Node, int],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    first: set[fx.Node],
    written: Mapping[fx.Node, fx.Node],
) -> tuple[fx.Graph, tuple[int, ...], dict[str, fx.Node]]:
    """A graph of its own: the available values that are needed and the `inputs` in, the `outputs` out. What
    was recorded after the nodes `first` is its backward. A value that is computed as an available one was is
    that one. Onto available values that are `written`, others are copied in the end."""
    returned, outputs = outputs, [*outputs, *written, *written.values()]
    stands_for = _equal_retraced_nodes(builder, available)
    order, blank = _order_of_retraced_nodes(outputs, {*available, *inputs, *stands_for}, builder)
    needed = {stands_for.get(n, n) for node in order for n in node.all_input_nodes}
    needed.update(stands_for.get(n, n) for n in outputs)
    taken = sorted((number, node) for node, number in available.items() if node in needed)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for number, node in taken:
        copies[node] = graph.placeholder(f"saved_{number}")
    copies.update((node, copies[known]) for node, known in stands_for.items() if known in copies)
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for node in order:
        copies[node] = (
            _blank(graph, builder.meta(node)) if node in blank else fx_graphs.copy_node(graph, node, copies)
        )
        later = node.graph is builder.graph and node not in first
        copies[node].meta = {"partitioner_tag": "is_backward"} if later else {}
    for node, copy in copies.items():
        if node in builder.metas:
            builder.metas[copy] = builder.metas[node]
            builder.offsets[copy] = builder.offsets.get(node, 0)
    builder.annotate(copies.values())
    for target, value in written.items():
        copy = graph.call_function(aten.copy_.default, (copies[target], copies[value]))
        copy.meta["val"] = copies[target].meta["val"]
    graph.output(tuple(copies[o] for o in returned))
    names = {copy.name: node for node, copy in copies.items() if node not in stands_for}
    return graph, tuple(number for number, _ in taken), names


def _equal_retraced_nodes(builder: GraphBuilder, available: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    """For each node that is none of the available values, and is the same operation on the same values as
    one of them is: that one. (A partitioner may save what a backward begins with, and not what that is made
    of.)"""
    known = dict.fromkeys(available)
    graphs = dict.fromkeys([*(node.graph for node in known), builder.graph])
    numbers: dict[fx.Node, int] = {}
    by_key: dict[object, int] = {}
    for node in (node for graph in graphs for node in graph.nodes):
        key: object = node
        if node.op == "call_function" and not is_impure(node) and not is_random_node(node):
            arguments = fx.node.map_arg((node.args, node.kwargs), lambda n: (_NODE, numbers.get(n, n)))
            key = (node.target, repr(arguments))
        numbers[node] = by_key.setdefault(key, len(by_key))
    first = {numbers[node]: node for node in reversed(known)}
    return {n: first[i] for n, i in numbers.items() if i in first and n not in known}


_NODE = "the value numbered"


# Operations that look at their first argument's metadata alone.
_LIKE = frozenset(
    (
        *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.empty_like.default),
        *(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
        *(aten.new_empty.default, aten.new_empty_strided.default),
    )
)


def _blank(graph: fx.Graph, meta: ValueMeta) -> fx.Node:
    """A value of which nothing is read but its metadata, as it has no elements, or nobody looks at them."""
    made: dict[str, Any] = {"dtype": meta.dtype, "device": meta.device}
    return graph.call_function(
        torch.ops.aten.empty_strided.default, (list(meta.size), list(meta.stride)), made
    )


def _order_of_retraced_nodes(
    outputs: Iterable[fx.Node], known: set[fx.Node], builder: GraphBuilder
) -> tuple[list[fx.Node], set[fx.Node]]:
    """What outputs are computed from besides what is known, in the order of computation; and which of that
    may be blank, so that what it would be computed from need not have been saved."""
    try:
        return _is_computed_in_retrace(outputs, known, lambda _: False, frozenset())
    except DoubleBackwardUnsupported:
        if builder.symbolic:
            raise

    def is_empty(node: fx.Node) -> bool:
        meta = builder.metas.get(node)
        return isinstance(meta, int) and 0 in lookup(meta).size and not is_impure(node)

    return _is_computed_in_retrace(outputs, known, is_empty, _LIKE)


def _is_computed_in_retrace(
    outputs: Iterable[fx.Node],
    known: set[fx.Node],
    is_empty: Callable[[fx.Node], bool],
    like: Collection[Any],
) -> tuple[list[fx.Node], set[fx.Node]]:
    order: list[fx.Node] = []
    seen: set[fx.Node] = set(known)
    blank: set[fx.Node] = set()
    shown: dict[fx.Node, None] = {}  # nodes of which operations in `like` take the metadata
    stack = [(node, False) for node in outputs]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            if is_empty(node):
                order.append(node)
                blank.add(node)
                continue
            if node._erased or node.op == "placeholder" or is_impure(node) or is_random_node(node):
                raise DoubleBackwardUnsupported(
                    f"this backward needs {node.name}, a value of the forward that is not saved for the "
                    f"compiled one; call the original function"
                )
            stack.append((node, True))
            if node.target in like:
                shown.update(dict.fromkeys(node.all_input_nodes))
            else:
                stack.extend((n, False) for n in node.all_input_nodes)
    unread = [node for node in shown if node not in seen]
    return [*unread, *order], {*blank, *unread}
