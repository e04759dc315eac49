"""Named distributions of programs: what a campaign spends its time on.

A profile says how many arguments and statements a program has, how often which family of operators is
chosen, and how likely each feature is. `mixed` is what a campaign runs by default: it picks another profile
for each case, because none of them finds every kind of fault first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

from fuzz.generate.limits import CHANCES, Limits
from fuzz.ir.nodes import Storage
from fuzz.operators import OPERATORS, Kind

MAX_ELEMENTS = 96  # of any tensor: a statement costs eager microseconds
Weights = tuple[tuple[Kind, int], ...]

_KINDS: Weights = (
    (Kind.POINTWISE, 6),
    (Kind.VIEW, 6),
    (Kind.IN_PLACE, 8),
    (Kind.REDUCTION, 2),
    (Kind.MATMUL, 2),
    (Kind.INDEXING, 2),
    (Kind.MULTI_VIEW, 1),
    (Kind.METADATA, 1),
    (Kind.CREATION, 1),
    (Kind.CONVERT, 1),
    (Kind.JOIN, 2),
    (Kind.RANDOM, 1),
    (Kind.SCATTER, 2),
    (Kind.NEURAL, 1),
    (Kind.NORMALIZATION, 3),
    (Kind.ALGEBRA, 1),
    (Kind.FUNCTION, 2),
    (Kind.WRAPPER, 6),
)  # hooks and grad modes are drawn with blocks, where there are functions


_KERNELS: Weights = (
    (Kind.KERNEL, 24),
    (Kind.POINTWISE, 3),
    (Kind.REDUCTION, 3),
    (Kind.VIEW, 2),
    (Kind.IN_PLACE, 1),
    (Kind.MATMUL, 1),
    (Kind.INDEXING, 1),
    (Kind.CONVERT, 2),
    (Kind.JOIN, 1),
    (Kind.SCATTER, 1),
    (Kind.NEURAL, 2),
    (Kind.NORMALIZATION, 1),
    (Kind.ALGEBRA, 1),
)


@dataclass(frozen=True, slots=True)
class Profile:
    """One distribution. Chances are probabilities in [0, 1]; ranges include both ends."""

    name: str
    mixture: tuple[str, ...] = ()  # if any, one of these profiles is picked for each program
    # Families and their weights; empty: every row is as likely as any other, but what takes functions is
    # left to the profile `operators`. What wraps a tensor, or takes it apart, is drawn in programs with
    # wrapper subclasses alone.
    kinds: Weights = _KINDS
    swarm: bool = False  # each program uses only some of the families and some of the rows
    arguments: tuple[int, int] = (1, 4)
    statements: tuple[int, int] = (3, 12)
    share: float = 0.35  # an argument lies in the memory of an earlier one
    same: float = 0.1  # an argument is the same object as an earlier one
    scalar: float = 0.08  # an argument is a Python value
    strided: float = 0.3  # an argument on memory of its own is a view, not the root
    hidden: float = 0.2  # a view is detached, `.data` or taken under no_grad
    reinterpreted: float = 0.06  # a view is of another dtype than its root
    module: float = 0.06  # the function is a module's, which holds some of the arguments
    wrapped: float = 0.04  # some of the arguments are wrapper subclasses
    apart: float = 0.04  # views of a storage are views of something else than others, or than they were
    conjugated: float = 0.25  # a complex argument is lazily conjugated, or negated
    negated: float = 0.01  # a floating argument is lazily negated
    flat: float = 0.03  # there are slices of one flat buffer, too, or pieces of several dtypes
    windows: float = 0.03  # the arguments are windows or columns of one matrix, and at most one other
    requires_grad: float = 0.6  # a floating storage requires grad
    special: float = 0.02  # a floating storage holds NaN, infinities, signed zeros and denormals as well
    leaf: float = 0.4  # such a storage's root is the leaf itself
    focus: float = 0.4  # operand 0 is drawn from what shares memory with an argument
    reuse: float = 0.15  # the operands of a statement are drawn from those of the last one
    aliases: float = 0.2  # operand 0 is drawn from what else shows the memory that was written to last
    scene: float = 0.0  # arguments, a motif and what shows it are drawn together
    motif: float = 0.12  # there are a few statements that hardly come together by chance
    mode: float = 0.1  # a block begins: under another mode, a loop, or where there are Python values a branch
    grad_off: float = 0.08  # the call is made with grad mode off
    inference: float = 0.02  # the call is made in inference mode
    inferred: float = 0.02  # some of the storages are made in inference mode
    autocast: float = 0.03  # the call is made under autocast
    partial: float = 0.35  # only some of the results are differentiated
    nested: float = 0.15  # parameters or results are nested
    passed: float = 0.3  # each argument is a result, too
    steps: float = 0.35  # after the call something else is done than usual
    again: float = 0.15  # the function is called again, with something changed
    threads: float = 0.02  # one of the calls is made in two threads at once
    filled: float = 0.3  # the next statement fills what one has expanded
    swapped: float = 0.0  # a call, or a block, is under a function mode of the program's
    marked: float = 0.0  # a tensor argument has an attribute
    alike: float = 0.0  # later calls have the same arguments, but for values, attributes and modes
    undo: float = 0.0  # the next statement takes back what one did to a tensor, where there is one for that
    operators: frozenset[str] | None = None  # the rows that programs are made of, if not of all
    chains: tuple[int, int] | None = None  # so many chains of operators (`fuzz.generate.chains`), if any
    elements: int = MAX_ELEMENTS  # of any tensor, at most
    values: float = 0.0  # the numbers of a chain are of another value class than plain ones
    pattern: float = 0.0  # a chain begins with what compilers look for
    refused: float = 0.0  # the last operator of a chain is called in a way that eager refuses
    resized: float = 0.0  # the function is called again with other sizes, 0 and 1 among them
    reckless: float = 0.05  # the program may do what eager refuses: at a statement, or later in backward
    limits: Limits | None = None  # what programs may not have, if anything


@lru_cache(maxsize=256)
def most_elements(storages: Sequence[Storage]) -> int:
    """How many elements tensors of a program may have that has such roots."""
    large = any(prod(storage.size) > MAX_ELEMENTS for storage in storages)
    return PROFILES["lowerings"].elements if large else MAX_ELEMENTS


def narrow(profile: Profile, limits: Limits) -> Profile:
    """The profile within limits: without the chances, and the rows of operators, that lead out of them.

    >>> narrow(PROFILES["mixed"], Limits.of(("subclass",))).wrapped
    0.0
    """
    excluded = limits.traits
    gone: dict[str, Any] = {name: 0.0 for name, traits in CHANCES.items() if excluded.issuperset(traits)}
    operators = limits.operators
    if profile.operators is not None:
        operators = operators & profile.operators
    profile = replace(profile, limits=limits, operators=operators, **gone)
    if "argument: leaf" in excluded:
        return replace(profile, leaf=0.0)
    return replace(profile, leaf=1.0) if "argument: non-leaf" in excluded else profile


_BASE = Profile("base")


def _make_profiles() -> Mapping[str, Profile]:
    apart = (Kind.KERNEL, Kind.REFUSED, Kind.HOOK, Kind.RETAIN, Kind.MODE, Kind.HIGHER_ORDER, Kind.PYTHON)
    single_kinds = tuple((kind, 1) for kind in Kind if kind not in apart)
    heavier = {Kind.METADATA: 12, Kind.VIEW: 8}
    named = (
        replace(_BASE, name="uniform", kinds=(), motif=0.0),
        replace(_BASE, name="single", kinds=single_kinds, statements=(1, 1), arguments=(1, 3), motif=0.0),
        replace(
            _BASE,
            name="aliasing",
            kinds=tuple((kind, weight + (kind is Kind.METADATA)) for kind, weight in _KINDS),
            arguments=(2, 4),
            share=0.75,
            hidden=0.3,
            reinterpreted=0.12,
            wrapped=0.08,
            apart=0.15,
            flat=0.08,
            windows=0.12,
            focus=0.6,
            passed=0.4,
            undo=0.08,
        ),
        replace(
            _BASE,
            name="metadata",
            kinds=tuple((kind, heavier.get(kind, weight)) for kind, weight in _KINDS),
            share=0.5,
            focus=0.6,
            statements=(2, 8),
            flat=0.08,
            undo=0.08,
        ),
        replace(_BASE, name="duplicates", arguments=(2, 4), same=0.5, share=0.4, passed=0.5),
        replace(
            _BASE,
            name="autograd",
            requires_grad=0.85,
            leaf=0.3,
            mode=0.2,
            module=0.12,
            wrapped=0.1,
            apart=0.1,
            hidden=0.35,
            share=0.5,
            partial=0.4,
        ),
        replace(
            _BASE,
            name="scenarios",
            statements=(1, 8),
            steps=0.6,
            again=0.6,
            threads=0.06,
            requires_grad=0.75,
            module=0.12,
        ),
        replace(
            _BASE,
            name="calls",
            statements=(1, 5),
            again=1.0,
            share=0.5,
            apart=0.1,
            autocast=0.05,
            same=0.15,
            scalar=0.15,
            hidden=0.4,
            passed=0.5,
            steps=0.0,
        ),
        replace(
            _BASE,
            name="scenes",
            statements=(0, 1),
            scene=1.0,
            steps=0.3,
            again=0.1,
            passed=0.5,
            nested=0.05,
            grad_off=0.02,
            inference=0.0,
            autocast=0.0,
            reckless=0.0,
        ),
        replace(
            _BASE,
            name="python",
            kinds=(*_KINDS, (Kind.CREATION, 4), (Kind.PYTHON, 34)),
            arguments=(1, 3),
            statements=(1, 5),
            wrapped=0.0,
            module=0.3,
            inference=0.0,
            inferred=0.0,
            motif=0.0,
            swapped=0.15,
            marked=0.3,
            alike=0.8,
            again=0.3,
            steps=0.1,
        ),
        replace(_BASE, name="swarm", swarm=True, share=0.5, motif=0.0),
        replace(
            _BASE,
            name="inferring",
            requires_grad=0.1,
            statements=(1, 4),
            arguments=(1, 2),
            strided=0.6,
            share=0.5,
            motif=0.2,
            undo=0.05,
        ),
    )
    # Eager has Dynamo capture functions that an operator takes: one program takes the time of four others, so
    # that these are for themselves.
    operators = replace(
        _BASE,
        name="operators",
        kinds=(*_KINDS, (Kind.FUNCTION, 12), (Kind.HIGHER_ORDER, 6)),
        statements=(1, 6),
        requires_grad=0.75,
        mode=0.05,
        motif=0.0,
        wrapped=0.0,
    )
    # Kernels: few statements on tensors of any size, dtype and value; nothing of autograd's, or little.
    lowerings = replace(
        _BASE,
        name="lowerings",
        kinds=_KERNELS,
        chains=(1, 3),
        elements=4096,
        statements=(16, 16),
        values=0.6,
        pattern=0.3,
        refused=0.06,
        resized=0.12,
        requires_grad=0.12,
        passed=0.0,
        steps=0.0,
        again=0.0,
        threads=0.0,
        motif=0.0,
        mode=0.0,
        grad_off=0.4,
        inference=0.05,
        autocast=0.0,
        nested=0.02,
        filled=0.0,
        reckless=0.0,
    )
    # What forgets one thing about a call shows in few later calls, and there are many scenes: these are drawn
    # twice as often. Kernels have as many faults as all else, and more operators: a quarter is theirs.
    often = ("calls", "scenes", *("lowerings",) * 4)
    mixed = replace(_BASE, name="mixed", mixture=(*(profile.name for profile in named), *often))
    return MappingProxyType({profile.name: profile for profile in (*named, operators, lowerings, mixed)})


PROFILES: Mapping[str, Profile] = _make_profiles()

ROWS_OF: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {kind: tuple(name for name, row in OPERATORS.items() if row.kind is kind) for kind in Kind}
)
