"""The wrapper's source: a `Plan` written out as straight-line Python.

What was known when compiling is not tested at the call: there is no loop over metadata, only the statements
that this specialization needs. `generate` returns text; `build` turns it into the callable and the backward
of each segment's `autograd.Function`.
"""

from __future__ import annotations

from typing import Any

from aot.capture.segments import ArgumentEdge, EntranceEdge, OutputEdge, Target, WrittenEdge
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
from aot.runtime.plan import Part, Plan
from aot.runtime.saving import Saving
from aot.runtime.source import GradMode, Writer, alias, as_strided, seen_as, write_view


def generate(plan: Plan) -> tuple[str, dict[str, Any]]:
    """The wrapper's source and the constants that it names.

    The source defines ``call(t0, t1, ...)``, given one argument per tensor of the call, and, for part k of
    the backward, ``backward{k}(ctx, ...)`` of its autograd.Function.
    """
    writer = Writer()
    for number, part in enumerate(plan.parts):
        _backward(writer, number, part)
        writer.line("")
    _Call(writer, plan).write()
    return "\n".join(writer.lines) + "\n", writer.names


def _backward(writer: Writer, number: int, part: Part) -> None:
    segment = part.segment
    tangents = segment.tangents
    writer.line(f"def backward{number}(ctx, {', '.join(f'g{e}' for e in range(len(segment.entrances)))}):")
    writer.indent += 1
    if segment.failure is not None:
        kind, text = segment.failure
        writer.line("if g0 is not None:")
        writer.line(f"    raise {writer.name('error', kind)}({text!r})")
    several = len(tangents) > 1
    everything = (1 << len(tangents)) - 1
    if several:
        bits = [f"(g{e} is not None) << {j}" for j, e in enumerate(tangents)]
        writer.line(f"given = {' | '.join(bits)}")
    elif tangents and segment.results:
        writer.line(f"if g{tangents[0]} is None:")
        writer.line(f"    return (None,) * {1 + len(segment.gradients)}")
    donates = any(one.donated for one in part.saved)
    if donates:
        writer.line("if ctx.spent:")
        writer.line("    raise spent()")
    for i, watch in enumerate(part.watched):
        partial = several and watch.tangents != everything
        needed = f"given & {watch.tangents} and " if partial else ""
        writer.line(f"if {needed}ctx.watched[{i}][0]._version != ctx.watched[{i}][1]:")
        writer.line(f"    raise modified(*ctx.watched[{i}])")
    inputs = [f"s{i}" for i in range(len(part.saved))]
    if part.saved:
        writer.line(f"{', '.join(inputs)}, = ctx.saved_tensors")
    resident = [i for i, one in enumerate(part.saved) if one.how is Saving.RESIDENT]
    if resident:
        writer.line(f"{', '.join(f's{i}' for i in resident)}, = once_more(ctx.resident)")
    if segment.results and tangents:
        given = ", ".join(f"g{e}" if e in tangents else "None" for e in range(len(segment.entrances)))
        writer.line("if torch.is_grad_enabled() or backward_key() != recorded:")
        again = f"again{number}([{', '.join(inputs)}], [{given}], ctx.edges)"
        writer.line(f"    return (None, *{again}[:{len(segment.gradients)}])")
    for e in tangents:
        where = segment.entrances[e].tangent
        assert where is not None
        size, stride = writer.literal(where.size), writer.literal(where.stride)
        if several:
            writer.line(f"if g{e} is not None:")
        line = f"g{e} = tangent(g{e}, {size}, {stride})"
        writer.line("    " + line if several else line)
    inputs += [f"g{e}" for e in tangents]
    names = [f"d{g.result}" for g in segment.gradients if g.result is not None]
    if names:
        spend = ""
        if donates:
            writer.line("ctx.spent = not (ctx.packed or graph_is_retained())")
            spend = ", ctx.spent"
        run = f"run_backward{number}([{', '.join(inputs)}]{spend})"
        if several:
            run += f" if given == {everything} else run_part{number}(given, [{', '.join(inputs)}]{spend})"
        writer.line(f"{', '.join(names)}, = {run}")
    results = []
    for gradient in segment.gradients:
        if gradient.result is None:
            results.append("None")
        elif several and gradient.tangents != everything:
            results.append(f"d{gradient.result} if given & {gradient.tangents} else None")
        else:
            results.append(f"d{gradient.result}")
    writer.line(f"return None, {''.join(r + ', ' for r in results or ['None'])}")
    writer.indent -= 1


class _Call:
    """The function that a call runs."""

    def __init__(self, writer: Writer, plan: Plan) -> None:
        self.writer = writer
        self.plan = plan
        self.mode = GradMode(writer, plan.grad)
        self.tracked = {e.value for part in plan.parts for e in part.segment.entrances}
        # Values that reach the caller as an alias of other memory, not as the graph returned them.
        self.carried = {
            r.history: r for r in plan.roots if isinstance(r, AliasRoot) and r.history is not None
        }

    def write(self) -> None:
        writer, plan = self.writer, self.plan
        writer.line(f"def call({', '.join(f't{i}' for i in range(plan.tensors))}):")
        writer.indent += 1
        inputs = self._inputs()
        writer.line("try:")
        writer.indent += 1
        self._forward(inputs)
        for position, output in enumerate(plan.outputs):
            if isinstance(output, View) and output.early:
                self._view(position, output, self._root(plan.roots[output.root]))
        for kind, number in plan.order:
            if kind == "segment":
                self._segment(number)
            elif kind == "storage":
                self._storage(number)
            elif kind == "root":
                writer.line(f"r{number} = {self._root(plan.roots[number])}")
            else:
                self._output(number)
        self._keep()
        self.mode.set(plan.grad_after)
        writer.indent -= 1
        writer.line("except BaseException:")
        writer.line(f"    set_grad_enabled({plan.grad})")
        writer.line("    raise")
        writer.line(f"return [{', '.join(f'o{i}' for i in range(len(plan.outputs)))}]")
        writer.indent -= 1

    def _inputs(self) -> list[str]:
        names = []
        for k, graph_input in enumerate(self.plan.inputs):
            where = graph_input.stretch
            name = f"t{graph_input.tensor}"
            source: str | None = None
            if where is not None and where.dtype == graph_input.dtype:
                source = f"physical({name})" if graph_input.lazy else f"{name}.detach()"
                source = as_strided(self.writer, source, where)
            elif where is not None:
                source = f"stretch_of_bytes({name}, {where.offset}, {where.size[0]})"
            elif graph_input.lazy:
                source = f"physical({name})"
            if source is not None:
                name = f"p{k}"
                self.writer.line(f"{name} = {source}")
            names.append(name)
        return names

    def _forward(self, inputs: list[str]) -> None:
        """Run the graph, and put aside what is saved before anything is overwritten."""
        plan = self.plan
        self.mode.set(False)
        results = [f"v{i}" for i in range(len(plan.values))] + [f"s{i}" for i in range(plan.saved)]
        call = f"run_forward([{', '.join(inputs)}])"
        self.writer.line(f"{', '.join(results)}, = {call}" if results else call)
        keep = {
            Saving.AS_IS: "detached(s{0})",
            Saving.COPY: "copied(s{0}, {1})",
            Saving.OWN_COUNTER: "s{0}.data",
            Saving.RESIDENT: "None",
        }
        for number, part in enumerate(plan.parts):
            saved = "".join(f"{keep[one.how].format(one.index, one.offset)}, " for one in part.saved)
            self.writer.line(f"b{number} = [({saved})]")
        for edge in self._moved_edges():
            self.mode.set(True)
            self.writer.line(f"{_passed(edge)} = passing({_argument(edge)})")

    def _moved_edges(self) -> list[ArgumentEdge]:
        """The arguments' edges that a segment is applied to after the arguments have been written."""
        plan = self.plan
        moving = {plan.storages[w.tensor] for w in plan.writes} | {plan.storages[i] for i in plan.moves}
        moving |= {plan.storages[i] for i, _ in plan.reshapes}
        done: set[int] = set()
        found: dict[ArgumentEdge, None] = {}
        for kind, number in plan.order:
            if kind == "storage" and number in moving:
                done.add(number)
            elif kind == "segment":
                for gradient in plan.parts[number].segment.gradients:
                    target = gradient.target
                    if isinstance(target, ArgumentEdge) and plan.storages[target.tensor] in done:
                        found[target] = None
        self.passed = set(found)
        self.late: set[int] = set()
        return list(found)

    def _segment(self, number: int) -> None:
        """Make one node of the caller's autograd graph."""
        segment = self.plan.parts[number].segment
        results, names = [], []
        for e, entrance in enumerate(segment.entrances):
            if entrance.value is None:
                size, dtype = self.writer.literal(entrance.size), self.writer.name("dtype", entrance.dtype)
                results.append(f"nothing({size}, {dtype}, {self.writer.name('device', entrance.device)})")
                names.append(f"h{number}_{e}")
                continue
            root = self.carried.get(entrance.value)
            results.append(alias(self.writer, root) if root is not None else f"detached(v{entrance.value})")
            names.append(f"v{entrance.value}")
        targets = [self._target(gradient.target) for gradient in segment.gradients]
        self.mode.set(True)
        edges = [self._edge(g.target, t) for g, t in zip(segment.gradients, targets, strict=True)]
        self.writer.line(f"b{number} += ({_tuple(results)}, {_tuple(edges if segment.results else [])})")
        # What leads nowhere requires grad all the same.
        arguments = ", ".join(targets) or "nowhere()"
        self.writer.line(f"{', '.join(names)}, = apply{number}(b{number}, {arguments})")

    def _target(self, target: Target) -> str:
        """The tensor that a gradient goes to."""
        if isinstance(target, ArgumentEdge):
            late = target in self.passed and self.plan.storages[target.tensor] in self.late
            return _passed(target) if late else _argument(target)
        if isinstance(target, WrittenEdge):
            return f"t{target.tensor}._base" if target.of_base else f"t{target.tensor}"
        if isinstance(target, OutputEdge):
            return f"o{target.output}"
        value = self.plan.parts[target.segment].segment.entrances[target.entrance].value
        return f"h{target.segment}_{target.entrance}" if value is None else f"v{value}"

    def _edge(self, target: Target, name: str) -> str:
        """A tensor that has the edge of a target and does not keep its memory, if the edge does not."""
        if isinstance(target, ArgumentEdge) and not target.of_base and target.tensor in self.plan.leaves:
            return name
        is_hidden = isinstance(target, EntranceEdge) and name.startswith("h")
        if is_hidden or (isinstance(target, ArgumentEdge) and name == _passed(target)):
            return name
        return f"passing({name})"

    def _storage(self, number: int) -> None:
        """Everything that happens to the arguments on one storage."""
        writer, plan = self.writer, self.plan
        self.late.add(number)
        writes = [w for w in plan.writes if plan.storages[w.tensor] == number]
        for write in writes:
            if write.early:
                writer.line(f"{_past_autograd(write)}.copy_(v{write.value})")
        for tensor, events in plan.reshapes:
            if plan.storages[tensor] != number:
                continue
            for event in events:
                self.mode.set(event.grad)
                arguments = [f"t{tensor}", *(writer.literal(a) for a in event.args)]
                arguments += [f"{k}={writer.literal(v)}" for k, v in event.kwargs.items()]
                writer.line(f"{writer.op(event.op)}({', '.join(arguments)})")
        for write in writes:
            if write.tracked:
                self.mode.set(True)
                target = f"t{write.tensor}._base" if write.base else f"t{write.tensor}"
            elif not write.early:
                target = _past_autograd(write)
            else:
                continue
            if write.through is not None:
                target = seen_as(writer, target, write.through, write.reinterpreted)
            writer.line(f"{target}.copy_(v{write.value})")
        for tensor in plan.moves:
            if plan.storages[tensor] == number:
                writer.line(f"torch.autograd.graph.increment_version(t{tensor})")

    def _output(self, position: int) -> None:
        output = self.plan.outputs[position]
        if isinstance(output, Constant):
            self.writer.line(f"o{position} = {self.writer.literal(output.value)}")
        elif isinstance(output, Repeat):
            self.writer.line(f"o{position} = o{output.output}")
        elif isinstance(output, Whole):
            self.writer.line(f"o{position} = r{output.root}")
        elif not output.early:
            start = f"r{output.root}" if output.through is None else f"o{output.through}"
            self._view(position, output, start)

    def _view(self, position: int, view: View, source: str) -> None:
        write_view(self.writer, self.mode, f"o{position}", view, source)

    def _root(self, root: Root) -> str:
        if isinstance(root, ArgumentRoot):
            return f"t{root.tensor}"
        if isinstance(root, BaseRoot):
            return f"t{root.tensor}._base"
        if isinstance(root, ValueRoot):
            return f"v{root.value}" if root.value in self.tracked else f"detached(v{root.value})"
        if root.history is not None:
            return f"v{root.history}"
        return alias(self.writer, root)

    def _keep(self) -> None:
        """What the backward keeps besides what autograd keeps for it, and the caller's `retain_grad`s."""
        plan = self.plan
        for name in [f"t{i}" for i in plan.retaining] + [f"o{i}" for i in plan.retaining_outputs]:
            self.writer.line(f"{name}.retain_grad()")
        for number, part in enumerate(plan.parts):
            if part.watched:
                names = [f"t{k.tensor}" if k.tensor is not None else f"r{k.root}" for k in part.watched]
                watched = "".join(f"(counter({n}), {n}._version, {n}.shape), " for n in names)
                self.writer.line(f"b{number}[0].watched = ({watched})")
            resident = [
                as_strided(self.writer, f"t{one.tensor}.detach()", one.where)
                for one in part.saved
                if one.where is not None
            ]
            if resident:
                self.writer.line(f"b{number}[0].resident = packed([{', '.join(resident)}])")


def _past_autograd(write: Write) -> str:
    """An alias of an argument that has no history, and the argument's version counter or one of its own."""
    return f"t{write.tensor}.detach()" if write.counted else f"t{write.tensor}.data"


def _tuple(names: list[str]) -> str:
    return f"({''.join(name + ', ' for name in names)})"


def _argument(edge: ArgumentEdge) -> str:
    return f"t{edge.tensor}._base" if edge.of_base else f"t{edge.tensor}"


def _passed(edge: ArgumentEdge) -> str:
    return f"{'base' if edge.of_base else 'entry'}{edge.tensor}"
