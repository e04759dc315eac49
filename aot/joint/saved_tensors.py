"""What of the caller's a backward keeps, as autograd in eager keeps it.

Asked of the autograd graph itself: a formula may keep a tensor, and so check its version, and then not read
it for the values at hand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node

from aot.capture.autograd.engine import BackwardRecorder, recording_backward, without_autocast
from aot.capture.autograd.segments import Key, SegmentedGraph, key_of
from aot.capture.recorder.recorder import Recorder
from aot.joint.joint import SavedInput
from aot.tensors.version_counters import as_if_bumped, counter_groups, has_counter
from aot.torch_internals import activation_checkpoint, autograd_graph, autograd_state, tensor_impl


@dataclass(frozen=True, slots=True)
class _Unpack:
    """That a segment's node unpacks a tensor, if any of some tangents comes, or (None) whatever comes; and
    what it says when the tensor was written to, if that was tried."""

    segment: int
    tensor: Tensor
    tangents: int | None
    vain: bool
    reason: str = ""


def find_saved_inputs(
    recorder: Recorder,
    graph: SegmentedGraph,
    engine: BackwardRecorder,
    arguments: Sequence[Tensor],
    roots: Sequence[Tensor],
    behind: Mapping[fx.Node, Collection[fx.Node]],
) -> list[tuple[SavedInput, ...]]:
    """What each segment keeps of the arguments and of the roots of the outputs.

    Args:
        behind: the tangents that what comes to a write to a view is computed from.
    """

    finder = _SavedInputFinder(recorder, graph, engine, (*arguments, *roots), behind)
    finder.look_at_reads()
    finder.look_at_segments()
    views = _ViewEdges((*arguments, *roots, *finder.tensors()))
    finder.try_hidden()
    counters = finder.number_counters()
    finder.look_at_view_writes(counters)
    views.note_renewed(recorder.renewed)
    by_counter = finder.looks_by_counter(counters)
    found: list[tuple[SavedInput, ...]] = []
    for number in range(len(graph.segments)):
        of_arguments = (finder.kept_as(number, t, by_counter, argument=i) for i, t in enumerate(arguments))
        of_roots = (finder.kept_as(number, t, by_counter, root=k) for k, t in enumerate(roots))
        found.append(tuple(one for one in (*of_arguments, *of_roots) if one is not None))
    return found


class _ViewEdges:
    """The edges of views, before they are run under another version: autograd makes them anew then."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._views = {id(tensor): tensor for tensor in tensors}
        self._earlier = {i: _edge_of_view(tensor) for i, tensor in self._views.items()}

    def note_renewed(self, renewed: dict[Key, Key]) -> None:
        """Note which edges have become others."""
        for i, view in self._views.items():
            before = self._earlier[i]
            edge = None if before is None else _edge_of_view(view)
            if edge is not None and before is not None and edge != before:
                renewed[edge] = before


class _SavedInputFinder:
    """What the nodes of each segment unpack.

    Args:
        given: the arguments and the roots of the outputs.
        behind: see `find_saved_inputs`.
    """

    def __init__(
        self,
        recorder: Recorder,
        graph: SegmentedGraph,
        engine: BackwardRecorder,
        given: Sequence[Tensor],
        behind: Mapping[fx.Node, Collection[fx.Node]],
    ) -> None:
        self._recorder = recorder
        self._graph = graph
        self._engine = engine
        self._given = given
        self._behind = behind
        self._looks: list[_Unpack] = []
        self._attached: list[dict[int, int]] = [{} for _ in graph.segments]  # masks by tensor
        # Storages that unpack hooks have given back, and then all.
        self._storages: list[set[int]] = [set() for _ in graph.segments]

    def tensors(self) -> list[Tensor]:
        """What has been found so far."""
        return [one.tensor for one in self._looks]

    def _tangents(self, number: int) -> int:
        # All nodes of a segment run, whichever of its tangents come, and unpack what they keep.
        count = len(self._graph.segments[number].cotangent_inputs)
        return self._engine.segments[number].mask((1 << count) - 1)

    def _look(self, number: int, tensor: Tensor, node: Node, reason: str = "") -> None:
        recorded = self._engine.segments[number]
        vain = bool(recorded.gradients) and node not in self._graph.reaches_input
        mask = recorded.behind(recorded.written.get(node, ()), self._behind)
        # (A custom function may make zeros, whatever comes.)
        tangents = None if not mask or recorded.custom_function_grads else mask
        self._looks.append(_Unpack(number, tensor, tangents, vain, reason))

    def look_at_reads(self) -> None:
        """What custom functions and the formulas inside a CopySlices node keep is not shown, so what was read
        counts as well. A custom function unpacks it whichever of its results are differentiated."""
        recorder, segment_of = self._recorder, self._graph.segment_of
        nodes = {node for _, node in recorder.backward_reads if node is not None}
        packed = {node: _is_packed(node, in_checkpoints=False) for node in nodes}
        live = recorder.backward_writes
        for fake, node in recorder.backward_reads:
            number = segment_of.get(node) if node is not None else None
            if live and live.is_live(recorder.state(fake)):
                continue  # eager reads what is there, and checks it only where autograd has saved it
            if node is not None and number is not None and packed[node]:
                self._storages[number].add(tensor_impl.storage_key(fake))
            elif node is not None and number is not None:
                self._look(number, fake, node)
        # What wrapper subclasses are made of is kept with them, and a write to it is not noticed.
        for storage, node in recorder.inside_reads:
            if node in segment_of:
                self._storages[segment_of[node]].add(storage)

    def look_at_segments(self) -> None:
        """What nodes show that they have saved."""
        for number, segment in enumerate(self._graph.segments):
            # Eager runs what leads to no gradient, too. (What does so in a segment that has some is not run
            # for certain inputs alone, and not looked at.)
            was_run = bool(self._engine.segments[number].gradients)
            reach = segment.reach if was_run else segment.reach | self._graph.dead_nodes(number)
            for node, tangents in reach.items():
                self._look_at_node(number, node, tangents, node in self._recorder.unpacked or not was_run)

    def _look_at_node(self, number: int, node: Node, reach: int, unpacked: bool) -> None:
        own = tuple(_saved_tensors(node))
        attached = self._attached[number]
        for tensor in own:
            if tensor.grad_fn is not None:
                attached[id(tensor)] = attached.get(id(tensor), 0) | reach
        saved_here = (*own, *_given_to_checkpoints(node))
        for tensor in (*saved_here, *(_saved_by_function(node) if unpacked else ())):
            self._look(number, tensor, node)

    def try_hidden(self) -> None:
        """What nodes keep that do not show it, by trial."""
        recorder, graph, engine = self._recorder, self._graph, self._engine
        for number, node in _nodes_hiding_saved_tensors(recorder, graph, engine):
            for tensor, reason in _saved_tensors_by_trial(recorder, node, self._given):
                self._look(number, tensor, node, reason)
        for number, node in _secretive(graph, engine):
            for tensor in _saved_by_checkpoint(recorder, node) or ():
                self._look(number, tensor, node)

    def number_counters(self) -> dict[int, int]:
        """A number for each tensor, by identity: two have the same if they share a version counter."""
        every = {id(t): t for t in (*self._given, *self.tensors())}
        for one in self._looks:
            self._storages[one.segment].add(tensor_impl.storage_key(one.tensor))
        return dict(zip(every, counter_groups(tuple(every.values())), strict=True))

    def look_at_view_writes(self, counters: Mapping[int, int]) -> None:
        """Nor do writes to views show what they keep."""
        joined = {
            counters[id(fake)]: fake
            for fake in self._given
            if tensor_impl.storage_key(fake) in self._recorder.joined and has_counter(fake)
        }
        known = {(one.segment, counters[id(one.tensor)]) for one in self._looks if one.tangents is None}
        for number, recorded in enumerate(self._engine.segments):
            unknown = [fake for counter, fake in joined.items() if (number, counter) not in known]
            for node in (node for node, coming in recorded.written.items() if coming):
                wrapped = recorded.wrapped.get(node)
                for fake, reason in _saved_tensors_by_trial(self._recorder, node, unknown, wrapped):
                    self._look(number, fake, node, reason)

    def looks_by_counter(self, counters: Mapping[int, int]) -> _Looks:
        """What was found of each segment, by version counter."""
        found: dict[tuple[int, int], list[_Unpack]] = {}
        for one in self._looks:
            found.setdefault((one.segment, counters[id(one.tensor)]), []).append(one)
        return _Looks(counters, found)

    def kept_as(
        self, number: int, fake: Tensor, looks: _Looks, argument: int | None = None, root: int | None = None
    ) -> SavedInput | None:
        """How a segment keeps an argument or a root; None if it does not."""
        # (Nobody counts what is written to an inference tensor.)
        mine = looks.of(number, fake) if has_counter(fake) else ()
        if mine:
            mask = self._tangents(number)
            history = mask if id(fake) in self._attached[number] else 0
            reason = next((one.reason for one in mine if one.tensor is fake and one.reason), "")
            said = None if not reason or reason.startswith(_MODIFIED) else reason
            always = any(one.tangents is None for one in mine)
            if not always:
                mask = reduce(or_, (one.tangents or 0 for one in mine))
            vain = all(one.vain for one in mine)
            return SavedInput(argument, root, mask, always, True, history, vain, said)
        if tensor_impl.storage_key(fake) in self._storages[number]:
            return SavedInput(argument, root, 0, counted=False)
        return None


@dataclass(frozen=True, slots=True)
class _Looks:
    """What was found, by segment and version counter; and the counter of each tensor, by identity."""

    counters: Mapping[int, int]
    found: Mapping[tuple[int, int], Sequence[_Unpack]]

    def of(self, number: int, tensor: Tensor) -> Sequence[_Unpack]:
        """What was found of a segment and a tensor's version counter."""
        return self.found.get((number, self.counters[id(tensor)]), ())


def _nodes_hiding_saved_tensors(
    recorder: Recorder, graph: SegmentedGraph, engine: BackwardRecorder
) -> Iterator[tuple[int, Node]]:
    """The nodes that do not show what they keep, each with its segment's number.

    Not those that pack hooks were there for, which would have to run again; nor writes to views that
    a backward through their segment runs, of which it is known which gradients come.
    """
    for number, node in _secretive(graph, engine):
        was_run = bool(engine.segments[number].gradients)
        if hooks_of(recorder, node) is None and not (was_run and autograd_graph.is_copy_slices(node)):
            yield number, node


def hooks_of(recorder: Recorder, node: Node) -> tuple[Any, Any] | None:
    """The saved-tensor hooks that there were when a node was made, if there were any."""
    number = autograd_graph.sequence_number(node)
    # (That of what is written to a view is made just before, and lies inside.)
    return recorder.under_hooks.get(number - autograd_graph.is_copy_slices(node))


def _saved_by_checkpoint(recorder: Recorder, node: Node) -> tuple[Tensor, ...] | None:
    """What the checkpoint was called with that keeps what a node does not show; None if none does."""
    hooks = hooks_of(recorder, node)
    if hooks is None:
        return None
    with contextlib.suppress(RuntimeError):  # modified in place since: this backward raises anyway
        return activation_checkpoint.inputs_if_unpacked(hooks, partial(_reads, recorder, node))
    return ()


def _secretive(graph: SegmentedGraph, engine: BackwardRecorder) -> Iterator[tuple[int, Node]]:
    """The nodes that do not show what they keep, each with its segment's number."""
    for number, segment in enumerate(graph.segments):
        was_run = bool(engine.segments[number].gradients)
        for node in segment.nodes if was_run else (*segment.nodes, *graph.dead_nodes(number)):
            if autograd_graph.has_hidden_saved_tensors(node):
                yield number, node


def _saved_tensors_by_trial(
    recorder: Recorder, node: Node, tensors: Sequence[Tensor], gradient: Tensor | None = None
) -> Iterator[tuple[Tensor, str]]:
    """Those of some tensors that a node checks, by running it after each was written to, as it were; with
    what it says then. If `gradient` is None, it is given zeros."""
    if _reads(recorder, node, gradient) is None:
        return
    counted = [tensor for tensor in tensors if has_counter(tensor)]
    groups = counter_groups(counted)
    apart = [tensor for i, tensor in enumerate(counted) if groups[i] == i]
    yield from _version_checked_saved_tensors(apart, partial(_run_saving_node, recorder, node, gradient))


def _reads(recorder: Recorder, node: Node, gradient: Tensor | None = None) -> int | None:
    """How often a node reads something but the gradients that come to it; None if it raises."""
    try:
        return _run_saving_node(recorder, node, gradient)
    except Exception:
        return None


def _run_saving_node(recorder: Recorder, node: Node, gradient: Tensor | None = None) -> int:
    """Run a node by itself; how often it reads something but the gradients that come to it."""
    before = len(recorder.backward_reads)
    given: set[int] = set()
    try:
        with recording_backward(recorder), without_autocast(), torch.no_grad():
            gradients = [gradient] if gradient is not None else _zeros(node)
            given.update(map(tensor_impl.storage_key, gradients))
            autograd_graph.run_node(node, gradients)
        return sum(tensor_impl.storage_key(fake) not in given for fake, _ in recorder.backward_reads[before:])
    finally:
        del recorder.backward_reads[before:]


def external_effect_with_dead_saved(
    recorder: Recorder, graph: SegmentedGraph, engine: BackwardRecorder, exposed: Sequence[Node]
) -> fx.Node | None:
    """An operation that acts outside, and is called by a custom function in eager's backward that leads to no
    argument: nothing runs there when the function is compiled."""
    stack, seen = list(exposed), set(exposed)
    while stack:
        node = stack.pop()
        number = graph.segment_of.get(node)
        was_run = number is not None and bool(engine.segments[number].gradients)
        if not was_run and autograd_graph.is_function_node(node):
            before = len(recorder.acts)
            _reads(recorder, node)
            if len(recorder.acts) > before:
                return recorder.acts[before][0]
        below = [child for child, _ in node.next_functions if child is not None and child not in seen]
        seen.update(below)
        stack.extend(below)
    return None


def _zeros(node: Node) -> list[Tensor]:
    looks = autograd_graph.all_grad_input_metadata(node)
    return [torch.zeros(size, dtype=dtype, device=device) for size, dtype, device in looks]


def _edge_of_view(tensor: Tensor) -> Key | None:
    try:
        if not tensor._is_view() or tensor.grad_fn is None:
            return None
    except (RuntimeError, IndexError):  # a view whose history autograd cannot tell
        return None
    return key_of(autograd_state.gradient_edge(tensor))


def find_saved_edges(recorder: Recorder, graph: SegmentedGraph) -> list[frozenset[Key]]:
    """For each segment, the edges that gradients of its gradients go to, as its nodes have kept the tensor
    with that edge, or a view of it: edges at which gradients come in, and those of what has a native history
    (a view that was written to is not what its history begins with)."""
    read: list[list[Tensor]] = [[] for _ in graph.segments]
    for fake, node in recorder.backward_reads:
        if node is not None and node in graph.segment_of:
            read[graph.segment_of[node]].append(fake)
    found: list[frozenset[Key]] = []
    for number, segment in enumerate(graph.segments):
        saved = (tensor for node in segment.nodes for tensor in _saved_tensors(node))
        kept = (
            tensor if tensor.grad_fn is not None else _base_of(tensor) for tensor in (*saved, *read[number])
        )
        stack = [
            key_of(autograd_state.gradient_edge(t)) for t in kept if t is not None and t.grad_fn is not None
        ]
        seen: set[Key] = set()
        while stack:
            edge = stack.pop()
            there = graph.segment_of.get(edge[0], number)
            # (A view of what was written may lead to that by way of what was computed from the view. What is
            # a result goes on to this by itself.)
            elsewhere = there != number and graph.segments[there].cotangent_inputs.get(edge) is not None
            if edge in seen or graph.is_sink(edge) or elsewhere:
                continue
            seen.add(edge)
            if edge not in segment.cotangent_inputs:
                stack.extend(below for _, below in graph.below(edge[0]))
        found.append(frozenset(seen.intersection([*segment.cotangent_inputs, *graph.rebuilt_edges])))
    return found


def _base_of(tensor: Tensor) -> Tensor | None:
    """What a view was taken of: a formula may read what is kept by way of one (`conj`) without a history."""
    return tensor._base if tensor._is_view() else None


def frees_saved_tensors(
    recorder: Recorder,
    graph: SegmentedGraph,
    engine: BackwardRecorder,
    number: int,
    tensors: Sequence[Tensor],
) -> tuple[bool, bool]:
    """Whether eager's backward frees something in a segment, so that it runs once unless it is retained; and
    whether nothing but writes to views has saved something, which do not ask where no gradient comes.

    Args:
        tensors: what it may have saved that is the caller's.
    """
    nodes = [node for node in graph.segments[number].nodes if not _is_unfreed(recorder, node)]
    if not engine.segments[number].gradients:
        nodes += graph.dead_nodes(number)
    frees = any(_saves_something(node) for node in nodes if not autograd_graph.is_copy_slices(node)) or any(
        _reads(recorder, node) or any(True for _ in _saved_tensors_by_trial(recorder, node, tensors))
        for of, node in _nodes_hiding_saved_tensors(recorder, graph, engine)
        if of == number and not _is_unfreed(recorder, node)
    )
    frees = frees or any(
        of == number
        and not (autograd_graph.is_copy_slices(node) or _is_unfreed(recorder, node))
        and _saved_by_checkpoint(recorder, node) is not None
        for of, node in _secretive(graph, engine)
    )
    return frees or any(map(autograd_graph.is_copy_slices, nodes)), not frees


def keeps_attributes(recorder: Recorder, graph: SegmentedGraph, number: int) -> bool:
    """Whether nodes of a segment may keep what autograd does not know of, and never frees."""
    nodes = graph.segments[number].nodes
    if any(
        autograd_graph.has_hidden_saved_tensors(n)
        and autograd_graph.sequence_number(n) in recorder.under_hooks
        for n in nodes
    ):
        return False  # it is not known whether such a one, in a checkpoint, has saved something
    return any(autograd_graph.is_function_node(node) or _is_unfreed(recorder, node) for node in nodes)


def _is_unfreed(recorder: Recorder, node: Node) -> bool:
    return any(autograd_graph.sequence_number(node) in some for some in recorder.unfreed)


def _saves_something(node: Node) -> bool:
    raw: tuple[Any, ...] = getattr(node, "_raw_saved_tensors", ())
    return bool(raw) or _is_packed(node) or any(True for _ in _saved_tensors(node))


def _is_packed(node: Node, in_checkpoints: bool = True) -> bool:
    """Whether pack hooks got what the node has saved, of which autograd checks nothing then."""
    names = _saved_names(node)
    return any(activation_checkpoint.is_packed(node, name, in_checkpoints=in_checkpoints) for name in names)


def _version_checked_saved_tensors(
    fakes: Sequence[Tensor], run: Callable[[], object]
) -> Iterator[tuple[Tensor, str]]:
    """Those of some tensors, with a version counter each, which a backward checks: it raises when they have
    been written to. With what it says. Sought by halves, as most are none."""
    if not fakes:
        return
    with contextlib.ExitStack() as stack:
        for fake in fakes:
            stack.enter_context(as_if_bumped(fake))
        try:
            run()
        except RuntimeError as error:
            said = str(error)
        else:
            return
    if len(fakes) == 1:
        yield fakes[0], said
        return
    half = len(fakes) // 2
    yield from _version_checked_saved_tensors(fakes[:half], run)
    yield from _version_checked_saved_tensors(fakes[half:], run)


# How autograd begins to say that a tensor was written to.
_MODIFIED = "one of the variables needed for gradient computation has been modified"
_SAVED_NAMES: dict[type, tuple[str, ...]] = {}


def _saved_names(node: Node) -> tuple[str, ...]:
    names = _SAVED_NAMES.get(type(node))
    if names is None:
        names = _SAVED_NAMES[type(node)] = tuple(n for n in dir(node) if n.startswith("_saved_"))
    return names


def _saved_by_function(node: Node) -> tuple[Tensor, ...]:
    """The tensors that a custom function has saved, all of which its backward unpacks at once; in a
    checkpoint, what that was given."""
    if not autograd_graph.is_function_node(node):
        return ()
    try:
        if activation_checkpoint.is_packed(node, "_saved_tensors"):
            return activation_checkpoint.checkpoint_inputs(node, "_saved_tensors")
        saved: tuple[Tensor | None, ...] = node.saved_tensors  # type: ignore[attr-defined]
    except RuntimeError:
        return ()  # modified in place since, or freed
    return tuple(tensor for tensor in saved if tensor is not None)


def _given_to_checkpoints(node: Node) -> Iterator[Tensor]:
    """What the checkpoints were given that have what a node has saved."""
    for name in _saved_names(node):
        if activation_checkpoint.is_packed(node, name):
            with contextlib.suppress(RuntimeError):  # modified in place since: this backward raises anyway
                yield from activation_checkpoint.checkpoint_inputs(node, name)


def _saved_tensors(node: Node) -> Iterator[Tensor]:
    """The tensors that a node of the autograd graph has saved."""
    for name in _saved_names(node):
        if activation_checkpoint.is_packed(node, name):
            continue  # by a hook, that of checkpoint for one: autograd itself keeps nothing
        try:
            value = getattr(node, name)
        except RuntimeError:
            continue  # modified in place since: this backward raises anyway
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, Tensor):
                yield tensor
