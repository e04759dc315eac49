"""Node origins: where the nodes of a graph come from, noted while they are recorded.

What tools read of that (``meta["stack_trace"]``, ``meta["seq_nr"]``, ...) is made of it when somebody is to
look at a graph (`aot.graph.node_metadata`): a recorded operation pays for one small object.
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
"""Under this name an `Origin` is in the ``meta`` of a node, until that is completed."""

COMPLETED = frozenset(
    {
        *("tensor_meta", "seq_nr", "original_aten", "stack_trace", "nn_module_stack", "source_fn_stack"),
        *("from_node", "custom", "recompute", "ac_graph_id", "autograd_backward", "fwd_nn_module_stack"),
        *("fwd_source_fn_stack", "unbacked_bindings", "output_stack_traces", "desc"),
    }
)
"""What is made of origins, and of descriptors: it tells people something, and decides nothing."""

LIBRARIES = tuple(f"{folder}/" for folder in (Path(nn.__file__).parents[1], Path(__file__).parents[1]))
_KEYS = ("stack_trace", "nn_module_stack")


class FrontEndGraph(NamedTuple):
    """A graph of a front end's that is being run.

    Attributes:
        module: refers to it, and does not hold it: it may hold parameters, which go when their holders go.
        checkpoint: the number of the checkpoint that it is the body of, if it is one of Dynamo's.
    """

    module: weakref.ref[fx.GraphModule]
    checkpoint: int | None


class Origin(NamedTuple):
    """Where a node comes from.

    Attributes:
        sequence: the number of the node of autograd that its operation has, or, in a backward, that runs.
        backward: whether it was recorded while differentiating.
        operator: the operation that it calls, takes a result of, or is a part of, if one was decomposed.
        graph, at: the front end's graph that ran, and where in it: the line of its code, or, where that was
            not what ran, the node.
        notes: what the settings `stack_traces` has noted besides.
        forward: of a node of the backward: what it differentiates, as far as that is known.
    """

    sequence: int
    backward: bool
    operator: op_queries.OpOverload | None
    graph: FrontEndGraph | None
    at: int | fx.Node
    notes: Mapping[str, Any]
    forward: Origin | None


class NodeOrigins:
    """Notes for each node what was being done when it was recorded.

    Attributes:
        operator: the operation that is being decomposed, if one is.

    Args:
        stack_traces: whether to note lines of the function and the modules around them, which takes time.
    """

    def __init__(self, stack_traces: bool) -> None:
        self.operator: op_queries.OpOverload | None = None
        self._stack_traces = stack_traces
        self._of_nodes: dict[int, Origin] = {}  # by the sequence number of the node of autograd

    def note(self, node: fx.Node, backward: bool, again: bool) -> None:
        """Note where `node` comes from, which was just recorded.

        Args:
            backward: whether that was done while differentiating.
            again: whether the function's own code runs then, once more.
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
        """Note what takes a view, of which nodes are recorded when somebody reads it."""
        self._note_forward(operator)

    def _note_forward(self, operator: op_queries.OpOverload | None) -> Origin:
        # Autograd makes the node of an operation before it comes to the recorder.
        sequence = autograd_graph.next_sequence_number() - 1
        origin = Origin(sequence, False, operator, *self._here(), None)
        self._of_nodes.setdefault(sequence, origin)
        return origin

    def _here(self) -> tuple[FrontEndGraph | None, int | fx.Node, Mapping[str, Any]]:
        """Where the function is: in a front end's graph, and on which lines, if those are asked for."""
        graph, at = _front_end_place(sys._getframe(1)) if _graphs else (None, 0)
        return graph, at, _stack_trace_origin(sys._getframe(1)) if self._stack_traces else _NOTHING


_NOTHING: Mapping[str, Any] = {}
_graphs: dict[int, FrontEndGraph] = {}  # by the identity of the module, and of its code
_checkpoints = itertools.count()


@contextlib.contextmanager
def front_end_running(module: Any) -> Iterator[None]:
    """While this lasts, a front end's graph, if `module` is one, and those that it calls are known.

    (One thread traces at a time.)
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
    """Yield the bodies of Dynamo's checkpoints that a graph calls and that save nothing they are told to."""
    for node in module.graph.nodes:
        if getattr(node.target, "__name__", "") == "tag_activation_checkpoint":
            body = node.args[0]
            if isinstance(body, fx.Node) and body.op == "get_attr" and "context_fn" not in node.kwargs:
                yield module.get_submodule(str(body.target))


def _front_end_place(frame: FrameType | None) -> tuple[FrontEndGraph | None, int | fx.Node]:
    """The innermost graph of the front end that runs, and the line of its code, or the node."""
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
    """The node of a front end's graph that an operation comes from (`Origin.at`), while there is one."""
    if isinstance(at, fx.Node):
        return at
    module = None if graph is None else graph.module()
    if module is None:
        return None
    lines: dict[int, int | None] = getattr(module, "_lineno_map", None) or {}
    index = lines.get(at - getattr(module, "_prologue_start", 0))
    return None if index is None else next(itertools.islice(module.graph.nodes, index, None))


def _operator_of(node: fx.Node) -> op_queries.OpOverload | None:
    """The operation that a node calls, or takes a result of, whatever calls it."""
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
