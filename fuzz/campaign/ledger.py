"""The books of a campaign: which cases are settled, how they count, and which findings deserve a closer look.

Answers arrive in any order and are settled in the order of their case numbers, so that everything here is a
function of the cases alone, whatever the number of workers. The same books are kept by a campaign that runs
and made up again from its file, for a report or to go on.

Findings of one target with one coarse signature form a *group*, if they are of one severity and all of them
draw random numbers, or none does: what is silently wrong is never counted with what is loud, nor with what
may be noise. The first of a group is always investigated (reduced, confirmed, bucketed). Later ones are told
apart only by doing the same, which costs seconds, so further examples are taken at growing distances: one
whose bucket is new makes the next finding of the group an example too, one whose bucket is known doubles the
distance. The schedule counts findings, never seconds. A silent finding whose program lacks an operator of
every example so far is another bug, and is an example at once.

A finding counts with the last example before it whose operators its program has; where there is none, with
the last example before it.
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

# More than this many examples of one signature have not been worth their time.
MOST_EXAMPLES = 12
# So many may be taken of silent findings, which differ more than their signature says.
MOST_SILENT_EXAMPLES = 36


@dataclass(slots=True)
class Tally:
    """Counts of one target's settled cases.

    `poisons` and `refusals` count the poisoned and the refused ones by their reasons, of the former without
    what comes after a colon.
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
    """One target's way through the cases: issued up to `issued`, settled up to `settled`.

    `waiting` holds what has arrived and waits for a case before it.
    """

    issued: int = 0
    settled: int = 0
    waiting: dict[int, tuple[RunOutcome, float]] = field(default_factory=dict)

    def knows(self, index: int) -> bool:
        """Whether that case has been answered."""
        return index < self.settled or index in self.waiting


class GroupKey(NamedTuple):
    """What the findings of a group have in common. `label` is their signature."""

    target: str
    label: str
    severity: Severity
    draws: bool


@dataclass(slots=True)
class Group:
    """The findings of one key, in order: case numbers, times and, of silent ones, operators.

    `signature` is that of its findings. The finding at `position` is the next example by the schedule, once
    it has been found.
    """

    key: GroupKey
    signature: str
    indices: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    operators: list[Counter[str]] = field(default_factory=list)
    examples: dict[int, Example] = field(default_factory=dict)
    position: int = 0
    distance: int = 1
    _parts: dict[int, Counter[str]] = field(default_factory=dict)  # the operators of the examples' programs
    _explained: int = 0  # the findings before this place are examples, or are like one

    @property
    def target(self) -> str:
        """The target that shows the findings."""
        return self.key.target

    @property
    def is_silent(self) -> bool:
        """Whether data is wrong in its findings, and no exception says so."""
        return self.key.severity.is_silent

    def add(self, index: int, at: float, operators: Counter[str] | None = None) -> None:
        """Add a finding, with its program's operators if the group is silent."""
        self.indices.append(index)
        self.times.append(at)
        self.operators.append(operators or Counter())

    def due(self, firsts_only: bool = False) -> bool:
        """Whether an example is to be made; with `firsts_only` only if a finding is like none so far."""
        return self.next_place(firsts_only) is not None

    def next_place(self, firsts_only: bool = False) -> int | None:
        """The place of the finding that is the next example; None if there is none."""
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
        """The last example before a finding whose operators its program has."""
        for other in sorted((other for other in self.examples if other < place), reverse=True):
            if has_operators(self.operators[place], self._parts[other]):
                return self.examples[other]
        return None

    @property
    def rank(self) -> tuple[int, int, float]:
        """Its place among the groups that are due, for when there is no time for all: lower comes first.

        All that is silent comes first: the first examples, then those of programs unlike any example so far.
        Then the first examples of the rest, worst first; then what the schedule asks for. Of equal ones,
        first what stands for most.
        """
        if not self.examples:
            round_ = 0 if self.is_silent else 2
        else:
            round_ = 1 if self._first_unlike() is not None else 3
        waiting = len(self.indices) - min(self.position, len(self.indices))
        return round_, self.key.severity, self.distance / max(waiting, 1)

    def take(self, example: Example) -> None:
        """Take in an example that was due."""
        place = self.indices.index(example.suspect.index)
        known = any(example.bucket == other.bucket for other in self.examples.values())
        self.adopt(place, example)
        if place >= self.position or not known:
            self.distance = self.distance * 2 if known else 1
            self.position = place + self.distance

    def adopt(self, place: int, example: Example) -> None:
        """Take in an example that the schedule has not asked for, as that of an earlier version did."""
        self.examples[place] = example
        self._parts[place] = bare_operators(example.program)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket of one target: its smallest example, how many findings it stands for, and their first.

    `unlike` counts those of its findings whose programs lack an operator of every example: nobody has looked
    at them, and they may be other bugs.
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
        """That of its smallest example."""
        return severity(self.example.seen.findings)

    @property
    def finding(self) -> Finding:
        """The finding that it is shown by: the worst of its smallest example."""
        return worst_finding(self.example.seen.findings)


@dataclass(frozen=True, slots=True)
class Below:
    """What a control, a layer below, does wrong as well: on how many programs, the first of them, and the
    targets that it was met on."""

    control: str
    signature: str
    cases: int
    first_case: int
    targets: tuple[str, ...]

    @property
    def severity(self) -> Severity:
        """As far as a signature tells it."""
        return severity_of_signature(self.signature)


class Ledger:
    """The books. `look` fetches what was seen of a finding that has been settled."""

    def __init__(self, targets: tuple[str, ...], look: Callable[[str, int], Suspect]) -> None:
        self.tallies = {name: Tally() for name in targets}
        self.lines = {name: Line() for name in targets}
        self.groups: dict[GroupKey, Group] = {}
        self._below: dict[tuple[str, str], dict[str, list[int]]] = {}
        self._look = look

    def arrive(self, target: str, index: int, seen: RunOutcome, at: float) -> None:
        """An answer; `at` is in seconds since the campaign's start."""
        self.lines[target].waiting[index] = (seen, at)

    def settle(self) -> None:
        """Count what has arrived, as far as nothing before it is missing."""
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
        """Put a finding into its group. `label` is its signature, or says more."""
        signature = suspect.seen.signature
        bad, random = severity(suspect.seen.findings), draws(suspect.program)
        key = GroupKey(suspect.target, label or signature, bad, random)
        group = self.groups.setdefault(key, Group(key, signature))
        group.add(suspect.index, at, bare_operators(suspect.program) if bad.is_silent else None)

    def restore(self, examples: Mapping[tuple[str, int], Example]) -> None:
        """Take in examples that were made earlier, by target and case, in the order of their being due.

        What is left of them then was due by an earlier version's schedule, and counts as well.
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
        """The finding of a group that is to become its next example; the first if none is."""
        return self._look(group.target, group.indices[group.next_place() or 0])

    @property
    def complete(self) -> bool:
        """Whether everything that was issued has been settled."""
        return all(line.settled == line.issued for line in self.lines.values())

    @property
    def known(self) -> int:
        """How many buckets there are so far."""
        examples = ((group.target, one) for group in self.groups.values() for one in group.examples.values())
        return len({(target, example.bucket) for target, example in examples})

    def buckets(self) -> list[Bucket]:
        """Every bucket, worst first, then in the order of targets and first cases."""
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
        """What controls do wrong as well, worst first, and then what is most often met."""
        rows = []
        for (control, signature), by_target in self._below.items():
            cases = sorted({index for indices in by_target.values() for index in indices})
            rows.append(Below(control, signature, len(cases), cases[0], tuple(by_target)))
        return sorted(rows, key=lambda row: (row.severity, -row.cases, row.first_case, row.control))

    def _attributed(self, group: Group) -> Iterator[tuple[Example, int, float, int]]:
        """Each finding with the example that stands for it, and 1 if it is unlike all of them."""
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
    """The control that does what a target did, and the signature of that; None for any other outcome.

    What eager does as well is no layer's.
    """
    control, does_too, signature = seen.reason.partition(DOES_IT_TOO)
    if seen.outcome != "poisoned" or not does_too or control == "eager":
        return None
    return control, signature


def raw_finding(suspect: Suspect) -> Example:
    """A finding as it came, neither reduced nor confirmed."""
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
    """Smaller is the better example; of equal ones the earlier."""
    return (
        STATES.index(example.state),
        example.statements,
        len(buckets.bucket_arguments(example.program)),
        example.suspect.index,
    )
