"""Single-statement programs of every operator row, for the tests that hold the table against eager."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.abstract import eager_rules
from fuzz.abstract.state import AbstractState, InvalidProgram
from fuzz.choices import SeededChoices
from fuzz.operators import Mismatch, Operator
from fuzz.operators.builders import as_number
from fuzz.operators.layout import contiguous_strides, extent
from fuzz.operators.row import Meta
from fuzz.program.decode import Argument, Program, Ref, Root, Scalar, Seq, Statement, Storage, View

SIZES = (
    (3,),
    (2, 3),
    (3, 3),
    (1, 3),
    (2, 1, 3),
    (),
    (0, 3),
    (1,),
    (2,),
    (3, 2),
    (2, 3, 2),
    (2, 2, 3),
    (0,),
    (2, 2, 3, 2),
    (2, 3, 3),
    (2, 2, 2, 1),
)
FITTING = 4  # draws of an operand, until one fits


def geometry(choices: SeededChoices, size: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Strides and an offset: contiguous, transposed, or with gaps."""
    rank = len(size)
    kind = choices.integer(0, 3)
    if rank == 0 or kind == 0:
        return contiguous_strides(size), 0
    if kind == 1:
        return tuple(reversed(contiguous_strides(tuple(reversed(size))))), 0
    if kind == 2:
        return tuple(2 * step for step in contiguous_strides(size)), 1
    order = sorted(range(rank), key=lambda dim: choices.integer(0, 9))
    packed = contiguous_strides(tuple(size[dim] for dim in order))
    return tuple(packed[order.index(dim)] for dim in range(rank)), 2


def single(
    row: Operator, choices: SeededChoices, dtypes: frozenset[str], grad: tuple[bool, ...] | None
) -> Program | None:
    """One statement on random operands, or None where they do not fit the row or eager refuses them."""
    storages: list[Storage] = []
    arguments: list[Argument] = []
    state = AbstractState()
    metas = []
    for i, operand in enumerate(row.operands):
        name = f"a{i}"
        if operand.number:
            value = choices.pick((2, 0.5))
            arguments.append(Scalar(value))
            state.bind_scalar(name, value)
            metas.append(as_number(value))
            if not operand.fits(metas[-1], metas[:-1]):
                return None
        else:
            allowed = sorted(operand.dtypes & dtypes)
            if not allowed:
                return None
            for _ in range(FITTING):
                size = choices.pick(SIZES)
                if i and choices.chance(0.7):
                    size = metas[0].size
                    if size and choices.chance(0.4):
                        size = (choices.pick(size),)
                dtype = choices.pick(allowed)
                if i and metas[0].dtype in allowed and choices.chance(0.7):
                    dtype = metas[0].dtype
                root = not row.unwraps and choices.chance(0.3)
                stride, offset = (contiguous_strides(size), 0) if root else geometry(choices, size)
                if operand.fits(Meta(dtype, size, stride, offset), metas):
                    break
            else:
                return None
            room = max(offset + extent(size, stride), 1)
            needs = dtype.startswith(("float", "bfloat")) and (
                choices.chance(0.5) if grad is None else grad[i]
            )
            leaf = not dtype.startswith(("float", "bfloat"))
            storages.append(Storage(dtype, size if root else (room,), 3 * i + 1, needs, leaf))
            number = state.allocate(storages[-1])
            if root:
                arguments.append(Root(number))
                state.bind_root(name, number)
            else:
                view = View(number, size, stride, offset, wrapped="one" if row.unwraps else None)
                arguments.append(view)
                state.bind_view(name, view)
            metas.append(state.tensor(name).meta)
    attributes: dict[str, object] = {}
    try:
        for attribute in row.attributes:
            attributes[attribute.name] = attribute.draw(choices, metas, attributes)
        outcome = row.rule(metas, attributes)
    except Mismatch:
        return None
    results = () if row.metadata else tuple(f"v{i}" for i in range(len(outcome)))
    operands = tuple(f"a{i}" for i in range(len(row.operands)))
    try:
        if eager_rules.eager_error_now(state.use(row, operands, attributes)):
            return None
        state.apply(row, operands, attributes, results)
    except InvalidProgram:
        return None
    if state.undefined:
        return None
    statement = Statement(row.name, operands, tuple(attributes.items()), results)
    return Program(
        tuple(storages),
        tuple(arguments),
        tuple(Ref(f"a{i}") for i in range(len(arguments))),
        (statement,),
        Seq("tuple", tuple(map(Ref, results))),
    )


COMMON = frozenset({"float32", "float64", "int64", "bool"})


def singles(
    row: Operator, count: int, *, dtypes: frozenset[str] = COMMON, grad: tuple[bool, ...] | None = None
) -> Iterator[Program]:
    """Up to `count` programs; the tries are bounded."""
    found = 0
    for index in range(400 * count):
        program = single(row, SeededChoices(len(row.name), index), dtypes, grad)
        if program is not None:
            yield program
            found += 1
            if found == count:
                return
