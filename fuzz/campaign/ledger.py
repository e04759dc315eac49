"""Ledger: which cases are settled, how they count, and which findings are investigated.

In: answers of workers, in any order. Out: counts, groups, examples that are due, and buckets. Answers are
settled in the order of their case numbers, so everything here depends on the cases alone. The ledger of a
running campaign is the same as the one that is rebuilt from its file, for a report or to go on.

Findings of one target with one coarse signature form a *group*. All findings of a group have one severity,
and either all draw random numbers or none does. So silent findings are never counted with loud ones, nor with
possible noise.

The first finding of a group is always investigated (reduced, confirmed, given a bucket). To tell whether a
later one is another bug, it must be investigated too, which takes seconds. So examples are taken at growing
distances. If an example has a new bucket, the next finding is an example too; if its bucket is known, the
distance doubles. A silent finding whose program lacks an operator of every example so far is another bug, and
is an example at once. The schedule counts findings, never seconds.

A finding counts with the last example before it whose operators its program has. If there is none, it counts
with the last example before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fuzz.campaign.records import STATES, Example, RunOutcome, Suspect, doubtful_bucket
from fuzz.corpus import buckets
from fuzz.corpus.containment import bare_operators, has_operators
from fuzz.corpus.severity import Severity, draws, severity, severity_of_signature, worst_finding
from fuzz.execute.case import DOES_IT_TOO
from oracles import Finding

# More examples of one signature have not been worth their time.
MOST_EXAMPLES = 12
# For silent findings, which differ more than their signature says.
MOST_SILENT_EXAMPLES = 36


@dataclass(slots=True)
class Tally:
    """The counts of one target's settled cases.

    `poisons` and `refusals` count the poisoned and the refused ones by reason. Reasons of poisoned ones are
    cut at the first colon.
    """

    cases: int = 0
    agree: int = 0
    poisoned: int = 0
    refused: int = 0
    findings: int = 0
    crashes: int = 0
    timeouts: int = 0
    seconds: float = 0.0
    poisons: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)

    def count(self, seen: RunOutcome) -> None:
        """Count one settled case."""
        self.cases += 1
        self.seconds += seen.seconds
        match seen.outcome:
            case "agree":
                self.agree += 1
            case "poisoned":
                self.poisoned += 1
                self.poisons[seen.reason.partition(": ")[0]] += 1
            case "refused":
                self.refused += 1
                self.refusals[seen.reason] += 1
            case _:
                self.findings += 1
                self.crashes += seen.kind == "crash"
                self.timeouts += seen.kind == "timeout"


@dataclass(slots=True)
class Line:
    """The progress of one target through the cases: issued up to `issued`, settled up to `settled`.

    `waiting` holds answers that wait for a case before them.
    """

    issued: int = 0
    settled: int = 0
    waiting: dict[int, tuple[RunOutcome, float]] = field(default_factory=dict)

    def knows(self, index: int) -> bool:
        """Whether a case has been answered."""
        return index < self.settled or index in self.waiting


class GroupKey(NamedTuple):
    """The properties that all findings of a group share. `label` is their signature."""

    target: str
    label: str
    severity: Severity
    draws: bool


@dataclass(slots=True)
class Group:
    """The findings of one key in order: case numbers, times, and for silent ones operators.

    `signature` is that of its findings. The finding at `position` is the next example by the schedule, once
    it exists.
    """

    key: GroupKey
    signature: str
    indices: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    operators: list[Counter[str]] = field(default_factory=list)
    examples: dict[int, Example] = field(default_factory=dict)
    position: int = 0
    distance: int = 1
    _parts: dict[int, Counter[str]] = field(default_factory=dict)  # the operators of each example's program
    _explained: int = 0  # findings before it are examples, or like one

    @property
    def target(self) -> str:
        """The target of the findings."""
        return self.key.target

    @property
    def is_silent(self) -> bool:
        """Whether its findings are wrong data without an exception."""
        return self.key.severity.is_silent

    def add(self, index: int, at: float, operators: Counter[str] | None = None) -> None:
        """Add a finding, with its program's operators if the group is silent."""
        self.indices.append(index)
        self.times.append(at)
        self.operators.append(operators or Counter())

    def due(self, firsts_only: bool = False) -> bool:
        """Whether an example is due; with `firsts_only` only if a finding is like no example."""
        return self.next_place(firsts_only) is not None

    def next_place(self, firsts_only: bool = False) -> int | None:
        """The place of the finding that is the next example, or None."""
        most = MOST_SILENT_EXAMPLES if self.is_silent else MOST_EXAMPLES
        if self.examples and len(self.examples) >= most:
            return None
        unlike = self._first_unlike()
        if firsts_only and self.examples and unlike is None:
            return None
        scheduled = self.position
        while scheduled in self.examples:
            scheduled += 1
        places = [place for place in (scheduled, unlike) if place is not None and place < len(self.indices)]
        return min(places, default=None)

    def _first_unlike(self) -> int | None:
        """The first silent finding that is like no example before it."""
        if not self.is_silent or not self.examples:
            return None
        while self._explained < len(self.indices):
            place = self._explained
            if place not in self.examples and self.example_like(place) is None:
                return place
            self._explained += 1
        return None

    def example_like(self, place: int) -> Example | None:
        """The last example before a finding whose operators its program has, or None."""
        for other in sorted((other for other in self.examples if other < place), reverse=True):
            if has_operators(self.operators[place], self._parts[other]):
                return self.examples[other]
        return None

    @property
    def rank(self) -> tuple[int, int, float]:
        """A key for the order in which due groups are investigated if time is short; the lowest comes first.

        Silent groups come first: those without an example, then those with a program unlike any example. Then
        come loud groups without an example, worst first, and then what the schedule asks for. Of equal ones
        the group with the most findings comes first.
        """
        if not self.examples:
            round_ = 0 if self.is_silent else 2
        else:
            round_ = 1 if self._first_unlike() is not None else 3
        waiting = len(self.indices) - min(self.position, len(self.indices))
        return round_, self.key.severity, self.distance / max(waiting, 1)

    def take(self, example: Example) -> None:
        """Add an example that was due."""
        place = self.indices.index(example.suspect.index)
        known = any(example.bucket == other.bucket for other in self.examples.values())
        self.adopt(place, example)
        if place >= self.position or not known:
            self.distance = self.distance * 2 if known else 1
            self.position = place + self.distance

    def adopt(self, place: int, example: Example) -> None:
        """Add an example that this schedule has not asked for, as from an earlier version."""
        self.examples[place] = example
        self._parts[place] = bare_operators(example.program)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket of one target: its smallest example, the number of its findings, and their first.

    `unlike` counts its findings whose programs lack an operator of every example. Nobody has looked at them,
    and they may be other bugs.
    """

    name: str
    target: str
    clause: str
    count: int
    first_case: int
    first_seconds: float
    example: Example
    unlike: int = 0

    @property
    def severity(self) -> Severity:
        """The severity of its smallest example."""
        return severity(self.example.seen.findings)

    @property
    def finding(self) -> Finding:
        """The worst finding of its smallest example."""
        return worst_finding(self.example.seen.findings)


@dataclass(frozen=True, slots=True)
class Below:
    """A bug of a control, which is a layer below targets: how many programs show it, the first, and on which
    targets.
    """

    control: str
    signature: str
    cases: int
    first_case: int
    targets: tuple[str, ...]

    @property
    def severity(self) -> Severity:
        """The severity, by the signature only."""
        return severity_of_signature(self.signature)


class Ledger:
    """The ledger. `look` fetches the outcome of a settled finding."""

    def __init__(self, targets: tuple[str, ...], look: Callable[[str, int], Suspect]) -> None:
        self.tallies = {name: Tally() for name in targets}
        self.lines = {name: Line() for name in targets}
        self.groups: dict[GroupKey, Group] = {}
        self._below: dict[tuple[str, str], dict[str, list[int]]] = {}
        self._look = look

    def arrive(self, target: str, index: int, seen: RunOutcome, at: float) -> None:
        """Add an answer. `at` is in seconds since the campaign's start."""
        self.lines[target].waiting[index] = (seen, at)

    def settle(self) -> None:
        """Settle all answers up to the first case without one."""
        for name, line in self.lines.items():
            while line.settled in line.waiting:
                index = line.settled
                seen, at = line.waiting.pop(index)
                line.settled += 1
                line.issued = max(line.issued, line.settled)
                self.tallies[name].count(seen)
                if seen.signature:
                    self.enter(self._look(name, index), at)
                elif (shared := shared_with(seen)) is not None:
                    self._below.setdefault(shared, {}).setdefault(name, []).append(index)

    def enter(self, suspect: Suspect, at: float, label: str = "") -> None:
        """Add a finding to its group. `label` is its signature, or more than that."""
        signature = suspect.seen.signature
        bad, random = severity(suspect.seen.findings), draws(suspect.program)
        key = GroupKey(suspect.target, label or signature, bad, random)
        group = self.groups.setdefault(key, Group(key, signature))
        group.add(suspect.index, at, bare_operators(suspect.program) if bad.is_silent else None)

    def restore(self, examples: Mapping[tuple[str, int], Example]) -> None:
        """Add examples that were made earlier, by target and case, in the order in which they were due.

        Examples that are left over then were due by the schedule of an earlier version, and count too.
        """
        for group in self.groups.values():
            while (place := group.next_place()) is not None:
                example = examples.get((group.target, group.indices[place]))
                if example is None:
                    break
                group.take(example)
            for place, index in enumerate(group.indices):
                left = examples.get((group.target, index))
                if left is not None and place not in group.examples:
                    group.adopt(place, left)

    def suspect(self, group: Group) -> Suspect:
        """The finding of a group that is its next example; the first one if none is due."""
        return self._look(group.target, group.indices[group.next_place() or 0])

    @property
    def complete(self) -> bool:
        """Whether all issued cases are settled."""
        return all(line.settled == line.issued for line in self.lines.values())

    @property
    def known(self) -> int:
        """The number of buckets so far."""
        examples = ((group.target, one) for group in self.groups.values() for one in group.examples.values())
        return len({(target, example.bucket) for target, example in examples})

    def buckets(self) -> list[Bucket]:
        """All buckets, worst first, then in the order of targets and first cases."""
        found: dict[tuple[str, str], Bucket] = {}
        for group in self.groups.values():
            for example, index, at, unlike in self._attributed(group):
                key = (group.target, example.bucket)
                old = found.get(key)
                if old is None:
                    clause = buckets.primary_finding(example.seen.findings).clause
                    found[key] = Bucket(example.bucket, group.target, clause, 1, index, at, example, unlike)
                else:
                    first = min((old.first_case, old.first_seconds), (index, at))
                    found[key] = replace(
                        old,
                        count=old.count + 1,
                        first_case=first[0],
                        first_seconds=first[1],
                        example=min(old.example, example, key=_example_size),
                        unlike=old.unlike + unlike,
                    )
        return sorted(
            found.values(),
            key=lambda bucket: (bucket.severity, bucket.target, bucket.first_case, bucket.name),
        )

    def below(self) -> list[Below]:
        """The bugs of controls, worst first, then by frequency."""
        rows = []
        for (control, signature), by_target in self._below.items():
            cases = sorted({index for indices in by_target.values() for index in indices})
            rows.append(Below(control, signature, len(cases), cases[0], tuple(by_target)))
        return sorted(rows, key=lambda row: (row.severity, -row.cases, row.first_case, row.control))

    def _attributed(self, group: Group) -> Iterator[tuple[Example, int, float, int]]:
        """Each finding with its example, and 1 if it is unlike all of them."""
        examples = group.examples or {0: raw_finding(self.suspect(group))}
        example = examples[min(examples)]
        for place, (index, at) in enumerate(zip(group.indices, group.times, strict=True)):
            example = examples.get(place, example)
            like = None
            if group.is_silent and place not in examples:
                like = group.example_like(place)
            unlike = group.is_silent and bool(group.examples) and place not in examples and like is None
            yield like or example, index, at, int(unlike)


def shared_with(seen: RunOutcome) -> tuple[str, str] | None:
    """The control that does the same as the target, and the signature; None for any other outcome.

    Eager is no layer, so what eager does too does not count.
    """
    control, does_too, signature = seen.reason.partition(DOES_IT_TOO)
    if seen.outcome != "poisoned" or not does_too or control == "eager":
        return None
    return control, signature


def raw_finding(suspect: Suspect) -> Example:
    """The example of a finding that was neither reduced nor confirmed."""
    from fuzz.repro import script

    return Example(
        suspect=suspect,
        program=suspect.program,
        seen=suspect.seen,
        bucket=doubtful_bucket("unreduced", suspect),
        script=script.repro_script(
            suspect.program, suspect.target, buckets.primary_finding(suspect.seen.findings)
        ),
        state="unreduced",
        evaluations=0,
    )


def _example_size(example: Example) -> tuple[int, int, int, int]:
    """A key by which the best example comes first; of equal ones the earlier."""
    return (
        STATES.index(example.state),
        example.statements,
        len(buckets.bucket_arguments(example.program)),
        example.suspect.index,
    )
