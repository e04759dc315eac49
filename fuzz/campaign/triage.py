"""Which findings are looked at closely: examples of each signature, chosen so that the choice is repeatable.

Findings of one target with one coarse signature form a group. The first of a group is always investigated
(reduced, confirmed, bucketed). Later ones are told apart only by doing the same, which costs seconds, so
further examples are taken at growing distances: one whose bucket is new makes the next finding of the group
an example too, one whose bucket is known doubles the distance. The schedule counts findings, never seconds,
and findings arrive here in the order of their case numbers, so the same cases give the same examples whatever
the number of workers.

Findings between two examples are counted with the bucket of the example before them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from fuzz import buckets, repro
from fuzz.campaign.investigate import STATES, Budget, Example, Runner, Seen, Suspect, investigate
from fuzz.program import Program

# More than this many examples of one signature have not been worth their time.
MOST_EXAMPLES = 12


@dataclass(slots=True)
class _Group:
    """The findings of one target and signature: their case numbers and times, in order."""

    target: str
    signature: str
    indices: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    # What was seen of the findings that may become examples, by place in the two lists above.
    seen: dict[int, Seen] = field(default_factory=dict)
    examples: dict[int, Example] = field(default_factory=dict)
    position: int = 0
    distance: int = 1
    pending: Future[Example] | None = None


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


class Triage:
    """Groups findings and runs their investigations, a few at a time."""

    def __init__(
        self, runner: Runner, remake: Callable[[int], Program], *, at_once: int, budget: Budget
    ) -> None:
        """`remake` gives the program of a case number; at most `at_once` investigations run together."""
        self._runner = runner
        self._remake = remake
        self._budget = budget
        self._at_once = at_once
        self._groups: dict[tuple[str, str], _Group] = {}
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="investigate")
        self.firsts_only = False
        self.troubles: list[str] = []

    def add(self, target: str, index: int, seen: Seen, at: float) -> None:
        """A finding; the case numbers of one target must ascend."""
        group = self._groups.setdefault((target, seen.signature), _Group(target, seen.signature))
        if len(group.indices) >= group.position:
            group.seen[len(group.indices)] = seen
        group.indices.append(index)
        group.times.append(at)

    def advance(self) -> bool:
        """Take in what is done and start what is due; whether anything is still to be done."""
        for group in self._groups.values():
            if group.pending is not None and group.pending.done():
                self._take(group, group.pending)
                group.pending = None
        running = sum(group.pending is not None for group in self._groups.values())
        # The first example of a signature tells more than the next one of another.
        due = sorted(filter(self._due, self._groups.values()), key=lambda group: len(group.examples))
        for group in due[: self._at_once - running]:
            suspect = self._suspect(group)
            group.pending = self._threads.submit(investigate, suspect, self._runner, self._budget)
            group.pending.add_done_callback(lambda _: self._runner.wake())
        return bool(running or due)

    def stop(self) -> None:
        """Give up what is under way; afterwards `buckets` still has every group."""
        self._runner.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for group in self._groups.values():
            if group.pending is not None and group.pending.done():
                self._take(group, group.pending)
            group.pending = None

    @property
    def known(self) -> int:
        """How many buckets there are so far."""
        examples = ((group.target, one) for group in self._groups.values() for one in group.examples.values())
        return len({(target, example.bucket) for target, example in examples})

    def buckets(self) -> list[Bucket]:
        """Every bucket, in the order of targets and first cases."""
        found: dict[tuple[str, str], Bucket] = {}
        for group in self._groups.values():
            for example, index, at in self._attributed(group):
                key = (group.target, example.bucket)
                old = found.get(key)
                if old is None:
                    clause = buckets.main(example.seen.findings).clause
                    found[key] = Bucket(example.bucket, group.target, clause, 1, index, at, example)
                else:
                    smaller = min(old.example, example, key=_size)
                    first = min((old.first_case, old.first_seconds), (index, at))
                    found[key] = Bucket(
                        old.name, old.target, old.clause, old.count + 1, first[0], first[1], smaller
                    )
        return sorted(found.values(), key=lambda bucket: (bucket.target, bucket.first_case, bucket.name))

    def _due(self, group: _Group) -> bool:
        if group.pending is not None or group.position >= len(group.indices):
            return False
        return not group.examples or not (self.firsts_only or len(group.examples) >= MOST_EXAMPLES)

    def _suspect(self, group: _Group) -> Suspect:
        index = group.indices[group.position]
        return Suspect(group.target, index, self._remake(index), group.seen[group.position])

    def _take(self, group: _Group, done: Future[Example]) -> None:
        try:
            example = done.result()
        except CancelledError:
            return
        except Exception:
            self.troubles.append(traceback.format_exc())
            example = self._raw(group)
        known = any(example.bucket == other.bucket for other in group.examples.values())
        group.examples[group.position] = example
        group.distance = group.distance * 2 if known else 1
        group.position += group.distance
        group.seen = {place: seen for place, seen in group.seen.items() if place >= group.position}

    def _attributed(self, group: _Group) -> Iterator[tuple[Example, int, float]]:
        """Each finding of a group with the example that stands for it."""
        if not group.examples:
            group.examples[0] = self._raw(group)
        example = group.examples[min(group.examples)]
        for place, (index, at) in enumerate(zip(group.indices, group.times, strict=True)):
            example = group.examples.get(place, example)
            yield example, index, at

    def _raw(self, group: _Group) -> Example:
        """The group's due finding as it came, neither reduced nor confirmed."""
        suspect = self._suspect(group)
        return Example(
            suspect=suspect,
            program=suspect.program,
            seen=suspect.seen,
            bucket=f"unreduced/{group.signature}",
            script=repro.script(suspect.program, group.target, buckets.main(suspect.seen.findings)),
            state="unreduced",
            evaluations=0,
        )


def _size(example: Example) -> tuple[int, int, int, int]:
    """Smaller is the better example; of equal ones the earlier."""
    return (
        STATES.index(example.state),
        example.statements,
        len(buckets.arguments(example.program)),
        example.suspect.index,
    )
