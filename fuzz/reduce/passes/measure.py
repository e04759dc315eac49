"""Measure: the size of a program, which every accepted step of a reduction makes smaller."""

from __future__ import annotations

from math import prod

from fuzz.ir.nodes import BOTH, DEVICES
from fuzz.program.decode import (
    Argument,
    Dict,
    Literal,
    Loop,
    Module,
    Program,
    Scenario,
    Seq,
    Statement,
    Storage,
    TensorStep,
    Tree,
    View,
    split_calls,
)
from fuzz.reduce.passes.plainest_operator import with_plainest_operator


def measure(program: Program) -> tuple[int, ...]:
    """The size of a program as a tuple. Every accepted step makes it smaller."""
    leaves, nodes = (0, 0) if program.returns == Literal(None) else _tree_size(program.returns)
    inner = sum(_tree_size(tree)[1] for tree in program.parameters)
    every = split_calls(program)
    storages = [storage for call in every for storage in call.storages]
    return (
        len(program.later),
        len(program.statements),
        leaves,
        len(program.arguments),
        sum(len(call.scenario.steps) for call in every),
        sum((call.storages, call.arguments) != (program.storages, program.arguments) for call in every)
        + sum(call.scenario != program.scenario for call in every),
        len(storages),
        sum(_argument_cost(argument) for call in every for argument in call.arguments),
        len(program.blocks) + sum(b.count > 1 for b in program.blocks if isinstance(b, Loop)),
        sum(_scenario_cost(call.scenario) for call in every),
        nodes + inner + _module_cost(program.module),
        sum(_storage_cost(storage) for storage in storages),
        sum(_operator_cost(statement) for statement in program.statements),
        sum(prod(storage.size) + sum(storage.size) for storage in storages),
        sum(storage.seed for storage in storages),
    )


def _module_cost(module: Module | None) -> int:
    return 0 if module is None else 1 + len(module.names) + len(module.attributes)


def _scenario_cost(scenario: Scenario) -> int:
    cost = (scenario.differentiate is not None) + (not scenario.grad)
    cost += (scenario.device != DEVICES[0]) + (scenario.device == BOTH)
    for step in scenario.steps:
        if not isinstance(step, TensorStep):
            cost += (step.roots is not None) + (step.how != "plain") + step.retain
    cost += scenario.swapped + len(scenario.marked)
    return cost + scenario.inference + scenario.threads + (scenario.autocast is not None)


def _tree_size(tree: Tree) -> tuple[int, int]:
    match tree:
        case Seq(_, items):
            sizes = [_tree_size(item) for item in items]
        case Dict(entries):
            sizes = [_tree_size(item) for _, item in entries]
        case _:
            return 1, 0
    plain = isinstance(tree, Seq) and tree.kind == "tuple"
    return sum(size[0] for size in sizes), (1 if plain else 2) + sum(size[1] for size in sizes)


def _argument_cost(argument: Argument) -> int:
    if not isinstance(argument, View):
        return 0
    wrapped = (None, "one", "twice", "two", "nested").index(argument.wrapped)
    kind = (argument.via != "view") + (argument.lazy is not None) + (argument.base != "root")
    return 1 + kind + (argument.dtype is not None) + argument.leaf + wrapped


def _storage_cost(storage: Storage) -> int:
    kind = storage.requires_grad + (not storage.leaf) + storage.detached + storage.inference
    return kind + (storage.dtype != "float32") + (storage.values != "plain")


def _operator_cost(statement: Statement) -> int:
    plain = with_plainest_operator(statement)
    return (plain is not None) + sum(name == "value" and value != 2.0 for name, value in statement.attributes)
