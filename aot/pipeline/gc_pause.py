"""Python's collector of cycles, while something is compiled: it leaves what is old in peace.

A compile makes many objects, nearly all of which it keeps, so the collector would look at all of them again
and again: a quarter of the time for a graph of 3,000 operations, and more for a larger one. What is young,
such as the garbage of the function that runs, is collected, but when there is more of it: a collection for
each 700 new objects, as Python has it, is another tenth.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 10_000  # new objects before there is a collection of these
_NEVER = 1 << 30  # collections of the middle generation before there is one of the oldest


@contextmanager
def no_full_collections() -> Iterator[None]:
    """No collection of the oldest generation by itself, for as long as it lasts. One compile at a time may be
    under it, or one within another."""
    young, middle, old = gc.get_threshold()
    patient = (max(young, _YOUNG) if young else 0, middle, max(old, _NEVER))
    gc.set_threshold(*patient)
    try:
        yield
    finally:
        if gc.get_threshold() == patient:  # and not what somebody has set meanwhile
            gc.set_threshold(young, middle, old)
