"""The plan: everything that a call does besides running graphs, as pure data.

In: `Effects`, a `Joint` and the partitioned forward graph. Out: a `Plan`, from which `codegen` writes the
wrapper. It holds no tensor, no fake and no node.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from aot.capture.joint import Failure, Gradient, Joint
from aot.capture.recorder import Reshape
from aot.effects import Effects, Output, Root, Write
from aot.geometry import Geometry
from aot.runtime.saving import Saved, Watch, decide


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input: the memory of tensor number `tensor`, or a flat stretch of the storage that it lies in.

    Attributes:
        dtype: of the tensor; a stretch of another dtype is one of bytes.
        lazy: whether the tensor shows its memory lazily conjugated or negated.
    """

    tensor: int
    stretch: Geometry | None
    dtype: torch.dtype
    lazy: bool


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
        failing: positions in `tracked` whose backward raises, with the error's type and text.
        saved, watched: see `saving`.
        writes, reshapes, moves, roots, outputs, retaining, retaining_outputs: see `Effects`.
        grad: grad mode at the call; `grad_after`: when it returns.
    """

    tensors: int
    inputs: tuple[Input, ...]
    values: tuple[Geometry, ...]
    tracked: tuple[int, ...]
    tangents: tuple[tuple[int, Geometry], ...]
    gradients: tuple[Gradient, ...]
    failing: tuple[Failure, ...]
    saved: tuple[Saved, ...]
    watched: tuple[Watch, ...]
    writes: tuple[Write, ...]
    reshapes: tuple[tuple[int, tuple[Reshape, ...]], ...]
    moves: tuple[int, ...]
    roots: tuple[Root, ...]
    outputs: tuple[Output, ...]
    retaining: tuple[int, ...]
    retaining_outputs: tuple[int, ...]
    grad: bool
    grad_after: bool


def make_plan(
    tensors: int,
    effects: Effects,
    joint: Joint,
    forward: fx.GraphModule,
    backward: fx.GraphModule | None,
    storages: tuple[int, ...],
    parameters: frozenset[int],
    grad: bool,
    grad_after: bool,
) -> Plan:
    """Combine what the stages learnt.

    Args:
        storages: for each tensor, which storage it lies in (equal numbers, equal storage).
        parameters: the tensors that live on in any case.
    """
    tracked = tuple(i for i, v in enumerate(effects.values) if v.history is not None)
    position = {value: k for k, value in enumerate(tracked)}
    saved, watched = decide(forward, backward, joint, effects, storages, parameters)
    return Plan(
        tensors=tensors,
        inputs=tuple(Input(p.tensor, p.stretch, p.dtype, p.lazy) for p in joint.primals),
        values=tuple(v.where for v in effects.values),
        tracked=tracked,
        tangents=tuple((position[i], where) for i, where in joint.tangents),
        gradients=joint.gradients,
        failing=tuple((position[i], kind, text) for i, kind, text in joint.failing),
        saved=saved,
        watched=watched,
        writes=effects.writes,
        reshapes=effects.reshapes,
        moves=effects.moves,
        roots=effects.roots,
        outputs=effects.outputs,
        retaining=effects.retaining,
        retaining_outputs=effects.retaining_outputs,
        grad=grad,
        grad_after=grad_after,
    )
