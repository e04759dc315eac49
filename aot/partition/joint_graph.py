"""Joint graph: the parts that every partitioner needs, and the two graphs extracted from it.

In: an `fx.GraphModule`. Out: a `JointGraph`, and after the partitioner's choice a forward and a backward
module. The checks that a partitioner has kept side effects in order are here too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from aot.errors import BackendError, PartitionError
from aot.graph.purity import (
    BACKWARD_TAGS,
    eliminate_dead_code,
    is_backward_write,
    is_impure,
    node_has_external_effect,
)
from aot.torch_internals import fx_graphs


@dataclass(frozen=True, slots=True)
class JointGraph:
    """The parts of a joint graph.

    Attributes:
        module: the joint graph.
        primals, tangents: its placeholders.
        outputs: the results of the forward.
        gradients: the results of the backward; None where there is no gradient.
        side_effects: nodes of the backward that have an external effect or write to memory of the forward.
        recorded_backward: the nodes that were recorded during differentiation, with the tangents.
        pinned: nodes among them that the user wants recomputed in the backward (checkpointing).
    """

    module: fx.GraphModule
    primals: tuple[fx.Node, ...]
    tangents: tuple[fx.Node, ...]
    outputs: tuple[Any, ...]
    gradients: tuple[Any, ...]
    side_effects: tuple[fx.Node, ...]
    recorded_backward: frozenset[fx.Node]
    pinned: frozenset[fx.Node]

    @property
    def demanded(self) -> tuple[Any, ...]:
        """The values and nodes for which the backward runs: its results and its side effects."""
        return (*self.gradients, *self.side_effects)


def parse_joint_graph(module: fx.GraphModule, num_fwd_outputs: int) -> JointGraph:
    """Take a joint graph apart. Its first `num_fwd_outputs` outputs belong to the forward.

    Raises:
        PartitionError: there is no output node, there are fewer outputs than `num_fwd_outputs`, or a node
            lacks ``meta["val"]``.
    """
    nodes = list(module.graph.nodes)
    if not nodes or nodes[-1].op != "output":
        raise PartitionError("the joint graph has no output node")
    outputs = tuple(nodes[-1].args[0])
    if len(outputs) < num_fwd_outputs:
        raise PartitionError(
            f"num_fwd_outputs is {num_fwd_outputs}, but the joint graph has {len(outputs)} outputs"
        )
    for node in nodes:
        if node.op in ("placeholder", "call_function") and "val" not in node.meta:
            raise PartitionError(f"node {node.name} of the joint graph has no meta['val'], a fake tensor")
    placeholders = [n for n in nodes if n.op == "placeholder"]
    tangents = tuple(n for n in placeholders if is_tangent(n))
    tags = {n: n.meta.get("partitioner_tag") for n in nodes}
    recorded = frozenset(n for n in nodes if tags[n] in BACKWARD_TAGS).union(tangents)
    # A backward may repeat a draw. It reads the draw's results, and each is saved for itself, not the tuple.
    recorded -= {n for n in recorded if n.target is operator.getitem and n.args[0] not in recorded}
    return JointGraph(
        module=module,
        primals=tuple(n for n in placeholders if not is_tangent(n)),
        tangents=tangents,
        outputs=outputs[:num_fwd_outputs],
        gradients=outputs[num_fwd_outputs:],
        side_effects=tuple(n for n in nodes if n in recorded and _has_effect(n)),
        recorded_backward=recorded,
        pinned=frozenset(n for n in recorded if tags[n] == "must_be_in_backward"),
    )


def _has_effect(node: fx.Node) -> bool:
    return node_has_external_effect(node) or is_backward_write(node)


def is_tangent(node: fx.Node) -> bool:
    """Whether a placeholder is a tangent."""
    return node.name.startswith("tangents_")


def is_tensor(node: fx.Node) -> bool:
    """Whether a node's value is one tensor, not a tuple of results."""
    return isinstance(node.meta.get("val"), Tensor)


def ancestors_among(results: Iterable[Any], among: frozenset[fx.Node] | set[fx.Node]) -> set[fx.Node]:
    """The nodes of `among` that `results` are computed from, through nodes of `among` alone."""
    needed: set[fx.Node] = set()
    stack = [r for r in results if isinstance(r, fx.Node)]
    while stack:
        node = stack.pop()
        if node in among and node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    return needed


def extract_forward_and_backward(
    parts: JointGraph, forward: Sequence[fx.Node], saved: Sequence[fx.Node], backward: Sequence[fx.Node]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Build the two modules of a partition.

    Args:
        parts: the joint graph.
        forward, backward: the nodes that each may compute, in an order in which they can run.
        saved: values of the forward that the backward takes as inputs.
    """
    constants = [n for n in parts.module.graph.nodes if n.op == "get_attr"]
    return (
        extract(parts.module, parts.primals, [*constants, *forward], [*parts.outputs, *saved], "Forward"),
        extract(
            parts.module, [*saved, *parts.tangents], [*constants, *backward], parts.gradients, "Backward"
        ),
    )


def drop_repeated_effects(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Remove from a backward graph impure nodes that the forward runs too and that have no user there.

    A partitioner may leave draws and checks of the forward in the backward, because dead code elimination
    does not remove impure nodes.
    """
    done = {n.name for n in forward.graph.nodes if is_impure(n)}
    repeated = [n for n in backward.graph.nodes if n.name in done and n.op == "call_function" and not n.users]
    for node in reversed(repeated):
        backward.graph.erase_node(node)
    if repeated:
        eliminate_dead_code(backward.graph, forward=False)
        backward.recompile()


def check_side_effects(joint: fx.GraphModule, forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Check that each side effect of the joint graph happens once, and in order.

    Raises:
        BackendError: a partitioner has dropped, repeated or moved one.
    """
    wanted, early, late = (
        [n.name for n in module.graph.nodes if _has_effect(n)] for module in (joint, forward, backward)
    )
    if early + late != wanted:
        raise BackendError(
            f"the partitioner has dropped, repeated or moved an operation that is seen outside: forward "
            f"{early}, backward {late}, and not {wanted}; use aot.default_partition"
        )


def extract(
    module: fx.GraphModule,
    inputs: Sequence[fx.Node],
    nodes: Sequence[fx.Node],
    outputs: Sequence[Any],
    name: str,
) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update(node.meta)
    for node in nodes:
        if node not in copies and node.op not in ("placeholder", "output"):
            copies[node] = fx_graphs.copy_node(graph, node, copies)
    graph.output(tuple(copies[o] if isinstance(o, fx.Node) else o for o in outputs))
    eliminate_dead_code(graph, forward=name == "Forward")
    return fx_graphs.LazyGraphModule(module, graph, name)
