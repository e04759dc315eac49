"""Triage: investigate findings that are due, a few at a time, each in its own thread.

In: a ledger with due groups. Out: examples, for the ledger and the store. The first example of a silent
finding comes first, and may use all workers. If time bounds the campaign, all others share half of the
workers, silent ones first. Otherwise a compiler that is wrong about every other program would leave no time
to run more programs, among which the silent findings are. None of this changes the result of an
investigation. If cases bound the campaign, all that is due is done.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event

from fuzz.campaign.configuration import Budget
from fuzz.campaign.investigate import Runner, investigate
from fuzz.campaign.ledger import Group, GroupKey, Ledger, raw_finding
from fuzz.campaign.records import Example

# The share of all workers' time for all examples but the first silent ones, until the time is up.
REST_SHARE = 0.5
# The share of a campaign's time for the reduction of one silent finding, and of one loud finding.
SILENT_REDUCTION, LOUD_REDUCTION = 0.25, 0.125


@dataclass(frozen=True, slots=True)
class _Investigation:
    """A running investigation, its start, and the event that tells it to end."""

    future: Future[Example]
    group: Group
    is_urgent: bool
    since: float
    hurry: Event = field(default_factory=Event)


class Triage:
    """Runs investigations. Their examples go to the ledger and to `keep`."""

    def __init__(
        self,
        ledger: Ledger,
        runner: Runner,
        keep: Callable[[Example], None],
        *,
        at_once: int,
        budget: Budget,
        seconds: float | None = None,
    ) -> None:
        """Prepare to run investigations: at most `at_once` first ones of silent findings, and as many others.

        `seconds` is the time that bounds the campaign, or None if cases do.
        """
        self._ledger = ledger
        self._runner = runner
        self._keep = keep
        self._budget = budget
        self._at_once = at_once
        self._seconds = seconds
        self._pending: dict[GroupKey, _Investigation] = {}
        self._rest_seconds = 0.0
        self._threads = ThreadPoolExecutor(2 * at_once, thread_name_prefix="investigate")
        self.firsts_only = False
        self.hurried = False
        self.troubles: list[str] = []

    def advance(self, elapsed: float) -> bool:
        """Take finished examples and start due investigations. Returns whether anything is left to do.

        `elapsed` is in seconds since the campaign's start.
        """
        for key in [key for key, work in self._pending.items() if work.future.done()]:
            work = self._pending.pop(key)
            if not work.is_urgent:
                self._rest_seconds += elapsed - work.since
            self._take_investigated(work)
        due = [
            group
            for key, group in self._ledger.groups.items()
            if key not in self._pending and group.due(self.firsts_only)
        ]
        due.sort(key=lambda group: group.rank)
        for group in () if self.hurried else due:
            if self._may_begin(group, elapsed):
                self._begin(group, elapsed)
        return bool(self._pending or (due and not self.hurried))

    @property
    def has_silent(self) -> bool:
        """Whether a silent finding is being investigated."""
        return any(work.group.is_silent for work in self._pending.values())

    def hurry(self, *, loud_only: bool) -> None:
        """Let investigations end with their smallest program so far. Start no more, unless `loud_only`."""
        self.hurried = self.hurried or not loud_only
        for work in self._pending.values():
            if not (loud_only and work.group.is_silent):
                work.hurry.set()

    def stop(self) -> None:
        """Stop all investigations. Finished ones still count."""
        self._runner.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for work in self._pending.values():
            if work.future.done():
                self._take_investigated(work)
        self._pending.clear()

    def _may_begin(self, group: Group, elapsed: float) -> bool:
        urgent = _is_urgent(group)
        beside = [work for work in self._pending.values() if work.is_urgent == urgent]
        if urgent or self._seconds is None:
            return len(beside) < self._at_once
        if self.firsts_only:
            # The time is up, and what is left belongs to silent findings.
            waiting = self.has_silent and not group.is_silent
            return not waiting and len(beside) < self._at_once
        spent = self._rest_seconds + sum(elapsed - work.since for work in beside)
        return len(beside) < max(1, self._at_once // 2) and spent <= REST_SHARE * self._at_once * elapsed

    def _begin(self, group: Group, elapsed: float) -> None:
        suspect = self._ledger.suspect(group)
        budget = self._budget
        if self._seconds is not None:
            share = SILENT_REDUCTION if group.is_silent else LOUD_REDUCTION
            budget = replace(budget, seconds=min(budget.seconds, share * self._seconds))
        hurry = Event()
        future = self._threads.submit(
            investigate,
            suspect,
            self._runner,
            budget,
            # When the time is up, workers have nothing else to do.
            ahead=self.firsts_only and self._at_once > 1,
            hurried=hurry.is_set,
        )
        self._pending[group.key] = _Investigation(future, group, _is_urgent(group), elapsed, hurry)
        future.add_done_callback(lambda _: self._runner.wake())

    def _take_investigated(self, work: _Investigation) -> None:
        try:
            example = work.future.result()
        except CancelledError:
            return
        except Exception:
            self.troubles.append(traceback.format_exc())
            example = raw_finding(self._ledger.suspect(work.group))
        work.group.take(example)
        self._keep(example)


def _is_urgent(group: Group) -> bool:
    return group.is_silent and not group.examples
