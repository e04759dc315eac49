"""What a compile has found out before any graph is given to a compiler: all that can be kept of it.

In: a recorded program, forward and backward. Out: a `Blueprint`, from which wrappers are built, at once or in
another process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import fx

from aot import logs
from aot import torch_internals as internals
from aot.capture.backward import Level
from aot.capture.joint import Joint
from aot.capture.visible import moves_generator
from aot.compilers import example_inputs
from aot.effects import Effects
from aot.errors import BackendError
from aot.metadata import ViewAndMutationMeta
from aot.partition.common import check_acts, drop_repeated_effects, is_tangent
from aot.runtime.plan import Plan

Partitioner = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What one compile answers calls by, but for what compilers make of its graphs.

    Attributes:
        forward: the forward graph.
        backwards: the graph of each part of the backward; None for one that computes nothing.
        again: which parts can be recorded again.
        metadata: what a call does to its arguments, and what its results are.
        spec: the outputs' tree.
        differentiated: the tensors of the call that the function takes gradients with respect to.
    """

    plan: Plan
    forward: fx.GraphModule
    backwards: tuple[fx.GraphModule | None, ...]
    again: tuple[bool, ...]
    metadata: ViewAndMutationMeta
    spec: internals.TreeSpec
    differentiated: frozenset[int]


def partitioned(
    joint: Joint, effects: Effects, partition: Partitioner, parameters: frozenset[int], name: str
) -> tuple[fx.GraphModule, fx.GraphModule | None]:
    """The forward and the backward of a joint graph.

    Args:
        parameters: the tensors that live until the backward whatever is saved.
        name: of what is compiled, for the log.

    Raises:
        BackendError: the partitioner moves what must not be moved.
    """
    if not any(segment.results for segment in joint.segments):
        return joint.graph, None
    logs.log(logs.JOINT, name, lambda: joint.graph.print_readable(print_output=False))
    inputs = example_inputs(joint.graph)
    options = {}
    if "static_lifetime_input_indices" in inspect.signature(partition).parameters:
        # What eager does not keep may be written to before the backward, and is copied if it is saved.
        kept = (k.tensor for s in joint.segments for k in s.kept)
        free = parameters.intersection(i for i in kept if i is not None)
        free -= set(effects.written)
        static = [i for i, p in enumerate(joint.primals) if p.tensor in free and p.stretch is None]
        options["static_lifetime_input_indices"] = static
    forward, backward = partition(joint.graph, inputs, num_fwd_outputs=joint.values, **options)
    drop_repeated_effects(forward, backward)
    check_acts(joint.graph, forward, backward)
    if any(moves_generator(node) for node in backward.graph.nodes):
        raise BackendError(
            "the partitioner put a random draw into the backward graph, where it would draw again; use "
            "a partitioner that saves random values, as aot.default_partition does, or "
            "functionalize_rng_ops=True"
        )
    return forward, backward


def levels_of(joint: Joint, backwards: Sequence[fx.GraphModule | None]) -> list[Level | None]:
    """What each part of the backward can be recorded again from, with the values that are saved for it."""
    nodes = {node.name: node for node in joint.graph.graph.nodes}
    levels: list[Level | None] = []
    for level, backward in zip(joint.levels, backwards, strict=True):
        if level is None or backward is None:
            levels.append(None)
            continue
        saved = [n.name for n in backward.graph.nodes if n.op == "placeholder" and not is_tangent(n)]
        available = {nodes[name]: i for i, name in enumerate(saved) if name in nodes}
        levels.append(replace(level, available=available))
    return levels
