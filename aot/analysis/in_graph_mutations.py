"""Which writes to arguments the graph itself may do, as `copy_` onto its inputs, in place of the wrapper."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aot.analysis.context import AnalysisContext
from aot.analysis.effect_summary import ArgumentRoot, BaseRoot, Output, Root, View, ViewTime, Write
from aot.capture.inputs import FakeInputs
from aot.capture.memory.storage import Storage


def in_graph_mutations(
    world: AnalysisContext,
    writes: Sequence[Write],
    changed: Collection[int],
    roots: Sequence[Root],
    outputs: Sequence[Output],
) -> tuple[Write, ...]:
    """The writes that are nothing but new data for a whole argument that the graph gets as it lies in memory,
    if the graph has no backward.

    Not those to an inference tensor, to one that is lazily conjugated or negated or shows an element several
    times, in a storage of which the graph gets a stretch, or which is changed in other ways; nor those to
    memory that the graph reads through another input, which a backend takes for other memory, nor those that
    a view has to be taken before.

    Args:
        changed: the arguments whose metadata or storage changes.
    """
    if any(value.history is not None for value in world.values):
        return ()
    entry = world.forward.entry
    elsewhere = {entry.states[p.tensor] for p in world.forward.primals if p.span is not None}
    elsewhere.update(entry.states[i] for i in changed)
    elsewhere.update(state for state in world.inputs_entered_on if state.grown)
    for output in outputs:
        if isinstance(output, View) and output.taken is not ViewTime.AT_END:
            root = roots[output.root]
            if isinstance(root, (ArgumentRoot, BaseRoot)):
                elsewhere.add(entry.states[root.tensor])
    read = {p.tensor for p in world.forward.primals if p.node.users}
    alone = _arguments_mutable_in_graph(entry, read.union(write.tensor for write in writes))
    return tuple(
        write
        for write in writes
        if write.early
        and write.through is None
        and not write.inference
        and not entry.before[write.tensor].is_lazy
        and entry.states[write.tensor] not in elsewhere
        and write.tensor in alone
    )


def _arguments_mutable_in_graph(entry: FakeInputs, tensors: Collection[int]) -> set[int]:
    """Those of the arguments `tensors` that share no memory with others of them."""
    alone: set[int] = set()
    by_storage: dict[Storage, list[int]] = {}
    for i in tensors:
        by_storage.setdefault(entry.states[i], []).append(i)
    for sharing in by_storage.values():
        stop, before = -1, None
        for i in sorted(sharing, key=lambda i: entry.before[i].bytes):
            start, end = entry.before[i].bytes
            if start >= stop:
                alone.add(i)
            elif before is not None:
                alone.discard(before)
            stop, before = max(stop, end), i
    return alone
