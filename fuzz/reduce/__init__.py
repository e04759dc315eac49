"""The reducer: a smaller program that is still interesting.

It is the search of `fuzz.reduce.search` on the IR, with the passes of `fuzz.reduce.passes`.
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
    """The smallest program found, and what it cost: `evaluations` calls of the predicate."""

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
    """The smallest program that the passes find for which `interesting` stays true.

    At most `budget` programs are evaluated, the given one among them; a program is never evaluated twice, and
    each one is valid (`check`). The result is the same on every run if `interesting` is a function of the
    program. An exception of `interesting` is passed on. `ahead` is told of what may be asked next, to begin
    with it: the answers decide, so that the result is the same.

    Raises ReductionError if the given program is not interesting, ProgramError if it is not valid,
    ValueError for a budget below 1.

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
