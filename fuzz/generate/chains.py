"""Chains: independent sequences of one to four operators on arguments of one dtype, several in a program.

What a kernel gets wrong depends on its dtype, on how its loops are cut, and on its numbers. So a chain has a
dtype of its own, sizes of up to a few thousand elements (a vector loop with a tail, tiles, split reductions),
arguments that lie in several ways, and numbers of a value class. A compile takes most of the time of such a
case: several chains share one. They have no operand in common, so that a difference names its chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from fuzz.abstract.state import AbstractState
from fuzz.choices import Choices
from fuzz.generate.arguments import Inputs, bind_arguments, draw_layout
from fuzz.generate.motifs import kernel_patterns
from fuzz.generate.profiles import Profile
from fuzz.generate.program_builder import ProgramBuilder
from fuzz.ir.value_classes import FORMULAS, VALUES
from fuzz.operators import OPERATORS, Kind, Mismatch, Operand, Operator
from fuzz.operators.dtypes import FLOATS, INEXACT
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import Constant, Meta, Size
from fuzz.program.decode import Argument, Root, Storage, View

TRIES = 24  # for one statement, before a chain is left shorter
FITTING = 12  # draws of sizes, until the operator that they are for takes some
WANTED = 0.6  # the chance that sizes and dtypes are drawn for an operator
# Value classes of chains with gradients: sums of numbers that overflow depend on their order.
SMOOTH = ("plain", "inexact", "halves")
LATEST = 0.8  # the chance that an operator is applied to the chain's latest result

_DTYPES = (
    *("float32", "float16", "bfloat16") * 4,
    *("float64", "int64", "int32", "uint8", "int8", "int16", "bool") * 2,
    *("complex64", "complex128"),
)
_REFUSED = tuple(name for name, row in OPERATORS.items() if row.kind is Kind.REFUSED)


@dataclass(slots=True)
class Chain:
    """One chain under construction.

    Attributes:
        names: its arguments and results, in the order in which they came.
        length: how many operators it is to have.
        first: the operator that its sizes and dtypes were drawn for, if they were.
    """

    names: list[str]
    length: int
    first: str | None


def draw_chain_inputs(choices: Choices, profile: Profile, state: AbstractState) -> tuple[Inputs, list[Chain]]:
    """Storages and arguments of several chains, bound in the state, and the chains."""
    storages: list[Storage] = []
    arguments: list[Argument] = []
    chains: list[Chain] = []
    assert profile.chains is not None
    for _ in range(choices.integer(*profile.chains)):
        first = len(arguments)
        row = OPERATORS[choices.pick(_kernels(profile.operators))] if choices.chance(WANTED) else None
        kinds = _draw_kinds(choices, row, _dtypes(profile))
        _draw_chain_arguments(choices, profile, kinds, storages, arguments)
        names = [f"a{number}" for number in range(first, len(arguments))]
        chains.append(Chain(names, choices.integer(1, 3), None if row is None else row.name))
    return bind_arguments(state, storages, arguments), chains


@lru_cache(maxsize=64)
def _kernels(chosen: frozenset[str] | None) -> tuple[str, ...]:
    """The operators that sizes may be drawn for: of the wide table, or those of it that are asked for."""
    known = tuple(name for name, row in OPERATORS.items() if row.kind is Kind.KERNEL)
    return tuple(name for name in known if chosen is None or name in chosen) or known


def build_chains(builder: ProgramBuilder, chains: Sequence[Chain]) -> None:
    """Append the statements of the chains, and perhaps one that eager refuses."""
    for chain in chains:
        if builder.choices.chance(builder.profile.pattern):
            before = len(builder.statements)
            kernel_patterns.append_pattern(builder, chain.names)
            made = [name for s in builder.statements[before:] for name in s.results]
            chain.names += made
            if made:
                chain.length = min(chain.length, 2)
        if chain.first is not None:
            for _ in range(TRIES):
                if _append(builder, chain, OPERATORS[chain.first]):
                    chain.length -= 1
                    break
        for _ in range(chain.length):
            if builder.over or not _extend(builder, chain):
                break
    if builder.profile.refused and builder.choices.chance(builder.profile.refused):
        builder.reckless = True
        chain = builder.choices.pick(chains)
        for _ in range(TRIES):
            if _append(builder, chain, OPERATORS[builder.choices.pick(_REFUSED)]):
                return


def _extend(builder: ProgramBuilder, chain: Chain) -> bool:
    """Append one more operator to a chain, if one is found."""
    for _ in range(TRIES):
        _, names = builder.choices.pick(builder.weighted_ops)
        if _append(builder, chain, OPERATORS[builder.choices.pick(names)]):
            return True
    return False


def _append(builder: ProgramBuilder, chain: Chain, row: Operator) -> bool:
    """Append a statement of this row on tensors of a chain, if there are such."""
    found = _choose_operands(builder, chain, row)
    if found is None:
        return False
    before = len(builder.statements)
    if builder.append(row, *found) is None:
        return False
    chain.names += [name for one in builder.statements[before:] for name in one.results]
    return True


def _choose_operands(
    builder: ProgramBuilder, chain: Chain, row: Operator
) -> tuple[tuple[str, ...], list[Meta]] | None:
    choices, names = builder.choices, list[str]()
    metas: list[Meta] = []
    for operand in row.operands:
        if operand.number:
            return None
        fitting = [name for name in chain.names if _fits(builder, operand, name, metas)]
        if not fitting:
            return None
        latest = not names and fitting[-1] == chain.names[-1] and choices.chance(LATEST)
        names.append(fitting[-1] if latest else choices.pick(fitting))
        metas.append(builder.state.meta(names[-1]))
    return tuple(names), metas


def _fits(builder: ProgramBuilder, operand: Operand, name: str, metas: Sequence[Meta]) -> bool:
    meta = builder.state.meta(name)
    return meta.dtype in operand.dtypes and operand.fits(meta, metas)


# ---------------------------------------------------------------------------------------------------------
# arguments


def _dtypes(profile: Profile) -> Sequence[str]:
    """The dtypes that chains may have: those within the profile's limits."""
    if profile.limits is None:
        return _DTYPES
    return [dtype for dtype in _DTYPES if dtype in profile.limits.dtypes] or _DTYPES


def _draw_kinds(choices: Choices, row: Operator | None, known: Sequence[str]) -> list[tuple[str, Size]]:
    """Dtypes and sizes that go together: of a whole, what broadcasts with it or is multiplied by it, perhaps
    of an index and a mask. If there is a row, such that it takes some of them."""
    kinds: list[tuple[str, Size]] = []
    dtypes = known if row is None else [d for d in known if d in row.operands[0].dtypes] or known
    for _ in range(FITTING):
        dtype = choices.pick(dtypes)
        sizes = draw_chain_sizes(choices)
        kinds = [(dtype, size) for size in sizes[: choices.integer(2, len(sizes))]]
        if choices.chance(0.08):
            kinds[-1] = (choices.pick(known), kinds[-1][1])
        whole = sizes[0]
        if choices.chance(0.4) or _takes(row, "int64"):
            kinds.append(("int64", (choices.pick(whole) if whole else 1,) if choices.chance(0.5) else whole))
        if choices.chance(0.15) or _takes(row, "bool"):
            kinds.append(("bool", whole))
        if row is None or _takes_some(choices, row, kinds):
            break
    return kinds


def _takes(row: Operator | None, dtype: str) -> bool:
    """Whether an operand has to be of this dtype."""
    return row is not None and any(operand.dtypes == {dtype} for operand in row.operands)


def _takes_some(choices: Choices, row: Operator, kinds: Sequence[tuple[str, Size]]) -> bool:
    """Whether a row takes operands among tensors of these dtypes and sizes."""
    known = [Meta(dtype, size, contiguous_strides(size)) for dtype, size in kinds]
    for _ in range(3):
        metas: list[Meta] = []
        for operand in row.operands:
            fitting = [meta for meta in known if meta.dtype in operand.dtypes and operand.fits(meta, metas)]
            if not fitting:
                break
            metas.append(choices.pick(fitting))
        if len(metas) < len(row.operands):
            continue
        try:
            attributes: dict[str, Constant] = {}
            for attribute in row.attributes:
                attributes[attribute.name] = attribute.draw(choices, metas, attributes)
            row.rule(metas, attributes)
        except Mismatch:
            continue
        return True
    return False


def _draw_chain_arguments(
    choices: Choices,
    profile: Profile,
    kinds: Sequence[tuple[str, Size]],
    storages: list[Storage],
    arguments: list[Argument],
) -> None:
    """The arguments of one chain, of these dtypes and sizes, most of one value class."""
    values = _draw_values(choices, profile, kinds[0][0])
    needs = choices.chance(profile.requires_grad)
    for dtype, size in kinds:
        own = values
        if dtype not in VALUES[values] or choices.chance(0.3):
            own = _draw_values(choices, profile, dtype)
        if needs and own not in SMOOTH:
            own = choices.pick(SMOOTH) if dtype in FLOATS else "plain"
        _append_argument(choices, storages, arguments, dtype, size, own, needs and dtype in INEXACT)


def _draw_values(choices: Choices, profile: Profile, dtype: str) -> str:
    """A value class that the dtype has; ones that are plain, or not exact in half precision, most often."""
    if not choices.chance(profile.values):
        return "plain"
    known = [values for values in VALUES if dtype in VALUES[values] and values not in FORMULAS]
    if dtype in FLOATS:
        known += ["inexact"] * 4 + ["halves", "domain"]
        known += [*FORMULAS] if choices.chance(0.3) else []
    return choices.pick(known)


def draw_chain_sizes(choices: Choices) -> list[Size]:
    """Sizes that go together: a whole, what broadcasts with it, what it is multiplied by."""
    kind = choices.integer(0, 14)
    if kind == 0:
        n = choices.pick((1, 2, 3, 17, 64, 100, 511, 1000, 2049, 4000))
        return [(n,), (n,), (n,), (1,), (n,)]
    if kind == 1:
        return [(), (), (1,), ()]
    if kind == 2:
        n = choices.integer(1, 70)
        empty = choices.pick(((0, n), (n, 0)))
        return [empty, empty, empty[1:]]
    if kind <= 4:
        b, m, n = choices.integer(1, 4), choices.integer(1, 20), choices.integer(1, 40)
        return [(b, m, n), (b, m, n), (b, n, m), (n,), (m, n), (b, m, 1)]
    if kind == 5:
        b, c, h = choices.integer(1, 2), choices.integer(1, 6), choices.integer(3, 14)
        w = choices.integer(3, 14)
        return [(b, c, h, w), (b, c, h, w), (c, c, 3, 3), (c, 1, 1), (c,), (w,)]
    if kind == 6:
        n = choices.integer(1, 9)
        return [(n, n), (n, n), (n, n), (n,), (n, 1)]
    m, n = choices.integer(1, 70), choices.integer(1, 57)
    if kind >= 12:
        k, b = choices.integer(1, 40), choices.integer(1, 3)
        m, n = min(m, 30), min(n, 30)
        if kind == 12:
            return [(m, k), (k, n), (m, n), (n,), (m,), (k,)]
        if kind == 13:
            return [(b, m, k), (n, k), (n,)] if choices.chance(0.5) else [(m, k), (n, k), (n,), (m, n)]
        return [(b, m, k), (b, k, n), (b, m, n), (m, n), (n,)]
    if kind == 7:
        m, n = choices.pick(((1, 3000), (3000, 1), (2, 2000), (16, 256), (256, 16), (33, 65), (64, 64)))
    return [(m, n), (m, n), (n, m), (n,), (m, 1), (n, n) if n <= 60 else (n,), (m,)]


def _append_argument(
    choices: Choices,
    storages: list[Storage],
    arguments: list[Argument],
    dtype: str,
    size: Size,
    values: str,
    needs: bool,
) -> None:
    """One more storage and the argument on it: mostly its root, else laid out in another way."""
    if values in FORMULAS and (len(size) < 2 or dtype not in VALUES[values]):
        values = "plain"
    seed = choices.integer(0, 12)
    number = len(storages)
    whole, (stride, offset) = size, (contiguous_strides(size), 0)
    if choices.chance(0.45):
        whole, (stride, offset) = draw_layout(choices, size)
    plain = prod(whole) > 4096 or (values in FORMULAS and len(whole) < 2)
    if plain or (whole, stride, offset) == (size, contiguous_strides(size), 0):
        storages.append(Storage(dtype, size, seed, needs, not needs, values))
        arguments.append(Root(number))
        return
    storages.append(Storage(dtype, whole, seed, needs, not needs, values))
    arguments.append(View(number, size, stride, offset))
