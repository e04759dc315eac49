"""Where the nodes of a graph come from: lines of the function, and modules around them."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from torch import fx, nn

from aot.torch_internals import autograd_graph

_LIBRARIES = tuple(f"{folder}/" for folder in (Path(nn.__file__).parents[1], Path(__file__).parents[1]))
_KEYS = ("stack_trace", "nn_module_stack")


class StackTraces:
    """Notes for each node what the function was doing when it was recorded; for a node of the backward, what
    it was doing when it recorded what is differentiated there."""

    def __init__(self) -> None:
        self._of_nodes: dict[int, dict[str, Any]] = {}  # by the sequence number of the node of autograd

    def note(self, node: fx.Node, backward: bool) -> None:
        """Tell where `node`, which was just recorded, comes from."""
        running = autograd_graph.current_node() if backward else None
        if running is not None:
            found = self._of_nodes.get(autograd_graph.sequence_number(running), {})
        else:
            found = _stack_trace_origin(sys._getframe(1))
            # Autograd makes the node of an operation before it comes to the recorder.
            self._of_nodes.setdefault(autograd_graph.next_sequence_number() - 1, found)
        node.meta.update(found)


def _stack_trace_origin(frame: FrameType | None) -> dict[str, Any]:
    lines: list[traceback.FrameSummary] = []
    modules: list[nn.Module] = []
    root: nn.Module | None = None
    known: dict[str, Any] = {}
    while frame is not None:
        code, where = frame.f_code, frame.f_locals
        if code.co_name == "_functional_call" and isinstance(where.get("module"), nn.Module):
            root = where["module"]
        if code.co_name == "flat" and code.co_filename.startswith(_LIBRARIES):
            break  # what called it is the caller's
        if code.co_name == "_call_impl" and isinstance(where.get("self"), nn.Module):
            modules.append(where["self"])
        elif isinstance(where.get("self"), fx.GraphModule) and code.co_name == "forward":
            known = known or _of_line(where["self"], frame.f_lineno)
        elif not code.co_filename.startswith(_LIBRARIES):
            lines.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    names = {} if root is None else {id(module): name for name, module in root.named_modules()}
    stack = {
        str(id(module)): (names.get(id(module), type(module).__name__), type(module))
        for module in reversed(modules)
    }
    here = {"stack_trace": "".join(traceback.format_list(lines[::-1])), "nn_module_stack": stack}
    return {key: known.get(key) or here[key] for key in _KEYS}


def _of_line(module: fx.GraphModule, line: int) -> dict[str, Any]:
    """What a front end says of the line of its graph that runs."""
    lines: dict[int, int | None] = getattr(module, "_lineno_map", None) or {}
    index = lines.get(line - getattr(module, "_prologue_start", 0))
    return {} if index is None else list(module.graph.nodes)[index].meta
