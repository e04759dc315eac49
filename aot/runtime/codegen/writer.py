"""Python source under construction: lines, names for what has no literal form, and how views are written."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from aot.analysis.effect_summary import AliasRoot, Change, Memory, View, WrapperRebound
from aot.capture.memory.metadata_log import MetadataMutation
from aot.capture.memory.view_ops import CreationMode, ViewOp
from aot.runtime.saved_values import Saved
from aot.tensors.geometry import Geometry
from aot.tensors.subclasses import PlainTensorMeta, SharedTensorMeta, SubclassCreationMeta, has_nested_ints
from aot.tensors.symbolic_sizes import has_symbols, source_of
from aot.torch_internals import op_queries

_SET = torch.ops.aten.set_.source_Storage_storage_offset


class SourceWriter:
    """Lines of source, and the objects that they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.indent = 0
        self.changed: dict[int, str] = {}  # the tensors whose metadata was changed in place, by that step
        self.calls: dict[
            object, str
        ] = {}  # the calls that have made several views, by what they were made of
        self.parts: set[object] = set()  # the calls' results that have become something
        self.detached: dict[object, str] = {}  # what views were taken of, by how it was made: their base
        self.storages: set[str] = set()  # those that wrapper subclasses are put onto, and the function made
        self.methods = False  # whether views may be taken by methods of tensors
        self._copies: dict[int, list[tuple[str, str]]] = {}

    def line(self, text: str) -> None:
        self.flush()
        self.lines.append("    " * self.indent + text if text else "")

    def copy(self, target: str, value: str, group: int) -> None:
        """Write `value` to `target`: what is written of a group one after the other, by one call."""
        self._copies.setdefault(group, []).append((target, value))

    def flush(self) -> None:
        """Make the copies that are due."""
        due, self._copies = self._copies, {}
        for copies in due.values():
            if len(copies) == 1:
                self.line("{}.copy_({})".format(*copies[0]))
            else:
                targets, values = map(", ".join, zip(*copies, strict=True))
                self.line(f"copy_each([{targets}], [{values}])")

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
        if isinstance(op, op_queries.OpOverload) and op.namespace == "aten":
            return f"torch.ops.{op}"
        return self.name("op", op)

    def literal(self, value: Any) -> str:
        if type(value) in (list, tuple):
            inner = ", ".join(self.literal(v) for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
        if value is None or type(value) in (bool, int, str):  # and no subclass, which prints otherwise
            return repr(value)
        if has_symbols(value):
            return self._computed_source(value)
        if type(value) is float and value == value and abs(value) != float("inf"):
            return repr(value)
        return self.name("constant", value)

    def _computed_source(self, value: Any) -> str:
        """Something that follows from numbers of the call."""
        if isinstance(value, Geometry):
            size, stride, offset = map(self.literal, value[:3])
            dtype = self.name("dtype", value.dtype)
            return f"Geometry({size}, {stride}, {offset}, {dtype}, {value.conj}, {value.neg})"
        if isinstance(value, tuple):
            return f"torch.Size({self.literal(tuple(value))})"
        return source_of(value)


class GradModeTracker:
    """Emits a change of grad mode only where there is one. A call made in inference mode stays in it."""

    def __init__(self, writer: SourceWriter, now: bool, inference: bool) -> None:
        self.writer = writer
        self.now = now
        self.inference = inference

    def set(self, grad: bool) -> None:
        if grad != self.now and not self.inference:
            self.writer.line(f"set_grad_enabled({grad})")
            self.now = grad

    def within(self, mode: CreationMode) -> str:
        """What a statement begins with that is to run in `mode`."""
        if mode is CreationMode.INFERENCE and not self.inference:
            return "with torch.inference_mode(): "
        if mode is not CreationMode.BELOW_SUBCLASS:
            self.set(mode is CreationMode.GRAD)
        return ""


def storage_view(writer: SourceWriter, source: str, where: Geometry, reinterpreted: bool) -> str:
    """A view of the storage of `source`."""
    if reinterpreted:
        return f"seen_as({source}, {writer.literal(where)})"
    return as_strided(writer, source, where)


def as_strided(writer: SourceWriter, source: str, where: Geometry) -> str:
    size, stride = writer.literal(where.size), writer.literal(where.stride)
    return f"{source}.as_strided({size}, {stride}, {writer.literal(where.offset)})"


def write_subclass(
    writer: SourceWriter, meta: SubclassCreationMeta, plain: Sequence[str], shared: Sequence[str] = ()
) -> str:
    """A wrapper subclass, made of tensors with these names."""
    names = []
    for name, part in meta.parts:
        if isinstance(part, PlainTensorMeta):
            source = plain[part.position]
        elif isinstance(part, SharedTensorMeta):
            source = shared[part.number]
        else:
            source = write_subclass(writer, part, plain, shared)
        names.append(f"{name!r}: {source}")
    names += [f"{name!r}: {writer.name('opaque', value)}" for name, value in meta.opaque]
    inner = ", ".join(names)
    make = writer.name("unflatten", meta.kind.__tensor_unflatten__)
    size, stride = (
        writer.name("numbers", n) if has_nested_ints(n) else writer.literal(n)
        for n in (meta.size, meta.stride)
    )
    return f"{make}({{{inner}}}, {writer.literal(meta.context)}, torch.Size({size}), {stride})"


def write_gradient_parts(meta: SubclassCreationMeta, name: str) -> list[str]:
    """The tensors that the gradient `name` is made of, a wrapper subclass."""
    found: list[str] = []
    for part_name, part in meta.parts:
        one = attribute(name, (part_name,))
        if isinstance(part, SubclassCreationMeta):
            found += write_gradient_parts(part, one)
        elif isinstance(part, PlainTensorMeta):
            found.append(one)
    return found


def attribute(name: str, path: Sequence[str]) -> str:
    """The part of a wrapper subclass at the end of a path of attributes.

    Raises:
        ValueError: one of these has a name that Python's source cannot say.
    """
    for part in path:
        if not part.isidentifier() or keyword.iskeyword(part):
            raise ValueError(f"a part of a tensor subclass has the name {part!r}, which is no attribute")
    return ".".join((name, *path))


def memory_of(memory: Memory) -> str:
    """A tensor on some memory."""
    if memory.tensor is None:
        return f"v{memory.value}"
    return f"m{memory.tensor}" if memory.entry else f"t{memory.tensor}"


def storage_of(change: WrapperRebound) -> str:
    """The storage that a wrapper subclass is put onto, by name."""
    if change.tensor is None:
        return f"made{change.made}"
    return "_".join((f"storage{change.tensor}", *change.source))


def write_storages(writer: SourceWriter, changes: Iterable[Change]) -> None:
    """Those of arguments onto which wrapper subclasses are put."""
    rebounds = [change for change in changes if isinstance(change, WrapperRebound)]
    for name, change in {storage_of(change): change for change in rebounds}.items():
        if change.tensor is not None:
            writer.line(f"{name} = {attribute(f't{change.tensor}', change.source)}.untyped_storage()")


def alias(writer: SourceWriter, root: AliasRoot) -> str:
    """A detached alias: a tensor of its own for autograd, on the same memory."""
    source = f"r{root.root}" if root.memory is None else memory_of(root.memory)
    if root.inference:
        view = storage_view(writer, source, root.where, root.reinterpreted)
        return view if root.counted else f"{view}.detach()"
    source += ".detach()" if root.counted else ".data"
    return f"{storage_view(writer, source, root.where, root.reinterpreted)}.detach()"


def write_view(writer: SourceWriter, mode: GradModeTracker, name: str, view: View, source: str) -> None:
    if view.where is not None:
        mode.set(view.grad)
        writer.line(f"{name} = {storage_view(writer, source, view.where, view.reinterpreted)}")
        if view.made is not None:
            writer.line(f"set_creation_meta({name}, {writer.literal(view.made)})")
        for one in view.steps:
            writer.line(f"{mode.within(one.mode)}{name} = {view_op_call(writer, name, one)}")
        if view.rebound is not None:
            write_change(writer, mode, name, view.rebound)
        if view.requires_grad:
            writer.line(f"{name}.requires_grad_()")
        if view.stale:
            writer.line(f"torch.autograd.graph.increment_version({source})")
        return
    steps = list(view.steps)
    for k in reversed(range(len(steps))):
        if id(steps[k]) in writer.changed:
            source, steps = writer.changed[id(steps[k])], steps[k + 1 :]
            break
    way = [id(one) if one.call is None else (id(one.call), one.index) for one in steps]
    calls = [(view.taken, source, *way[:k], id(one.call)) for k, one in enumerate(steps)]
    ready = (
        k
        for k, call in enumerate(calls)
        if call in writer.calls and (call, steps[k].index) not in writer.parts
    )
    start = max(ready, default=0)
    for k in range(len(steps) - 1, start, -1):
        if calls[k][:-1] in writer.detached:
            start, source = k, writer.detached[calls[k][:-1]]
            break
    for k in range(start, len(steps)):
        one, call = steps[k], calls[k]
        within = mode.within(one.mode)
        if one.in_place:
            # Whatever else is a view of what is changed here goes on from the same tensor.
            writer.line(within + view_op_call(writer, source, one))
            writer.changed[id(one)] = f"w{len(writer.changed)}"
            writer.line(f"{writer.changed[id(one)]} = {source}")
        else:
            if one.call is None or (call, one.index) in writer.parts:
                writer.line(f"{within}{name} = {view_op_call(writer, source, one)}")
            else:
                writer.parts.add((call, one.index))
                if call not in writer.calls:
                    writer.calls[call] = f"c{len(writer.calls)}"
                    writer.line(f"{within}{writer.calls[call]} = {whole_view_op_call(writer, source, one)}")
                writer.line(f"{name} = {writer.calls[call]}[{one.index}]")
            source = name
            if one.by_custom_function:
                writer.line(f"set_creation_meta({name}, 'IN_CUSTOM_FUNCTION')")
            if one.leaf:
                writer.line(f"{name}.requires_grad_()")
            if one.op is torch.ops.aten.detach.default and k + 1 < len(steps):
                # Autograd takes it for the base of its views: other ones are taken of the same tensor.
                base = writer.detached[calls[k + 1][:-1]] = f"d{len(writer.detached)}"
                writer.line(f"{base} = {name}")
    if source != name:
        writer.line(f"{name} = {source}")
    if view.rebound is not None:
        write_change(writer, mode, name, view.rebound)
    if view.stale:
        writer.line(f"torch.autograd.graph.increment_version({name})")


def write_change(writer: SourceWriter, mode: GradModeTracker, name: str, change: Change) -> None:
    """A change of the metadata or the storage of the tensor `name`."""
    within = mode.within(change.mode)
    if isinstance(change, MetadataMutation):
        name = attribute(name, change.path)
        if change.stale:
            writer.line(f"torch.autograd.graph.increment_version({name})")
        arguments = [name, *(writer.literal(a) for a in change.args)]
        arguments += [f"{k}={writer.literal(v)}" for k, v in change.kwargs.items()]
        inside = change.mode is CreationMode.BELOW_SUBCLASS
        call = f"untold({writer.op(change.op)}, " if inside else f"{writer.op(change.op)}("
        writer.line(f"{within}{call}{', '.join(arguments)})")
        return
    if isinstance(change, WrapperRebound):
        name = attribute(name, change.path)
        size, stride = writer.literal(change.where.size), writer.literal(change.where.stride)
        storage = storage_of(change)
        if change.tensor is None and storage not in writer.storages:
            writer.storages.add(storage)
            writer.line(f"{storage} = memoryless_storage({change.nbytes}, {name}.device)")
        place = f"{storage}, {writer.literal(change.where.offset)}, {size}, {stride}"
        writer.line(f"untold({writer.op(_SET)}, {name}, {place})")
        return
    source, where = memory_of(change.memory), change.where
    if change.assigned:
        # (A view of the tensor itself would have autograd derive its history anew, before this.)
        writer.line(f"{within}{name}.data = {storage_view(writer, f'{source}.data', where, True)}")
    else:
        size, stride = writer.literal(where.size), writer.literal(where.stride)
        place = f"{source}.untyped_storage(), {writer.literal(where.offset)}, {size}, {stride}"
        inside = change.mode is CreationMode.BELOW_SUBCLASS
        writer.line(f"untold({writer.op(_SET)}, {name}, {place})" if inside else f"{name}.set_({place})")


def view_op_call(writer: SourceWriter, source: str, one: ViewOp) -> str:
    text = whole_view_op_call(writer, source, one)
    return text if one.index is None else f"{text}[{one.index}]"


# Operations that are methods of tensors, too: these take half of the time. (They are asked as functions where
# a subclass would be told of the method.)
_METHODS: dict[Any, str] = {
    torch.ops.aten.view.default: "view",
    torch.ops.aten.expand.default: "expand",
    torch.ops.aten.permute.default: "permute",
    torch.ops.aten.transpose.int: "transpose",
    torch.ops.aten.t.default: "t",
    torch.ops.aten.select.int: "select",
    torch.ops.aten.squeeze.default: "squeeze",
    torch.ops.aten.squeeze.dim: "squeeze",
    torch.ops.aten.unsqueeze.default: "unsqueeze",
    torch.ops.aten.unbind.int: "unbind",
    torch.ops.aten.diagonal.default: "diagonal",
    torch.ops.aten.unfold.default: "unfold",
    torch.ops.aten.detach.default: "detach",
    torch.ops.aten.as_strided.default: "as_strided",
}


def _spread(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sizes of a view one by one, which is the quicker way."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) and args[0] else args


def whole_view_op_call(writer: SourceWriter, source: str, one: ViewOp) -> str:
    """A step with all its results."""
    if writer.methods and not one.kwargs and one.op in _METHODS:
        return f"{source}.{_METHODS[one.op]}({', '.join(map(writer.literal, _spread(one.args)))})"
    arguments = [source, *(writer.literal(a) for a in one.args)]
    arguments += [f"{k}={writer.literal(v)}" for k, v in one.kwargs.items()]
    return f"{writer.op(one.op)}({', '.join(arguments)})"


def write_resident(writer: SourceWriter, saved: Saved) -> str:
    """Memory that a node keeps past autograd, with the version counter of a tensor or one of its own."""
    way = "detach()" if saved.counted else "data"
    if saved.where is None:
        return f"{f'v{saved.values[0]}' if saved.values else f's{saved.index}'}.{way}"
    return as_strided(writer, f"t{saved.tensor}.{way}", saved.where)


def tuple_text(names: Iterable[str]) -> str:
    """A tuple of expressions.

    >>> tuple_text(["a"]), tuple_text([])
    ('(a, )', '()')
    """
    return f"({''.join(f'{name}, ' for name in names)})"
