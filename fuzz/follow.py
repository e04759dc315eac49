"""A program's statements followed on a `State`, as its calls come by them; nothing runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzz.blocks import MAX_EXECUTED, answer, around, branches, executed, outline, untaken
from fuzz.document import ProgramError
from fuzz.ir import (
    Block,
    Branch,
    Lit,
    Program,
    Root,
    Same,
    Scalar,
    Statement,
    View,
    Write,
    calls,
    references,
)
from fuzz.operators import OPERATORS
from fuzz.operators.row import Size
from fuzz.state import Breach, State, Tensor


def begin(program: Program) -> State:
    """What is known of a program's tensors before its first statement."""
    state = State(program.scenario.grad, program.scenario.inference)
    for storage in program.storages:
        state.allocate(storage.dtype, storage.size, storage.requires_grad, storage.leaf)
    for i, argument in enumerate(program.arguments):
        name = f"a{i}"
        match argument:
            case Root(number):
                state.bind_root(name, number)
            case View(number, size, stride, offset, via, dtype, leaf):
                state.bind_view(name, number, size, stride, offset, via, dtype, leaf)
            case Same(earlier):
                state.bind_same(name, f"a{earlier}")
            case Scalar(value):
                state.bind_scalar(name, value)
    return state


def advance(state: State, index: int, statement: Statement, blocks: Sequence[Block] = ()) -> None:
    """Take a state over statement number `index` of a program with these blocks. Nothing runs.

    Raises `ProgramError` if the statement does not fit.
    """
    row = OPERATORS[statement.operator]
    try:
        modes = state.modes(blocks, statement.block)
        state.apply(row, statement.operands, dict(statement.attributes), statement.results, modes)
    except Breach as breach:
        hint = "change its operands or attributes, or remove it"
        raise ProgramError(f"statements[{index}]", f"{statement.operator}: {breach}", hint) from None


def trace(program: Program) -> State:
    """What is known of a program's tensors after its last statement."""
    state = begin(program)
    for i, statement in executed(program):
        advance(state, i, statement, program.blocks)
    return state


Sizes = dict[int, Size]


def sizes_in_text(program: Program) -> Sizes:
    """The sizes that the text of each statement has as numbers, of a program of one call.

    Each time that the statement runs, and in later calls, they must be equal. Raises ProgramError where they
    are not, and for a statement that does not fit.
    """
    if not any(OPERATORS[statement.operator].sized for statement in program.statements):
        return {}
    return _followed(begin(program), program)


def _followed(state: State, program: Program) -> Sizes:
    """The sizes in the text, when the state has been taken over all of the first call."""
    sizes: Sizes = {}
    for count, (i, statement) in enumerate(executed(program), start=1):
        if count > MAX_EXECUTED:
            raise ProgramError("blocks", f"more than {MAX_EXECUTED} statements run", "let loops turn less")
        if OPERATORS[statement.operator].sized:
            agree(sizes, {i: state.tensor(statement.operands[0]).meta.size})
        advance(state, i, statement, program.blocks)
    return sizes


def agree(known: Sizes, found: Sizes) -> None:
    """Add sizes in the text of statements to what is known of them."""
    for number, size in found.items():
        if known.setdefault(number, size) != size:
            raise ProgramError(
                f"statements[{number}]", "its text has another size now", "index and size tensors alike"
            )


def check_values(program: Program, first: bool = True) -> Sizes:
    """The sizes in the text; ProgramError where the program cannot be called as its first call says.

    What the first call does not come by is part of the text, too, and has to fit its arguments.
    """
    for number, other in untaken(program) if first else ():
        try:
            _followed(begin(other), until(other, number))
        except ProgramError as error:
            raise ProgramError(f"blocks[{number}], if taken, {error.place}", error.what, error.hint) from None
    state = begin(program)
    sizes = _followed(state, program)
    if state.undefined:
        raise ProgramError(
            "statements", "memory that resize_ has added is never written", "write to it, or do not grow"
        )
    returned = set(references(program.returns))
    for name in returned:
        if name not in state.names:
            raise ProgramError("returns", f"{name} is not defined", "return an argument or a result")
    for i, step in enumerate(program.scenario.steps):
        if isinstance(step, Write) and not (
            (step.name in returned or step.name[0] == "a") and isinstance(state.names.get(step.name), Tensor)
        ):
            raise ProgramError(
                f"scenario.steps[{i}]",
                f"{step.name} is no argument and no result that is a tensor",
                "write to one",
            )
    return sizes


def check_blocks(program: Program) -> None:
    """That statements lie in blocks as they may, and that branches ask for Python values in each call."""
    blocks = program.blocks
    for i, statement in enumerate(program.statements):
        if statement.block >= len(blocks):
            raise ProgramError(f"statements[{i}].block", "there is no such block", "use -1 for none")
    try:
        outline(program.statements, blocks)
    except ValueError as error:
        raise ProgramError("statements", str(error), "put them side by side, or use two blocks") from None
    used = {number for statement in program.statements for number in around(blocks, statement.block)}
    for i, block in enumerate(blocks):
        if i not in used:
            raise ProgramError(f"blocks[{i}]", "no statement is in it", "leave it out")
        if isinstance(block, Branch) and any(answer(call, block) is None for call in calls(program)):
            raise ProgramError(f"blocks[{i}]", f"{block.argument} is no Python value", "name one")
        asked = [arm.argument for arm in branches(blocks, i)]
        if len(set(asked)) < len(asked):
            raise ProgramError(f"blocks[{i}]", "a block around it asks the same", "ask for another argument")


def until(program: Program, number: int) -> Program:
    """The program up to a block's end; what it returns is left out."""
    inside = [i for i, s in enumerate(program.statements) if number in around(program.blocks, s.block)]
    return replace(program, statements=program.statements[: inside[-1] + 1], returns=Lit(None))
