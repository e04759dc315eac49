"""The 0/1 knapsack: choose which values to save within a number of bytes, to spare the most recomputation.

In: the bytes and the recomputation time of each value, and the capacity. Out: positions of the chosen values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_STEPS = 4096  # weights are rounded up to 1/4096 of the capacity, so that a choice never exceeds it


def knapsack_within(weights: Sequence[int], values: Sequence[float], capacity: int) -> list[int]:
    """The positions of the items with the greatest total value whose total weight is at most `capacity`.

    The method is dynamic programming over the capacity (R. Bellman, Dynamic Programming, 1957), in 4096
    steps. It is exact for weights that are multiples of a step, and up to the rounding for others.

    Example:
        >>> knapsack_within([4, 3, 3], [5.0, 4.0, 4.0], 6)
        [1, 2]
    """
    step = max(1, -(-capacity // _STEPS))
    room = capacity // step
    best = torch.zeros(room + 1, dtype=torch.float64)
    taken = []
    for weight, value in zip(weights, values, strict=True):
        size = -(-weight // step)
        with_it = torch.full_like(best, -1.0)
        if size <= room:
            with_it[size:] = best[: room + 1 - size] + value
        better = with_it > best
        taken.append((size, better))
        best = torch.where(better, with_it, best)
    chosen = []
    for position in reversed(range(len(taken))):
        size, better = taken[position]
        if better[room]:
            chosen.append(position)
            room -= size
    return sorted(chosen)
