"""Deletion: reduction passes that delete statements, arguments and outputs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from fuzz.abstract.state import AbstractState, AbstractTensor
from fuzz.ir.control_flow import dissolve_blocks, without_empty, without_untaken
from fuzz.program.decode import (
    Argument,
    Block,
    Branch,
    Call,
    Dict,
    Duplicate,
    Literal,
    Module,
    Program,
    ProgramError,
    Ref,
    Root,
    Scenario,
    Seq,
    Statement,
    Step,
    Storage,
    TensorStep,
    Tree,
    View,
    initial_state,
    interpret_statement,
    tree_references,
)
from fuzz.reduce.search import Edit, Pass


def without_statements(
    program: Program, dropped: frozenset[int], arguments: frozenset[int] = frozenset()
) -> Program:
    """The program without some statements and arguments, and without all that depends on them.

    A user of a deleted value gets the first valid value of these: an operand of the deleted statement with
    the same size and dtype, another earlier value with these, or the statement's first operand. If none is
    valid, the user is deleted too. Storages without arguments are deleted, and values are numbered anew. A
    branch whose condition is a deleted argument is deleted with the arm that it does not take.
    """
    asked = frozenset(
        i
        for i, block in enumerate(program.blocks)
        if isinstance(block, Branch) and int(block.argument[1:]) in arguments
    )
    if asked:
        program = dissolve_blocks(without_untaken(program, asked), asked)
    kept = [i for i in range(len(program.arguments)) if i not in arguments]
    names: dict[str, str | None] = {f"a{i}": None for i in arguments}
    names.update((f"a{old}", f"a{new}") for new, old in enumerate(kept))
    storages, remaining = _delete_arguments(program.storages, program.arguments, kept)
    smaller = dataclasses.replace(
        program,
        storages=storages,
        arguments=remaining,
        parameters=tuple(
            tree
            for old in program.parameters
            if (tree := _rename_in_tree(old, names)) is not None and any(tree_references(tree))
        ),
        module=_module_without_names(program.module, names),
        statements=(),
        returns=Literal(None),
        blocks=tuple(_renamed_block(block, names) for block in program.blocks),
    )
    before, after = initial_state(program), initial_state(smaller)
    for old in arguments:
        names[f"a{old}"] = _stand_in_for_deleted(before, after, f"a{old}", ())
    statements: list[Statement] = []
    bound: dict[str, str] = {}
    results = 0
    for i, statement in enumerate(program.statements):
        again = [bound.get(name) for name in statement.results]  # a block may bind a name again
        fresh = (f"v{results + j}" for j in range(len(again)))
        new_names = tuple(known or next(fresh) for known in again)
        operands = [names[name] for name in statement.operands]
        present = [name for name in operands if name is not None]
        taken = False
        if i not in dropped and len(present) == len(operands):
            moved = dataclasses.replace(statement, operands=tuple(present), results=new_names)
            try:
                interpret_statement(after, i, moved, smaller.blocks)
                taken = True
            except ProgramError:
                pass
        # Both arms of an `if` are followed, one after the other; the result is checked later.
        with contextlib.suppress(ProgramError):
            interpret_statement(before, i, statement, program.blocks)
        if taken:
            results += again.count(None)
            bound.update(zip(statement.results, new_names, strict=True))
            statements.append(moved)
            names.update(zip(statement.results, new_names, strict=True))
        else:
            for name in statement.results:
                names[name] = _stand_in_for_deleted(before, after, name, present) or (
                    present[0] if present else None
                )
    returns = _rename_in_tree(program.returns, names)
    later = tuple(
        Call(
            *_delete_arguments(call.storages, call.arguments, kept),
            _rename_after_deletion(call.scenario, names),
        )
        for call in program.later
    )
    smaller = dataclasses.replace(
        smaller,
        statements=tuple(statements),
        returns=Literal(None) if returns is None else returns,
        scenario=_rename_after_deletion(program.scenario, names),
        later=later,
    )
    return _delete_vain_steps(without_empty(smaller))


def _module_without_names(module: Module | None, names: dict[str, str | None]) -> Module | None:
    if module is None:
        return None

    def renamed(olds: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new for old in olds if (new := names[old]) is not None)

    training = names[module.training] if module.training is not None else None
    return Module(renamed(module.held), training, renamed(module.attributes))


def _renamed_block(block: Block, names: dict[str, str | None]) -> Block:
    if isinstance(block, Branch):
        return dataclasses.replace(block, argument=names[block.argument] or block.argument)
    return block


def _delete_arguments(
    storages: Sequence[Storage], arguments: Sequence[Argument], kept: Sequence[int]
) -> tuple[tuple[Storage, ...], tuple[Argument, ...]]:
    """Only these arguments, and the storages that they use."""
    stands_for: dict[int, int] = {}
    renamed: list[Argument] = []
    for new, old in enumerate(kept):
        argument, first = arguments[old], _first(arguments, old)
        if isinstance(argument, Duplicate):
            argument = Duplicate(stands_for[first]) if first in stands_for else arguments[first]
        stands_for.setdefault(first, new)
        renamed.append(argument)
    used = sorted({a.storage for a in renamed if isinstance(a, (Root, View))})
    return tuple(storages[i] for i in used), tuple(
        dataclasses.replace(a, storage=used.index(a.storage)) if isinstance(a, (Root, View)) else a
        for a in renamed
    )


def _rename_after_deletion(scenario: Scenario, names: dict[str, str | None]) -> Scenario:
    steps: list[Step] = []
    for step in scenario.steps:
        if isinstance(step, TensorStep):
            name = names.get(step.name)
            steps += [] if name is None else [dataclasses.replace(step, name=name)]
        else:
            steps.append(step)
    marked = tuple(dict.fromkeys(new for old in scenario.marked if (new := names.get(old)) is not None))
    return dataclasses.replace(scenario, steps=tuple(steps), marked=marked)


def _delete_vain_steps(program: Program) -> Program:
    """The program without steps that change a value which is no result any more."""
    seen = {*tree_references(program.returns), *(f"a{i}" for i in range(len(program.arguments)))}

    def settled(scenario: Scenario) -> Scenario:
        steps = tuple(s for s in scenario.steps if not isinstance(s, TensorStep) or s.name in seen)
        return dataclasses.replace(scenario, steps=steps)

    later = tuple(dataclasses.replace(call, scenario=settled(call.scenario)) for call in program.later)
    return dataclasses.replace(program, scenario=settled(program.scenario), later=later)


def _first(arguments: Sequence[Argument], index: int) -> int:
    argument = arguments[index]
    while isinstance(argument, Duplicate):
        index = argument.argument
        argument = arguments[index]
    return index


def _stand_in_for_deleted(
    before: AbstractState, after: AbstractState, name: str, first: Sequence[str]
) -> str | None:
    """A value of the smaller program that can replace `name`, preferably one of `first`."""
    value = before.names.get(name)
    if not isinstance(value, AbstractTensor):
        return None
    for other in (*first, *after.names):
        found = after.names[other]
        if isinstance(found, AbstractTensor) and found.meta[:2] == value.meta[:2]:
            return other
    return None


def _rename_in_tree(tree: Tree, names: dict[str, str | None]) -> Tree | None:
    """The tree with other names. A name without a replacement is removed with its leaf."""
    match tree:
        case Ref(name):
            other = names[name]
            return None if other is None else Ref(other)
        case Seq(kind, items):
            return Seq(
                kind, tuple(new for item in items if (new := _rename_in_tree(item, names)) is not None)
            )
        case Dict(entries):
            return Dict(
                tuple(
                    (key, new) for key, item in entries if (new := _rename_in_tree(item, names)) is not None
                )
            )
        case Literal():
            return tree


def _statement_edits(program: Program) -> Sequence[Edit]:
    return range(len(program.statements) - 1, -1, -1)


def _argument_edits(program: Program) -> Sequence[Edit]:
    used = {name for statement in program.statements for name in statement.operands}
    used.update(tree_references(program.returns))
    order = sorted(range(len(program.arguments)), key=lambda i: (f"a{i}" in used, -i))
    return order if len(order) > 1 else []


def _indices(edits: frozenset[Edit]) -> frozenset[int]:
    return frozenset(edit for edit in edits if isinstance(edit, int))


def _drop_arguments(program: Program, edits: frozenset[Edit]) -> Program | None:
    if len(edits) == len(program.arguments):
        return None
    return without_statements(program, frozenset(), _indices(edits))


# ---------------------------------------------------------------------------------------------------------


def tree_leaves(tree: Tree) -> list[Tree]:
    """The leaves of a tree, from left to right."""
    match tree:
        case Seq(_, items):
            return [leaf for item in items for leaf in tree_leaves(item)]
        case Dict(entries):
            return [leaf for _, item in entries for leaf in tree_leaves(item)]
        case _:
            return [tree]


def _prune_tree(tree: Tree, gone: frozenset[int], count: Iterator[int]) -> Tree | None:
    match tree:
        case Seq(kind, items):
            found = [_prune_tree(item, gone, count) for item in items]
            return Seq(kind, tuple(item for item in found if item is not None))
        case Dict(entries):
            pairs = [(key, _prune_tree(item, gone, count)) for key, item in entries]
            return Dict(tuple((key, item) for key, item in pairs if item is not None))
        case _:
            return None if next(count) in gone else tree


def _drop_outputs(program: Program, edits: frozenset[Edit]) -> Program:
    count = iter(range(len(tree_leaves(program.returns))))
    returns = _prune_tree(program.returns, _indices(edits), count)
    return _delete_vain_steps(
        dataclasses.replace(program, returns=Literal(None) if returns is None else returns)
    )


def _output_edits(program: Program) -> Sequence[Edit]:
    return [] if program.returns == Literal(None) else range(len(tree_leaves(program.returns)) - 1, -1, -1)


STATEMENTS = Pass(
    "statements", _statement_edits, lambda program, edits: without_statements(program, _indices(edits))
)
OUTPUTS = Pass("outputs", _output_edits, _drop_outputs)
ARGUMENTS = Pass("arguments", _argument_edits, _drop_arguments)
