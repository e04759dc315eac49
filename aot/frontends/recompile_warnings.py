"""Recompile warnings: a function that is compiled again and again, and why."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from aot.errors import RecompileWarning
from aot.frontends.caller import level_of_caller
from aot.frontends.specialization import Specialization


def warn_of_what_changes(name: str, count: int, alike: Sequence[Specialization]) -> None:
    """Name what keeps changing between calls that are otherwise alike.

    Args:
        name: of the function.
        count: how often it has been compiled for such calls.
        alike: the compiles before the last one.
    """
    changing = dict.fromkeys(path for one in alike for path in one.guards.changed())
    if not changing:  # sizes that depend on values differ
        return
    warnings.warn(
        f"{name} has been compiled {count} times for calls that are alike, as "
        f"{', '.join(list(changing)[:4])} keeps changing; pass it as an argument, as a "
        f"tensor if it is a number",
        RecompileWarning,
        stacklevel=level_of_caller(),
    )


def warn_of_compiles_for_each_call(name: str, count: int, specialization: Specialization) -> None:
    """Say that a function has been compiled for each of its calls so far, `count` of them."""
    places = ", ".join(dict.fromkeys(specialization.changes.once))
    warnings.warn(
        f"{name} has been compiled for each of {count} calls, as it changes {places} in a way that no "
        f"compiled call can repeat (an object is made anew, an iterator moves on); do that outside",
        RecompileWarning,
        stacklevel=level_of_caller(),
    )
