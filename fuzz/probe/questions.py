"""Questions: for each trait a small program that has it, and little else.

>>> sorted(question.trait for question in dtype_questions())[:2]
['dtype: bfloat16', 'dtype: bool']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fuzz.choices import SeededChoices
from fuzz.features.table import FEATURES
from fuzz.features.traits import DTYPE, OPERATOR, RANK, traits
from fuzz.generate import generate
from fuzz.generate.limits import Limits
from fuzz.generate.operand_arguments import fitting_operands
from fuzz.generate.profiles import PROFILES
from fuzz.ir.nodes import Argument, Literal, Program, Ref, Root, Scalar, Seq, Statement, Storage, View
from fuzz.operators import OPERATORS, Kind, Mismatch, Operator
from fuzz.operators.dtypes import BOOL, DTYPES
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import Constant, Meta, Size
from fuzz.program.decode import ProgramError, check

_RANKS: tuple[Size, ...] = ((), (3,), (2, 3), (2, 2, 3), (2, 2, 3, 2), (2, 2, 2, 2, 2))
_SIZES: tuple[tuple[str, Size], ...] = (
    ("argument: 0-d", ()),
    ("argument: empty", (0, 3)),
    ("argument: size 1", (1, 3)),
)
_DRAWS = 20  # how often the attributes of one operator are drawn
_PROGRAMS = 240  # how many programs of each profile are searched for the plainest with a feature
_SEED = 49


@dataclass(frozen=True, slots=True)
class Question:
    """The question whether a target supports one trait.

    Attributes:
        trait: one of `fuzz.features.traits.TRAITS`.
        program: a valid program that has it.
        needs: the other traits of the program.
    """

    trait: str
    program: Program
    needs: frozenset[str]


def dtype_questions() -> list[Question]:
    """Questions for arguments of each dtype, which the program negates or adds to themselves."""
    return [_question(f"{DTYPE}{dtype}", _doubled(dtype, (2, 3))) for dtype in sorted(DTYPES)]


def size_questions(dtypes: Sequence[str]) -> list[Question]:
    """Questions for arguments of each rank, and for empty ones, with the first of some dtypes."""
    sizes = (*((f"{RANK}{len(size)}", size) for size in _RANKS), *_SIZES)
    return [_question(trait, _doubled(dtypes[0], size)) for trait, size in sizes]


def operator_questions(limits: Limits | None = None) -> list[Question]:
    """Questions for each operator, on plain operands within limits.

    If a row writes to an operand, or changes its metadata, the program makes a copy of it first. A row has no
    question if its operands must require grad, or if there are no operands within the limits.
    """
    found = []
    for name, row in OPERATORS.items():
        if row.raises or row.kind in (Kind.HOOK, Kind.RETAIN):
            continue
        program = operator_program(row, limits)
        if program is not None:
            found.append(_question(f"{OPERATOR}{name}", program))
    return found


def feature_questions(limits: Limits | None = None) -> list[Question]:
    """Questions for each feature, with the plainest generated program within limits that has it."""
    best: dict[str, tuple[tuple[int, int, int], Question]] = {}
    for number, program in enumerate(_small_programs(limits)):
        has = traits(program)
        if not program.statements or not (limits is None or limits.traits.isdisjoint(has)):
            continue
        odd = sum(trait.startswith(DTYPE) and trait != f"{DTYPE}float32" for trait in has)
        key = len(has) + 3 * odd, len(program.statements), number
        for trait in has:
            if trait in FEATURES and (trait not in best or key < best[trait][0]):
                best[trait] = key, Question(trait, program, has - {trait})
    return [best[trait][1] for trait in FEATURES if trait in best]


def operator_program(row: Operator, limits: Limits | None = None) -> Program | None:
    """A program with one statement of a row, after copies of what it changes; None if there is none."""
    for metas in fitting_operands(row.name, limits):
        for draw in range(_DRAWS):
            program = _program_on_operands(row, metas, SeededChoices(_SEED, draw))
            if program is not None:
                return program
    return None


def _question(trait: str, program: Program) -> Question:
    return Question(trait, program, traits(program) - {trait})


def _doubled(dtype: str, size: Size) -> Program:
    """A program that adds an argument to itself, or negates it if it is boolean."""
    operator, operands = ("logical_not", ("a0",)) if dtype in BOOL else ("add", ("a0", "a0"))
    statement = Statement(operator, operands, (), ("v0",))
    program = Program((Storage(dtype, size, 1),), (Root(0),), (Ref("a0"),), (statement,), Ref("v0"))
    check(program)
    return program


def _program_on_operands(row: Operator, metas: Sequence[Meta], choices: SeededChoices) -> Program | None:
    storages: list[Storage] = []
    arguments: list[Argument] = []
    statements: list[Statement] = []
    operands: list[str] = []
    changed = {*row.writes, *((0,) if row.metadata else ())}
    for place, meta in enumerate(metas):
        operands.append(f"a{place}")
        if meta.number:
            arguments.append(Scalar(2 if meta.dtype == "int64" else 0.5))
            continue
        storages.append(Storage(meta.dtype, meta.size, place + 1))
        stride = contiguous_strides(meta.size)
        view = View(len(storages) - 1, meta.size, stride, 0, wrapped="one")
        arguments.append(view if row.unwraps else Root(len(storages) - 1))
        if place in changed:
            statements.append(Statement("clone", (operands[-1],), (), (f"v{len(statements)}",)))
            operands[-1] = statements[-1].results[0]
    attributes: dict[str, Constant] = {}
    try:
        for attribute in row.attributes:
            attributes[attribute.name] = attribute.draw(choices, metas, attributes)
        count = 0 if row.metadata else len(row.rule(metas, attributes))
        results = tuple(f"v{len(statements) + number}" for number in range(count))
        statements.append(Statement(row.name, tuple(operands), tuple(attributes.items()), results))
        returned = tuple(Ref(name) for name in (*results, *(operands[place] for place in sorted(changed))))
        parameters = tuple(Ref(f"a{place}") for place in range(len(arguments)))
        tree = returned[0] if len(returned) == 1 else Seq("tuple", returned) if returned else Literal(None)
        program = Program(tuple(storages), tuple(arguments), parameters, tuple(statements), tree)
        check(program)
    except (Mismatch, ProgramError):
        return None
    return program


def _small_programs(limits: Limits | None) -> Iterator[Program]:
    """Programs of one or two statements from each profile that `mixed` mixes."""
    for name in dict.fromkeys(PROFILES["mixed"].mixture):
        profile = replace(
            PROFILES[name], statements=(0, 3), arguments=(1, 2), limits=limits, swarm=False, autocast=0.01
        )
        for index in range(_PROGRAMS):
            yield generate(SeededChoices(_SEED, index), profile)
