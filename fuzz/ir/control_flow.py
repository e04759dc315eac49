"""The blocks of a program: how statements lie in them, and in which order they run.

A program's statements are a flat list, and each says in which block it stands. `block_tree` makes the tree of
that which is printed; `executed_statements` follows it as a call does: turn by turn, and down one arm of each
`if`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from fuzz.ir.nodes import Autocast, Block, Branch, Literal, Loop, Program, Region, Scalar, Statement
from fuzz.operators.row import Constant

MAX_DEPTH = 3  # blocks in blocks
MAX_BLOCKS = 32
MAX_TURNS = 4  # of one loop
MAX_EXECUTED = 400  # statements that one call runs, each turn of a loop counted

Outline: TypeAlias = "list[int | tuple[int, Outline]]"
"""Numbers of statements, and for each block its number and what is in it."""


class Modes(NamedTuple):
    """What a statement runs under: grad mode, inference mode, whether a backward repeats it, the dtype that
    autocast converts to ("" where it is off), and whether a block around it puts the grad mode back."""

    grad: bool
    inference: bool = False
    repeated: bool = False
    autocast: str = ""
    contained: bool = False


def modes_inside(modes: Modes, block: Block) -> Modes:
    """What the statements of a block run under, given what the block itself does."""
    match block:
        case Region("no_grad"):
            return modes._replace(grad=False, contained=True)
        case Region("enable_grad"):
            return modes._replace(grad=not modes.inference, contained=True)
        case Region("inference_mode"):
            return modes._replace(grad=False, inference=True, contained=True)
        case Region("checkpoint"):
            return modes._replace(repeated=True, contained=True)
        case Autocast(dtype, enabled):
            return modes._replace(autocast=dtype if enabled else "")
        case _:
            return modes


def enclosing_blocks(blocks: Sequence[Block], number: int) -> list[int]:
    """The numbers of a block and of those around it, the outermost first.

    >>> enclosing_blocks((Loop(2), Region("no_grad", within=0)), 1)
    [0, 1]
    """
    found: list[int] = []
    while number >= 0:
        found.insert(0, number)
        number = blocks[number].within
    return found


def block_tree(statements: Sequence[Statement], blocks: Sequence[Block]) -> Outline:
    """The tree of a program's statements; ValueError where those of a block do not stand together."""
    top: Outline = []
    open_blocks: list[tuple[int, Outline]] = []
    closed: set[int] = set()
    for i, statement in enumerate(statements):
        path = enclosing_blocks(blocks, statement.block)
        while [number for number, _ in open_blocks] != path[: len(open_blocks)]:
            closed.add(open_blocks.pop()[0])
        for number in path[len(open_blocks) :]:
            if number in closed:
                raise ValueError(f"the statements of block {number} do not stand together")
            content: Outline = []
            (open_blocks[-1][1] if open_blocks else top).append((number, content))
            open_blocks.append((number, content))
        (open_blocks[-1][1] if open_blocks else top).append(i)
    return top


def is_arm_taken(program: Program, branch: Branch) -> bool | None:
    """Whether an arm is taken in a program's (first) call; None if it asks for no Python value."""
    number = int(branch.argument[1:]) if branch.argument[:1] == "a" else -1
    if not 0 <= number < len(program.arguments):
        return None
    argument = program.arguments[number]
    if not isinstance(argument, Scalar):
        return None
    return bool(argument.value == branch.value) == branch.holds


def is_else(block: Block, before: Block | None) -> bool:
    """Whether an arm is the `else` of the block just before it."""
    return isinstance(block, Branch) and not block.holds and before == replace(block, holds=True)


def executed_statements(program: Program) -> Iterator[tuple[int, Statement]]:
    """The statements that a program's (first) call runs, in that order, each with its number.

    >>> twice = Statement("mul_number_", ("a0",), (("value", 2.0),), (), block=0)
    >>> program = Program((), (), (), (twice,), Literal(None), blocks=(Loop(2),))
    >>> [number for number, _ in executed_statements(program)]
    [0, 0]
    """
    statements, blocks = program.statements, program.blocks
    if not any(isinstance(block, (Branch, Loop)) for block in blocks):
        return iter(enumerate(statements))
    return _follow_arms(program, block_tree(statements, blocks))


def _follow_arms(program: Program, tree: Outline) -> Iterator[tuple[int, Statement]]:
    for item in tree:
        if isinstance(item, int):
            yield item, program.statements[item]
            continue
        number, content = item
        match program.blocks[number]:
            case Branch() as branch:
                if is_arm_taken(program, branch):
                    yield from _follow_arms(program, content)
            case Loop(count):
                for _ in range(count):
                    yield from _follow_arms(program, content)
            case _:
                yield from _follow_arms(program, content)


def branches(blocks: Sequence[Block], number: int) -> list[Branch]:
    """The arms among a block and those around it."""
    return [arm for outer in enclosing_blocks(blocks, number) if isinstance(arm := blocks[outer], Branch)]


def untaken_arms(program: Program) -> Iterator[tuple[int, Program]]:
    """For each arm that the first call does not take, its number and the program up to the arm's end, with
    values that lead there. That returns nothing."""
    for number, block in enumerate(program.blocks):
        if not isinstance(block, Branch):
            continue
        if all(is_arm_taken(program, arm) for arm in branches(program.blocks, number)):
            continue
        inside = [
            i for i, s in enumerate(program.statements) if number in enclosing_blocks(program.blocks, s.block)
        ]
        other = assume_arm(program, number)
        yield number, replace(other, statements=other.statements[: inside[-1] + 1], returns=Literal(None))


def assume_arm(program: Program, number: int) -> Program:
    """The program with Python values for which a block's statements run."""
    arguments = list(program.arguments)
    for arm in branches(program.blocks, number):
        if not is_arm_taken(program, arm):
            value = arm.value if arm.holds else other_value(arm.value)
            arguments[int(arm.argument[1:])] = Scalar(value)
    return replace(program, arguments=tuple(arguments))


def other_value(value: Constant) -> Constant:
    """A value of the same kind that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float, complex)):
        return value + 1
    return f"{value} not" if isinstance(value, str) else 0


def without_untaken(program: Program, arms: Collection[int]) -> Program:
    """The program without the statements of those of some blocks that are arms which the first call does not
    take."""
    gone = {
        i for i in arms if isinstance(arm := program.blocks[i], Branch) and not is_arm_taken(program, arm)
    }
    kept = (s for s in program.statements if gone.isdisjoint(enclosing_blocks(program.blocks, s.block)))
    return replace(program, statements=tuple(kept))


def resolve_branches(program: Program) -> Program:
    """The program as its first call runs it, which asks nothing of Python values."""
    arms = frozenset(i for i, block in enumerate(program.blocks) if isinstance(block, Branch))
    return dissolve_blocks(without_untaken(program, arms), arms) if arms else program


def without_empty(program: Program) -> Program:
    """The program without the blocks that no statement is left in."""
    kept = sorted(
        {number for s in program.statements for number in enclosing_blocks(program.blocks, s.block)}
    )
    if len(kept) == len(program.blocks):
        return program
    numbers = {old: new for new, old in enumerate(kept)} | {-1: -1}
    return replace(
        program,
        statements=tuple(replace(s, block=numbers[s.block]) for s in program.statements),
        blocks=tuple(
            replace(block, within=numbers[block.within])
            for block in (program.blocks[number] for number in kept)
        ),
    )


def dissolve_blocks(program: Program, gone: frozenset[int]) -> Program:
    """The program without some blocks, whose statements stand in what was around these."""

    def left(number: int) -> int:
        while number in gone:
            number = program.blocks[number].within
        return number

    blocks = tuple(replace(block, within=left(block.within)) for block in program.blocks)
    statements = tuple(replace(s, block=left(s.block)) for s in program.statements)
    return without_empty(replace(program, statements=statements, blocks=blocks))
