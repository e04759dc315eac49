"""The source of a segment's backward, which the engine calls with the gradients that come in."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aot.joint.joint import Segment
from aot.runtime.codegen.writer import SourceWriter, write_gradient_parts, write_subclass
from aot.runtime.plan import SegmentPlan
from aot.runtime.saved_values import OUTSIDE_OF_AUTOGRAD, SaveStrategy
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
    segment = part.segment
    tangents = segment.tangents
    writer.line(
        f"def backward{number}(ctx, {', '.join(f'g{e}' for e in range(len(segment.cotangent_inputs)))}):"
    )
    writer.indent += 1
    if numbers:
        writer.line(f"{', '.join(numbers)}, = ctx.numbers")
    if segment.failure is not None:
        kind, text = segment.failure
        writer.line("if g0 is not None:")
        if segment.failing is not None:
            writer.line(f"    fails({writer.literal(segment.failing)}, g0)")
        writer.line(f"    raise {writer.name('error', kind)}({writer.literal(text)})")
    several = len(set(tangents)) > 1
    everything = (1 << len(tangents)) - 1
    if several:
        bits = [f"(g{e} is not None) << {j}" for j, e in enumerate(tangents)]
        writer.line(f"given = {' | '.join(bits)}")
    missing = "not given" if several else f"g{tangents[0]} is None" if tangents else ""
    returning = f"    return (None,) * {1 + len(segment.gradients)}"
    if missing and segment.idle:
        writer.line(f"if {missing}:")
        writer.line(returning)
    if segment.frees and not part.saved:
        writer.line("if ctx.spent:")
        writer.line("    raise freed()")
        writer.line("ctx.spent = not graph_is_retained()")
    donates = _donates(part)
    if donates:
        writer.line("if ctx.spent:")
        writer.line("    raise spent()")
    for i, watch in enumerate(part.watched):
        needed = f"runs(ctx, {segment.dead_targets}) and " if watch.only_for_dead_targets else ""
        if watch.tangents is not None and (several or not segment.idle):
            needed += f"given & {watch.tangents} and " if several else f"g{tangents[0]} is not None and "
        writer.line(f"if {needed}ctx.watched[{i}][0]._version != ctx.watched[{i}][1]:")
        said = f"modified(*ctx.watched[{i}])"
        if watch.reason is not None:
            said = f"RuntimeError({writer.literal(watch.reason)})"
        writer.line(f"    raise {said}")
    for i in range(len(part.needs_history)):
        writer.line(f"if is_detached(ctx.attached[{i}]()):")
        writer.line("    raise detached_in_place()")
    inputs = [f"s{i}" for i in range(len(part.saved))]
    extra = [f"s{one.position}" for one in part.own if one.position >= len(part.saved)]
    if inputs or extra:
        writer.line(f"{', '.join(inputs + extra)}, = ctx.{'kept' if part.stays else 'saved_tensors'}")
    resident = [i for i, one in enumerate(part.saved) if one.how in OUTSIDE_OF_AUTOGRAD]
    if resident:
        writer.line(f"{', '.join(f's{i}' for i in resident)}, = once_more(ctx.resident, {part.stays})")
    counted = [i for i, one in enumerate(part.saved) if one.how is SaveStrategy.LIVE and one.counted]
    for i in counted:
        writer.line(f"l{i}, s{i} = s{i}, s{i}.data")
    if tangents and not (several or segment.runs_custom_function or segment.idle):
        # (Its nodes run in eager, and check what they keep, although nothing comes of it.)
        writer.line(f"if {missing}:")
        writer.line(returning)
    again = ""
    if segment.results and tangents:
        given = ", ".join(f"g{e}" if e in tangents else "None" for e in range(len(segment.cotangent_inputs)))
        otherwise = " or not scripts_hold()" if runs_python else ""
        if several and segment.needed:
            found = " and ".join(f"given & {mask}" for mask in segment.needed if mask)
            found = "" if 0 in segment.needed else f" and not ({found})"
            otherwise += f" or given != {everything}{found}"
        elif segment.runs_custom_function:
            otherwise += f" or g{tangents[0]} is None"
        ambient = "is_grad_enabled() or is_autocast() or is_deterministic() is not was_deterministic"
        writer.line(f"if {ambient}{otherwise}:")
        own = f"ctx.edges, {_write_owned_argument(part, written)}{', ctx.numbers' if numbers else ''}"
        again = f"again{number}([{', '.join(inputs)}], [{given}], {own})"
        again = f"(None, *{again}[:{len(segment.gradients)}])"
        if counted:
            again = f"having_written({again}, {''.join(f'l{i}, ' for i in counted)})"
        writer.line(f"    return {again}")
    for one in part.own:
        if one.position < len(part.saved):
            writer.line(f"s{one.position} = s{one.position}.detach()")
    if segment.results and tangents:
        inputs += _write_tangents(writer, part, several, again)
    names = [f"d{result}" for g in segment.gradients for result in g.results]
    if names:
        spend = ""
        if donates:
            writer.line("ctx.spent = not (ctx.packed or graph_is_retained())")
            spend = ", ctx.spent"
        spend = spend if not numbers else f"{spend or ', False'}, numbers=ctx.numbers"
        run = f"run_backward{number}([{', '.join(inputs)}]{spend})"
        if several:
            run += f" if given == {everything} else run_part{number}(given, [{', '.join(inputs)}]{spend})"
        writer.line(f"results = {run}")
        if donates:  # what is gone is freed by now, as eager says
            writer.line("ctx.spent = False")
        writer.line(f"if len(results) != {segment.results}:")
        writer.line(f"    raise miscounted(results, {segment.results}, 'backward')")
        writer.line(f"{', '.join(names)}, = results")
    for i in counted if names else ():  # (a graph compiler need not count what it writes to)
        writer.line(f"torch.autograd.graph.increment_version(l{i})")
    results = []
    shared = segment.shared
    for gradient in segment.gradients:
        if not gradient.results:
            results.append("None")
            continue
        result = f"d{gradient.results[0]}"
        if gradient.layout is not None and gradient.layout.meta is not None:
            pairs = zip(gradient.results, gradient.layout.wheres, strict=True)
            laid = [
                f"tangent(d{k}, {writer.literal(where.size)}, {writer.literal(where.stride)})"
                for k, where in pairs
            ]
            ours = [f"ctx.shared[{shared.index(one)}]" for one in gradient.shared]
            result = write_subclass(writer, gradient.layout.meta, laid, ours)
        elif gradient.viewed:
            result = f"(None if {result} is None else {result}.view_as({result}))"
        else:
            for e in _write_tangents_laid_otherwise(segment):
                result = f"(c{e} if {result} is g{e} else {result})"
        if several and gradient.tangents != everything:
            result = f"{result} if given & {gradient.tangents} else None"
        results.append(result)
    writer.line(f"return None, {''.join(r + ', ' for r in results or ['None'])}")
    writer.indent -= 1


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
