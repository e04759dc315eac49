"""Transitions: the outcome of each case under one torch and under the other.

In: the rows of two campaigns of the same programs. Out: `Transition`s, and a `Ledger` for each kind, which
says which cases need an example. A transition has the cases of one target that went from one outcome to
another.

A case that is poisoned on one side proves nothing there. A difference on the other side is then *undecided*:
the comparison counts it, and calls neither version right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fuzz.campaign.ledger import Ledger
from fuzz.campaign.records import RunOutcome, Suspect
from fuzz.campaign.store import Row, Store
from fuzz.campaign.workers import handlers


class Kind(StrEnum):
    """How the two outcomes of a case differ."""

    APPEARED = "appeared"
    """The target differs from eager after; before it agreed or refused."""
    CHANGED = "changed"
    """The target differs from eager before and after, with another signature."""
    GONE = "gone"
    """The target differs from eager before; after it agrees or refuses."""
    REFUSAL_APPEARED = "refusal appeared"
    """The target refuses after; before it agreed with eager."""
    REFUSAL_GONE = "refusal gone"
    """The target refuses before; after it agrees with eager."""
    UNDECIDED = "undecided"
    """The target differs from eager on one side, and the case proves nothing on the other."""


EXAMINED = (Kind.APPEARED, Kind.CHANGED, Kind.GONE)
"""The kinds with reduced examples."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The cases of one target that went from one outcome to another; `cases` has their numbers.

    An outcome is "agree", "refused: REASON", "poisoned", or the signature of a difference. `died` is "crash"
    or "timeout" if the side with the difference lost its process.
    """

    kind: Kind
    target: str
    before: str
    after: str
    died: str
    cases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CasePair:
    """One case on one target under both torches."""

    before: Row
    after: Row

    @property
    def kind(self) -> Kind | None:
        """How the two differ.

        None if they do not, or if one proves nothing and the other has no difference.
        """
        return transition_kind(self.before.seen, self.after.seen)

    @property
    def shown(self) -> Row:
        """The side whose difference is examined: the later one, if it has one."""
        return self.after if self.after.seen.signature else self.before

    @property
    def other(self) -> Row:
        """The other side."""
        return self.before if self.after.seen.signature else self.after


def transition_kind(before: RunOutcome, after: RunOutcome) -> Kind | None:
    """How two runs of one case differ; None if they do not, or if that proves nothing.

    >>> agrees = RunOutcome("agree", "", (), "agree", 0.1)
    >>> transition_kind(agrees, RunOutcome("refused", "", (), "no strides", 0.1))
    <Kind.REFUSAL_APPEARED: 'refusal appeared'>
    """
    one, other = before.outcome, after.outcome
    if "finding" in (one, other):
        if one == other:
            return None if before.signature == after.signature else Kind.CHANGED
        if "poisoned" in (one, other):
            return Kind.UNDECIDED
        return Kind.APPEARED if other == "finding" else Kind.GONE
    kinds = {("agree", "refused"): Kind.REFUSAL_APPEARED, ("refused", "agree"): Kind.REFUSAL_GONE}
    return kinds.get((one, other))


def outcome_word(seen: RunOutcome) -> str:
    """The outcome of a run in a word or two, equal for all cases that are counted together."""
    if seen.signature:
        return seen.signature
    return f"refused: {seen.reason}" if seen.outcome == "refused" else seen.outcome


def case_pairs(before: Store, after: Store) -> list[CasePair]:
    """The cases that both campaigns have, by target and case number."""
    there = {(row.target, row.index): row for row in before.rows()}
    pairs = [
        CasePair(there[row.target, row.index], row)
        for row in after.rows()
        if (row.target, row.index) in there
    ]
    return sorted(pairs, key=lambda pair: (pair.after.target, pair.after.index))


def outcome_counts(pairs: Sequence[CasePair]) -> dict[str, Counter[tuple[str, str]]]:
    """For each target the number of cases by their outcomes before and after."""
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for pair in pairs:
        outcomes = pair.before.seen.outcome, pair.after.seen.outcome
        counts.setdefault(pair.after.target, Counter())[outcomes] += 1
    return counts


def transitions(pairs: Sequence[CasePair]) -> list[Transition]:
    """The transitions by target and pair of outcomes, the most frequent first."""
    found: dict[tuple[Kind, str, str, str, str], list[int]] = {}
    for pair in pairs:
        kind = pair.kind
        if kind is not None:
            words = outcome_word(pair.before.seen), outcome_word(pair.after.seen)
            key = (kind, pair.shown.target, *words, pair.shown.seen.kind)
            found.setdefault(key, []).append(pair.shown.index)
    order = [*Kind]
    rows = [Transition(*key, tuple(cases)) for key, cases in found.items()]
    return sorted(rows, key=lambda row: (order.index(row.kind), row.target, -len(row.cases), row.cases))


def transition_ledgers(
    pairs: Sequence[CasePair], before: Store, after: Store
) -> Mapping[Kind, tuple[Ledger, Mapping[tuple[str, int], CasePair]]]:
    """For each examined kind its cases, and a ledger whose groups are its transitions.

    The ledger chooses as many examples as that of a campaign.
    """
    configuration = after.configuration
    found = {}
    for kind in EXAMINED:
        cases = {(pair.shown.target, pair.shown.index): pair for pair in pairs if pair.kind is kind}
        store = before if kind is Kind.GONE else after
        # It is read here, because investigations run in threads, which must not use the store.
        seen = {key: store.seen(*key) for key in cases}

        def look(target: str, index: int, seen: Mapping[tuple[str, int], RunOutcome] = seen) -> Suspect:
            program = handlers.program(configuration.seed, index, configuration.profile, configuration.device)
            return Suspect(target, index, program, seen[target, index])

        ledger = Ledger(configuration.targets, look)
        for pair in cases.values():
            shown, signature = pair.shown, pair.shown.seen.signature
            # The reason of a refusal on the other side does not distinguish differences.
            other = pair.other.seen.signature or pair.other.seen.outcome
            ledger.enter(look(shown.target, shown.index), shown.at, f"{other} -> {signature}")
        found[kind] = (ledger, cases)
    return found
