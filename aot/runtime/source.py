"""Python source under construction: lines, names for what has no literal form, and how views are written."""

from __future__ import annotations

from typing import Any

from aot.capture.storages import ViewStep
from aot.effects import AliasRoot, View
from aot.geometry import Geometry


class Writer:
    """Lines of source, and the objects that they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.indent = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text if text else "")

    def name(self, prefix: str, value: Any) -> str:
        """A name for an object that has no literal form."""
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def op(self, op: Any) -> str:
        """An ATen operation, by its full name where it has one."""
        text = str(op)
        if text.startswith("aten."):
            return f"torch.ops.{text}"
        return self.name("op", op)

    def literal(self, value: Any) -> str:
        if type(value) in (list, tuple):
            inner = ", ".join(self.literal(v) for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float) and value == value and abs(value) != float("inf"):
            return repr(value)
        return self.name("constant", value)


class GradMode:
    """Emits a change of grad mode only where there is one."""

    def __init__(self, writer: Writer, now: bool) -> None:
        self.writer = writer
        self.now = now

    def set(self, grad: bool) -> None:
        if grad != self.now:
            self.writer.line(f"set_grad_enabled({grad})")
            self.now = grad


def seen_as(writer: Writer, source: str, where: Geometry, reinterpreted: bool) -> str:
    """A view of the storage of `source`."""
    if reinterpreted:
        return f"seen_as({source}, {writer.name('where', where)})"
    return as_strided(writer, source, where)


def as_strided(writer: Writer, source: str, where: Geometry) -> str:
    size, stride = writer.literal(where.size), writer.literal(where.stride)
    return f"{source}.as_strided({size}, {stride}, {where.offset})"


def alias(writer: Writer, root: AliasRoot) -> str:
    """A detached alias: a tensor of its own for autograd, on the same memory."""
    if root.tensor is not None:
        source = f"t{root.tensor}"
    else:
        source = f"r{root.root}" if root.root is not None else f"v{root.value}"
    source += ".detach()" if root.counted else ".data"
    return f"{seen_as(writer, source, root.where, root.reinterpreted)}.detach()"


def write_view(writer: Writer, mode: GradMode, name: str, view: View, source: str) -> None:
    if view.where is not None:
        mode.set(view.grad)
        writer.line(f"{name} = {seen_as(writer, source, view.where, view.reinterpreted)}")
        return
    for one in view.steps:
        mode.set(one.grad)
        writer.line(f"{name} = {step(writer, source, one)}")
        source = name


def step(writer: Writer, source: str, one: ViewStep) -> str:
    arguments = [source, *(writer.literal(a) for a in one.args)]
    arguments += [f"{k}={writer.literal(v)}" for k, v in one.kwargs.items()]
    text = f"{writer.op(one.op)}({', '.join(arguments)})"
    return text if one.index is None else f"{text}[{one.index}]"
