"""Where the generator's choices come from: a seeded PRNG for campaigns, Hypothesis for tests.

The generator is written once, against `Choices`. A campaign hands it `SeededChoices`, which is fast and gives
the same program for the same (seed, index) on every machine; a Hypothesis strategy hands it
`HypothesisChoices`, so that a failing example shrinks. Smaller integers and earlier items are the simpler
ones: Hypothesis shrinks towards them, so a caller lists the plain alternative first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices(Protocol):
    """What the generator may ask for."""

    def integer(self, lo: int, hi: int) -> int:
        """An integer in [lo, hi], both included."""

    def pick(self, items: Sequence[T]) -> T:
        """One item of a sequence that is not empty."""

    def chance(self, probability: float) -> bool:
        """True with about this probability; False is the simpler answer."""


class SeededChoices:
    """Choices of a campaign: equal (seed, index) give equal choices on every Python and every machine.

    The state comes from `random.Random(str)`, which hashes the text with SHA-512, and every answer is made
    of `random()` alone: these two are the parts of the `random` module that promise to stay the same.

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
    """Choices of a Hypothesis test: every answer is one draw, so Hypothesis replays and shrinks them.

    `draw` is what `hypothesis.strategies.composite` hands to its function (or `data.draw`).
    """

    __slots__ = ("_draw",)

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, lo: int, hi: int) -> int:
        return lo if lo == hi else self._draw(st.integers(lo, hi))

    def pick(self, items: Sequence[T]) -> T:
        return items[self.integer(0, len(items) - 1)]

    def chance(self, probability: float) -> bool:
        # Sixteenths: Hypothesis has no weighted boolean, and the largest draw is its least simple one. What
        # is rare stays possible.
        return self._draw(st.integers(0, 15)) >= 16 - max(round(probability * 16), probability > 0)
