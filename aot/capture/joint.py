"""The joint graph: the recorded forward, then its backward, recorded in the same trace.

In: a `Forward` and its `Effects`. Out: a `Joint`: one graph whose inputs are primals then tangents and whose
outputs are the forward's values then the gradients, as AOTAutograd's convention has it, and the facts that
the runtime needs: which values have a tangent, which gradient belongs to which real tensor, and which
tangents each gradient depends on.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from aot import torch_internals as internals
from aot.capture.forward import Forward
from aot.capture.graph import by_name, call_by_name, meta_of
from aot.capture.recorder import Recorder, fake_of
from aot.effects import Effects, is_current
from aot.errors import LeafCreatedInside, Unsupported, UnsupportedOperation
from aot.geometry import Geometry, geometry
from aot.inputs import Primal


@dataclass(frozen=True, slots=True)
class Gradient:
    """A tensor that the compiled call is differentiated with respect to, and its gradient.

    Attributes:
        tensor: the argument that it belongs to, or one view whose hidden base it belongs to.
        of_base: whether it belongs to that base.
        result: which result of the backward graph it is; None where eager never has one.
        tangents: bit j is set when it depends on tangent j; without any of those it is None, as in eager.
    """

    tensor: int
    of_base: bool
    result: int | None
    tangents: int


Failure = tuple[int, type[Exception], str]


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor of the caller's that eager's backward keeps: written to between forward and backward, it makes
    the backward raise.

    Attributes:
        tensor, root: which argument or which root of the outputs; one of the two.
        tracked: the tracked values (bit k for the k-th) whose backward unpacks it, as far as that is shown.
        counted: whether a write to it is noticed; not if it is kept under another version counter (`.data`).
    """

    tensor: int | None
    root: int | None
    tracked: int
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Joint:
    """A recorded program, forward and backward.

    Attributes:
        graph: primals and tangents in, `values` then gradients out.
        primals: what each primal is.
        tangents: per tangent, the index of the value it belongs to and the geometry it was traced with.
        gradients: in the order of their results; empty for a program without a backward.
        failing: indices of values whose backward raises in eager, and the error's type and text.
        kept: what of the caller's the backward keeps.
        resident: names of values that an argument's memory holds when the call returns, with the argument
            and their place in its storage.
    """

    graph: fx.GraphModule
    values: int
    primals: tuple[Primal, ...]
    tangents: tuple[tuple[int, Geometry], ...]
    gradients: tuple[Gradient, ...]
    failing: tuple[Failure, ...]
    kept: tuple[Kept, ...]
    resident: dict[str, tuple[int, Geometry]]


def record_backward(forward: Forward, effects: Effects) -> Joint:
    """Differentiate the recorded forward, inside its trace, and close the graph.

    Raises:
        LeafCreatedInside: something requires grad although no argument does.
        UnsupportedOperation: a checkpoint with ``use_reentrant=True``.
        UnsupportedHook: the function has registered a hook where the caller may register others.
    """
    recorder = forward.recorder
    builder = recorder.builder
    tracked = [i for i, value in enumerate(effects.values) if value.history is not None]
    targets, edges = _roots(forward)
    _check_hooks(forward, targets, edges)
    tangents: list[tuple[int, Geometry]] = []
    tangent_nodes: list[fx.Node] = []
    gradients: list[Gradient] = []
    gradient_nodes: list[fx.Node] = []
    failing: list[Failure] = []
    if tracked and not edges:
        raise LeafCreatedInside(
            "an output or a written argument requires grad, but no argument does: its gradient ends in a "
            "leaf that the function made; make the leaf outside and pass it in"
        )
    if tracked:
        for node in builder.graph.nodes:
            node.meta["partitioner_tag"] = "is_forward"
        builder.backward = True
        fakes: list[Tensor] = []
        for i in tracked:
            history = effects.values[i].history
            assert history is not None
            fake, where = _tangent(history)
            node = builder.placeholder(f"tangents_{len(tangents) + 1}", meta_of(fake))
            recorder.adopt(fake).define(where, node)
            tangents.append((i, where))
            tangent_nodes.append(node)
            fakes.append(fake)
        outputs = [history for i in tracked if (history := effects.values[i].history) is not None]

        def differentiate(chosen: Sequence[int], keep: bool) -> tuple[Tensor | None, ...]:
            with (
                recorder.draws.traced(),
                recorder,
                torch.autograd.set_multithreading_enabled(False),
                _no_autocast(),
            ):
                return torch.autograd.grad(
                    [outputs[k] for k in chosen],
                    edges,
                    [fakes[k] for k in chosen],
                    retain_graph=keep,
                    allow_unused=True,
                )

        chosen, results, failing = _differentiate(differentiate, tracked)
        if failing and any(n.name() == "CheckpointFunctionBackward" for n in _between(outputs, edges)):
            raise UnsupportedOperation(
                "torch.utils.checkpoint with use_reentrant=True, which runs a backward of its own inside the "
                "backward; pass use_reentrant=False"
            )
        masks = _dependencies([outputs[k] for k in chosen], edges) if chosen else []
        tangents = [tangents[k] for k in chosen]
        tangent_nodes = [tangent_nodes[k] for k in chosen]
        for (tensor, of_base), result, mask in zip(targets, results, masks, strict=bool(chosen)):
            if result is not None:
                gradients.append(Gradient(tensor, of_base, len(gradient_nodes), mask))
                with torch.no_grad():
                    gradient_nodes.append(recorder.read(result))
        if not gradients:
            # The outputs still require grad; only that nothing comes of it, or an error.
            gradients = [Gradient(tensor, of_base, None, 0) for tensor, of_base in targets]
            tangents, tangent_nodes = [], []
    kept: tuple[Kept, ...] = ()
    if tracked:
        with torch.autograd.set_multithreading_enabled(False):
            kept = _kept(forward, effects, edges, lambda: _try(recorder, outputs, edges, fakes, failing))
    nodes = [value.node for value in effects.values]
    primals = _close(builder.graph, forward.primals, tangent_nodes, nodes + gradient_nodes)
    builder.annotate(builder.graph.nodes)
    module = fx.GraphModule(builder.root, builder.graph, "Joint")
    return Joint(
        module,
        len(nodes),
        primals,
        tuple(tangents),
        tuple(gradients),
        tuple(failing),
        kept,
        _resident(forward),
    )


def _check_hooks(forward: Forward, targets: list[tuple[int, bool]], edges: list[GradientEdge]) -> None:
    hooks = forward.recorder.hooks
    hooks.check("tensor", [(i, edge) for (i, _), edge in zip(targets, edges, strict=True)])
    hooks.check("tensor", _edges_of(enumerate(forward.entry.fakes)))
    hooks.check("output", _edges_of(enumerate(forward.outputs)))


def _edges_of(values: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, GradientEdge]]:
    for number, value in values:
        if (
            isinstance(value, Tensor)
            and value.requires_grad
            and is_current(value)
            and value.grad_fn is not None
        ):
            yield number, get_gradient_edge(value)


def _resident(forward: Forward) -> dict[str, tuple[int, Geometry]]:
    found: dict[str, tuple[int, Geometry]] = {}
    for i, fake in enumerate(forward.entry.fakes):
        state = forward.recorder.state(fake)
        if state.writes:
            for where, node in state.current().items():
                if where.dtype == fake.dtype and not where.is_lazy and not geometry(fake).is_lazy:
                    found.setdefault(node.name, (i, where))
    return found


def _kept(
    forward: Forward,
    effects: Effects,
    edges: list[GradientEdge],
    differentiate: Callable[[], object],
) -> tuple[Kept, ...]:
    """What of the caller's the backward keeps, as autograd in eager keeps it.

    Asked of the autograd graph itself: a formula may keep a tensor, and so check its version, and then not
    read it for the values at hand.
    """
    recorder = forward.recorder
    outputs = [v.history for v in effects.values if v.history is not None]
    # What the formulas inside a CopySlices node keep is not shown, so what was read counts as well.
    saved = {key: [(read, 0) for read in reads] for key, reads in recorder.backward_reads.items()}
    for tensor, mask in _saved_tensors(outputs, edges):
        saved.setdefault(internals.storage_key(tensor), []).append((tensor, mask))

    def keeping(fake: Tensor) -> list[int]:
        known = saved.get(internals.storage_key(fake), ())
        return [m for t, m in known if t is fake or internals.share_version_counter(fake, t)]

    def raises_if_written(fake: Tensor) -> bool:
        with internals.moved_version(fake):
            try:
                differentiate()
            except RuntimeError:
                return True
        return False

    arguments: list[tuple[int | None, int | None, Tensor]]
    arguments = [(i, None, fake) for i, fake in enumerate(forward.entry.fakes)]
    roots = [(None, k, fake) for k, fake in enumerate(effects.root_fakes)]
    kept = []
    for tensor_index, root, fake in (*arguments, *roots):
        masks = keeping(fake)
        if not masks and internals.storage_key(fake) in recorder.joined and raises_if_written(fake):
            masks = [(1 << len(outputs)) - 1]
        if masks:
            kept.append(Kept(tensor_index, root, functools.reduce(operator.or_, masks)))
        elif internals.storage_key(fake) in saved:
            kept.append(Kept(tensor_index, root, 0, counted=False))
    return tuple(kept)


_SAVED_NAMES: dict[type, tuple[str, ...]] = {}


def _saved_tensors(outputs: list[Tensor], edges: list[GradientEdge]) -> Iterator[tuple[Tensor, int]]:
    """The tensors that the autograd graph between `outputs` and `edges` has saved, each with the outputs (bit
    k for output k) whose backward unpacks it."""
    for node, mask in _between(outputs, edges).items():
        names = _SAVED_NAMES.get(type(node))
        if names is None:
            names = _SAVED_NAMES[type(node)] = tuple(n for n in dir(node) if n.startswith("_saved_"))
        for name in names:
            if internals.is_packed(node, name):
                continue  # by a hook, that of checkpoint for one: autograd itself keeps nothing
            try:
                value = getattr(node, name)
            except RuntimeError:
                continue  # modified in place since: this backward raises anyway
            for tensor in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(tensor, Tensor):
                    yield tensor, mask


def _between(outputs: list[Tensor], edges: list[GradientEdge]) -> dict[Node, int]:
    """The nodes that a backward from `outputs` to `edges` runs, each with the outputs that run it."""
    ends = {(edge.node, edge.output_nr) for edge in edges}
    starts = [get_gradient_edge(output).node for output in outputs]
    order: list[Node] = []  # children before parents
    needed: set[Node] = set()
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(node, False) for node in starts]
    while stack:
        node, done = stack.pop()
        children = [(n, k) for n, k in node.next_functions if n is not None]
        if done:
            order.append(node)
            if any((n, k) in ends or n in needed for n, k in children):
                needed.add(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((n, False) for n, k in children if (n, k) not in ends)
    masks = dict.fromkeys(order, 0)
    for bit, node in enumerate(starts):
        masks[node] |= 1 << bit
    for node in reversed(order):
        for child, number in node.next_functions:
            if child is not None and (child, number) not in ends:
                masks[child] |= masks[node]
    return {node: masks[node] for node in order if node in needed}


def _differentiate(
    differentiate: Callable[[Sequence[int], bool], tuple[Tensor | None, ...]], tracked: list[int]
) -> tuple[list[int], tuple[Tensor | None, ...], list[Failure]]:
    """Differentiate everything at once; where that raises, find out whose backward it is that raises.

    Eager raises when a value that backward needs was modified in place; what does not need it is fine.
    """
    everything = list(range(len(tracked)))
    try:
        return everything, differentiate(everything, True), []
    except Unsupported:
        raise
    except Exception:
        failing: list[Failure] = []
        for k in everything:
            try:
                differentiate([k], True)
            except Exception as error:
                failing.append((tracked[k], type(error), str(error)))
        if not failing:
            raise
        bad = {i for i, _, _ in failing}
        good = [k for k in everything if tracked[k] not in bad]
        return good, differentiate(good, True) if good else (), failing


def _try(
    recorder: Recorder,
    outputs: list[Tensor],
    edges: list[GradientEdge],
    fakes: list[Tensor],
    failing: list[Failure],
) -> None:
    """Differentiate once more, to see whether it raises; what this records is read by nobody."""
    if not failing:
        with recorder.draws.traced(), recorder:
            torch.autograd.grad(outputs, edges, fakes, retain_graph=True, allow_unused=True)


def _no_autocast() -> Any:
    return torch.autocast("cpu", enabled=False)


def _roots(forward: Forward) -> tuple[list[tuple[int, bool]], list[GradientEdge]]:
    """What is differentiated with respect to: every argument's edge on entry, and hidden bases'."""
    entry = forward.entry
    targets: list[tuple[int, bool]] = []
    edges: list[GradientEdge] = []
    for i, edge in enumerate(entry.edges):
        if edge is not None:
            targets.append((i, False))
            edges.append(edge)
    for (_, view), edge in zip(entry.bases, entry.base_edges, strict=True):
        if edge is not None:
            targets.append((view, True))
            edges.append(edge)
    return targets, edges


def _tangent(like: Tensor) -> tuple[Tensor, Geometry]:
    """A fake tangent: laid out as the value is, or row-major where that shows one element twice."""
    where = Geometry(tuple(like.shape), like.stride(), 0, like.dtype)
    if where.overlaps_itself_somehow:
        where = where._replace(stride=torch.empty(like.shape, device="meta").stride())
    return fake_of(where, like.device), where


def _dependencies(outputs: list[Tensor], edges: list[GradientEdge]) -> list[int]:
    """For each edge, which outputs' backward reaches it, as a bit mask.

    By the autograd graph and not by the recorded one: a gradient of zeros (of an overwritten value) reads
    no tangent, and still is None when its output is not differentiated.
    """
    if len(outputs) == 1:
        return [1] * len(edges)
    where = {(edge.node, edge.output_nr): i for i, edge in enumerate(edges)}
    masks = [0] * len(edges)
    for bit, output in enumerate(outputs):
        start = get_gradient_edge(output)
        seen: set[Node] = set()
        stack: list[tuple[Node, int]] = [(start.node, start.output_nr)]
        while stack:
            node, number = stack.pop()
            edge = where.get((node, number))
            if edge is not None:
                masks[edge] |= 1 << bit
                continue
            if node not in seen:
                seen.add(node)
                stack.extend((n, k) for n, k in node.next_functions if n is not None)
    return masks


def _close(
    graph: fx.Graph, primals: list[Primal], tangents: list[fx.Node], outputs: list[fx.Node]
) -> tuple[Primal, ...]:
    """Put placeholders first, give the graph its output, and drop what nobody needs."""
    graph.output(tuple(outputs))
    anchor = graph._root
    for node in [p.node for p in primals] + tangents:
        anchor.append(node)
        anchor = node
    eliminate_dead_code(graph)
    used: list[Primal] = []
    for primal in primals:
        if primal.node.users:
            used.append(primal)
        else:
            graph.erase_node(primal.node)
    kept = {p.node for p in used} | set(tangents)
    for node in list(graph.nodes):
        if node.op == "placeholder" and node not in kept:
            graph.erase_node(node)
    return tuple(used)


def eliminate_dead_code(graph: fx.Graph) -> None:
    """Drop every node without users or effects."""
    for node in reversed(graph.nodes):
        if not node.users and node.op in ("call_function", "get_attr") and not has_effect(node):
            graph.erase_node(node)


def has_effect(node: fx.Node) -> bool:
    """Whether running the node is seen even if nobody reads its result: it moves a random generator, or is
    a check that may raise."""
    op = operation_of(node)
    return op is not None and (moves_generator(node) or not op._schema.returns)


def moves_generator(node: fx.Node) -> bool:
    """Whether running the node draws random numbers."""
    op = operation_of(node)
    return op is not None and torch.Tag.nondeterministic_seeded in op.tags


def operation_of(node: fx.Node) -> internals.OpOverload | None:
    """The ATen operation that a node calls, directly or through one of our functions."""
    target: Any = node.target
    if node.op != "call_function":
        return None
    if target is call_by_name:
        target = by_name(str(node.args[0]))
    elif not isinstance(target, internals.OpOverload):
        target = next((a for a in node.args if isinstance(a, internals.OpOverload)), None)
    return target if isinstance(target, internals.OpOverload) else None
