"""Descriptors: what the inputs and outputs of graphs are, as ``node.meta["desc"]``.

Names and attributes are those of AOTAutograd's descriptors, of which these are no instances: nothing of
AOTAutograd is loaded for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from aot.analysis.effect_summary import EffectSummary, IsRoot, ValueRoot, View
from aot.capture.autograd.edge_targets import ArgumentEdge, CotangentEdge, OutputEdge, WrittenEdge
from aot.joint.joint import Joint


@dataclass(frozen=True, slots=True)
class PlainAOTInput:
    """Tensor number `idx` of a call: an argument, or a part of one that is a wrapper subclass."""

    idx: int


@dataclass(frozen=True, slots=True)
class GeneratorStateAOTInput:
    """The state of a device's random generator."""

    device: torch.device


@dataclass(frozen=True, slots=True)
class PlainAOTOutput:
    """Result number `idx` of the function, or what it is a view of."""

    idx: int


@dataclass(frozen=True, slots=True)
class InputMutationAOTOutput:
    """What is written into an argument."""

    mutated_input: PlainAOTInput


@dataclass(frozen=True, slots=True)
class IntermediateAOTOutput:
    """A value number `idx` of the forward that the wrapper needs, and that is none of the results."""

    idx: int


@dataclass(frozen=True, slots=True)
class GeneratorStateAOTOutput:
    """The state of a device's random generator after the call."""

    device: torch.device


@dataclass(frozen=True, slots=True)
class SavedForBackwardsAOTOutput:
    """Value number `idx` of those that are saved for the backward."""

    idx: int


Value = PlainAOTOutput | InputMutationAOTOutput | IntermediateAOTOutput


@dataclass(frozen=True, slots=True)
class TangentAOTInput:
    """The gradient of a value; None of one that only another part of the backward differentiates."""

    output: Value | None


@dataclass(frozen=True, slots=True)
class GradAOTOutput:
    """The gradient of an argument, or of a value that another part of the backward differentiates."""

    grad_of: PlainAOTInput | PlainAOTOutput | None


def describe_joint(joint: Joint, effects: EffectSummary) -> None:
    """Describe the inputs and outputs of a joint graph, and so of what it is cut into."""
    values = _values(effects)
    inputs: list[object] = [PlainAOTInput(primal.tensor) for primal in joint.primals]
    inputs += [GeneratorStateAOTInput(device) for device in joint.generators]
    for segment in joint.segments:
        for number in segment.tangents:
            value = segment.cotangent_inputs[number].value
            inputs.append(TangentAOTInput(None if value is None else values.get(value)))
    nodes = joint.graph.graph.find_nodes(op="placeholder")
    for node, one in zip(nodes, inputs, strict=False):
        node.meta["desc"] = one
    outputs: list[object] = [values.get(value, IntermediateAOTOutput(value)) for value in joint.returned]
    outputs += [GeneratorStateAOTOutput(device) for device in joint.generators]
    _describe_outputs(joint.graph, [*outputs, *(one for part in _gradients(joint) for one in part)])


def describe_partition(
    joint: Joint, forward: fx.GraphModule, backwards: Sequence[fx.GraphModule | None]
) -> None:
    """Describe the outputs of the graphs that a joint graph was cut into."""
    (whole,) = joint.graph.graph.find_nodes(op="output")
    (output,) = forward.graph.find_nodes(op="output")
    said = whole.meta["desc"][: joint.values]
    saved = len(output.args[0]) - len(said)
    _describe_outputs(forward, [*said, *map(SavedForBackwardsAOTOutput, range(saved))])
    for module, part in zip(backwards, _gradients(joint), strict=False):
        if module is not None:
            _describe_outputs(module, part)


def _describe_outputs(module: fx.GraphModule, said: list[object]) -> None:
    (output,) = module.graph.find_nodes(op="output")
    results = output.args[0]
    assert isinstance(results, (tuple, list))
    nodes = [isinstance(result, fx.Node) for result in results]
    output.meta["desc"] = [one if is_node else None for one, is_node in zip(said, nodes, strict=False)]


def _values(effects: EffectSummary) -> Mapping[int, Value]:
    """What the values of the forward are, by their numbers."""
    found: dict[int, Value] = {}
    for write in (*effects.writes, *effects.kept):
        found.setdefault(write.value, InputMutationAOTOutput(PlainAOTInput(write.tensor)))
    for position, output in enumerate(effects.outputs):
        if isinstance(output, (IsRoot, View)):
            root = effects.roots[output.root]
            if isinstance(root, ValueRoot):
                found.setdefault(root.value, PlainAOTOutput(position))
    return found


def _gradients(joint: Joint) -> list[list[object]]:
    """What the results of each part of the backward are."""
    parts: list[list[object]] = []
    for segment in joint.segments:
        results: list[object] = [None] * segment.results
        for gradient in segment.gradients:
            for result in gradient.results:
                results[result] = _gradient(gradient.target)
        parts.append(results)
    return parts


def _gradient(target: object) -> GradAOTOutput:
    if isinstance(target, (ArgumentEdge, WrittenEdge)):
        return GradAOTOutput(PlainAOTInput(target.tensor))
    if isinstance(target, OutputEdge):
        return GradAOTOutput(PlainAOTOutput(target.output))
    assert isinstance(target, CotangentEdge)
    return GradAOTOutput(None)
