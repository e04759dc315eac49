"""How each saved value is kept for backward, and which of the caller's tensors are watched.

Autograd lets a backward raise when a tensor that it keeps was written to since. A compiled backward keeps
values of graphs, which need not be the tensors that eager keeps, so the check cannot always be left to
`save_for_backward`: where it can, values are saved as they are; where it cannot, they are saved under a
version counter of their own, and the tensors that eager keeps are *watched*: their versions are noted when
the call returns and compared by a backward that needs them.

What eager does not keep, the caller may write to as he likes: if a partitioner has it saved, it is copied. A
part of a larger tensor is copied where that lets go of the rest.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from aot.analysis.effect_summary import (
    AliasRoot,
    EffectSummary,
    FunctionViewRoot,
    Rebound,
    ValueRoot,
    View,
    WrapperRoot,
)
from aot.graph.graph_text import labels, layout_text
from aot.joint.joint import Joint, SavedInput, Segment, tangent_numbers
from aot.partition.joint_graph import is_tangent, is_tensor
from aot.partition.tensor_bytes import memory_roots, span_bytes
from aot.tensors.geometry import Geometry


class SaveStrategy(enum.Enum):
    """How a value is kept for backward."""

    AS_IS = "as it is"
    COPY = "copy"  # it lies in memory that may be written to, or in more of it than is worth keeping
    RESIDENT = "resident"  # an argument's memory holds it after this call's writes: that memory is kept
    LIVE = "live"  # memory that the backward writes to, as it finds it
    OWN_COUNTER = "own counter"  # its version counter is not what eager would check, or not always


# What the node of a segment keeps itself, of which autograd checks nothing.
OUTSIDE_OF_AUTOGRAD = frozenset({SaveStrategy.RESIDENT, SaveStrategy.LIVE})


@dataclass(frozen=True, slots=True)
class Saved:
    """How the `index`-th saved value is kept.

    Attributes:
        tensor, where: if RESIDENT, the argument, and where in its storage; if LIVE, the same, or None for
            what the forward has made.
        primal: if AS_IS, which graph input it is, if it is one: the compiled graph may have run on a copy.
        values: if AS_IS, which values for the caller it is; if LIVE, the one that it is, if it is one.
        offset: if COPY, the storage offset of the copy.
        counted: if LIVE, whether the write moves its version counter.
        donated: whether nobody else has its memory, so that the last backward may overwrite it.
    """

    index: int
    how: SaveStrategy
    tensor: int | None = None
    where: Geometry | None = None
    primal: int | None = None
    values: tuple[int, ...] = ()
    offset: int = 0
    donated: bool = False
    counted: bool = True

    def __str__(self) -> str:
        words = [f"saved {self.index}: {self.how.value}"]
        words += [] if self.tensor is None else [f"t{self.tensor}"]
        words += [] if self.where is None else [layout_text(self.where)]
        words += [] if self.primal is None else [f"graph input {self.primal}"]
        words += [f"v{value}" for value in self.values]
        words += [f"offset {self.offset}"] if self.offset else []
        return ", ".join([*words, *labels(self, "donated"), *([] if self.counted else ["not counted"])])


@dataclass(frozen=True, slots=True)
class VersionCheck:
    """An argument (`tensor`) or a root of the outputs (`root`) whose version the backward compares; if
    `only_for_dead_targets`, when what a vain gradient goes to is run; if there are `tangents` (bits), when
    one of these comes. It raises `reason`, or that the tensor was modified."""

    tensor: int | None
    root: int | None
    tangents: int | None = None
    only_for_dead_targets: bool = False
    reason: str | None = None

    def __str__(self) -> str:
        words = [f"r{self.root}" if self.tensor is None else f"t{self.tensor}"]
        words += [] if self.tangents is None else [f"for tangents {tangent_numbers(self.tangents)}"]
        words += labels(self, "only_for_dead_targets")
        return ", ".join([*words, *([] if self.reason is None else [self.reason])])


@dataclass(frozen=True, slots=True)
class SelfSaved:
    """A result of a segment's node that the node itself keeps, for its edge.

    Attributes:
        cotangent_input: the entrance that it is.
        position: where among what the node saves.
    """

    cotangent_input: int
    position: int

    def __str__(self) -> str:
        return f"cotangent input {self.cotangent_input}, at {self.position}"


# What a value lies in: a storage of the arguments, or a value that the caller gets. (No value lies in a
# wrapper subclass, but in what that is made of; it has a version counter.)
_Memory = tuple[str, int]


class SavedValuePlanner:
    """Decides how every saved value is kept, and what is watched, one segment after the other.

    Args:
        taken: for each segment, which saved values its graph takes.
        storages: for each tensor of the call, which storage it lies in (equal numbers, equal storage).
        parameters: the tensors that live on in any case.
    """

    def __init__(
        self,
        forward: fx.GraphModule,
        joint: Joint,
        effects: EffectSummary,
        taken: Sequence[tuple[int, ...]],
        storages: tuple[int, ...],
        parameters: frozenset[int],
    ) -> None:
        results = list(forward.graph.nodes)[-1].args[0]
        self._joint = joint
        self._effects = effects
        self._storages = storages
        self._saved = results[joint.values :]
        self._results = dict(zip(joint.returned, results, strict=False))
        self._values_at: dict[fx.Node, list[int]] = defaultdict(list)
        for value, result in self._results.items():
            self._values_at[result].append(value)
        self._roots = memory_roots(forward.graph)
        self._counters = memory_roots(forward.graph, counted=True)
        self._possibly_zero = _possibly_blank_saved(forward.graph)
        inputs = [n for n in forward.graph.nodes if n.op == "placeholder"]  # (states come last)
        self._primal_of = dict(zip(inputs, range(len(joint.primals)), strict=False))
        self._tensor_of = {n: p.tensor for n, p in zip(inputs, joint.primals, strict=False)}
        visible = _visible_saved_values(effects)
        values = [(i, v) for i, v in enumerate(joint.returned) if v in visible]
        self._value_of = {self._roots[results[i]]: v for i, v in reversed(values)}
        self._changed_storages = {storages[i] for i, _ in effects.changes} | {
            storages[i] for i in effects.version_bumps_only
        }
        self._changed_storages |= {storages[i] for i in effects.several_counters}
        self._changed_storages |= {storages[p.tensor] for p in joint.primals if p.span is not None}
        self._written_storages = self._changed_storages | {storages[i] for i in effects.written}
        # What the wrapper itself moves the version counter of, after it is saved.
        self._bumped_memories = {
            _saved_memory_of_root(output.root, effects, storages)
            for output in effects.outputs
            if isinstance(output, View) and output.stale
        }
        alive = {n for n, i in self._tensor_of.items() if i in parameters}
        self._excessive = _excessive_saved_views(self._saved, self._roots, alive)
        self._readers = Counter(self._roots[self._saved[i]] for indices in taken for i in indices)

    @property
    def count(self) -> int:
        """How many values the forward graph returns for the backward."""
        return len(self._saved)

    def decide_saved_values(
        self, segment: Segment, backward: fx.GraphModule | None, taken: tuple[int, ...]
    ) -> tuple[tuple[Saved, ...], tuple[VersionCheck, ...], tuple[SelfSaved, ...]]:
        """For one segment, whose graph takes the saved values `taken`."""
        everything = (1 << len(segment.tangents)) - 1
        shown: dict[_Memory, int] = {}
        uncounted: set[_Memory] = set()
        for kept in segment.kept:
            memory = _memory_of(kept, self._effects, self._storages)
            if memory is not None and (kept.only_for_dead_targets or not kept.counted):
                uncounted.add(memory)
            elif memory is not None:
                shown[memory] = shown.get(memory, 0) | kept.tangents
        by_offset = saved_read_by_offset(backward)
        saved: list[Saved] = []
        needs: dict[_Memory, int] = {}
        unchecked: set[_Memory] = set()
        for index, need in zip(taken, _tangents_needing_saved(backward, everything), strict=True):
            node = self._saved[index]
            live = self._joint.live.get(node.name)
            if live is not None:
                where = None if live.tensor is None else live.where
                values = () if live.value is None else (live.value,)
                one = Saved(index, SaveStrategy.LIVE, live.tensor, where, None, values, counted=live.counted)
                saved.append(one)
                continue
            offset = int(node.meta["val"].storage_offset()) if node.name in by_offset else 0
            resident, memory = self._saved_value_memory(
                node, shown, offset if node.name in by_offset else None
            )
            checked = shown.get(memory, 0) if memory is not None else 0
            if resident is not None:
                one = Saved(index, SaveStrategy.RESIDENT, *resident)
            else:
                how = self._save_strategy(node, memory, need, shown, uncounted, everything)
                copied = how is SaveStrategy.COPY
                one = Saved(
                    index,
                    how,
                    primal=self._primal_of.get(node) if how is SaveStrategy.AS_IS else None,
                    values=tuple(self._values_at[node]) if how is SaveStrategy.AS_IS else (),
                    offset=offset if copied else 0,
                    donated=not segment.stays and (copied or self._is_own(node, memory)),
                )
            saved.append(one)
            if memory is not None:
                # Eager checks everything that a node has saved, whichever of its gradients are needed.
                settled = one.how is SaveStrategy.COPY and checked
                needs[memory] = needs.get(memory, 0) | (checked if settled else need | checked)
                if (
                    one.how is not SaveStrategy.AS_IS or segment.stays
                ):  # (autograd checks what it saves itself)
                    unchecked.add(memory)
        own = self._self_saved_results(segment, saved, shown, uncounted)
        return tuple(saved), self._version_checks_of_saved(segment, needs, unchecked), own

    def _self_saved_results(
        self, segment: Segment, saved: list[Saved], shown: dict[_Memory, int], uncounted: set[_Memory]
    ) -> tuple[SelfSaved, ...]:
        """The results that a segment's node keeps itself: those that eager's does, as long as the checks of
        autograd are eager's, and those without memory that stand for something in between."""
        everything = (1 << len(segment.tangents)) - 1
        values = {root.value for root in self._effects.roots if isinstance(root, ValueRoot)}
        found: list[SelfSaved] = []
        end = len(saved)
        for e, entrance in enumerate(segment.cotangent_inputs):
            place: int | None = None
            if not entrance.kept or not (entrance.value is None or entrance.value in values):
                continue
            if entrance.value is not None:
                node, memory = self._results[entrance.value], ("value", entrance.value)
                if (
                    self._save_strategy(node, memory, everything, shown, uncounted, everything)
                    is not SaveStrategy.AS_IS
                ):
                    continue
                alike = (i for i, one in enumerate(saved) if self._saved[one.index] is node)
                place = next((i for i in alike if saved[i].how is SaveStrategy.AS_IS), None)
            found.append(SelfSaved(e, end if place is None else place))
            end += place is None
        return tuple(found)

    def _is_own(self, node: fx.Node, memory: _Memory | None) -> bool:
        """Whether a value that is saved as it is lies in memory that the forward made for it alone."""
        root = self._roots[node]
        own = memory is None and root.op == "call_function" and self._readers[root] == 1
        return own and root not in self._possibly_zero

    def _saved_value_memory(
        self, node: fx.Node, shown: dict[_Memory, int], offset: int | None
    ) -> tuple[tuple[int, Geometry] | None, _Memory | None]:
        """What a saved value lies in, and where an argument's memory holds it if that can be kept; `offset`
        is the storage offset that it must have, if there is one."""
        resident = self._joint.in_input_memory.get(node.name)
        if resident is not None and (
            ("storage", self._storages[resident[0]]) not in shown
            or (offset is not None and resident[1].offset != offset)
        ):
            resident = None
        root = self._roots[node]
        tensor = self._tensor_of.get(root)
        if resident is not None:
            return resident, ("storage", self._storages[resident[0]])
        if tensor is not None:
            return None, ("storage", self._storages[tensor])
        if root in self._value_of:
            return None, ("value", self._value_of[root])
        return None, None

    def _save_strategy(
        self,
        node: fx.Node,
        memory: _Memory | None,
        need: int,
        shown: dict[_Memory, int],
        uncounted: set[_Memory],
        everything: int,
    ) -> SaveStrategy:
        tensor = self._tensor_of.get(self._roots[node])
        if tensor is not None and (tensor in self._effects.written or tensor in self._effects.inference):
            return SaveStrategy.COPY  # (Autograd saves no inference tensor.)
        if node in self._excessive:
            return SaveStrategy.COPY
        if memory is None:
            return SaveStrategy.AS_IS
        if memory not in shown:
            # Eager would not mind a write that this backward must not see, except to what it keeps itself.
            return SaveStrategy.OWN_COUNTER if memory in uncounted else SaveStrategy.COPY
        checked = shown[memory]
        if checked and need & ~checked:
            return SaveStrategy.COPY
        apart = memory in self._bumped_memories or (
            tensor is not None and memory[1] in self._changed_storages
        )
        # A graph may come by what a tensor shows with an unsafe view, although eager's is a view like others.
        base = self._roots[node] if memory[0] == "storage" else self._results[memory[1]]
        apart |= self._counters[node] is not self._counters[base]
        # (Under which of several counters autograd would check it, the watched tensors tell.)
        if need | checked != everything or apart or memory in uncounted:
            return SaveStrategy.OWN_COUNTER
        return SaveStrategy.AS_IS

    def _version_checks_of_saved(
        self, segment: Segment, needs: dict[_Memory, int], unchecked: set[_Memory]
    ) -> tuple[VersionCheck, ...]:
        watched: list[VersionCheck] = []
        for kept in segment.kept:
            if not kept.counted:
                continue
            tangents = None if kept.always else kept.tangents
            if kept.only_for_dead_targets or kept.reason is not None:
                watched.append(
                    VersionCheck(kept.tensor, kept.root, tangents, kept.only_for_dead_targets, kept.reason)
                )
                continue
            memory = _memory_of(kept, self._effects, self._storages)
            is_touched = memory is not None and memory[0] == "storage" and memory[1] in self._written_storages
            if memory is None or is_touched or memory in unchecked or memory not in needs:
                watched.append(VersionCheck(kept.tensor, kept.root, tangents))
        return tuple(watched)


def _visible_saved_values(effects: EffectSummary) -> set[int]:
    """The values that the caller gets to see as they are."""
    seen = {r.value for r in effects.roots if isinstance(r, ValueRoot)}
    for root in effects.roots:
        if isinstance(root, AliasRoot):
            value = None if root.memory is None else root.memory.value
            seen.update(v for v in (value, root.history) if v is not None)
    # What an argument or a result was put onto is theirs from then on.
    changes = [change for _, change in effects.changes]
    changes += [output.rebound for output in effects.outputs if isinstance(output, View) and output.rebound]
    seen.update(
        change.memory.value
        for change in changes
        if isinstance(change, Rebound) and change.memory.value is not None
    )
    return seen


def _excessive_saved_views(
    saved: Sequence[fx.Node], roots: dict[fx.Node, fx.Node], alive: set[fx.Node]
) -> set[fx.Node]:
    """The views among the saved values that together take less memory than what they are views of, which is
    neither saved itself nor `alive` in any case."""
    views: dict[fx.Node, list[fx.Node]] = {}
    for node in saved:
        views.setdefault(roots[node], []).append(node)
    found: set[fx.Node] = set()
    for root, nodes in views.items():
        apart = root not in nodes and root not in alive and is_tensor(root)
        if apart and sum(map(span_bytes, nodes)) < span_bytes(root):
            found.update(nodes)
    return found


def saved_read_by_offset(backward: fx.GraphModule | None) -> set[str]:
    """The saved values and tangents of which a view is taken by `as_strided`, which counts from the start of
    the storage: they must lie at the storage offset that they had in the trace, tangents at 0."""
    if backward is None:
        return set()
    roots = memory_roots(backward.graph)
    strided = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)
    return {roots[n.args[0]].name for n in backward.graph.nodes if n.target in strided}


def tangents_read_by_offset(backward: fx.GraphModule | None, named: str = "tangents_") -> frozenset[int]:
    """Which of the tangents that a graph takes, `named` so, it reads by offset."""
    if backward is None:
        return frozenset()
    names = saved_read_by_offset(backward)
    inputs = (n for n in backward.graph.nodes if n.op == "placeholder")
    tangents = [n for n in inputs if n.name.startswith(named)]
    return frozenset(j for j, node in enumerate(tangents) if node.name in names)


def _memory_of(kept: SavedInput, effects: EffectSummary, storages: tuple[int, ...]) -> _Memory | None:
    if kept.tensor is not None:
        return ("storage", storages[kept.tensor])
    assert kept.root is not None
    return _saved_memory_of_root(kept.root, effects, storages)


def _saved_memory_of_root(number: int, effects: EffectSummary, storages: tuple[int, ...]) -> _Memory | None:
    root = effects.roots[number]
    while True:
        if isinstance(root, FunctionViewRoot):
            root = effects.roots[root.base]
        elif isinstance(root, AliasRoot) and root.root is not None:
            root = effects.roots[root.root]
        else:
            break
    if isinstance(root, ValueRoot):
        return ("value", root.value)
    if isinstance(root, WrapperRoot):
        return ("wrapper", number)
    if isinstance(root, AliasRoot):
        assert root.memory is not None
        if root.memory.value is not None:  # an uncounted one is checked apart
            return ("value", root.memory.value) if root.counted else None
        assert root.memory.tensor is not None
        return ("storage", storages[root.memory.tensor])
    return ("storage", storages[root.tensor])


def _tangents_needing_saved(backward: fx.GraphModule | None, everything: int) -> list[int]:
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


def _possibly_blank_saved(graph: fx.Graph) -> set[fx.Node]:
    """The values that may be zeros without memory when a graph runs, as forward-mode differentiation has
    them: such are products and sums with them, too, and nobody can write to one."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        blank = node.target is torch.ops.aten._efficientzerotensor.default
        if blank or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found
