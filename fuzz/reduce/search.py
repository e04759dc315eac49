"""Search: find a smaller subject that is still interesting, for every reducer of this project.

In: a subject, passes, and a predicate. Out: the smallest subject found. A *pass* lists independent edits of a
subject, and applies any set of them at once. The search tries all edits of a pass, then halves, and so on
(delta debugging: A. Zeller, R. Hildebrandt, Simplifying and isolating failure-inducing input, IEEE TSE 28,
2002). It keeps what the subject can do without. It runs all passes again until a round changes nothing. A
pass must have four properties:

* **smaller**: a subject with edits applied has a smaller `measure`. Other candidates are dropped without an
  evaluation. So every loop over passes ends, and no pass undoes the work of another for ever.
* **deterministic**: edits and their order depend only on the subject, so a search can be repeated.
* **total**: any subset of its edits can be applied. If the result is not valid, the pass may give None, or a
  subject that is not `valid`. That costs no evaluation.
* **one purpose**: an edit changes one thing, so that everything left in a subject is needed.

Two subjects may be evaluated at once (`ahead`). The next subject is known before the answer, because most
answers are no. The result does not depend on that.

The predicate is all that the search knows of a subject. To stay with one bug, it should say "gives the same
bucket", not "fails".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Edit = Hashable
S = TypeVar("S", bound=Hashable)


class ReductionError(ValueError):
    """The given subject is not interesting, so there is nothing to keep."""


@dataclass(frozen=True, slots=True)
class Pass(Generic[S]):
    """One way to make subjects smaller: it lists edits of a subject, and applies some of them."""

    name: str
    edits: Callable[[S], Sequence[Edit]]
    apply: Callable[[S, frozenset[Edit]], S | None]


@dataclass(frozen=True, slots=True)
class ReductionProblem(Generic[S]):
    """How subjects of a kind are made smaller.

    It has the passes in the order of their gain, the size that each step must lessen, and a test if a
    candidate may be evaluated at all.
    """

    passes: Sequence[Pass[S]]
    measure: Callable[[S], tuple[int, ...]]
    valid: Callable[[S], bool]


def reduce_subject(
    start: S,
    how: ReductionProblem[S],
    interesting: Callable[[S], bool],
    *,
    budget: int,
    ahead: Callable[[S], None] | None = None,
) -> tuple[S, int]:
    """Find the smallest subject that the passes reach while `interesting` stays true.

    Every evaluated subject is valid, and none is evaluated twice. The result is the same on every run if
    `interesting` depends only on the subject.

    Args:
        start: the subject to make smaller.
        how: the passes, the measure and the validity.
        interesting: the predicate. Its exceptions are passed on.
        budget: the most subjects that are evaluated, the given one among them.
        ahead: before each evaluation, gets the subject that comes next if the answer is no, as most are. So
            two can be evaluated at once.

    Returns:
        The smallest subject, and the number of evaluations.

    Raises:
        ReductionError: the given subject is not interesting.
        ValueError: the budget is below 1.

    >>> halves = Pass("halves", lambda n: [n // 2], lambda n, edits: n // 2)
    >>> problem = ReductionProblem((halves,), lambda n: (n,), lambda n: True)
    >>> reduce_subject(40, problem, lambda n: n > 7, budget=9)
    (10, 4)
    """
    if budget < 1:
        raise ValueError(f"a budget of {budget} evaluations; give at least 1")
    search = _Search(start, how, interesting, budget, ahead)
    if not search.evaluate(start):
        raise ReductionError(
            "the program is not interesting as it is given: the predicate must be deterministic, and asked "
            "about the same target and device as when the program was found"
        )
    settled: S | None = None
    while settled != search.best and search.left:
        settled = search.best
        for one in how.passes:
            search.run(one)
    return search.best, search.evaluations


class _Search(Generic[S]):
    """The best subject so far, and everything that was tried."""

    def __init__(
        self,
        start: S,
        how: ReductionProblem[S],
        interesting: Callable[[S], bool],
        budget: int,
        ahead: Callable[[S], None] | None,
    ) -> None:
        self.best = start
        self._ahead = ahead
        self.evaluations = 0
        self._how = how
        self._interesting = interesting
        self._budget = budget
        self._tried: set[S] = set()

    @property
    def left(self) -> int:
        return self._budget - self.evaluations

    def evaluate(self, subject: S) -> bool:
        self.evaluations += 1
        self._tried.add(subject)
        return self._interesting(subject)

    def run(self, one: Pass[S]) -> None:
        """Apply those edits of a pass that the best subject can do without."""
        subject = self.best
        edits = one.edits(subject)
        self._accept_by_halves(one, subject, frozenset(), list(edits))

    def _accept_by_halves(
        self,
        one: Pass[S],
        subject: S,
        accepted: frozenset[Edit],
        edits: Sequence[Edit],
        after: Sequence[Edit] = (),
    ) -> frozenset[Edit]:
        """Add as many of the edits as possible to the accepted ones: all, or each half in turn.

        `after` has the edits that come next.
        """
        if not edits or not self.left:
            return accepted
        wanted = accepted | frozenset(edits)
        half = len(edits) // 2
        candidate = one.apply(subject, wanted)
        if self._ahead is not None and self.left > 1 and self._is_new(candidate):
            following = one.apply(subject, accepted | frozenset(edits[:half] or after))
            if following is not None and self._is_new(following):
                self._ahead(following)
        if self._improves(candidate):
            return wanted
        if len(edits) == 1:
            return accepted
        accepted = self._accept_by_halves(one, subject, accepted, edits[:half], edits[half:])
        return self._accept_by_halves(one, subject, accepted, edits[half:], after)

    def _is_new(self, candidate: S | None) -> bool:
        """Whether a candidate is new, smaller and valid."""
        how = self._how
        if candidate is None or candidate in self._tried or how.measure(candidate) >= how.measure(self.best):
            return False
        return how.valid(candidate)

    def _improves(self, candidate: S | None) -> bool:
        """Whether a candidate is new, smaller, valid and interesting; then it is the best one."""
        if candidate is None or not self._is_new(candidate) or not self.evaluate(candidate):
            return False
        self.best = candidate
        return True
