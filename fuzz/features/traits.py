"""Traits: the words in which coverage is counted, and in which a target says what it lacks.

operator: expand      the program has a statement with that row of the operator table
dtype: float64        a tensor argument, or its storage, has this dtype
rank: 2               a tensor argument has so many dimensions
device: cuda          the program runs there
alias: disjoint       others are features (`fuzz.features.program_features.FEATURES`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.features.program_features import FEATURES, features
from fuzz.ir.nodes import DEVICES, Root, View, devices, split_calls
from fuzz.operators import OPERATORS
from fuzz.operators.dtypes import DTYPES
from fuzz.operators.row import MAX_RANK
from fuzz.program.decode import Program

OPERATOR = "operator: "
DTYPE = "dtype: "
RANK = "rank: "
DEVICE = "device: "

TRAITS: tuple[str, ...] = (
    *FEATURES,
    *(f"{DTYPE}{name}" for name in DTYPES),
    *(f"{RANK}{rank}" for rank in range(MAX_RANK + 1)),
    *(f"{DEVICE}{name}" for name in DEVICES),
    *(f"{OPERATOR}{name}" for name in OPERATORS),
)
"""All traits that a program can have, in the order of reports."""


def described_traits() -> dict[str, str]:
    """All traits with descriptions, in the order of `TRAITS`.

    That of an operator is its family and its text.
    """
    found = dict(FEATURES)
    found.update((f"{DTYPE}{name}", f"an argument is of dtype {name}") for name in DTYPES)
    found.update((f"{RANK}{rank}", f"an argument has {rank} dimensions") for rank in range(MAX_RANK + 1))
    found.update((f"{DEVICE}{name}", f"it runs on the device {name}") for name in DEVICES)
    for name, row in OPERATORS.items():
        found[f"{OPERATOR}{name}"] = f"{row.kind}: {row.source}"
    return found


def traits(program: Program) -> frozenset[str]:
    """The traits of a valid program.

    >>> from fuzz.choices import Random
    >>> from fuzz.generate import generate
    >>> traits(generate(Random(0, 1), "single")) <= set(TRAITS)
    True
    """
    return frozenset(
        {
            *features(program),
            *(trait for call in split_calls(program) for trait in _argument_traits(call)),
            *(f"{DEVICE}{device.partition(':')[0]}" for device in devices(program)),
            *(f"{OPERATOR}{statement.operator}" for statement in program.statements),
        }
    )


def _argument_traits(call: Program) -> Iterator[str]:
    """The dtypes and ranks of a call's arguments."""
    for storage in call.storages:
        yield f"{DTYPE}{storage.dtype}"
    for argument in call.arguments:
        if isinstance(argument, Root):
            yield f"{RANK}{len(call.storages[argument.storage].size)}"
        elif isinstance(argument, View):
            yield f"{RANK}{len(argument.size)}"
            if argument.dtype is not None:
                yield f"{DTYPE}{argument.dtype}"
