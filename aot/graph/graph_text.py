"""Text of graphs, layouts and operations, as `print` of a stage and `aot.explain` show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx

from aot.graph.value_meta import Number, lookup
from aot.tensors.geometry import Geometry, known_equal

INDENT = "  "


def section(title: str, lines: Iterable[object]) -> str:
    """A title and, indented below it, lines; nothing where there are none."""
    text = "".join(f"{INDENT}{part}\n" for line in lines for part in str(line).splitlines())
    return f"{title}\n{text}" if text else ""


def labels(described: object, *names: str) -> list[str]:
    """The names of those attributes that are true, as words."""
    return [name.replace("_", " ") for name in names if getattr(described, name)]


def shape_text(dtype: torch.dtype, size: Iterable[Any]) -> str:
    """Such as ``float32[2, 3]``."""
    return f"{str(dtype).removeprefix('torch.')}{list(size)}"


def layout_text(where: Geometry) -> str:
    """A shape, with what is not usual: strides that are not row-major, an offset, lazy conjugation."""
    words = [shape_text(where.dtype, where.size)]
    words += [] if _is_row_major(where) else [f"strides {list(where.stride)}"]
    words += [] if known_equal((where.offset,), (0,)) else [f"offset {where.offset}"]
    return " ".join([*words, *labels(where, "conj", "neg")])


def _is_row_major(where: Geometry) -> bool:
    """Whether it is known to be. (To ask symbols would be to assume something of every call.)"""
    expected = 1
    for n, s in zip(reversed(where.size), reversed(where.stride), strict=True):
        if not (known_equal((n,), (1,)) or known_equal((s,), (expected,))):
            return False
        expected *= n
    return True


def argument_text(value: Any) -> str:
    """An argument of an operation. (A fake has no values to show, and an address differs from run to run.)"""
    if isinstance(value, Tensor):
        return shape_text(value.dtype, value.shape)
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(argument_text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if callable(value) and not isinstance(value, (type, torch.dtype)):
        return target_text(value)
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def target_text(target: Any) -> str:
    """The name of what a node calls."""
    name = str(target)
    return str(getattr(target, "__name__", name)) if name.startswith("<") else name


def call_text(target: Any, args: Iterable[Any], kwargs: dict[str, Any], first: str | None = None) -> str:
    """A call, such as ``aten.view.default(_, [-1])``, of `first`, if that is given, and the arguments."""
    named = (f"{name}={argument_text(value)}" for name, value in kwargs.items())
    every = [*([] if first is None else [first]), *map(argument_text, args), *named]
    return f"{target_text(target)}({', '.join(every)})"


def value_text(value: Any) -> str:
    """What a node of a finished graph gives, by its ``meta["val"]``."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(value_text, value))})"
    dtype = getattr(value, "dtype", None)
    return repr(value) if dtype is None else shape_text(dtype, value.shape)


def meta_text(meta: Any) -> str:
    """What a node of a graph under construction gives, by the builder's metadata."""
    if isinstance(meta, tuple):
        return f"({', '.join(map(meta_text, meta))})"
    if isinstance(meta, Number):
        return repr(meta.value)
    if not isinstance(meta, int):
        return repr(meta)
    known = lookup(meta)
    return shape_text(known.dtype, known.size)


def _finished(node: fx.Node) -> str:
    return value_text(node.meta.get("val"))


def node_text(node: fx.Node, shown: Callable[[fx.Node], str] = _finished) -> str:
    """The line of a node, with what it gives."""
    if node.op == "output":
        return f"return {argument_text(node.args[0])}"
    if node.op == "placeholder":
        return f"{node.name}: {shown(node)}"
    if node.op == "get_attr":
        return f"{node.name} = {node.target}  # {shown(node)}"
    return f"{node.name} = {call_text(node.target, node.args, node.kwargs)}  # {shown(node)}"


def graph_lines(
    graph: fx.Graph,
    module: torch.nn.Module | None = None,
    shown: Callable[[fx.Node], str] = _finished,
) -> Iterator[str]:
    """The lines of a graph; after a node that names a graph in `module`, those of that one, indented."""
    for node in graph.nodes:
        yield node_text(node, shown)
        inner = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(inner, fx.GraphModule):
            yield from (INDENT * 2 + line for line in graph_lines(inner.graph, inner))
