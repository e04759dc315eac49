"""Verdict: decide whether a case agrees, is a finding, or proves nothing.

In: the observations of eager and of the target, and functions that make reruns. Out: a `Verdict`.

A rerun costs as much as the case. `judge` asks for one only if the runs so far leave a difference that it may
explain.
"""

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
    """Judge a target's observation by eager's.

    Args:
        eager, target: the two observations.
        reference: runs the same program eagerly in double precision. It is called only if elements differ by
            more than a few units in the last place. If the call drew random numbers, the result is used only
            if it leaves the generators as eager does: then it drew the same numbers, which `replay_rng` can
            arrange. Give None, or return None, if the program has no version in double precision.
        control: runs eager again on fresh arguments, and measures the terms of gradients. It is called only
            if there is a difference.
        densely: runs eager on fresh arguments with dense operands for each operation. It is called only if
            elements still differ. ATen's results may depend on the layout of operands, and a target is right
            if it computes what eager does for dense ones.
        rounded: runs the reference with results rounded at random, from a seed. It is called only if all
            differences that are left are in the lower half of the digits.
        moved: runs eager with each floating result moved by its last digit, from a seed. It is called in the
            same case as `rounded`: eager's own kernels might have rounded an intermediate in this way.
        exact: elements must be equal bit for bit, and no rerun but `control` is used.
        clauses: findings of other clauses are not judged.
        arithmetic: in which precision the target computes.

    Returns:
        A verdict. The case proves nothing, and is poisoned, in four cases:

        - the target refused it and changed nothing;
        - one of the two raised and `errors` are not judged;
        - eager and its control differ;
        - all elements that differ are noise in eager itself.

    Example:
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
                    if not any(item.slight for item in left):
                        found = left  # the slight ones were rounding, these are not
                        break
            if moved is not None and double is not None and all(item.slight for item in found):
                for seed in range(_ROUNDINGS):
                    if not compared(target, double, again, moved(seed)):
                        return Verdict(Outcome.AGREE, (), "agree with eager moved by its last digits")
    telling = tuple(item.finding for item in found if not item.noise)
    if not telling:
        return Verdict(Outcome.POISONED, (), f"eager's own numbers are noise: {found[0].finding}")
    return Verdict(Outcome.FINDING, telling, str(telling[0]))
