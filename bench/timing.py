"""CPU time of several sides of one measurement, in turn: what else the machine does hits all alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

Cells = tuple[str | float | int | None, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """Times of one side, in seconds, one for each round."""

    times: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.times)

    def ratio(self, other: Spread) -> float:
        """How long this takes, `other` being 1: the median of the ratios within the rounds.

        >>> Spread((1.0, 9.0)).ratio(Spread((2.0, 18.0)))
        0.5
        """
        return median(mine / theirs for mine, theirs in zip(self.times, other.times, strict=True))


def cells(spread: Spread | None, unit: float) -> Cells:
    """Median, lower and upper quartile, in units of `unit` seconds; gaps where nothing could be measured."""
    if spread is None:
        return (None,) * 3
    if len(spread.times) == 1:
        return (spread.middle / unit,) * 3
    lower, middle, upper = quantiles(spread.times, n=4, method="inclusive")
    return middle / unit, lower / unit, upper / unit


def columns(*sides: str) -> tuple[str, ...]:
    """Names for the cells of these sides."""
    return tuple(name for side in sides for name in (side, f"{side} 25 %", f"{side} 75 %"))


def interleaved(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Spread]:
    """Measure each side `rounds` times, in turn; each gives the seconds that it took.

    Garbage is collected before each, so that nobody pays for another's. Nothing is frozen: a user's process
    has nothing frozen either, and who looks at all of its objects pays for that here.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            gc.collect()
            times[name].append(side())
    return {name: Spread(tuple(one)) for name, one in times.items()}


def first_line(error: Exception) -> str:
    """What was raised, in short."""
    text: Any = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:100]}"


def against(ratio: float | None, target: float) -> Cells:
    """A ratio, its target, and whether it is met."""
    return ratio, target, None if ratio is None else ("yes" if ratio <= target else "no")
