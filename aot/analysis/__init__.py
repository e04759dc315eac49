"""What the run did: to each argument, and what each output is.

In: a `Traced`. Out: `EffectSummary`, which names the *values* that the graph must return, and says how the
caller's world is rebuilt from them: which arguments are written, what else is changed about them, and for
every output the *root* that it hangs on and the views that lead to it.

No invariant yet: it still reads live tensors and the recorder, and appends nodes. A test counts these reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aot.analysis.context import AnalysisContext
from aot.analysis.effect_summary import EffectSummary
from aot.analysis.in_graph_mutations import in_graph_mutations
from aot.analysis.input_mutations import InputMutations
from aot.analysis.output_aliasing import OutputAliasing
from aot.analysis.subclass_effects import SubclassEffects, with_subclasses
from aot.capture.inputs import FakeInputs
from aot.capture.run import Traced

__all__ = ["analyze"]


def analyze(forward: Traced, keep_input_mutations: bool = False) -> EffectSummary:
    """Classify what the run did.

    Args:
        keep_input_mutations: whether a graph without a backward is to write to its inputs itself, where that
            is possible.

    Raises:
        Unsupported: an effect that the wrapper could not repeat exactly.
    """
    world = AnalysisContext(forward)
    arguments = InputMutations(world)
    arguments.refuse_unrepeatable_mutations()
    required, released, detached = arguments.requires_grad_changes()
    changes = arguments.metadata_mutations(required)
    writes = arguments.input_writes()
    outputs = OutputAliasing(world, required)
    seen: dict[int, int] = {}
    results = outputs.link_output_views(
        [outputs.output(p, v, seen) for p, v in enumerate(forward.outputs)], seen
    )
    outputs.check_output_leaves()
    outputs.check_output_version_counters()
    changed = {i for i, _ in changes}
    wrappers = SubclassEffects(forward, len(world.values), len(outputs.roots))
    keep_input_mutations = keep_input_mutations and not wrappers.histories  # or there is a backward
    kept = in_graph_mutations(world, writes, changed, outputs.roots, results) if keep_input_mutations else ()
    in_graph = {write.value for write in kept}
    moves = arguments.silent_version_bumps(writes, outputs.moving)
    return EffectSummary(
        values=tuple(world.values),
        writes=(*(w for w in writes if w.value not in in_graph), *wrappers.writes),
        kept=kept,
        changes=(*changes, *wrappers.changes),
        begin_requires_grad=required,
        end_requires_grad=released,
        detached=detached,
        pinned_views=arguments.views_pinned_to_entry((*released, *detached)),
        grown_storages=arguments.grown(),
        version_bumps_only=(*moves, *wrappers.moves),
        roots=(*outputs.roots, *wrappers.roots),
        root_fakes=(*outputs.fakes, *wrappers.fakes),
        outputs=with_subclasses(results, wrappers),
        written=arguments.written,
        inference=frozenset(i for i, f in enumerate(forward.entry.fakes) if f.is_inference()),
        several_counters=arguments.several_counters(),
        retaining=_retaining(forward.entry.tensors_and_subclasses),
        retaining_outputs=_retaining([forward.wrapped.get(i, v) for i, v in enumerate(forward.outputs)]),
        views_with_history=_aware(forward.entry),
        histories=tuple(wrappers.histories),
        replaced=forward.replaced,
        num_user_outputs=forward.num_user_outputs,
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
