"""Simplify: reduction passes that make trees, modules, blocks, scenarios, inputs and operators plainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fuzz.ir.control_flow import dissolve_blocks
from fuzz.ir.nodes import BOTH, DEVICES, on_device
from fuzz.program.decode import (
    Argument,
    Literal,
    Loop,
    Module,
    Program,
    Ref,
    Root,
    Scenario,
    Seq,
    Statement,
    Storage,
    Tree,
    View,
    tree_references,
)
from fuzz.reduce.passes.deletion import tree_leaves
from fuzz.reduce.passes.plainest_operator import with_plainest_operator
from fuzz.reduce.passes.scenarios import of_inputs, of_scenarios
from fuzz.reduce.search import Edit, Pass


def _nested(program: Program) -> Sequence[Edit]:
    edits: list[Edit] = []
    if not all(isinstance(tree, Ref) for tree in program.parameters):
        edits.append("parameters")
    if program.returns != _flat(program.returns):
        edits.append("returns")
    return edits


def _flat(tree: Tree) -> Tree:
    """The leaves of a tree in one tuple, or the only leaf itself."""
    found = tree_leaves(tree)
    return Seq("tuple", tuple(found)) if len(found) > 1 else found[0] if found else Literal(None)


def _simplify_result_tree(program: Program, edits: frozenset[Edit]) -> Program:
    if "parameters" in edits:
        held = program.module.names if program.module else ()
        names = (f"a{i}" for i in range(len(program.arguments)))
        parameters: tuple[Tree, ...] = tuple(Ref(name) for name in names if name not in held)
        program = dataclasses.replace(program, parameters=parameters)
    if "returns" in edits:
        program = dataclasses.replace(program, returns=_flat(program.returns))
    return program


def _module_edits(program: Program) -> Sequence[Edit]:
    """The edits of a module: it is removed, or an attribute of it becomes an argument or a buffer."""
    module = program.module
    if module is None:
        return []
    return ["gone", *module.names, *((_BUFFER, name) for name in module.attributes)]


def _simplify_module(program: Program, edits: frozenset[Edit]) -> Program:
    module = program.module
    assert module is not None
    passed = tuple(name for name in module.names if "gone" in edits or name in edits)
    held = tuple(name for name in module.held if name not in passed)
    attributes = tuple(n for n in module.attributes if n in held and (_BUFFER, n) not in edits)
    smaller = Module(held, None if module.training in passed else module.training, attributes)
    # Without nesting they are in the order of their numbers.
    parameters = sorted(
        (*program.parameters, *map(Ref, passed)), key=lambda tree: min(_numbers(tree), default=-1)
    )
    return dataclasses.replace(
        program, parameters=tuple(parameters), module=None if "gone" in edits else smaller
    )


def _numbers(tree: Tree) -> list[int]:
    return [int(name[1:]) for name in tree_references(tree)]


# ---------------------------------------------------------------------------------------------------------
# blocks and scenario


def _simplify_block_edits(program: Program) -> Sequence[Edit]:
    """The edits of blocks: a block's statements replace it, or a loop runs once."""
    edits: list[Edit] = []
    for i, block in enumerate(program.blocks):
        edits.append((i, "gone"))
        if isinstance(block, Loop) and block.count > 1:
            edits.append((i, "once"))
    return edits


def _plainer_blocks(program: Program, edits: frozenset[Edit]) -> Program:
    blocks = tuple(
        dataclasses.replace(block, count=1) if isinstance(block, Loop) and (i, "once") in edits else block
        for i, block in enumerate(program.blocks)
    )
    gone = frozenset(i for i in range(len(blocks)) if (i, "gone") in edits)
    return dissolve_blocks(dataclasses.replace(program, blocks=blocks), gone)


def _scenario_edits(program: Program) -> Sequence[Edit]:
    plain = Scenario()
    return [
        name
        for name in ("threads", "inference", "differentiate", "grad", "autocast", "swapped", "marked")
        if getattr(program.scenario, name) != getattr(plain, name)
    ]


def _simplify_scenario(program: Program, edits: frozenset[Edit]) -> Program:
    scenario = program.scenario
    plain = dataclasses.replace(
        scenario,
        grad="grad" in edits or scenario.grad,
        differentiate=None if "differentiate" in edits else scenario.differentiate,
        inference=scenario.inference and "inference" not in edits,
        threads=scenario.threads and "threads" not in edits,
        autocast=None if "autocast" in edits else scenario.autocast,
        swapped=scenario.swapped and "swapped" not in edits,
        marked=() if "marked" in edits else scenario.marked,
    )
    return dataclasses.replace(program, scenario=plain)


def _device_edits(program: Program) -> Sequence[Edit]:
    """The edits of devices: all calls use the CPU, or all use the other device if a program runs on both."""
    device = program.scenario.device
    return DEVICES if device == BOTH else [] if device == DEVICES[0] else DEVICES[:1]


def _on_one_device(program: Program, edits: frozenset[Edit]) -> Program:
    return on_device(program, next(name for name in DEVICES if name in edits))


# ---------------------------------------------------------------------------------------------------------
# arguments and storages


def _simplify_kind_edits(program: Program) -> Sequence[Edit]:
    edits: list[Edit] = []
    for i, argument in enumerate(program.arguments):
        if isinstance(argument, View):
            edits += [(i, "dtype")] if argument.dtype is not None else []
            edits += [(i, "leaf")] if argument.leaf else []
            edits += [(i, "lazy")] if argument.lazy is not None else []
            edits += [(i, "base")] if argument.base != "root" else []
            if argument.wrapped is not None:
                edits.append((i, "wrapped"))
                edits += [(i, "one")] if argument.wrapped != "one" else []
                edits += [(i, "two")] if argument.wrapped == "nested" else []
            if argument.via != "view":
                edits.append((i, "via"))
            elif argument.wrapped is None:
                edits.append((i, "root"))
    return edits


def _simplify_arguments(program: Program, edits: frozenset[Edit]) -> Program:
    arguments: list[Argument] = []
    ways = (None, "one", "two")
    for i, argument in enumerate(program.arguments):
        if isinstance(argument, View):
            if (i, "root") in edits:
                argument = Root(argument.storage)
            else:
                gone = (i, "base") in edits or (argument.base == "wrapper" and (i, "wrapped") in edits)
                # A tensor with a wrapper of its own is made differently from a view of a wrapper.
                viewed = (i, "via") in edits or (gone and argument.base == "wrapper")
                argument = View(
                    *(argument.storage, argument.size, argument.stride, argument.offset),
                    "view" if viewed else argument.via,
                    None if (i, "dtype") in edits else argument.dtype,
                    argument.leaf and not edits & {(i, "leaf"), (i, "via")},
                    next((way for way in ways if (i, way or "wrapped") in edits), argument.wrapped),
                    None if (i, "lazy") in edits else argument.lazy,
                    "root" if gone else argument.base,
                )
        arguments.append(argument)
    return dataclasses.replace(program, arguments=tuple(arguments))


def _simplify_storage_edits(program: Program) -> Sequence[Edit]:
    edits: list[Edit] = []
    for i, storage in enumerate(program.storages):
        edits += [(i, "grad")] if storage.requires_grad else []
        edits += [(i, "leaf")] if not storage.leaf else []
        edits += [(i, "dtype")] if storage.dtype != "float32" else []
        edits += [(i, "seed")] if storage.seed else []
        edits += [(i, "values")] if storage.values != "plain" else []
        edits += [(i, "detached")] if storage.detached else []
        edits += [(i, "inference")] if storage.inference else []
    return edits


def _simplify_storages(program: Program, edits: frozenset[Edit]) -> Program:
    storages = tuple(
        Storage(
            "float32" if (i, "dtype") in edits else storage.dtype,
            storage.size,
            0 if (i, "seed") in edits else storage.seed,
            storage.requires_grad and (i, "grad") not in edits,
            storage.leaf or (i, "leaf") in edits,
            "plain" if (i, "values") in edits else storage.values,
            storage.detached and edits.isdisjoint((i, name) for name in ("detached", "grad", "leaf")),
            storage.inference and (i, "inference") not in edits,
        )
        for i, storage in enumerate(program.storages)
    )
    return dataclasses.replace(program, storages=storages)


# ---------------------------------------------------------------------------------------------------------
# operators


def _simplify_operator_edits(program: Program) -> Sequence[Edit]:
    edits: list[Edit] = []
    for i, statement in enumerate(program.statements):
        if with_plainest_operator(statement) is not None:
            edits.append((i, "operator"))
        elif any(name == "value" and value != 2.0 for name, value in statement.attributes):
            edits.append((i, "value"))
    return edits


def _simplify_operators(program: Program, edits: frozenset[Edit]) -> Program:
    statements: list[Statement] = []
    for i, statement in enumerate(program.statements):
        if (i, "operator") in edits:
            statement = with_plainest_operator(statement) or statement
        elif (i, "value") in edits:
            attributes = tuple(
                (name, 2.0 if name == "value" else value) for name, value in statement.attributes
            )
            statement = dataclasses.replace(statement, attributes=attributes)
        statements.append(statement)
    return dataclasses.replace(program, statements=tuple(statements))


TREES = Pass("trees", _nested, _simplify_result_tree)
_BUFFER = "buffer"
MODULE = Pass("module", _module_edits, _simplify_module)
BLOCKS = Pass("blocks", _simplify_block_edits, _plainer_blocks)
SCENARIO = of_scenarios(Pass("scenario", _scenario_edits, _simplify_scenario))
DEVICE = Pass("device", _device_edits, _on_one_device)
KINDS = of_inputs(Pass("arguments' kinds", _simplify_kind_edits, _simplify_arguments))
STORAGES = of_inputs(Pass("storages", _simplify_storage_edits, _simplify_storages))
OPERATORS = Pass("operators", _simplify_operator_edits, _simplify_operators)
