"""Node origins: where each node of a graph comes from, noted while it is recorded.

In: a node, at the time when it is recorded. Out: an `Origin` in its ``meta``. The entries that tools read,
such as ``meta["stack_trace"]`` and ``meta["seq_nr"]``, are made from it when somebody looks at a graph
(`aot.graph.node_metadata`). So a recorded operation costs one small object only.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
import traceback
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from aot.ops.call_targets import call_by_name
from aot.torch_internals import autograd_graph, fx_graphs, op_queries

KEY = "aot_origin"
"""The key of the `Origin` in a node's ``meta``, until the metadata is completed."""

COMPLETED = frozenset(
    {
        *("tensor_meta", "seq_nr", "original_aten", "stack_trace", "nn_module_stack", "source_fn_stack"),
        *("from_node", "custom", "recompute", "ac_graph_id", "autograd_backward", "fwd_nn_module_stack"),
        *("fwd_source_fn_stack", "unbacked_bindings", "output_stack_traces", "desc"),
    }
)
"""The keys that are made from origins and descriptors. They inform people, and no code depends on them."""

LIBRARIES = tuple(f"{folder}/" for folder in (Path(nn.__file__).parents[1], Path(__file__).parents[1]))
_KEYS = ("stack_trace", "nn_module_stack")


class FrontEndGraph(NamedTuple):
    """A front end's graph that is being run.

    Attributes:
        module: a weak reference, because the module may hold parameters, which must not be kept alive.
        checkpoint: the number of the checkpoint of Dynamo's whose body the graph is, or None.
    """

    module: weakref.ref[fx.GraphModule]
    checkpoint: int | None


class Origin(NamedTuple):
    """Where a node comes from.

    Attributes:
        sequence: the sequence number of the autograd node of its operation; in a backward, of the one that
            runs.
        backward: it was recorded during differentiation.
        operator: the operation that it calls, or whose result it takes, or which was decomposed into it.
        graph, at: the front end's graph that ran, and the line of its code, or the node if an interpreter
            ran.
        notes: stack trace and modules, if the setting `stack_traces` is on.
        forward: for a node of the backward, the origin of what it differentiates, if that is known.
    """

    sequence: int
    backward: bool
    operator: op_queries.OpOverload | None
    graph: FrontEndGraph | None
    at: int | fx.Node
    notes: Mapping[str, Any]
    forward: Origin | None


class NodeOrigins:
    """Set the origin of each node when it is recorded.

    Args:
        stack_traces: record the lines of the function and the modules around them, which takes time.

    Attributes:
        operator: the operation that is being decomposed, or None.
    """

    def __init__(self, stack_traces: bool) -> None:
        self.operator: op_queries.OpOverload | None = None
        self._stack_traces = stack_traces
        self._of_nodes: dict[int, Origin] = {}  # by the sequence number of the node of autograd

    def note(self, node: fx.Node, backward: bool, again: bool) -> None:
        """Set the origin of `node`, which was just recorded.

        Args:
            backward: it was recorded during differentiation.
            again: a checkpoint runs the function's own code again at that time.
        """
        operator = self.operator or _operator_of(node)
        running = autograd_graph.current_node() if backward else None
        if not backward:
            node.meta[KEY] = self._note_forward(operator)
            return
        if running is None:  # a gradient is laid out
            given = next((one.meta[KEY] for one in node.all_input_nodes if KEY in one.meta), None)
            sequence, forward = (-1, None) if given is None else (given.sequence, given.forward)
        else:
            sequence = autograd_graph.sequence_number(running)
            forward = self._of_nodes.get(sequence)
        graph, at, notes = self._here() if again else (None, 0, _NOTHING)
        if not again and forward is not None:
            notes = forward.notes
        node.meta[KEY] = Origin(sequence, True, operator, graph, at, notes, forward)

    def note_view(self, operator: op_queries.OpOverload) -> None:
        """Record the origin of a view operation, whose nodes are recorded only when the view is read."""
        self._note_forward(operator)

    def _note_forward(self, operator: op_queries.OpOverload | None) -> Origin:
        # Autograd makes the node of an operation before it comes to the recorder.
        sequence = autograd_graph.next_sequence_number() - 1
        origin = Origin(sequence, False, operator, *self._here(), None)
        self._of_nodes.setdefault(sequence, origin)
        return origin

    def _here(self) -> tuple[FrontEndGraph | None, int | fx.Node, Mapping[str, Any]]:
        """The place where the function is: the front end's graph, and the lines if `stack_traces` is on."""
        graph, at = _front_end_place(sys._getframe(1)) if _graphs else (None, 0)
        return graph, at, _stack_trace_origin(sys._getframe(1)) if self._stack_traces else _NOTHING


_NOTHING: Mapping[str, Any] = {}
_graphs: dict[int, FrontEndGraph] = {}  # by the identity of the module, and of its code
_checkpoints = itertools.count()


@contextlib.contextmanager
def front_end_running(module: Any) -> Iterator[None]:
    """While it lasts, nodes come from the front end's graph `module` and the graphs that it calls.

    Other modules have no effect. One thread traces at a time, so the state is global.
    """
    global _graphs
    before = _graphs
    _graphs = dict(_front_end_graphs(module)) if isinstance(module, fx.GraphModule) else {}
    try:
        yield
    finally:
        _graphs = before


def _front_end_graphs(root: fx.GraphModule) -> Iterator[tuple[int, FrontEndGraph]]:
    bodies: dict[Any, int] = {}
    for module in root.modules():
        if isinstance(module, fx.GraphModule):
            for body in _checkpointed(module):
                bodies[body] = next(_checkpoints)
            graph = FrontEndGraph(weakref.ref(module), bodies.get(module))
            yield id(module), graph
            yield id(fx_graphs.forward_code(module)), graph


def _checkpointed(module: fx.GraphModule) -> Iterator[nn.Module]:
    """The bodies of Dynamo's checkpoints in a graph that have no `context_fn` to choose saved values."""
    for node in module.graph.nodes:
        if getattr(node.target, "__name__", "") == "tag_activation_checkpoint":
            body = node.args[0]
            if isinstance(body, fx.Node) and body.op == "get_attr" and "context_fn" not in node.kwargs:
                yield module.get_submodule(str(body.target))


def _front_end_place(frame: FrameType | None) -> tuple[FrontEndGraph | None, int | fx.Node]:
    """The innermost graph of the front end that runs, with the line of its code, or the node."""
    while frame is not None:
        code = frame.f_code
        if code is _INTERPRETED:
            graph = _graphs.get(id(frame.f_locals["self"].module))
            if graph is not None:
                return graph, frame.f_locals["n"]
        graph = _graphs.get(id(code))
        if graph is not None:
            return graph, frame.f_lineno
        frame = frame.f_back
    return None, 0


_INTERPRETED = fx.Interpreter.run_node.__code__


def front_end_node(graph: FrontEndGraph | None, at: int | fx.Node) -> fx.Node | None:
    """The node of a front end's graph at the place `Origin.at`; None if there is none any more."""
    if isinstance(at, fx.Node):
        return at
    module = None if graph is None else graph.module()
    if module is None:
        return None
    lines: dict[int, int | None] = getattr(module, "_lineno_map", None) or {}
    index = lines.get(at - getattr(module, "_prologue_start", 0))
    return None if index is None else next(itertools.islice(module.graph.nodes, index, None))


def _operator_of(node: fx.Node) -> op_queries.OpOverload | None:
    """The operation that a node calls, directly or not, or whose result it takes."""
    if isinstance(node.target, op_queries.OpOverload):
        return node.target
    first = node.args[0] if node.args else None
    if isinstance(first, fx.Node):
        origin = first.meta.get(KEY) if node.target is operator.getitem else None
        return None if origin is None else origin.operator
    if node.target is call_by_name:
        name, _, overload = str(first).partition(".")
        return getattr(getattr(torch.ops.aten, name), overload)  # type: ignore[no-any-return]
    return first if isinstance(first, op_queries.OpOverload) else None


def _stack_trace_origin(frame: FrameType | None) -> dict[str, Any]:
    lines: list[traceback.FrameSummary] = []
    modules: list[nn.Module] = []
    root: nn.Module | None = None
    known: dict[str, Any] = {}
    while frame is not None:
        code, where = frame.f_code, frame.f_locals
        if code.co_name == "_functional_call" and isinstance(where.get("module"), nn.Module):
            root = where["module"]
        if code.co_name == "flat" and code.co_filename.startswith(LIBRARIES):
            break  # what called it is the caller's
        if code.co_name == "_call_impl" and isinstance(where.get("self"), nn.Module):
            modules.append(where["self"])
        elif isinstance(where.get("self"), fx.GraphModule) and code.co_name == "forward":
            source = front_end_node(FrontEndGraph(weakref.ref(where["self"]), None), frame.f_lineno)
            known = known or ({} if source is None else source.meta)
        elif not code.co_filename.startswith(LIBRARIES):
            lines.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    names = {} if root is None else {id(module): name for name, module in root.named_modules()}
    stack = {
        str(id(module)): (names.get(id(module), type(module).__name__), type(module))
        for module in reversed(modules)
    }
    here = {"stack_trace": "".join(traceback.format_list(lines[::-1])), "nn_module_stack": stack}
    return {key: known.get(key) or here[key] for key in _KEYS}
