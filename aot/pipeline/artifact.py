"""What a compile has found out before any graph is given to a compiler: all of it that can be kept."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from aot.analysis.metadata import ViewAndMutationMeta
from aot.capture.recorder.autocast_cache import NO_CASTS, CastUse
from aot.runtime.plan import Plan
from aot.torch_internals import pytree


@dataclass(frozen=True, slots=True)
class Lowered:
    """What one compile answers calls by, but for what compilers make of its graphs.

    Attributes:
        forward: the forward graph.
        backwards: the graph of each part of the backward; None for one that computes nothing.
        again: which parts can be recorded again.
        metadata: what a call does to its arguments, and what its results are.
        spec: the outputs' tree.
        grad_targets: the tensors of the call that the function takes gradients with respect to.
        casts: what it does with autocast's cache.
    """

    plan: Plan
    forward: fx.GraphModule
    backwards: tuple[fx.GraphModule | None, ...]
    again: tuple[bool, ...]
    metadata: ViewAndMutationMeta
    spec: pytree.TreeSpec
    grad_targets: frozenset[int]
    casts: CastUse = NO_CASTS
