"""The 0/1 knapsack: which values to save within a number of bytes, so that most recomputation is spared."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_STEPS = 4096  # bytes are rounded up to this fraction of the capacity, so that a choice never exceeds it


def knapsack_within(weights: Sequence[int], values: Sequence[float], capacity: int) -> list[int]:
    """The positions of the items with the greatest total value whose total weight is at most `capacity`.

    By dynamic programming over the capacity (Bellman, 1957), in 4096 steps: exact for weights that are
    multiples of a step, else up to the rounding.

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
