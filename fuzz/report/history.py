"""History: the campaigns of many nights, and which bugs are new, stand, or were not seen again.

In: `Summary`s. Out: a `History`. A fault is a cause (`fuzz.report.causes`) of one target. Nights are in the
order in which they began.

    history = campaign_history([summarize(store) for store in stores])
    history.faults[0].counts      # findings by night, None where its target did not run
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tabulate import tabulate

from fuzz.campaign.summary import Summary
from fuzz.report.causes import KNOWN, Cause, causes

_LONGEST_HEADLINE = 66
_MOST_COLUMNS = 7


class Course(StrEnum):
    """What became of a fault, by the last night that ran its target and the nights before it."""

    NEW = "new"
    BACK = "back"
    STANDING = "standing"
    UNSEEN = "not seen"


@dataclass(frozen=True, slots=True)
class Night:
    """One campaign.

    `causes` is the number of bugs that it found, `silent` the number of silent ones among them.
    """

    folder: str
    started: str
    torch: str
    targets: tuple[str, ...]
    seed: int
    profile: str
    cases: int
    causes: int
    silent: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """A cause through the nights.

    It has the cause as the last night with it shows it, and the number of findings in each night, or None if
    its target did not run.
    """

    cause: Cause
    counts: tuple[int | None, ...]

    @property
    def nights(self) -> int:
        """The number of nights that have it."""
        return sum(bool(count) for count in self.counts)

    @property
    def first(self) -> int:
        """The first night that has it, as an index of `History.nights`."""
        return next(place for place, count in enumerate(self.counts) if count)

    @property
    def course(self) -> Course:
        """The course of the fault."""
        ran = [bool(count) for count in self.counts if count is not None]
        if not ran[-1]:
            return Course.UNSEEN
        if not any(ran[:-1]):
            return Course.NEW
        return Course.STANDING if all(ran[ran.index(True) :]) else Course.BACK


@dataclass(frozen=True, slots=True)
class History:
    """The nights, the oldest first, and the faults, worst first; of equally bad ones news come first.

    `caveats` say in words for which other reasons a fault may be unseen.
    """

    nights: tuple[Night, ...]
    faults: tuple[Fault, ...]
    caveats: tuple[str, ...]

    def count(self, course: Course) -> int:
        """The number of faults with this course."""
        return sum(fault.course is course for fault in self.faults)

    @property
    def has_news(self) -> bool:
        """Whether a last night has a fault that the night before did not have and no known issue covers."""
        news = (Course.NEW, Course.BACK)
        return any(fault.course in news and fault.cause.news != KNOWN for fault in self.faults)


def campaign_history(campaigns: Iterable[Summary]) -> History:
    """The history of one or more campaigns, which may be in any order."""
    summaries = sorted(campaigns, key=lambda summary: summary.started)
    found = [causes(summary) for summary in summaries]
    latest = {(cause.target, cause.name): cause for night in found for cause in night}
    counts = [{(cause.target, cause.name): cause.count for cause in night} for night in found]
    faults = [
        Fault(
            cause,
            tuple(
                night.get(key, 0) if cause.target in summary.tallies else None
                for night, summary in zip(counts, summaries, strict=True)
            ),
        )
        for key, cause in latest.items()
    ]
    courses = (Course.NEW, Course.BACK, Course.STANDING, Course.UNSEEN)
    faults.sort(
        key=lambda fault: (
            fault.course is Course.UNSEEN,
            fault.cause.severity,
            courses.index(fault.course),
            -sum(count or 0 for count in fault.counts),
            fault.cause.target,
            fault.cause.name,
        )
    )
    nights = tuple(_night(*pair) for pair in zip(summaries, found, strict=True))
    return History(nights, tuple(faults), tuple(_caveats(summaries)))


def history_table(history: History) -> str:
    """The history as text: the last nights, and every fault with its findings in them."""
    nights = history.nights[-_MOST_COLUMNS:]
    parts = [
        headline_of(history),
        tabulate(
            [
                (
                    night.started,
                    night.torch,
                    ", ".join(night.targets),
                    night.cases,
                    night.causes,
                    night.silent,
                    night.folder,
                )
                for night in nights
            ],
            headers=("began", "torch", "targets", "cases", "faults", "silent", "folder"),
            disable_numparse=True,
        ),
    ]
    rows = [
        (
            fault.cause.severity.label,
            _shortened(fault.cause.headline),
            fault.cause.target,
            fault.course.value,
            f"{fault.nights} of {len(history.nights)}",
            " ".join("-" if count is None else str(count) for count in fault.counts[-_MOST_COLUMNS:]),
        )
        for fault in history.faults
    ]
    if rows:
        headers = ("severity", "fault", "target", "course", "nights", "findings by night")
        parts.append(tabulate(rows, headers=headers, disable_numparse=True))
    parts += [f"Note: {caveat}." for caveat in history.caveats]
    return "\n\n".join(parts)


def headline_of(history: History) -> str:
    """The numbers of faults by course, in one line.

    3 nights, 12 faults: 2 new, 1 back, 8 standing, 1 not seen
    """
    nights, faults = len(history.nights), len(history.faults)
    said = ", ".join(f"{history.count(course)} {course.value}" for course in Course)
    return (
        f"{nights} night{'' if nights == 1 else 's'}, {faults} fault{'' if faults == 1 else 's'}"
        f"{f': {said}' if faults else ''}"
    )


def _night(summary: Summary, found: Sequence[Cause]) -> Night:
    return Night(
        folder=summary.folder,
        started=summary.started,
        torch=summary.versions.get("torch", ""),
        targets=tuple(summary.tallies),
        seed=summary.configuration.seed,
        profile=summary.configuration.profile,
        cases=summary.total("cases"),
        causes=len(found),
        silent=sum(cause.severity.is_silent for cause in found),
        complete=not summary.interrupted,
    )


def _caveats(summaries: Sequence[Summary]) -> list[str]:
    found = []
    programs = {
        (one.configuration.seed, one.configuration.profile, one.versions.get("generator"))
        for one in summaries
    }
    if len(programs) > 1:
        found.append("the nights ran different programs, so a fault may be unseen by chance")
    if len({frozenset(one.configuration.clauses) for one in summaries}) > 1:
        found.append("the nights judged different clauses, so a fault may be unseen for that")
    incomplete = sum(one.interrupted for one in summaries)
    if incomplete:
        found.append(f"{incomplete} of the nights {'is' if incomplete == 1 else 'are'} not complete")
    return found


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_HEADLINE else f"{text[: _LONGEST_HEADLINE - 3]}..."
