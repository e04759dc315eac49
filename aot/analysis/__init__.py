"""What the run did: to each argument, and what each output is.

In: a `Traced`. Out: `Effects`, which names the *values* that the graph must return, and says how the
caller's world is rebuilt from them: which arguments are written, what else is changed about them, and for
every output the *root* that it hangs on and the views that lead to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aot.analysis.context import World
from aot.analysis.effect_summary import Effects
from aot.analysis.in_graph_mutations import writes_in_graph
from aot.analysis.input_mutations import ArgumentEffects
from aot.analysis.output_aliasing import OutputEffects
from aot.analysis.subclass_effects import WrapperEffects, with_wrappers
from aot.capture.inputs import FakeInputs
from aot.capture.run import Traced

__all__ = ["analyze"]


def analyze(forward: Traced, keep: bool = False) -> Effects:
    """Classify what the run did.

    Args:
        keep: whether a graph without a backward is to write to its inputs itself, where that is possible.

    Raises:
        Unsupported: an effect that the wrapper could not repeat exactly.
    """
    world = World(forward)
    arguments = ArgumentEffects(world)
    arguments.check()
    required, released, detached = arguments.requirements()
    changes = arguments.changes(required)
    writes = arguments.writes()
    outputs = OutputEffects(world, required)
    seen: dict[int, int] = {}
    results = outputs.link([outputs.output(p, v, seen) for p, v in enumerate(forward.outputs)], seen)
    outputs.check_leaves()
    outputs.check_counters()
    changed = {i for i, _ in changes}
    wrappers = WrapperEffects(forward, len(world.values), len(outputs.roots))
    keep = keep and not wrappers.histories  # or there is a backward
    kept = writes_in_graph(world, writes, changed, outputs.roots, results) if keep else ()
    in_graph = {write.value for write in kept}
    moves = arguments.silent_moves(writes, outputs.moving)
    return Effects(
        values=tuple(world.values),
        writes=(*(w for w in writes if w.value not in in_graph), *wrappers.writes),
        kept=kept,
        changes=(*changes, *wrappers.changes),
        required=required,
        released=released,
        detached=detached,
        pinned=arguments.pinned((*released, *detached)),
        grown=arguments.grown(),
        moves=(*moves, *wrappers.moves),
        roots=(*outputs.roots, *wrappers.roots),
        root_fakes=(*outputs.fakes, *wrappers.fakes),
        outputs=with_wrappers(results, wrappers),
        written=arguments.written,
        inference=frozenset(i for i, f in enumerate(forward.entry.fakes) if f.is_inference()),
        several_counters=arguments.several_counters(),
        retaining=_retaining(forward.entry.tensors_and_subclasses),
        retaining_outputs=_retaining([forward.wrapped.get(i, v) for i, v in enumerate(forward.outputs)]),
        aware=_aware(forward.entry),
        histories=tuple(wrappers.histories),
        replaced=forward.replaced,
        visible=forward.num_user_outputs,
    )


def _aware(entry: FakeInputs) -> tuple[int, ...]:
    written = {id(target) for state in set(entry.states) for target in state.writes.values()}
    return tuple(
        i
        for i, fake in enumerate(entry.fakes)
        if id(fake) in written and fake._is_view() and fake.requires_grad > entry.requires_grad[i]
    )


def _retaining(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, value in enumerate(values) if isinstance(value, Tensor) and value.retains_grad)
