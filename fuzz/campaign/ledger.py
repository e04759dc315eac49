"""The books of a campaign: which cases are settled, how they count, and which findings deserve a closer look.

Answers arrive in any order and are settled in the order of their case numbers, so that everything here is a
function of the cases alone, whatever the number of workers. The same books are kept by a campaign that runs
and made up again from its file, for a report or to go on.

Findings of one target with one coarse signature form a *group*. The first of a group is always investigated
(reduced, confirmed, bucketed). Later ones are told apart only by doing the same, which costs seconds, so
further examples are taken at growing distances: one whose bucket is new makes the next finding of the group
an example too, one whose bucket is known doubles the distance. The schedule counts findings, never seconds.
Findings between two examples are counted with the bucket of the example before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fuzz.campaign.records import STATES, Example, RunOutcome, Suspect
from fuzz.corpus import buckets

# More than this many examples of one signature have not been worth their time.
MOST_EXAMPLES = 12


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


@dataclass(slots=True)
class Group:
    """The findings of one target and signature: their case numbers and times, in order.

    The finding at `position` is the next example, once it has been found.
    """

    target: str
    signature: str
    indices: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    examples: dict[int, Example] = field(default_factory=dict)
    position: int = 0
    distance: int = 1

    def due(self, firsts_only: bool = False) -> bool:
        """Whether an example is to be made; with `firsts_only` not more than one."""
        if self.position >= len(self.indices):
            return False
        return not self.examples or not (firsts_only or len(self.examples) >= MOST_EXAMPLES)

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Its place among the groups that are due, for when there is no time for all: lower comes first.

        The first example of a signature tells more than the next one of another, unless that says least:
        whatever a compiler gets wrong may end in other elements, while what differs otherwise has a name, and
        an exception has a message. So all the examples of other elements come with the first ones of the
        rest, and before them. Of equal ones, first what stands for most.
        """
        least = self.signature.endswith(" elements")
        says = 2 if self.signature.startswith("errors/") else not least
        waiting = len(self.indices) - self.position
        return bool(self.examples) and not least, says, self.distance / max(waiting, 1)

    def take(self, example: Example) -> None:
        """Take in the example that was due."""
        known = any(example.bucket == other.bucket for other in self.examples.values())
        self.examples[self.position] = example
        self.distance = self.distance * 2 if known else 1
        self.position += self.distance


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket of one target: its smallest example, how many findings it stands for, and their first."""

    name: str
    target: str
    clause: str
    count: int
    first_case: int
    first_seconds: float
    example: Example


class Ledger:
    """The books. `look` fetches what was seen of a finding that has been settled."""

    def __init__(self, targets: tuple[str, ...], look: Callable[[str, int], Suspect]) -> None:
        self.tallies = {name: Tally() for name in targets}
        self.lines = {name: Line() for name in targets}
        self.groups: dict[tuple[str, str], Group] = {}
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
                    group = self.groups.setdefault((name, seen.signature), Group(name, seen.signature))
                    group.indices.append(index)
                    group.times.append(at)

    def restore(self, examples: dict[tuple[str, int], Example]) -> None:
        """Take in examples that were made earlier, by target and case, in the order of their being due."""
        for group in self.groups.values():
            while group.due():
                example = examples.get((group.target, group.indices[group.position]))
                if example is None:
                    break
                group.take(example)

    def suspect(self, group: Group) -> Suspect:
        """The finding of a group that is to become its next example."""
        return self._look(group.target, group.indices[group.position])

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
        """Every bucket, in the order of targets and first cases."""
        found: dict[tuple[str, str], Bucket] = {}
        for group in self.groups.values():
            for example, index, at in self._attributed(group):
                key = (group.target, example.bucket)
                old = found.get(key)
                if old is None:
                    clause = buckets.primary_finding(example.seen.findings).clause
                    found[key] = Bucket(example.bucket, group.target, clause, 1, index, at, example)
                else:
                    smaller = min(old.example, example, key=_example_size)
                    first = min((old.first_case, old.first_seconds), (index, at))
                    found[key] = Bucket(
                        old.name, old.target, old.clause, old.count + 1, first[0], first[1], smaller
                    )
        return sorted(found.values(), key=lambda bucket: (bucket.target, bucket.first_case, bucket.name))

    def _attributed(self, group: Group) -> Iterator[tuple[Example, int, float]]:
        """Each finding of a group with the example that stands for it."""
        examples = group.examples or {0: raw_finding(self.suspect(group))}
        example = examples[min(examples)]
        for place, (index, at) in enumerate(zip(group.indices, group.times, strict=True)):
            example = examples.get(place, example)
            yield example, index, at


def raw_finding(suspect: Suspect) -> Example:
    """A finding as it came, neither reduced nor confirmed."""
    from fuzz.repro import script

    return Example(
        suspect=suspect,
        program=suspect.program,
        seen=suspect.seen,
        bucket=f"unreduced/{suspect.seen.signature}",
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
