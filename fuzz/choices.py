"""Choices: the source of the generator's choices: a seeded PRNG for campaigns, Hypothesis for tests.

The generator is written once, against `Choices`. A campaign gives it `SeededChoices`, which is fast, and
gives the same program for the same (seed, index) on every machine. A Hypothesis strategy gives it
`HypothesisChoices`, so that a failing example shrinks. Smaller integers and earlier items are simpler:
Hypothesis shrinks towards them, so a caller lists the plain alternative first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices(Protocol):
    """The choices that the generator makes."""

    def integer(self, lo: int, hi: int) -> int:
        """An integer in [lo, hi], both included."""

    def pick(self, items: Sequence[T]) -> T:
        """One item of a sequence that is not empty."""

    def chance(self, probability: float) -> bool:
        """True with about this probability; False is the simpler answer."""


class SeededChoices:
    """The choices of a campaign: equal (seed, index) give equal choices on every Python and every machine.

    The state comes from `random.Random(str)`, which hashes the text with SHA-512. Every answer is made from
    `random()` only. These two are the parts of the `random` module that are guaranteed to stay the same.

    >>> Random(7, 0).integer(0, 9) == Random(7, 0).integer(0, 9)
    True
    """

    __slots__ = ("_random",)

    def __init__(self, seed: int, index: int = 0) -> None:
        self._random = random.Random(f"aotfuzz {seed} {index}").random

    def integer(self, lo: int, hi: int) -> int:
        return lo + int(self._random() * (hi - lo + 1))

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def chance(self, probability: float) -> bool:
        return self._random() < probability


Random = SeededChoices  # the name that programs outside of this project know


class HypothesisChoices:
    """The choices of a Hypothesis test. Each is one draw, so that Hypothesis can replay and shrink it.

    `draw` is the argument of a function under `hypothesis.strategies.composite`, or `data.draw`.
    """

    __slots__ = ("_draw",)

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, lo: int, hi: int) -> int:
        return lo if lo == hi else self._draw(st.integers(lo, hi))

    def pick(self, items: Sequence[T]) -> T:
        return items[self.integer(0, len(items) - 1)]

    def chance(self, probability: float) -> bool:
        # Sixteenths, because Hypothesis has no weighted boolean. The largest draw is its least simple one.
        # A rare choice stays possible.
        return self._draw(st.integers(0, 15)) >= 16 - max(round(probability * 16), probability > 0)
