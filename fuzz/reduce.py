"""The reducer: a smaller program that is still interesting.

It works on the IR with the passes of `fuzz.passes`, round after round until a round changes nothing. A pass
lists independent edits of a program and applies any set of them at once; the reducer tries all of them, then
halves, and so on, and keeps what a program can do without. A pass must guarantee:

* **smaller**: a program with edits applied has a smaller `measure`; candidates that have not are dropped
  unseen, so every loop over passes ends, and no pass can undo another's work for ever;
* **deterministic**: edits and their order depend on the program alone, so a reduction can be repeated;
* **total**: any subset of its edits can be asked for. One that makes no valid program may give None or a
  program that `check` refuses: validity costs no evaluation and need not be arranged beforehand;
* **one purpose**: an edit changes one thing, so that whatever is left of a program is needed.

Whether a program is interesting is the caller's to say, and is all that is known of it: to stay with one
bug, say "gives the same bucket", not "fails".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzz.passes import PASSES, Edit, Pass, measure
from fuzz.program import Program, ProgramError, check


class ReductionError(ValueError):
    """The program is not interesting to begin with, so there is nothing to keep."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """The smallest program found, and what it cost: `evaluations` calls of the predicate."""

    program: Program
    evaluations: int
    statements_before: int
    statements_after: int


def reduce(program: Program, interesting: Callable[[Program], bool], *, budget: int = 200) -> Reduction:
    """The smallest program that the passes find for which `interesting` stays true.

    At most `budget` programs are evaluated, the given one among them; a program is never evaluated twice, and
    each one is valid (`check`). The result is the same on every run if `interesting` is a function of the
    program. An exception of `interesting` is passed on.

    Raises ReductionError if the given program is not interesting, ProgramError if it is not valid,
    ValueError for a budget below 1.

    >>> from fuzz.choices import Random
    >>> from fuzz.generate import generate
    >>> program = generate(Random(seed=0, index=3), "aliasing")
    >>> smallest = reduce(program, lambda candidate: len(candidate.arguments) > 1)
    >>> len(smallest.program.arguments), smallest.statements_after
    (2, 0)
    """
    if budget < 1:
        raise ValueError(f"a budget of {budget} evaluations; give at least 1")
    check(program)
    search = _Search(program, interesting, budget)
    if not search.evaluate(program):
        raise ReductionError(
            "the program is not interesting as it is given: the predicate must be deterministic, and asked "
            "about the same target and device as when the program was found"
        )
    settled: Program | None = None
    while settled != search.best and search.left:
        settled = search.best
        for one in PASSES:
            search.run(one)
    return Reduction(search.best, search.evaluations, len(program.statements), len(search.best.statements))


class _Search:
    """The best program so far, and everything that was tried."""

    def __init__(self, program: Program, interesting: Callable[[Program], bool], budget: int) -> None:
        self.best = program
        self.evaluations = 0
        self._interesting = interesting
        self._budget = budget
        self._tried: set[Program] = set()

    @property
    def left(self) -> int:
        return self._budget - self.evaluations

    def evaluate(self, program: Program) -> bool:
        self.evaluations += 1
        self._tried.add(program)
        return self._interesting(program)

    def run(self, one: Pass) -> None:
        """Find out which of a pass's edits the best program can do without."""
        program = self.best
        edits = one.edits(program)
        self._split(one, program, frozenset(), list(edits))

    def _split(
        self, one: Pass, program: Program, accepted: frozenset[Edit], edits: Sequence[Edit]
    ) -> frozenset[Edit]:
        """Add as many of the edits as possible to the accepted ones: all, or each half in turn."""
        if not edits or not self.left:
            return accepted
        wanted = accepted | frozenset(edits)
        if self._improves(one.apply(program, wanted)):
            return wanted
        if len(edits) == 1:
            return accepted
        half = len(edits) // 2
        accepted = self._split(one, program, accepted, edits[:half])
        return self._split(one, program, accepted, edits[half:])

    def _improves(self, candidate: Program | None) -> bool:
        """Whether a candidate is new, smaller, valid and interesting; then it is the best one."""
        if candidate is None or candidate in self._tried or measure(candidate) >= measure(self.best):
            return False
        try:
            check(candidate)
        except ProgramError:
            return False
        if not self.evaluate(candidate):
            return False
        self.best = candidate
        return True
