"""A program as JSON, which `fuzz.program.decode.from_json` reads back."""

from __future__ import annotations

from typing import Any

from fuzz.ir.json_readers import constant_to_json
from fuzz.ir.nodes import (
    Argument,
    Autocast,
    Block,
    Branch,
    Dict,
    Duplicate,
    Literal,
    Loop,
    Module,
    Program,
    Ref,
    Region,
    Require,
    Root,
    Scalar,
    Scenario,
    Seq,
    Step,
    Storage,
    Tree,
    View,
    Write,
)
from oracles import Backward

FORMAT = 15


def to_json(program: Program) -> dict[str, Any]:
    """The program as a JSON-able dict, which `from_json` reads back to an equal program."""
    return {
        "format": FORMAT,
        "storages": [_storage_to_json(storage) for storage in program.storages],
        "arguments": [_argument_to_json(argument) for argument in program.arguments],
        "parameters": [_tree_to_json(tree) for tree in program.parameters],
        "statements": [
            {
                "operator": s.operator,
                "operands": list(s.operands),
                "attributes": {name: constant_to_json(value) for name, value in s.attributes},
                "results": list(s.results),
                "block": s.block,
            }
            for s in program.statements
        ],
        "blocks": [_block_to_json(block) for block in program.blocks],
        "module": None if program.module is None else _module_to_json(program.module),
        "returns": _tree_to_json(program.returns),
        "scenario": _scenario_to_json(program.scenario),
        "later": [
            {
                "storages": [_storage_to_json(storage) for storage in call.storages],
                "arguments": [_argument_to_json(argument) for argument in call.arguments],
                "scenario": _scenario_to_json(call.scenario),
            }
            for call in program.later
        ],
    }


def _module_to_json(module: Module) -> dict[str, Any]:
    return {"held": list(module.held), "training": module.training, "attributes": list(module.attributes)}


def _block_to_json(block: Block) -> dict[str, Any]:
    match block:
        case Region(mode, within):
            return {"kind": mode, "within": within}
        case Autocast(dtype, enabled, within):
            return {"kind": "autocast", "dtype": dtype, "enabled": enabled, "within": within}
        case Branch(argument, value, holds, within):
            value = constant_to_json(value)
            return {"kind": "if", "argument": argument, "value": value, "holds": holds, "within": within}
        case Loop(count, within):
            return {"kind": "for", "count": count, "within": within}


def _storage_to_json(storage: Storage) -> dict[str, Any]:
    return {
        "dtype": storage.dtype,
        "size": list(storage.size),
        "seed": storage.seed,
        "requires_grad": storage.requires_grad,
        "leaf": storage.leaf,
        "values": storage.values,
        "detached": storage.detached,
        "inference": storage.inference,
        "precision": storage.precision,
    }


def _scenario_to_json(scenario: Scenario) -> dict[str, Any]:
    return {
        "device": scenario.device,
        "grad": scenario.grad,
        "differentiate": None if scenario.differentiate is None else list(scenario.differentiate),
        "inference": scenario.inference,
        "steps": [_step_to_json(step) for step in scenario.steps],
        "threads": scenario.threads,
        "autocast": scenario.autocast,
        "swapped": scenario.swapped,
        "marked": list(scenario.marked),
    }


def _step_to_json(step: Step) -> dict[str, Any]:
    match step:
        case Write(name):
            return {"write": name}
        case Require(name):
            return {"require": name}
        case Backward(roots, how, retain):
            return {"roots": None if roots is None else list(roots), "backward": how, "retain": retain}


def _argument_to_json(argument: Argument) -> dict[str, Any]:
    match argument:
        case Root(storage):
            return {"kind": "root", "storage": storage}
        case View(storage, size, stride, offset, via, dtype, leaf, wrapped, lazy, base):
            return {
                "kind": "view",
                "storage": storage,
                "size": list(size),
                "stride": list(stride),
                "offset": offset,
                "via": via,
                "dtype": dtype,
                "leaf": leaf,
                "wrapped": wrapped,
                "lazy": lazy,
                "base": base,
            }
        case Duplicate(earlier):
            return {"kind": "same", "argument": earlier}
        case Scalar(value):
            return {"kind": "scalar", "value": constant_to_json(value)}


def _tree_to_json(tree: Tree) -> dict[str, Any]:
    match tree:
        case Ref(name):
            return {"ref": name}
        case Seq(kind, items):
            return {kind: [_tree_to_json(item) for item in items]}
        case Dict(entries):
            return {"dict": [[key, _tree_to_json(item)] for key, item in entries]}
        case Literal(value):
            return {"lit": constant_to_json(value)}
