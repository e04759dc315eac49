"""Straight line: a graph as a Python function that only calls its operations, one after the other.

In: an `fx.GraphModule`. Out: a function that does what `GraphModule.forward` does. It is made in a fraction
of the time. fx writes code that people can read and save, which looks up every operation by its full name at
each call. Here operations and constants are names in the function's own scope.
"""

from __future__ import annotations

import itertools
import keyword
import math
import operator
from collections.abc import Callable
from typing import Any

from torch import fx

_LITERALS = (int, bool, str, type(None))


class _NotStraightLine(Exception):
    """The graph has a node or an argument that this module does not write."""


def compile_straight_line(module: fx.GraphModule) -> Callable[..., Any] | None:
    """A function that runs the module's present graph; None if fx has to write the code.

    As in fx's code, values are freed after their last use, and attributes of the module are read at each
    call.

    Example:
        >>> module = torch.fx.symbolic_trace(lambda x: x.sin())  # doctest: +SKIP
        >>> compile_straight_line(module)(torch.zeros(2))  # doctest: +SKIP
        tensor([0., 0.])
    """
    try:
        return _Writer(module).straight_line_source()
    except _NotStraightLine:
        return None


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


class _Writer:
    def __init__(self, module: fx.GraphModule) -> None:
        self._graph = module.graph
        self._scope: dict[str, Any] = {"module": module}
        self._names: dict[fx.Node, str] = {}
        self._constants: dict[int, str] = {}
        self._numbers = itertools.count()

    def straight_line_source(self) -> Callable[..., Any]:
        nodes = list(self._graph.nodes)
        dying: dict[fx.Node, list[fx.Node]] = {}
        used: set[fx.Node] = set()
        for node in reversed(nodes):
            last = [one for one in node.all_input_nodes if one not in used]
            used.update(last)
            dying[node] = last
        parameters: list[str] = []
        lines: list[str] = []
        for node in nodes:
            if node.op == "placeholder":
                if node.args or node.target.startswith("*"):
                    raise _NotStraightLine
                parameters.append(self._name(node))
            elif node.op == "output":
                lines.append(f" return {self._argument_source(node.args[0])}")
            else:
                said = self._call_source(node)
                lines.append(f" {self._name(node)} = {said}" if node.users else f" {said}")
                if dying[node]:
                    lines.append(f" del {', '.join(self._names[one] for one in dying[node])}")
        body = "\n".join(lines)
        exec(compile(f"def forward({', '.join(parameters)}):\n{body}\n", "<graph>", "exec"), self._scope)
        forward: Callable[..., Any] = self._scope.pop("forward")  # in its own scope it would stay alive
        return forward

    def _call_source(self, node: fx.Node) -> str:
        if node.op == "get_attr":
            target = str(node.target)
            if not all(map(_is_name, target.split("."))):
                raise _NotStraightLine
            return f"module.{target}"
        if node.op != "call_function":
            raise _NotStraightLine
        if node.target is operator.getitem and not node.kwargs:
            return f"{self._argument_source(node.args[0])}[{self._argument_source(node.args[1])}]"
        if not all(map(_is_name, node.kwargs)):
            raise _NotStraightLine
        args = [self._argument_source(one) for one in node.args]
        args += [f"{name}={self._argument_source(value)}" for name, value in node.kwargs.items()]
        return f"{self._constant(node.target)}({', '.join(args)})"

    def _name(self, node: fx.Node) -> str:
        return self._names.setdefault(node, f"v{len(self._names)}")

    def _argument_source(self, value: Any) -> str:
        kind = type(value)
        if kind is fx.Node:
            return self._names[value]
        if kind in _LITERALS or (kind is float and math.isfinite(value)):
            return repr(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self._argument_source, value))}]"
        if kind is tuple:
            return f"({''.join(f'{self._argument_source(one)}, ' for one in value)})"
        if kind is slice:
            bounds = map(self._argument_source, (value.start, value.stop, value.step))
            return f"slice({', '.join(bounds)})"
        if isinstance(value, dict):
            entries = (
                f"{self._argument_source(key)}: {self._argument_source(one)}" for key, one in value.items()
            )
            return f"{{{', '.join(entries)}}}"
        if isinstance(value, tuple):
            raise _NotStraightLine
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        """The name of a constant in the scope, which keeps it alive, so that its id stays its own."""
        name = self._constants.get(id(value))
        if name is None:
            name = self._constants[id(value)] = f"c{next(self._numbers)}"
            self._scope[name] = value
        return name
