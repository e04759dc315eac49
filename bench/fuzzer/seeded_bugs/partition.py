"""Faults in the partition of the joint graph, and of the backward into parts."""

from __future__ import annotations

from functools import partial

from bench.fuzzer.seeded_bugs.seeded_bug import Fault

_fault = partial(Fault, stage="partition")
_GRADIENTS = ("gradients",)

FAULTS = (
    _fault(
        name="a sum with a missing term is missing",
        module="aot.partition.segment_split",
        find="copies[node] = None if left is None else _sum_remainder_laid_as(graph, node, *left)",
        replace="copies[node] = None",
        clauses=_GRADIENTS,
        wrong="A backward from some of the results gives None in place of what they contribute.",
    ),
    _fault(
        name="what lacks a gradient is missing",
        module="aot.partition.segment_split",
        find="elif gradients and len(lacking) == len(gradients):",
        replace="elif lacking:",
        clauses=_GRADIENTS,
        wrong="An operation that joins gradients gives None where one of them is missing.",
    ),
    _fault(
        name="a missing gradient is one of ones",
        module="aot.partition.segment_split",
        find="torch.ops.aten.zeros.default, (size,)",
        replace="torch.ops.aten.ones.default, (size,)",
        clauses=_GRADIENTS,
        wrong="An operation that joins gradients gets ones for those that it lacks.",
    ),
    _fault(
        name="a product with a missing factor is the other one",
        module="aot.partition.segment_split",
        find="if lacking and is_sum(node):",
        replace="if lacking and (is_sum(node) or node.target is torch.ops.aten.mul.Tensor):",
        clauses=_GRADIENTS,
        wrong="What is multiplied by a gradient that is not there counts as a gradient.",
    ),
    _fault(
        name="a segment takes the first saved values",
        module="aot.partition.segment_split",
        find="taken = tuple(i for i, node in enumerate(saved) if node in needed)",
        replace="taken = tuple(range(sum(node in needed for node in saved)))",
        clauses=("errors", *_GRADIENTS),
        wrong="The later of two segments is given what the earlier one has saved.",
    ),
    _fault(
        name="tangents go to the segments from the end",
        module="aot.partition.segment_split",
        find="ours, tangents = tangents[: len(segment.tangents)], tangents[len(segment.tangents) :]",
        replace="cut = len(tangents) - len(segment.tangents)\n"
        "        ours, tangents = tangents[cut:], tangents[:cut]",
        clauses=("errors", *_GRADIENTS),
        wrong="With several segments each gets another one's tangents.",
    ),
    _fault(
        name="min-cut does not save a gradient that the forward knows",
        module="aot.partition.min_cut",
        find="return [v for v in self.values if v in self._gradients"
        " or any(u in self._needed for u in v.users)]",
        replace="return [v for v in self.values if any(u in self._needed for u in v.users)]",
        clauses=("errors",),
        wrong="A gradient that is a value of the forward is not there in the backward.",
        target="aot-min-cut",
    ),
    _fault(
        name="one of several views has memory of its own",
        module="aot.partition.tensor_bytes",
        find="roots[node] = roots[first] if roots[first] is not first else node",
        replace="roots[node] = node",
        clauses=("errors", "versions", *_GRADIENTS),
        wrong="A saved part of an argument is not known to be one, and overwritten.",
        target="aot-min-cut",
    ),
    _fault(
        name="random draws are repeated in the backward",
        module="aot.graph.purity",
        find="if op is None or not op_queries.may_be_random(op):",
        replace="if op is None or op.namespace:",
        clauses=("randomness", *_GRADIENTS),
        wrong="The backward draws dropout's mask once more, and gets another one.",
        target="aot-min-cut",
    ),
    _fault(
        name="a recomputed value comes after its first reader",
        module="aot.partition.min_cut",
        find="missing = [n for n in top.all_input_nodes if n in recomputed and n not in order]",
        replace="missing = [n for n in top.all_input_nodes[:1] if n in recomputed and n not in order]",
        clauses=("errors",),
        wrong="The backward reads what it has not recomputed yet.",
        target="aot-min-cut",
    ),
    _fault(
        name="saved values depend on the budget alone",
        module="aot.partition.min_cut",
        find="return [n for n in self.values if n in kept and n in read]",
        replace="return [n for n in self.values if n in kept and n in demanded]",
        clauses=("errors",),
        wrong="What a recomputation starts from is not saved.",
        target="aot-recompute",
    ),
)
