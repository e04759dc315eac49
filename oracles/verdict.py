"""The verdict on one case: agree, poisoned or finding, asking for further runs only when needed."""

from __future__ import annotations

from collections.abc import Callable, Collection

from oracles.comparison.comparator import differences
from oracles.comparison.context import Difference, outcome, same_exception
from oracles.comparison.tolerance import EXACTLY_AS_SAID, Arithmetic
from oracles.findings import CLAUSES, Outcome, Verdict
from oracles.observation.records import Observation

_ROUNDINGS = 3


def _drew_alike(eager: Observation, double: Observation) -> bool:
    return (eager.generator, eager.generator_after_backward) == (
        double.generator,
        double.generator_after_backward,
    )


def judge(
    eager: Observation,
    target: Observation,
    reference: Callable[[], Observation | None] | None = None,
    control: Callable[[], Observation] | None = None,
    densely: Callable[[], Observation] | None = None,
    rounded: Callable[[int], Observation] | None = None,
    moved: Callable[[int], Observation] | None = None,
    *,
    exact: bool = False,
    clauses: Collection[str] = CLAUSES,
    arithmetic: Arithmetic = EXACTLY_AS_SAID,
) -> Verdict:
    """Judge a target's snapshot by eager's.

    `reference` runs the same program eagerly in double precision; it is called only when elements
    differ by more than a few units in the last place. Where the call drew random numbers it counts only if
    it leaves the generators as eager does: then it has drawn the same numbers, which `replay_rng` can give
    it. Give None, or have it give None, for a program that has no such twin. `control` runs eager again on
    fresh arguments, and measures the terms of gradients; it is called only when there is something to find.
    `densely` runs eager on fresh arguments with dense operands for each operation, and is called only when
    elements differ all the same: what eager computes may depend on how tensors lie, and a target is right as
    well if it computes that. `rounded` runs the reference with results rounded at random, from a seed; it is
    called when no differences are left but in the lower half of the digits. So is `moved`, which runs eager
    with each floating result moved by its last digit: what an intermediate that rounds otherwise makes of the
    results, eager's kernels might have made as well. With `exact` elements must be
    equal bit for bit, and none of these runs is used. What is of other clauses than `clauses` is not judged.
    `arithmetic` says in which precision the target computes.

    The case is poisoned when the target refused it (without leaving a mark), when one of the two raised and
    `errors` are not judged, when eager and its control differ, or when all that differs are elements that
    are noise in eager itself.

        judge(observe(f, make), observe(compiled, make), None, lambda: observe(f, make)).outcome
    """

    def compared(
        target: Observation,
        double: Observation | None = None,
        terms: Observation | None = None,
        eager: Observation = eager,
    ) -> tuple[Difference, ...]:
        return differences(eager, target, double, terms, exact=exact, clauses=clauses, arithmetic=arithmetic)

    found = compared(target)
    double: Observation | None = None
    numeric = any(item.numeric for item in found)
    if numeric and reference is not None and not exact:
        double = reference()
        if double is not None and eager.drew and not _drew_alike(eager, double):
            double = None
        found = compared(target, double)
    if not found:
        if target.refused is not None:
            return Verdict(Outcome.POISONED, (), f"refused: {target.refused}")
        if not same_exception(eager.raised, target.raised):
            here, there = outcome(eager.raised), outcome(target.raised)
            return Verdict(Outcome.POISONED, (), f"not judged: {here} in eager, {there} in the target")
        how = "agree within the error policy of double precision" if double is not None else "agree"
        return Verdict(Outcome.AGREE, (), how)
    if control is not None:
        again = control()
        unstable = compared(again, double)
        if unstable:
            return Verdict(Outcome.POISONED, (), f"eager is unstable: {unstable[0].finding}")
        if numeric and not exact:
            found = compared(target, double, again)
            if not found:
                return Verdict(Outcome.AGREE, (), "agree within the rounding of the gradients' terms")
            if densely is not None and not compared(target, double, again, densely()):
                return Verdict(Outcome.AGREE, (), "agree with eager on dense operands")
            if rounded is not None and double is not None and all(item.slight for item in found):
                for seed in range(_ROUNDINGS):
                    left = compared(target, rounded(seed), again)
                    if not left:
                        return Verdict(Outcome.AGREE, (), "agree within the rounding of double precision")
                    if not any(item.slight for item in left):  # what these differences stood before
                        found = left
                        break
            if moved is not None and double is not None and all(item.slight for item in found):
                for seed in range(_ROUNDINGS):
                    if not compared(target, double, again, moved(seed)):
                        return Verdict(Outcome.AGREE, (), "agree with eager moved by its last digits")
    telling = tuple(item.finding for item in found if not item.noise)
    if not telling:
        return Verdict(Outcome.POISONED, (), f"eager's own numbers are noise: {found[0].finding}")
    return Verdict(Outcome.FINDING, telling, str(telling[0]))
