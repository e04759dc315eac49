"""The wrapper's source: a `Plan` written out as straight-line Python.

What was known when compiling is not tested at the call: there is no loop over metadata, only the statements
that this specialization needs. `generate` returns text; `build` turns it into the two functions of the
`autograd.Function` and the callable.
"""

from __future__ import annotations

from typing import Any

from aot.capture.storages import ViewStep
from aot.effects import (
    AliasRoot,
    ArgumentRoot,
    BaseRoot,
    Constant,
    Repeat,
    Root,
    ValueRoot,
    View,
    Whole,
    Write,
)
from aot.geometry import Geometry
from aot.runtime.plan import Plan
from aot.runtime.saving import Saving


class _Writer:
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


def generate(plan: Plan) -> tuple[str, dict[str, Any]]:
    """The wrapper's source and the constants that it names.

    The source defines ``call(t0, t1, ...)``, given one argument per tensor of the call, and, for a program
    with a backward, ``forward(ctx, box, ...)`` and ``backward(ctx, ...)`` of its autograd.Function.
    """
    writer = _Writer()
    if plan.tracked:
        _forward(writer, plan)
        writer.line("")
        _backward(writer, plan)
        writer.line("")
    _call(writer, plan)
    return "\n".join(writer.lines) + "\n", writer.names


def _seen_as(writer: _Writer, source: str, where: Geometry, reinterpreted: bool) -> str:
    """A view of the storage of `source`."""
    if reinterpreted:
        return f"seen_as({source}, {writer.name('where', where)})"
    return _as_strided(writer, source, where)


def _as_strided(writer: _Writer, source: str, where: Geometry) -> str:
    size, stride = writer.literal(where.size), writer.literal(where.stride)
    return f"{source}.as_strided({size}, {stride}, {where.offset})"


def _alias(writer: _Writer, root: AliasRoot) -> str:
    """A detached alias: a tensor of its own for autograd, on the same memory."""
    if root.tensor is not None:
        source = f"t{root.tensor}"
    else:
        source = f"r{root.root}" if root.root is not None else f"v{root.value}"
    source += ".detach()" if root.counted else ".data"
    return f"{_seen_as(writer, source, root.where, root.reinterpreted)}.detach()"


def _resident(writer: _Writer, plan: Plan) -> list[str]:
    """The memory of arguments that is kept for backward after they were written."""
    found = []
    for one in plan.saved:
        if one.where is not None:
            found.append(_as_strided(writer, f"t{one.tensor}.detach()", one.where))
    return found


def _carried(plan: Plan) -> dict[int, AliasRoot]:
    """Values that reach the caller as an alias of other memory, not as the graph returned them."""
    return {r.history: r for r in plan.roots if isinstance(r, AliasRoot) and r.history is not None}


def _forward(writer: _Writer, plan: Plan) -> None:
    carried = _carried(plan)
    edges = "".join(f", e{k}" for k in range(len(plan.gradients)))
    writer.line(f"def forward(ctx, box{edges}):")
    writer.indent += 1
    names = [f"v{i}" for i in range(len(plan.values))] + [f"s{i}" for i in range(len(plan.saved))]
    tensors = sorted({r.tensor for r in carried.values() if r.tensor is not None})
    if tensors:
        writer.line(f"{''.join(f't{i}, ' for i in tensors)}= box[1]")
    writer.line(f"{', '.join(names)}, = run_forward(box[0])")
    writer.line("ctx.set_materialize_grads(False)")
    if plan.saved:
        keep = {
            Saving.AS_IS: "detached(s{0})",
            Saving.COPY: "copied(s{0}, {1})",
            Saving.OWN_COUNTER: "s{0}.data",
            Saving.RESIDENT: "None",
        }
        saved = [keep[one.how].format(i, one.offset) for i, one in enumerate(plan.saved)]
        writer.line(f"ctx.save_for_backward({', '.join(saved)})")
    others = [f"v{i}" for i in range(len(plan.values)) if i not in plan.tracked]
    writer.line(f"box[1] = ({''.join(f'{n}, ' for n in others)})")
    if plan.watched or _resident(writer, plan):
        writer.line("box.append(ctx)")
    results = []
    for i in plan.tracked:
        root = carried.get(i)
        if root is None:
            results.append(f"detached(v{i})")
        else:
            results.append(_alias(writer, root))
    writer.line(f"return {', '.join(results)}" + ("," if len(results) > 1 else ""))
    writer.indent -= 1


def _backward(writer: _Writer, plan: Plan) -> None:
    tangents = ", ".join(f"g{k}" for k in range(len(plan.tracked)))
    writer.line(f"def backward(ctx, {tangents}):")
    writer.indent += 1
    writer.line("if torch.is_grad_enabled():")
    writer.line("    raise double_backward_unsupported()")
    for k, kind, text in plan.failing:
        writer.line(f"if g{k} is not None:")
        writer.line(f"    raise {writer.name('error', kind)}({text!r})")
    several = len(plan.tangents) > 1
    everything = (1 << len(plan.tangents)) - 1
    if several:
        bits = [f"(g{k} is not None) << {j}" for j, (k, _) in enumerate(plan.tangents)]
        writer.line(f"given = {' | '.join(bits)}")
    for i, watch in enumerate(plan.watched):
        partial = several and watch.tangents != everything
        needed = f"given & {watch.tangents} and " if partial else ""
        writer.line(f"if {needed}ctx.watched[{i}][0]._version != ctx.watched[{i}][1]:")
        writer.line(f"    raise modified(*ctx.watched[{i}])")
    for k, where in plan.tangents:
        size, stride = writer.literal(where.size), writer.literal(where.stride)
        if several:
            writer.line(f"if g{k} is not None:")
        line = f"g{k} = tangent(g{k}, {size}, {stride})"
        writer.line("    " + line if several else line)
    inputs = [f"s{i}" for i in range(len(plan.saved))]
    if plan.saved:
        writer.line(f"{', '.join(inputs)}, = ctx.saved_tensors")
    resident = [i for i, one in enumerate(plan.saved) if one.how is Saving.RESIDENT]
    if resident:
        writer.line(f"{', '.join(f's{i}' for i in resident)}, = once_more(ctx.resident)")
    inputs += [f"g{k}" for k, _ in plan.tangents]
    names = [f"d{g.result}" for g in plan.gradients if g.result is not None]
    if names:
        run = f"run_backward([{', '.join(inputs)}])"
        if several:
            run += f" if given == {everything} else run_part(given, [{', '.join(inputs)}])"
        writer.line(f"{', '.join(names)}, = {run}")
    results = []
    for gradient in plan.gradients:
        if gradient.result is None:
            results.append("None")
        elif several and gradient.tangents != everything:
            results.append(f"d{gradient.result} if given & {gradient.tangents} else None")
        else:
            results.append(f"d{gradient.result}")
    writer.line(f"return None, {''.join(r + ', ' for r in results)}")
    writer.indent -= 1


def _call(writer: _Writer, plan: Plan) -> None:
    writer.line(f"def call({', '.join(f't{i}' for i in range(plan.tensors))}):")
    writer.indent += 1
    names = []
    for k, graph_input in enumerate(plan.inputs):
        where = graph_input.stretch
        name = f"t{graph_input.tensor}"
        if where is not None and where.dtype == graph_input.dtype:
            source = f"physical({name})" if graph_input.lazy else f"{name}.detach()"
            writer.line(f"p{k} = {_as_strided(writer, source, where)}")
            name = f"p{k}"
        elif where is not None:
            writer.line(f"p{k} = stretch_of_bytes({name}, {where.offset}, {where.size[0]})")
            name = f"p{k}"
        elif graph_input.lazy:
            writer.line(f"p{k} = physical({name})")
            name = f"p{k}"
        names.append(name)
    mode = _GradMode(writer, plan.grad)
    carried = _carried(plan)
    writer.line("try:")
    writer.indent += 1
    if plan.tracked:
        needed = sorted({r.tensor for r in carried.values() if r.tensor is not None})
        writer.line(f"box = [[{', '.join(names)}], ({''.join(f't{i}, ' for i in needed)})]")
        edges = [f"t{g.tensor}._base" if g.of_base else f"t{g.tensor}" for g in plan.gradients]
        results = [f"v{i}" for i in plan.tracked]
        mode.set(True)
        target = ", ".join(results)
        writer.line(f"{target} = apply(box{''.join(', ' + e for e in edges)})")
        others = [f"v{i}" for i in range(len(plan.values)) if i not in plan.tracked]
        if others:
            writer.line(f"{', '.join(others)}, = box[1]")
        if plan.watched or _resident(writer, plan):
            writer.line("ctx = box[2]")
        writer.line("del box")
    else:
        mode.set(False)
        target = "".join(f"v{i}, " for i in range(len(plan.values)))
        call = f"run_forward([{', '.join(names)}])"
        writer.line(f"{target}= {call}" if target else call)
    _epilogue(writer, plan, mode)
    mode.set(plan.grad_after)
    writer.indent -= 1
    writer.line("except BaseException:")
    writer.line(f"    set_grad_enabled({plan.grad})")
    writer.line("    raise")
    writer.line(f"return [{', '.join(f'o{i}' for i in range(len(plan.outputs)))}]")
    writer.indent -= 1


class _GradMode:
    """Emits a change of grad mode only where there is one."""

    def __init__(self, writer: _Writer, now: bool) -> None:
        self.writer = writer
        self.now = now

    def set(self, grad: bool) -> None:
        if grad != self.now:
            self.writer.line(f"set_grad_enabled({grad})")
            self.now = grad


def _epilogue(writer: _Writer, plan: Plan, mode: _GradMode) -> None:
    for i, output in enumerate(plan.outputs):
        if isinstance(output, View) and output.early:
            _view(writer, mode, f"o{i}", output, _root(writer, plan, plan.roots[output.root]))
    for write in plan.writes:
        if write.early:
            writer.line(f"{_past_autograd(write)}.copy_(v{write.value})")
    for tensor, events in plan.reshapes:
        for event in events:
            mode.set(event.grad)
            arguments = [f"t{tensor}", *(writer.literal(a) for a in event.args)]
            arguments += [f"{k}={writer.literal(v)}" for k, v in event.kwargs.items()]
            writer.line(f"{writer.op(event.op)}({', '.join(arguments)})")
    for write in plan.writes:
        if write.tracked:
            mode.set(True)
            target = f"t{write.tensor}._base" if write.base else f"t{write.tensor}"
        elif not write.early:
            target = _past_autograd(write)
        else:
            continue
        if write.through is not None:
            target = _seen_as(writer, target, write.through, write.reinterpreted)
        writer.line(f"{target}.copy_(v{write.value})")
    for tensor in plan.moves:
        writer.line(f"torch.autograd.graph.increment_version(t{tensor})")
    for k, root in enumerate(plan.roots):
        writer.line(f"r{k} = {_root(writer, plan, root)}")
    for i, output in enumerate(plan.outputs):
        if isinstance(output, Constant):
            writer.line(f"o{i} = {writer.literal(output.value)}")
        elif isinstance(output, Repeat):
            writer.line(f"o{i} = o{output.output}")
        elif isinstance(output, Whole):
            writer.line(f"o{i} = r{output.root}")
        elif not output.early:
            _view(writer, mode, f"o{i}", output, f"r{output.root}")
    for name in [f"t{i}" for i in plan.retaining] + [f"o{i}" for i in plan.retaining_outputs]:
        writer.line(f"{name}.retain_grad()")
    if plan.watched:
        names = [f"t{k.tensor}" if k.tensor is not None else f"r{k.root}" for k in plan.watched]
        writer.line(f"ctx.watched = ({''.join(f'(counter({n}), {n}._version, {n}.shape), ' for n in names)})")
    resident = _resident(writer, plan)
    if resident:
        writer.line(f"ctx.resident = [{', '.join(resident)}]")
    if plan.watched or resident:
        writer.line("del ctx")


def _past_autograd(write: Write) -> str:
    """An alias of an argument that has no history, and the argument's version counter or one of its own."""
    return f"t{write.tensor}.detach()" if write.counted else f"t{write.tensor}.data"


def _root(writer: _Writer, plan: Plan, root: Root) -> str:
    if isinstance(root, ArgumentRoot):
        return f"t{root.tensor}"
    if isinstance(root, BaseRoot):
        return f"t{root.tensor}._base"
    if isinstance(root, ValueRoot):
        return f"v{root.value}" if root.value in plan.tracked else f"detached(v{root.value})"
    if root.history is not None:
        return f"v{root.history}"
    return _alias(writer, root)


def _view(writer: _Writer, mode: _GradMode, name: str, view: View, source: str) -> None:
    if view.where is not None:
        mode.set(view.grad)
        writer.line(f"{name} = {_seen_as(writer, source, view.where, view.reinterpreted)}")
        return
    for step in view.steps:
        mode.set(step.grad)
        writer.line(f"{name} = {_step(writer, source, step)}")
        source = name


def _step(writer: _Writer, source: str, step: ViewStep) -> str:
    arguments = [source, *(writer.literal(a) for a in step.args)]
    arguments += [f"{k}={writer.literal(v)}" for k, v in step.kwargs.items()]
    text = f"{writer.op(step.op)}({', '.join(arguments)})"
    return text if step.index is None else f"{text}[{step.index}]"
