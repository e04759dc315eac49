"""The source of a segment's backward, which the engine calls with the gradients that come in."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aot.joint.joint import Gradient, Segment
from aot.runtime.codegen.writer import SourceWriter, write_gradient_parts, write_subclass
from aot.runtime.plan import Plan, SegmentPlan
from aot.runtime.saved_values import OUTSIDE_OF_AUTOGRAD, SaveStrategy, VersionCheck
from aot.runtime.tangents import tangent_coercion
from aot.torch_internals import autograd_graph


def write_forward(
    writer: SourceWriter, number: int, part: SegmentPlan, written: Collection[int], given_later: bool
) -> None:
    """What makes the node of part `number` of a plan, of what has been computed: it is given what is saved,
    what is returned, and tensors with the edges that gradients go to; and the tensors that autograd is to
    lead to.

    Args:
        written: the values that are written to arguments that get their history.
        given_later: whether the call goes on with the node: what was given is replaced by it.
    """
    segment = part.segment
    writer.line(f"def forward{number}(ctx, given, *targets):")
    writer.indent += 1
    again = bool(segment.results and segment.tangents)
    writer.line(f"saved, results, {'ctx.edges' if again else '_'} = given")
    writer.line(autograd_graph.NO_MATERIALIZED_GRADS)
    if part.own:
        writer.line(autograd_graph.SAVE_FOR_BACKWARD.format(f"with_own{number}(saved, results)"))
    elif part.saved and part.stays:
        writer.line("ctx.kept = saved")
    elif part.saved:
        writer.line(autograd_graph.SAVE_FOR_BACKWARD.format("saved"))
    if _donates(part) or (segment.frees and not part.saved):
        writer.line("ctx.spent = False")
    if _donates(part):  # not what hooks may have kept that pack what is saved
        writer.line("ctx.packed = saved_tensor_hooks() is not None")
    if any(entrance.kept and entrance.value in written for entrance in segment.cotangent_inputs):
        writer.line("ctx.written = {}")
    if given_later:
        writer.line("given[:] = [ctx]")
    writer.line("return results")
    writer.indent -= 1


def is_node_asked_by_wrapper(part: SegmentPlan, written: Collection[int], plan: Plan) -> bool:
    """Whether the call asks the node of a part for something, or gives it more than it is made of."""
    given = (
        part.segment.shared
        or part.segment.rebuilt_targets
        or part.watched
        or part.needs_history
        or plan.numbers.every
    )
    resident = any(one.how in OUTSIDE_OF_AUTOGRAD for one in part.saved)
    keeps = any(entrance.kept and entrance.value in written for entrance in part.segment.cotangent_inputs)
    return bool(given or resident or keeps)


def _donates(part: SegmentPlan) -> bool:
    return any(one.donated for one in part.saved)


def write_backward(
    writer: SourceWriter,
    number: int,
    part: SegmentPlan,
    runs_python: bool,
    written: Collection[int],
    numbers: Sequence[str],
) -> None:
    """The backward of part `number` of a plan.

    Args:
        runs_python: whether eager runs the function's Python in it.
        written: the values that are written to arguments that get their history.
        numbers: the numbers of a call that are symbols.
    """
    _BackwardSource(writer, number, part, runs_python, written, numbers).write()


class _BackwardSource:
    """Writes the backward of one part: what it checks, what it unpacks, what it runs, and what it returns.

    Attributes:
        several: whether some gradients may come without others.
        everything: the set of all tangents, as bits.
        counted: the saved values whose version counter moves as the graph writes to them.
        computes: whether gradients come of a graph.
    """

    def __init__(
        self,
        writer: SourceWriter,
        number: int,
        part: SegmentPlan,
        runs_python: bool,
        written: Collection[int],
        numbers: Sequence[str],
    ) -> None:
        self.writer = writer
        self.number = number
        self.part = part
        self.segment = part.segment
        self.tangents = part.segment.tangents
        self.several = len(set(self.tangents)) > 1
        self.everything = (1 << len(self.tangents)) - 1
        self.donates = _donates(part)
        self.counted = [i for i, one in enumerate(part.saved) if one.how is SaveStrategy.LIVE and one.counted]
        self.computes = bool(self.segment.results and self.tangents)
        self._runs_python = runs_python
        self._written = written
        self._numbers = numbers

    @property
    def missing(self) -> str:
        """A test that no gradient comes in; nothing where there can be none."""
        if self.several:
            return "not given"
        return f"g{self.tangents[0]} is None" if self.tangents else ""

    def write(self) -> None:
        """Write all of it."""
        line = self.writer.line
        entrances = range(len(self.segment.cotangent_inputs))
        line(f"def backward{self.number}(ctx, {', '.join(f'g{e}' for e in entrances)}):")
        self.writer.indent += 1
        if self._numbers:
            line(f"{', '.join(self._numbers)}, = ctx.numbers")
        self._write_failure()
        if self.several:
            bits = [f"(g{e} is not None) << {j}" for j, e in enumerate(self.tangents)]
            line(f"given = {' | '.join(bits)}")
        if self.segment.idle:
            self._write_return_of_nothing()
        self._write_checks()
        inputs = self._write_unpacking()
        if not (self.several or self.segment.runs_custom_function or self.segment.idle):
            # (Its nodes run in eager, and check what they keep, although nothing comes of it.)
            self._write_return_of_nothing()
        again = self._write_retrace(inputs) if self.computes else ""
        for one in self.part.own:
            if one.position < len(self.part.saved):
                line(f"s{one.position} = s{one.position}.detach()")
        if self.computes:
            inputs += _write_tangents(self.writer, self.part, self.several, again)
        self._write_run(inputs)
        results = [self._result(gradient) for gradient in self.segment.gradients]
        line(f"return None, {''.join(r + ', ' for r in results or ['None'])}")
        self.writer.indent -= 1

    def _write_failure(self) -> None:
        """Raise what eager's backward raises."""
        if self.segment.failure is None:
            return
        kind, text = self.segment.failure
        line, literal = self.writer.line, self.writer.literal
        line("if g0 is not None:")
        if self.segment.failing is not None:
            line(f"    fails({literal(self.segment.failing)}, g0)")
        line(f"    raise {self.writer.name('error', kind)}({literal(text)})")

    def _write_return_of_nothing(self) -> None:
        """Return no gradients where none comes in."""
        if self.missing:
            self.writer.line(f"if {self.missing}:")
            self.writer.line(f"    return (None,) * {1 + len(self.segment.gradients)}")

    def _write_checks(self) -> None:
        """Raise where what is kept was freed, spent, written to or detached."""
        line = self.writer.line
        if self.segment.frees and not self.part.saved:
            line("if ctx.spent:")
            line("    raise freed()")
            line("ctx.spent = not graph_is_retained()")
        if self.donates:
            line("if ctx.spent:")
            line("    raise spent()")
        for i, watch in enumerate(self.part.watched):
            line(f"if {self._needed(watch)}ctx.watched[{i}][0]._version != ctx.watched[{i}][1]:")
            said = f"modified(*ctx.watched[{i}])"
            if watch.reason is not None:
                said = f"RuntimeError({self.writer.literal(watch.reason)})"
            line(f"    raise {said}")
        for i in range(len(self.part.needs_history)):
            line(f"if is_detached(ctx.attached[{i}]()):")
            line("    raise detached_in_place()")

    def _needed(self, watch: VersionCheck) -> str:
        """A test, and what joins it to another one, whether a version is compared."""
        needed = f"runs(ctx, {self.segment.dead_targets}) and " if watch.only_for_dead_targets else ""
        if watch.tangents is None:
            return needed
        if self.several:
            return f"{needed}given & {watch.tangents} and "
        return needed if self.segment.idle else f"{needed}g{self.tangents[0]} is not None and "

    def _write_unpacking(self) -> list[str]:
        """Unpack what was saved; the names of what the graph takes of it."""
        part, line = self.part, self.writer.line
        inputs = [f"s{i}" for i in range(len(part.saved))]
        extra = [f"s{one.position}" for one in part.own if one.position >= len(part.saved)]
        if inputs or extra:
            line(f"{', '.join(inputs + extra)}, = ctx.{'kept' if part.stays else 'saved_tensors'}")
        resident = [i for i, one in enumerate(part.saved) if one.how in OUTSIDE_OF_AUTOGRAD]
        if resident:
            line(f"{', '.join(f's{i}' for i in resident)}, = once_more(ctx.resident, {part.stays})")
        for i in self.counted:
            line(f"l{i}, s{i} = s{i}, s{i}.data")
        return inputs

    def _write_retrace(self, inputs: list[str]) -> str:
        """Return what the backward gives that is recorded again, where this one is not to be run; that."""
        segment, tangents = self.segment, self.tangents
        otherwise = " or not scripts_hold()" if self._runs_python else ""
        if self.several and segment.needed:
            found = " and ".join(f"given & {mask}" for mask in segment.needed if mask)
            found = "" if 0 in segment.needed else f" and not ({found})"
            otherwise += f" or given != {self.everything}{found}"
        elif segment.runs_custom_function:
            otherwise += f" or g{tangents[0]} is None"
        ambient = "is_grad_enabled() or is_autocast() or is_deterministic() is not was_deterministic"
        self.writer.line(f"if {ambient}{otherwise}:")
        given = ", ".join(f"g{e}" if e in tangents else "None" for e in range(len(segment.cotangent_inputs)))
        own = _write_owned_argument(self.part, self._written)
        own = f"ctx.edges, {own}{', ctx.numbers' if self._numbers else ''}"
        again = f"again{self.number}([{', '.join(inputs)}], [{given}], {own})"
        again = f"(None, *{again}[:{len(segment.gradients)}])"
        if self.counted:
            again = f"having_written({again}, {''.join(f'l{i}, ' for i in self.counted)})"
        self.writer.line(f"    return {again}")
        return again

    def _write_run(self, inputs: list[str]) -> None:
        """Run the graph, if there is one."""
        names = [f"d{result}" for g in self.segment.gradients for result in g.results]
        if not names:
            return
        line = self.writer.line
        spend = ""
        if self.donates:
            line("ctx.spent = not (ctx.packed or graph_is_retained())")
            spend = ", ctx.spent"
        spend = spend if not self._numbers else f"{spend or ', False'}, numbers=ctx.numbers"
        given = f"[{', '.join(inputs)}]{spend}"
        run = f"run_backward{self.number}({given})"
        if self.several:
            run += f" if given == {self.everything} else run_part{self.number}(given, {given})"
        line(f"results = {run}")
        if self.donates:  # what is gone is freed by now, as eager says
            line("ctx.spent = False")
        line(f"if len(results) != {self.segment.results}:")
        line(f"    raise miscounted(results, {self.segment.results}, 'backward')")
        line(f"{', '.join(names)}, = results")
        for i in self.counted:  # (a graph compiler need not count what it writes to)
            line(f"torch.autograd.graph.increment_version(l{i})")

    def _result(self, gradient: Gradient) -> str:
        """The expression of one gradient."""
        if not gradient.results:
            return "None"
        result = f"d{gradient.results[0]}"
        if gradient.layout is not None and gradient.layout.meta is not None:
            literal = self.writer.literal
            laid = [
                f"tangent(d{k}, {literal(where.size)}, {literal(where.stride)})"
                for k, where in zip(gradient.results, gradient.layout.wheres, strict=True)
            ]
            ours = [f"ctx.shared[{self.segment.shared.index(one)}]" for one in gradient.shared]
            result = write_subclass(self.writer, gradient.layout.meta, laid, ours)
        elif gradient.viewed:
            result = f"(None if {result} is None else {result}.view_as({result}))"
        else:
            for e in _write_tangents_laid_otherwise(self.segment):
                result = f"(c{e} if {result} is g{e} else {result})"
        if self.several and gradient.tangents != self.everything:
            result = f"{result} if given & {gradient.tangents} else None"
        return result


def _write_tangents(writer: SourceWriter, part: SegmentPlan, several: bool, again: str) -> list[str]:
    """Lay the gradients that come in out as they were traced; the names of the tangents. `again` is what is
    returned if one is of another type."""
    names: list[str] = []
    if not part.segment.tangents:
        return names
    otherwise = _write_tangents_laid_otherwise(part.segment)
    as_they_came = any(not gradient.viewed for gradient in part.segment.gradients)
    writer.line("try:")
    writer.indent += 1
    for e, entrance in enumerate(part.segment.cotangent_inputs):
        if entrance.tangent is None:
            continue
        wheres, meta = entrance.tangent.wheres, entrance.tangent.meta
        ours = [f"g{e}"] if meta is None else [f"g{e}_{i}" for i in range(len(wheres))]
        sources = ours if meta is None else write_gradient_parts(meta, f"g{e}")
        if e in otherwise and as_they_came:
            writer.line(f"c{e} = g{e}")
        if several:
            if meta is not None:
                writer.line(f"{' = '.join(ours)} = None")
            writer.line(f"if g{e} is not None:")
            writer.indent += 1
        if meta is not None:
            writer.line(f"g{e} = {writer.name('coerced', tangent_coercion(meta))}(g{e})")
        for name, source, where in zip(ours, sources, wheres, strict=True):
            size, stride = writer.literal(where.size), writer.literal(where.stride)
            start = ", True" if len(names) in part.from_start else ""
            if name == source:  # most are as they should be
                other = f"type({name}) is not Tensor or {name}.stride() != {stride} or {name}.is_neg()"
                other += f" or {name}.is_conj()" if where.dtype.is_complex else ""
                other += f" or {name}.storage_offset()" if start else ""
                writer.line(f"if {other}:")
            indent = "    " if name == source else ""
            if e in otherwise:
                source = f"same_memory({source}, {size}, {stride})"
            writer.line(f"{indent}{name} = tangent({source}, {size}, {stride}{start})")
            names.append(name)
        writer.indent -= several
    writer.indent -= 1
    writer.line("except OtherTangent:")
    writer.line(f"    return {again}")
    return names


def _write_tangents_laid_otherwise(segment: Segment) -> list[int]:
    """The entrances whose tangents are seen with other strides where those do not count: a gradient that is a
    view lies in the memory of the one that came in, and autograd may take it for a leaf's. A gradient that is
    the tangent itself is the one that came."""
    if not any(gradient.viewed for gradient in segment.gradients):
        return []
    plain = ((e, one.tangent) for e, one in enumerate(segment.cotangent_inputs) if one.tangent is not None)
    return [e for e, layout in plain if layout.meta is None and 1 in layout.wheres[0].size]


def _write_owned_argument(part: SegmentPlan, written: Collection[int]) -> str:
    """An argument: the tensors with the edges of the segment's own results that it has kept, by entrance, and
    with those of what else it has kept that has a native history."""
    kept = {one.cotangent_input: f"edge_of(s{one.position})" for one in part.own}
    for e, entrance in enumerate(part.segment.cotangent_inputs):
        if entrance.kept and entrance.value in written:
            kept[e] = f"edge_of_written(ctx, {e})"
    native = [f"edge_as_left(*ctx.native[{i}])" for i in range(len(part.segment.rebuilt_targets))]
    if not (kept or native):
        return "()"
    own = [*(kept.get(e, "None") for e in range(len(part.segment.cotangent_inputs))), *native]
    return f"({''.join(name + ', ' for name in own)})"
