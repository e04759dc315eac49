"""Specialization: one compile of a function, and which calls it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from aot.analysis.metadata import ViewAndMutationMeta
from aot.capture.cast_inputs import CallCasts
from aot.guards.guard import Guards
from aot.guards.side_effects import NO_SIDE_EFFECTS, SideEffects
from aot.runtime.plan import Plan
from aot.specialize.call import Arguments
from aot.specialize.inline_cache import CacheTarget, PlacementSensitivity
from aot.tensors.symbolic_sizes import ShapeGuards
from aot.tensors.tensor_attributes import AttributeNames
from aot.torch_internals import autocast_state, pytree


@dataclass(frozen=True, slots=True)
class Specialization:
    """One compile: what runs for the calls that it answers.

    Attributes:
        call: takes the call's tensors, returns the flat outputs.
        spec: the outputs' tree.
        unflatten: puts flat outputs together as that tree.
        forward: the forward graph.
        backwards: the backward graphs, one for each part of the backward that runs as a whole.
        wrapper: the generated source around them.
        metadata: what a call does to its arguments, and what its results are.
        guards: what the function read besides its arguments.
        sizes: what it assumes of the sizes of tensors, if it answers others than those it was made for.
        numbers: the leaves of the arguments that `call` takes after the tensors.
        placement: what of the tensors matters besides their elements.
        why: what kept earlier ones from answering the call that it was made for.
        changes: what each call changes of the Python program around the function.
        attributes: the Python attributes of tensors that the function may have read.
        computes_sizes: whether its graph computes sizes or numbers from values, and raises `DataSizesDiffer`
            where these are not as assumed.
        casts: gets the casts that `call` takes besides the tensors of the call.
        region: what is known of autocast's cache (`autocast_state.cast_cache_key`), if it depends on that.
        plan: what the wrapper does, as data; None for an export, which has no wrapper.
    """

    call: Callable[..., list[Any]]
    spec: pytree.TreeSpec
    unflatten: Callable[[list[Any]], Any] = field(repr=False)
    forward: fx.GraphModule
    backwards: tuple[fx.GraphModule, ...]
    wrapper: str
    metadata: ViewAndMutationMeta
    guards: Guards = field(repr=False)
    sizes: ShapeGuards | None = None
    numbers: tuple[int, ...] = ()
    placement: PlacementSensitivity = PlacementSensitivity.FULL
    why: str = ""
    changes: SideEffects = NO_SIDE_EFFECTS
    attributes: AttributeNames = field(default_factory=AttributeNames)
    computes_sizes: bool = False
    casts: CallCasts | None = None
    region: tuple[bool, bool] | None = None
    plan: Plan | None = field(default=None, repr=False)

    def holds(self) -> bool:
        """Whether it still answers calls of its key, as far as that does not depend on their casts."""
        return self.region in (None, autocast_state.cast_cache_key()) and self.guards.hold()

    def given(self, arguments: Arguments) -> tuple[torch.Tensor, ...] | None:
        """The tensors that it takes for a call; None where it does not answer it."""
        return (
            arguments.tensors_and_subclasses
            if self.casts is None
            else self.casts.joined(arguments.tensors_and_subclasses)
        )

    def answer(self, tensors: tuple[torch.Tensor, ...], leaves: Sequence[Any]) -> Any:
        """What the function returns, for the tensors that it takes (`given`) and the leaves of its
        arguments."""
        if self.numbers:
            tensors = (*tensors, *(leaves[leaf] for leaf in self.numbers))
        return self.unflatten(self.call(*tensors))

    @property
    def as_answer(self) -> CacheTarget:
        together = None if self.unflatten is list else self.unflatten  # (each call gives a list of its own)
        hold = self.guards.hold if self.region is None else self.holds
        casts = None if self.casts is None else self.casts.of
        return CacheTarget(hold, self.call, self.numbers, together, self.placement, self.attributes, casts)


def describe_guards(specialization: Specialization, alike: Sequence[Specialization]) -> str:
    """What a specialization rests on, and what keeps those that are alike from answering."""
    lines = [str(guard.path) for guard in specialization.guards.guards]
    changed = [f"changed: {path}" for other in alike for path in other.guards.changed()]
    sizes = () if specialization.sizes is None else specialization.sizes.tests
    return "\n".join([specialization.why, *changed, *lines, *sizes])
