"""Limits: what no program of a profile may have, because the compilers under test lack it.

Programs are drawn within their limits from the start. Rows of the operator table, dtypes and chances that
lead beyond them are left out (`fuzz.generate.profiles.narrow`), and the program builder takes no statement
beyond them. What remains is looked at when the program is whole (`Limits.allow`).

    limits = Limits.of(("complex", "in-place", "operator: conv2d"))
    find_profile("mixed{complex,in-place,operator: conv2d}").limits == limits
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fuzz.features.capabilities import excluded_traits
from fuzz.features.row_features import row_features, view_kind
from fuzz.features.traits import DTYPE, OPERATOR, RANK, traits
from fuzz.ir.nodes import Program
from fuzz.operators import OPERATORS, Kind, Operator
from fuzz.operators.dtypes import COMPLEX, DTYPES, HALF
from fuzz.operators.row import Size

WHOSE = ("argument", "view of an argument", "intermediate")
"""What a statement writes to, or changes the metadata of, in the words of the traits."""

_DTYPE_GROUPS = {
    "dtype: complex": COMPLEX,
    "dtype: half": HALF,
    "dtype: small integer": frozenset({"uint8", "int8", "int16"}),
}

CHANCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "share": ("alias: overlapping", "alias: disjoint", "alias: same elements", "alias: same metadata"),
        "same": ("argument: duplicate",),
        "scalar": ("argument: scalar",),
        "strided": ("argument: view",),
        "hidden": ("argument: detach", "argument: data", "argument: no_grad", "argument: multi"),
        "reinterpreted": ("argument: other dtype", "argument: complex or real view"),
        "module": ("module: its function",),
        "wrapped": ("subclass: argument",),
        "apart": ("argument: view of an alias", "argument: its base detached since"),
        "conjugated": ("argument: lazily conjugated",),
        "negated": ("argument: lazily negated",),
        "flat": ("alias: flat buffer",),
        "windows": ("alias: windows",),
        "requires_grad": ("argument: leaf", "argument: non-leaf"),
        "special": ("argument: special values",),
        "grad_off": ("mode: grad off",),
        "inference": ("mode: inference",),
        "inferred": ("argument: inference",),
        "autocast": ("mode: autocast around",),
        "partial": ("gradient: partial",),
        "passed": ("output: argument",),
        "steps": (
            *("gradient: double", "gradient: accumulated", "gradient: freed", "gradient: again"),
            *("gradient: after a write to an argument", "gradient: after a write to a result"),
            "gradient: required since",
        ),
        "again": ("repeat: same kind", "repeat: other size"),
        "threads": ("mode: two threads",),
        "swapped": ("mode: swapped", "mode: swapped around"),
        "marked": ("python: marked",),
        "alike": ("repeat: same kind",),
        "reckless": ("error: refused", "gradient: hazard"),
    }
)
"""The chances of a profile, and the traits that a program comes by through each: where all of these are
excluded, the chance is 0."""

BLOCKS: Mapping[str, str] = MappingProxyType(
    {
        **{mode: f"mode: {mode}" for mode in ("no_grad", "enable_grad", "inference_mode", "checkpoint")},
        **{"autocast": "mode: autocast", "swapped": "mode: swapped", "set": "mode: left changed"},
        **{
            "if": "flow: branch",
            "for": "flow: loop",
            "hook": "gradient: hook",
            "retain": "gradient: retained",
        },
    }
)
"""The trait of each kind of block (`fuzz.generate.blocks`)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What programs may not have.

    Attributes:
        lacks: capabilities, and patterns of traits, in the order in which they were given.
        traits: all traits that no program may have.
        operators: the rows of which programs may be made.
        dtypes: the dtypes that tensors may have.
    """

    lacks: tuple[str, ...]
    traits: frozenset[str]
    operators: frozenset[str]
    dtypes: frozenset[str]

    @classmethod
    def of(cls, lacks: tuple[str, ...]) -> Limits:
        """The limits of a target that lacks these capabilities (`fuzz.features.capabilities`)."""
        excluded = excluded_traits(lacks)
        groups = (dtypes for name, dtypes in _DTYPE_GROUPS.items() if name in excluded)
        return cls(
            lacks,
            excluded,
            frozenset(name for name, row in OPERATORS.items() if excluded.isdisjoint(_needs(row, excluded))),
            DTYPES.difference(*groups, (name for name in DTYPES if f"{DTYPE}{name}" in excluded)),
        )

    def allow(self, program: Program) -> bool:
        """Whether a valid program has none of the traits that it may not have."""
        return self.traits.isdisjoint(traits(program))

    def allow_change(self, row: Operator, whose: str) -> bool:
        """Whether a row may be done to an operand, one of `WHOSE`: it may write to it, or change it."""
        return not (
            (row.writes and f"data: {whose}" in self.traits)
            or (row.metadata and f"metadata: {whose}" in self.traits)
        )

    def allow_size(self, size: Size) -> bool:
        """Whether an argument may be of this size."""
        return not (
            f"{RANK}{len(size)}" in self.traits
            or (0 in size and "argument: empty" in self.traits)
            or (not size and "argument: 0-d" in self.traits)
            or (1 in size and "argument: size 1" in self.traits)
        )


def _needs(row: Operator, excluded: frozenset[str]) -> Iterator[str]:
    """Traits of all programs that have a statement of a row, those that stand for each other among them."""
    yield f"{OPERATOR}{row.name}"
    yield from row_features(row)
    if row.kind is Kind.WRAPPER:
        yield f"subclass: {'taken apart' if row.unwraps else 'made'}"
    if (kind := view_kind(row)) is not None and row.kind in (Kind.VIEW, Kind.MULTI_VIEW):
        yield f"view: {kind}"
    if row.kind in (Kind.VIEW, Kind.MULTI_VIEW):
        yield "view: taken"
    if row.metadata:
        yield f"metadata: {row.name}"
    for changes, group in ((row.writes, "data"), (row.metadata, "metadata")):
        every = {f"{group}: {whose}" for whose in WHOSE}
        if changes and excluded.issuperset(every):
            yield from every
