"""Arguments that a row of the operator table takes: for programs of a few operators.

>>> [meta.size for meta in fitting_operands("matmul")[0]]
[(3,), (3,)]
"""

from __future__ import annotations

from functools import lru_cache

from fuzz.abstract import eager_rules
from fuzz.abstract.state import AbstractState, InvalidProgram
from fuzz.choices import Choices, SeededChoices
from fuzz.generate.limits import Limits
from fuzz.ir.nodes import Argument, Root, Scalar, Storage, View
from fuzz.operators import OPERATORS, Mismatch, Operator
from fuzz.operators.builders import as_number
from fuzz.operators.dtypes import COMPLEX, INEXACT
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import Constant, Meta, Size

SIZES: tuple[Size, ...] = (
    *((3,), (2, 3), (3, 3), (2, 2, 3), (3, 2), (2, 3, 3), (2,), (4, 4), (2, 2, 3, 2), (2, 3, 4, 4)),
    *((2, 3, 2), (1, 3), (2, 1, 3), (1,), (2, 2, 2, 1), (), (0, 3), (0,), (2, 2, 2, 2, 2)),
)
_TRIES = 1200  # for one row; the search runs once for it in a process
_MOST_TRIES = 12 * _TRIES  # where none have been found: three operands fit together by chance seldom
_FITTING = 4  # draws of an operand, until one fits
_MOST = 8  # ways to be given to one row
_NUMBERS = (2, 0.5)


def draw_fitting_arguments(
    choices: Choices, row: Operator, limits: Limits | None, requires_grad: float
) -> tuple[list[Storage], list[Argument]] | None:
    """Arguments that fit a row, each on a storage of its own; None where none are known within the limits.

    A row that takes no tensors has none.
    `requires_grad` is the chance that an inexact one requires grad, and is no leaf half of the time.
    """
    ways = [metas for metas in fitting_operands(row.name, limits) if not all(meta.number for meta in metas)]
    if not ways:
        return None
    storages: list[Storage] = []
    arguments: list[Argument] = []
    for meta in choices.pick(ways):
        if meta.number:
            arguments.append(Scalar(choices.pick(_NUMBERS)))
            continue
        needs = meta.dtype in INEXACT and choices.chance(requires_grad)
        leaf = not needs or choices.chance(0.5)
        storages.append(Storage(meta.dtype, meta.size, choices.integer(0, 12), needs, leaf))
        arguments.append(_argument_of(row, len(storages) - 1, meta))
    return storages, arguments


def can_be_used(name: str, limits: Limits) -> bool:
    """Whether a program within limits may have a row; true where no operands are known without limits."""
    return bool(fitting_operands(name, limits)) or not fitting_operands(name)


@lru_cache(maxsize=4096)
def fitting_operands(name: str, limits: Limits | None = None) -> tuple[tuple[Meta, ...], ...]:
    """Operands that eager takes for a row, contiguous and without a history, the plainest first.

    Plain is single precision, and what is neither empty nor without dimensions. A row has none where the
    search finds none.
    """
    row, found = OPERATORS[name], dict[tuple[Meta, ...], None]()
    for index in range(_MOST_TRIES):
        if index >= _TRIES and found:
            break
        metas = _draw_operands(row, SeededChoices(len(name), index), limits)
        if metas is not None:
            found[metas] = None
            if len(found) == _MOST:
                break
    return tuple(sorted(found, key=_oddness))


def _oddness(metas: tuple[Meta, ...]) -> tuple[int, ...]:
    tensors = [meta for meta in metas if not meta.number]
    return (
        sum(0 in meta.size for meta in tensors),
        sum(not meta.size for meta in tensors),
        sum(meta.dtype != "float32" for meta in tensors),
        sum(1 in meta.size for meta in tensors),
        sum(len(meta.size) for meta in tensors),
    )


def _draw_operands(row: Operator, choices: Choices, limits: Limits | None) -> tuple[Meta, ...] | None:
    """Operands of a row that eager takes with some attributes; None where a draw has none."""
    metas: list[Meta] = []
    for operand in row.operands:
        if operand.number:
            metas.append(as_number(choices.pick(_NUMBERS)))
            if not operand.fits(metas[-1], metas[:-1]):
                return None
            continue
        meta = _draw_operand(row, len(metas), metas, choices, limits)
        if meta is None:
            return None
        metas.append(meta)
    return tuple(metas) if _is_taken(row, metas, choices, limits) else None


def _draw_operand(
    row: Operator, place: int, metas: list[Meta], choices: Choices, limits: Limits | None
) -> Meta | None:
    operand = row.operands[place]
    allowed = sorted(operand.dtypes if limits is None else operand.dtypes & limits.dtypes)
    sizes = [size for size in SIZES if limits is None or limits.allow_size(size)]
    if row.unwraps:
        allowed = [dtype for dtype in allowed if dtype not in COMPLEX]
    if not allowed or not sizes:
        return None
    for _ in range(_FITTING):
        size = choices.pick(sizes)
        if metas and choices.chance(0.7):
            size = metas[0].size
            if size and choices.chance(0.4):
                size = (choices.pick(size),)
        dtype = "float32" if "float32" in allowed and choices.chance(0.7) else choices.pick(allowed)
        if metas and metas[0].dtype in allowed and choices.chance(0.8):
            dtype = metas[0].dtype
        meta = Meta(dtype, size, contiguous_strides(size))
        if operand.fits(meta, metas) and (limits is None or limits.allow_size(size)):
            return meta
    return None


def _is_taken(row: Operator, metas: list[Meta], choices: Choices, limits: Limits | None) -> bool:
    """Whether eager takes these operands with attributes that are drawn, and gives what is within limits."""
    state = AbstractState()
    for i, meta in enumerate(metas):
        if meta.number:
            state.bind_scalar(f"a{i}", 2 if meta.dtype == "int64" else 0.5)
            continue
        number = state.allocate(Storage(meta.dtype, meta.size, 1))
        argument = _argument_of(row, number, meta)
        if isinstance(argument, Root):
            state.bind_root(f"a{i}", number)
        elif isinstance(argument, View):
            state.bind_view(f"a{i}", argument)
    attributes: dict[str, Constant] = {}
    try:
        for attribute in row.attributes:
            attributes[attribute.name] = attribute.draw(choices, metas, attributes)
        use = state.use(row, tuple(f"a{i}" for i in range(len(metas))), attributes)
        outcome = state.infer(use)
        return not eager_rules.eager_error_now(use) and (
            limits is None or all(result.meta.dtype in limits.dtypes for result in outcome)
        )
    except (Mismatch, InvalidProgram):
        return False


def _argument_of(row: Operator, number: int, meta: Meta) -> Argument:
    """The root, or for a row that takes a wrapper subclass apart one of it."""
    if not row.unwraps:
        return Root(number)
    return View(number, meta.size, contiguous_strides(meta.size), 0, wrapped="one")
