"""Time of partitioners and of minimum cut solvers, and what a memory budget buys."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import functorch.compile as stock
import torch
from torch import fx

import aot
from aot.partition import max_flow
from aot.partition.costs import cost
from aot.partition.tensor_bytes import span_bytes
from bench.compiler.models import Model, available
from bench.report import Table

BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)


class _Joint:
    """The joint graph of a model's step, as a partitioner is given it."""

    def __init__(self, model: Model) -> None:
        def partition(
            module: fx.GraphModule,
            inputs: Sequence[Any],
            *,
            num_fwd_outputs: int,
            static_lifetime_input_indices: Sequence[int],
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            self.module, self.inputs = copy.deepcopy(module), list(inputs)
            self.options: dict[str, Any] = {
                "num_fwd_outputs": num_fwd_outputs,
                "static_lifetime_input_indices": list(static_lifetime_input_indices),
            }
            return aot.default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)

        parameters, buffers = model.state()
        aot.aot_function(model.step, aot.nop, partition_fn=partition)(parameters, buffers, *model.batch)

    def cut(self, partition: Callable[..., Any], **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """What a partitioner makes of a copy of it: torch's change the graph that they are given."""
        result: tuple[fx.GraphModule, fx.GraphModule] = partition(
            copy.deepcopy(self.module), self.inputs, **self.options, **options
        )
        return result


def _milliseconds(run: Callable[[], object]) -> float:
    """The quickest of three runs, in CPU time."""
    times = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--model", action="append", choices=sorted(available()), help="only this one")
    parser.add_argument("--small", action="store_true", help="tiny models, for a quick look")


def measure(options: argparse.Namespace) -> list[Table]:
    """Times of partitioners, times of solvers, and budgets."""
    times: list[tuple[Any, ...]] = []
    solvers: list[tuple[Any, ...]] = []
    budgets: list[tuple[Any, ...]] = []
    for name, makes in available().items():
        if options.model and name not in options.model:
            continue
        torch.manual_seed(0)
        joint = _Joint(makes[0 if options.small else 1]())
        copying = _milliseconds(partial(copy.deepcopy, joint.module))
        row: list[Any] = [name, len(joint.module.graph.nodes)]
        for partition in (
            aot.default_partition,
            aot.min_cut_rematerialization_partition,
            stock.default_partition,
            stock.min_cut_rematerialization_partition,
        ):
            row.append(_milliseconds(partial(joint.cut, partition)) - copying)
        times.append(tuple(row))
        solvers.append((name, *_solver_times(joint)))
        budgets.extend((f"{name}, {budget:g}", *_bought(joint, budget)) for budget in BUDGETS)
    return [
        Table(
            "partitioning one joint graph, ms of CPU time",
            ("model", "nodes", "aot default", "aot min-cut", "stock default", "stock min-cut"),
            tuple(times),
        ),
        Table(
            "its minimum cut alone, ms of CPU time",
            ("model", "vertices", "arcs", "igraph", "networkx", "ratio"),
            tuple(solvers),
        ),
        Table(
            "saved besides parameters, and recomputed, by memory budget",
            ("model, budget", "saved MB", "operations", "share of forward time, estimated"),
            tuple(budgets),
        ),
    ]


def _solver_times(joint: _Joint) -> tuple[Any, ...]:
    problems: list[tuple[Any, ...]] = []
    solve = max_flow.with_igraph

    def remember(*problem: Any) -> set[int]:
        problems.append(problem)
        return solve(*problem)

    choose = max_flow._solver
    max_flow._solver = lambda: remember
    try:
        joint.cut(aot.min_cut_rematerialization_partition)
    finally:
        max_flow._solver = choose
    (problem,) = problems
    fast = _milliseconds(lambda: max_flow.with_igraph(*problem))
    slow = _milliseconds(lambda: max_flow.minimum_cut_with_networkx(*problem))
    return problem[0], len(problem[1]), fast, slow, slow / fast


def _bought(joint: _Joint, budget: float) -> tuple[Any, ...]:
    forward, backward = joint.cut(aot.min_cut_rematerialization_partition, memory_budget=budget)
    inputs = {n.name: i for i, n in enumerate(forward.graph.nodes) if n.op == "placeholder"}
    static = {n for n, i in inputs.items() if i in joint.options["static_lifetime_input_indices"]}
    saved = [n for n in backward.graph.nodes if n.op == "placeholder" and not n.name.startswith("tangents_")]
    once = {n.name: cost(n) for n in forward.graph.nodes if n.op == "call_function"}
    again = [n.name for n in backward.graph.nodes if n.op == "call_function" and once.get(n.name)]
    return (
        sum(span_bytes(n) for n in saved if n.name not in static) / 1e6,
        len(again),
        sum(once[n] for n in again) / sum(once.values()),
    )
