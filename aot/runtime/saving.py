"""How each saved value is kept for backward, and which of the caller's tensors are watched.

Autograd lets a backward raise when a tensor that it keeps was written to since. A compiled backward keeps
values of graphs, which need not be the tensors that eager keeps, so the check cannot always be left to
`save_for_backward`: where it can, values are saved as they are; where it cannot, they are saved under a
version counter of their own, and the tensors that eager keeps are *watched*: their versions are noted when
the call returns and compared by a backward that needs them.
"""

from __future__ import annotations

import enum
import operator
from dataclasses import dataclass

from torch import fx

from aot import torch_internals as internals
from aot.capture.joint import Joint, Kept
from aot.effects import AliasRoot, Effects, ValueRoot
from aot.geometry import Geometry
from aot.partition.common import is_tangent


class Saving(enum.Enum):
    """How a value is kept for backward."""

    AS_IS = "as it is"
    COPY = "copy"  # it lies in an argument that this very call overwrites
    RESIDENT = "resident"  # an argument's memory holds it after this call's writes: that memory is kept
    OWN_COUNTER = "own counter"  # its version counter is not what eager would check, or not always


@dataclass(frozen=True, slots=True)
class Saved:
    """How one saved value is kept; if RESIDENT, as the memory of argument `tensor` at `where`."""

    how: Saving
    tensor: int | None = None
    where: Geometry | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """An argument (`tensor`) or a root of the outputs (`root`) whose version the backward compares, when it
    is given one of `tangents` (bit j for tangent j)."""

    tensor: int | None
    root: int | None
    tangents: int


# What a value lies in: a storage of the arguments, or a value that the caller gets.
_Memory = tuple[str, int]


def decide(
    forward: fx.GraphModule,
    backward: fx.GraphModule | None,
    joint: Joint,
    effects: Effects,
    storages: tuple[int, ...],
) -> tuple[tuple[Saved, ...], tuple[Watch, ...]]:
    """How every saved value is kept, in order, and what is watched.

    Args:
        storages: for each tensor of the call, which storage it lies in (equal numbers, equal storage).
    """
    everything = (1 << len(joint.tangents)) - 1
    results = list(forward.graph.nodes)[-1].args[0]
    roots = memory_roots(forward)
    inputs = [n for n in forward.graph.nodes if n.op == "placeholder"]
    tensor_of = {n: p.tensor for n, p in zip(inputs, joint.primals, strict=True)}
    value_of = {roots[n]: v for v, n in reversed(list(enumerate(results[: joint.values])))}
    apart = {storages[i] for i, _ in effects.reshapes} | {storages[i] for i in effects.moves}
    apart |= {storages[i] for i in effects.several_counters}
    apart |= {storages[p.tensor] for p in joint.primals if p.stretch is not None}
    touched = apart | {storages[i] for i in effects.written}

    bits = {value: 1 << j for j, (value, _) in enumerate(joint.tangents)}
    tracked = [i for i, value in enumerate(effects.values) if value.history is not None]
    shown: dict[_Memory, int] = {}
    for kept in joint.kept:
        memory = _memory_of(kept, effects, storages)
        if memory is not None:
            mask = sum(bits.get(value, 0) for k, value in enumerate(tracked) if kept.tracked >> k & 1)
            shown[memory] = shown.get(memory, 0) | mask

    saved: list[Saved] = []
    needs: dict[_Memory, int] = {}
    unchecked: set[_Memory] = set()
    for node, need in zip(results[joint.values :], _needs(backward, everything), strict=True):
        root = roots[node]
        tensor = tensor_of.get(root)
        memory = None
        if tensor is not None:
            memory = ("storage", storages[tensor])
        elif node.name in joint.resident:
            memory = ("storage", storages[joint.resident[node.name][0]])
        elif root in value_of:
            memory = ("value", value_of[root])
        if memory is not None:
            # Eager checks everything that a node has saved, whichever of its gradients are needed.
            need |= shown.get(memory, 0)
        if node.name in joint.resident:
            saved.append(Saved(Saving.RESIDENT, *joint.resident[node.name]))
        elif tensor is not None and tensor in effects.written:
            saved.append(Saved(Saving.COPY))
        elif memory is not None and (need != everything or (tensor is not None and memory[1] in apart)):
            saved.append(Saved(Saving.OWN_COUNTER))
        else:
            saved.append(Saved(Saving.AS_IS))
        if memory is not None:
            needs[memory] = needs.get(memory, 0) | need
            if saved[-1].how is not Saving.AS_IS:
                unchecked.add(memory)

    watched: list[Watch] = []
    for kept in joint.kept:
        memory = _memory_of(kept, effects, storages)
        is_touched = memory is not None and memory[0] == "storage" and memory[1] in touched
        if memory is None or is_touched or memory in unchecked or memory not in needs:
            need = everything if memory is None else needs.get(memory, shown[memory] or everything)
            watched.append(Watch(kept.tensor, kept.root, need))
    return tuple(saved), tuple(watched)


def _memory_of(kept: Kept, effects: Effects, storages: tuple[int, ...]) -> _Memory | None:
    if kept.tensor is not None:
        return ("storage", storages[kept.tensor])
    assert kept.root is not None
    root = effects.roots[kept.root]
    while isinstance(root, AliasRoot) and root.root is not None:
        root = effects.roots[root.root]
    if isinstance(root, ValueRoot):
        return ("value", root.value)
    if isinstance(root, AliasRoot):
        return ("storage", storages[root.tensor]) if root.tensor is not None else None
    return ("storage", storages[root.tensor])


def memory_roots(module: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """For each node, the node in whose memory its result may lie: where its views begin."""
    roots: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        roots[node] = node
        if first is None or node.op != "call_function":
            continue
        if node.target is operator.getitem:
            # One of several views begins where they all do; one of several new results is itself.
            roots[node] = roots[first] if roots[first] is not first else node
        elif isinstance(node.target, internals.OpOverload) and internals.may_alias(node.target):
            roots[node] = roots[first]
    return roots


def _needs(backward: fx.GraphModule | None, everything: int) -> list[int]:
    """For each saved value, the tangents whose backward reads it: those that the first results computed from
    it and from any tangent depend on."""
    if backward is None:
        return []
    nodes = list(backward.graph.nodes)
    saved = [n for n in nodes if n.op == "placeholder" and not is_tangent(n)]
    if everything == 1:
        return [everything] * len(saved)
    masks: dict[fx.Node, int] = {}
    tangents = 0
    for node in nodes:
        if node.op == "placeholder" and is_tangent(node):
            masks[node] = 1 << tangents
            tangents += 1
        else:
            masks[node] = 0
            for other in node.all_input_nodes:
                masks[node] |= masks[other]
    needs: dict[fx.Node, int] = {}
    for node in reversed(nodes):
        if node.op == "output":
            continue
        needs[node] = 0
        for user in node.users:
            if user.op == "output":
                needs[node] = everything
            else:
                needs[node] |= masks[user] or needs[user]
    return [needs[n] for n in saved]
