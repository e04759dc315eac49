"""The plan: everything that a call does besides running graphs, as pure data.

In: `Effects`, a `Joint` and the partitioned forward graph. Out: a `Plan`, from which `codegen` writes the
wrapper. It holds no tensor, no fake and no node.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from torch import fx

from aot import torch_internals as internals
from aot.capture.graph import Geometry
from aot.capture.joint import Gradient, Joint, Kept
from aot.capture.recorder import Reshape
from aot.effects import Effects, Output, Root, Write


class Saving(enum.Enum):
    """How a value is kept for backward."""

    AS_IS = "as it is"
    COPY = "copy"  # it lies in an argument that this very call overwrites
    WRITTEN = "written"  # it is what this very call writes to an argument: the argument's memory is kept
    OWN_COUNTER = "own counter"  # it lies in an argument whose version counter this very call moves


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input: tensor number `tensor`, or a flat stretch of the storage that it lies in."""

    tensor: int
    stretch: Geometry | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call does.

    Attributes:
        tensors: how many tensors the call has.
        inputs: the forward graph's inputs.
        values: the layout of each value that the forward graph returns.
        tracked: the values that carry autograd history, in order: the results of the autograd.Function.
        tangents: per tangent of the backward graph, the position in `tracked` and the traced layout.
        gradients: the autograd.Function's differentiable inputs, and which result each takes.
        failing: positions in `tracked` whose backward raises, with the error's text.
        saved: how each saved value is kept, and for what is kept as an argument's memory, the argument.
        watched: tensors whose version is noted when the call returns and checked by the backward, because
            what the backward keeps of them is not they themselves.
        writes, reshapes, moves, roots, outputs: see `Effects`.
        grad: grad mode at the call; `grad_after`: when it returns.
    """

    tensors: int
    inputs: tuple[Input, ...]
    values: tuple[Geometry, ...]
    tracked: tuple[int, ...]
    tangents: tuple[tuple[int, Geometry], ...]
    gradients: tuple[Gradient, ...]
    failing: tuple[tuple[int, str], ...]
    saved: tuple[tuple[Saving, int | None], ...]
    watched: tuple[Kept, ...]
    writes: tuple[Write, ...]
    reshapes: tuple[tuple[int, tuple[Reshape, ...]], ...]
    moves: tuple[int, ...]
    roots: tuple[Root, ...]
    outputs: tuple[Output, ...]
    grad: bool
    grad_after: bool


def make_plan(
    tensors: int,
    effects: Effects,
    joint: Joint,
    forward: fx.GraphModule,
    storages: tuple[int, ...],
    grad: bool,
    grad_after: bool,
) -> Plan:
    """Combine what the stages learnt.

    Args:
        storages: for each tensor, which storage it lies in (equal numbers, equal storage).
    """
    tracked = tuple(i for i, v in enumerate(effects.values) if v.history is not None)
    position = {value: k for k, value in enumerate(tracked)}
    moved = {storages[i] for i, _ in effects.reshapes} | {storages[i] for i in effects.moves}
    touched = moved | {storages[i] for i in effects.written}
    saved: list[tuple[Saving, int | None]] = []
    results = list(forward.graph.nodes)[-1].args[0]
    final = {results[w.value]: w.tensor for w in effects.writes if not w.early and w.through is None}
    for node, origin in list(zip(results, _origins(forward), strict=True))[joint.values :]:
        tensor = None if origin is None else joint.primals[origin].tensor
        if node in final:
            saved.append((Saving.WRITTEN, final[node]))
        elif tensor is not None and tensor in effects.written:
            saved.append((Saving.COPY, None))
        elif tensor is not None and storages[tensor] in moved:
            saved.append((Saving.OWN_COUNTER, None))
        else:
            saved.append((Saving.AS_IS, None))
    return Plan(
        tensors=tensors,
        inputs=tuple(Input(p.tensor, p.stretch) for p in joint.primals),
        values=tuple(v.where for v in effects.values),
        tracked=tracked,
        tangents=tuple((position[i], where) for i, where in joint.tangents),
        gradients=joint.gradients,
        failing=tuple((position[i], text) for i, text in joint.failing),
        saved=tuple(saved),
        watched=tuple(
            k for k in joint.kept if not k.read or (k.tensor is not None and storages[k.tensor] in touched)
        ),
        writes=effects.writes,
        reshapes=effects.reshapes,
        moves=effects.moves,
        roots=effects.roots,
        outputs=effects.outputs,
        grad=grad,
        grad_after=grad_after,
    )


def _origins(module: fx.GraphModule) -> list[int | None]:
    """For each output of a graph, the position of the input whose memory it may lie in."""
    origins: dict[fx.Node, int | None] = {}
    inputs = 0
    for node in module.graph.nodes:
        if node.op == "placeholder":
            origins[node] = inputs
            inputs += 1
        elif node.op == "output":
            return [origins.get(o) if isinstance(o, fx.Node) else None for o in node.args[0]]
        else:
            first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
            passes = not isinstance(node.target, internals.OpOverload) or internals.may_alias(node.target)
            origins[node] = origins.get(first) if first is not None and passes else None
    return []
