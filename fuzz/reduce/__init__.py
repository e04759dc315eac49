"""Reduce: make a generated program smaller while it stays interesting.

In: a program of the IR and a predicate. Out: a `Reduction`. The search is `fuzz.reduce.search`, which the
minifier uses too. The passes are in `fuzz.reduce.passes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzz.program.decode import Program, ProgramError, check
from fuzz.reduce.passes import PASSES, measure
from fuzz.reduce.search import ReductionError, ReductionProblem, reduce_subject

__all__ = ["Reduction", "ReductionError", "reduce"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """The smallest program found, and the number of calls of the predicate (`evaluations`)."""

    program: Program
    evaluations: int
    statements_before: int
    statements_after: int


def reduce(
    program: Program,
    interesting: Callable[[Program], bool],
    *,
    budget: int = 200,
    ahead: Callable[[Program], None] | None = None,
) -> Reduction:
    """Find the smallest program that the passes reach while `interesting` stays true.

    Every candidate is valid (`check`), and no program is evaluated twice. The result is the same on every run
    if `interesting` depends only on the program.

    Args:
        program: the program to make smaller.
        interesting: the predicate. Its exceptions are passed on.
        budget: the most programs that are evaluated, the given one among them.
        ahead: gets programs that may be evaluated next, so that their evaluation can begin early. The answers
            decide, so the result does not depend on it.

    Raises:
        ReductionError: the given program is not interesting.
        ProgramError: the given program is not valid.
        ValueError: the budget is below 1.

    >>> from fuzz.choices import Random
    >>> from fuzz.generate import generate
    >>> program = generate(Random(seed=0, index=3), "aliasing")
    >>> smallest = reduce(program, lambda candidate: len(candidate.arguments) > 1)
    >>> len(smallest.program.arguments), smallest.statements_after
    (2, 0)
    """
    check(program)
    best, evaluations = reduce_subject(program, _PROGRAMS, interesting, budget=budget, ahead=ahead)
    return Reduction(best, evaluations, len(program.statements), len(best.statements))


def _valid(program: Program) -> bool:
    try:
        check(program)
    except ProgramError:
        return False
    return True


_PROGRAMS = ReductionProblem(PASSES, measure, _valid)
