"""The verdict on one case: agree, poisoned or finding, asking for further runs only when needed."""

from __future__ import annotations

from collections.abc import Callable

from .compare import differences
from .findings import Outcome, Verdict
from .observation import Observation


def judge(
    eager: Observation,
    target: Observation,
    reference: Callable[[], Observation] | None = None,
    control: Callable[[], Observation] | None = None,
    *,
    exact: bool = False,
) -> Verdict:
    """Judge a target's snapshot by eager's.

    `reference` runs the same program eagerly in double precision; it is called only when elements
    differ by more than a few units in the last place, and never when the call drew random numbers,
    because another precision draws other ones. Give None for a program that has no such twin. `control`
    runs eager again on fresh arguments; it is called only when there is something to find. With `exact`
    elements must be equal bit for bit and the reference is not used.

    The case is poisoned when the target refused it (without leaving a mark), when eager and its control
    differ, or when all that differs are elements that are noise in eager itself.

        judge(observe(f, make), observe(compiled, make), None, lambda: observe(f, make)).outcome
    """
    found = differences(eager, target, exact=exact)
    double: Observation | None = None
    numeric = any(item.numeric for item in found)
    if numeric and reference is not None and not exact and not eager.drew:
        double = reference()
        found = differences(eager, target, double)
    if not found:
        if target.refused is not None:
            return Verdict(Outcome.POISONED, (), f"refused: {target.refused}")
        how = "agree within the error policy of double precision" if double is not None else "agree"
        return Verdict(Outcome.AGREE, (), how)
    if control is not None:
        unstable = differences(eager, control(), double, exact=exact)
        if unstable:
            return Verdict(Outcome.POISONED, (), f"eager is unstable: {unstable[0].finding}")
    telling = tuple(item.finding for item in found if not item.noise)
    if not telling:
        return Verdict(Outcome.POISONED, (), f"eager's own numbers are noise: {found[0].finding}")
    return Verdict(Outcome.FINDING, telling, str(telling[0]))
