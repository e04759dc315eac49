"""Interpret: follow a program's statements on an `AbstractState`, in the order in which its calls run
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.abstract.state import AbstractState, AbstractTensor, InvalidProgram
from fuzz.ir.control_flow import (
    MAX_EXECUTED,
    Outline,
    block_tree,
    branches,
    enclosing_blocks,
    executed_statements,
    is_arm_taken,
    is_else,
    untaken_arms,
)
from fuzz.ir.json_readers import ProgramError
from fuzz.ir.nodes import (
    Block,
    Branch,
    Duplicate,
    Program,
    Root,
    Scalar,
    Statement,
    TensorStep,
    View,
    split_calls,
    tree_references,
)
from fuzz.operators import OPERATORS
from fuzz.operators.row import Size


def initial_state(program: Program) -> AbstractState:
    """The state before a program's first statement."""
    scenario = program.scenario
    state = AbstractState(scenario.grad, scenario.inference, scenario.autocast)
    for storage in program.storages:
        state.allocate(storage)
    for i, argument in enumerate(program.arguments):
        name = f"a{i}"
        match argument:
            case Root(number):
                state.bind_root(name, number)
            case View():
                state.bind_view(name, argument)
            case Duplicate(earlier):
                state.bind_same(name, f"a{earlier}")
            case Scalar(value):
                state.bind_scalar(name, value)
    for number, storage in enumerate(program.storages):
        if storage.detached:
            state.detach_root(number)
    return state


def check_module(program: Program, place: str) -> None:
    """Check that a module can hold what it holds in each call.

    Raises:
        ProgramError: it cannot.
    """
    module = program.module
    if module is not None and module.training is not None:
        argument = program.arguments[int(module.training[1:])]
        if not isinstance(argument, Scalar) or not isinstance(argument.value, bool):
            where = f"{place}arguments[{module.training[1:]}]"
            raise ProgramError(where, "a module's `training` is no bool", "give True or False")


def interpret_statement(
    state: AbstractState, index: int, statement: Statement, blocks: Sequence[Block] = ()
) -> None:
    """Apply statement number `index` of a program with these blocks to a state.

    Raises:
        ProgramError: the statement does not fit.
    """
    row = OPERATORS[statement.operator]
    try:
        modes = state.modes(blocks, statement.block)
        state.apply(row, statement.operands, dict(statement.attributes), statement.results, modes)
    except InvalidProgram as breach:
        hint = "change its operands or attributes, or remove it"
        raise ProgramError(f"statements[{index}]", f"{statement.operator}: {breach}", hint) from None


def final_state(program: Program) -> AbstractState:
    """The state after a program's last statement."""
    state = initial_state(program)
    for i, statement in executed_statements(program):
        interpret_statement(state, i, statement, program.blocks)
    return state


Sizes = dict[int, Size]


def literal_sizes(program: Program) -> Sizes:
    """The sizes that the text of each statement has as numbers, for a program of one call.

    They must be equal each time that the statement runs, and in later calls.

    Raises:
        ProgramError: they are not equal, or a statement does not fit.
    """
    if not any(OPERATORS[statement.operator].sized for statement in program.statements):
        return {}
    sizes = _interpret_first_call(initial_state(program), program)
    return sizes_if_taken(program) | sizes


def sizes_if_taken(program: Program) -> Sizes:
    """The sizes in the text of statements that the first call does not run.

    They are in the text too, and must fit the first call's arguments.

    Raises:
        ProgramError: they do not fit.
    """
    sizes: Sizes = {}
    for number, other in untaken_arms(program):
        try:
            sizes = _interpret_first_call(initial_state(other), other) | sizes
        except ProgramError as error:
            raise ProgramError(f"blocks[{number}], if taken, {error.place}", error.what, error.hint) from None
    return sizes


def _interpret_first_call(state: AbstractState, program: Program) -> Sizes:
    """Apply the first call to the state. Returns the sizes in the text of its statements."""
    sizes: Sizes = {}
    for count, (i, statement) in enumerate(executed_statements(program), start=1):
        if count > MAX_EXECUTED:
            raise ProgramError("blocks", f"more than {MAX_EXECUTED} statements run", "let loops turn less")
        if OPERATORS[statement.operator].sized:
            merge_sizes(sizes, {i: state.tensor(statement.operands[0]).meta.size})
        interpret_statement(state, i, statement, program.blocks)
    return sizes


def merge_sizes(known: Sizes, found: Sizes) -> None:
    """Add the sizes of statements to known ones."""
    for number, size in found.items():
        if known.setdefault(number, size) != size:
            raise ProgramError(
                f"statements[{number}]", "its text has another size now", "index and size tensors alike"
            )


def check_values(program: Program) -> Sizes:
    """The sizes in the text of statements that the first call runs.

    Raises:
        ProgramError: the call cannot be made.
    """
    state = initial_state(program)
    sizes = _interpret_first_call(state, program)
    if state.undefined:
        raise ProgramError(
            "statements", "memory that resize_ has added is never written", "write to it, or do not grow"
        )
    for i, name in enumerate(program.scenario.marked):
        if name[0] != "a" or not isinstance(initial_state(program).names.get(name), AbstractTensor):
            raise ProgramError(f"scenario.marked[{i}]", f"{name} is no tensor argument", "name one")
    returned = set(tree_references(program.returns))
    for name in returned:
        if name not in state.names:
            raise ProgramError("returns", f"{name} is not defined", "return an argument or a result")
    for i, step in enumerate(program.scenario.steps):
        if isinstance(step, TensorStep) and not (
            (step.name in returned or step.name[0] == "a")
            and isinstance(state.names.get(step.name), AbstractTensor)
        ):
            raise ProgramError(
                f"scenario.steps[{i}]",
                f"{step.name} is no argument and no result that is a tensor",
                "name one",
            )
    return sizes


def check_blocks(program: Program) -> None:
    """Check that the statements of a block are together, and that branches depend on Python values in
    each call.
    """
    blocks = program.blocks
    for i, statement in enumerate(program.statements):
        if statement.block >= len(blocks):
            raise ProgramError(f"statements[{i}].block", "there is no such block", "use -1 for none")
    try:
        block_tree(program.statements, blocks)
    except ValueError as error:
        raise ProgramError("statements", str(error), "put them side by side, or use two blocks") from None
    used = {
        number for statement in program.statements for number in enclosing_blocks(blocks, statement.block)
    }
    for i, block in enumerate(blocks):
        if i not in used:
            raise ProgramError(f"blocks[{i}]", "no statement is in it", "leave it out")
        if isinstance(block, Branch) and any(
            is_arm_taken(call, block) is None for call in split_calls(program)
        ):
            raise ProgramError(f"blocks[{i}]", f"{block.argument} is no Python value", "name one")
        asked = [arm.argument for arm in branches(blocks, i)]
        if len(set(asked)) < len(asked):
            raise ProgramError(f"blocks[{i}]", "a block around it asks the same", "ask for another argument")


def check_names(program: Program) -> None:
    """Check that every path through the branches defines the names that are used and returned."""
    if not any(isinstance(block, Branch) for block in program.blocks):
        return
    known = defined_names(program)
    for name in tree_references(program.returns):
        if name not in known:
            raise ProgramError("returns", f"{name} is not defined on every way", _ELSEWHERE)


_ELSEWHERE = "bind it before the branch, or in both arms"


def defined_names(program: Program) -> frozenset[str]:
    """The names that a program has at its end, on every path through its branches.

    Raises:
        ProgramError: a statement uses a name that a path to it does not define.
    """
    arguments = frozenset(f"a{i}" for i in range(len(program.arguments)))
    return _names_defined_after(program, block_tree(program.statements, program.blocks), arguments)


def _names_defined_after(program: Program, tree: Outline, known: frozenset[str]) -> frozenset[str]:
    before: Block | None = None
    first = known  # the names that are defined after the block before
    for item in tree:
        if isinstance(item, int):
            statement = program.statements[item]
            for name in statement.operands:
                if name not in known:
                    raise ProgramError(
                        f"statements[{item}]", f"{name} is not defined on every way", _ELSEWHERE
                    )
            known |= frozenset(statement.results)
            before = None
            continue
        number, content = item
        block = program.blocks[number]
        inside = _names_defined_after(program, content, known)
        if not isinstance(block, Branch):
            known = inside
        elif is_else(block, before):
            known |= first & inside
        first, before = inside, block
    return known
