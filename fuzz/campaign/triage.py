"""Investigations of the findings that are due, a few at a time, each in a thread of its own."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

from fuzz.campaign.configuration import Budget
from fuzz.campaign.investigate import Runner, investigate
from fuzz.campaign.ledger import Group, Ledger, raw_finding
from fuzz.campaign.records import Example


class Triage:
    """Runs investigations; the examples that they give go to the ledger and to `keep`."""

    def __init__(
        self, ledger: Ledger, runner: Runner, keep: Callable[[Example], None], *, at_once: int, budget: Budget
    ) -> None:
        """At most `at_once` investigations run together."""
        self._ledger = ledger
        self._runner = runner
        self._keep = keep
        self._budget = budget
        self._at_once = at_once
        self._pending: dict[tuple[str, str], Future[Example]] = {}
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="investigate")
        self.firsts_only = False
        self.troubles: list[str] = []

    def advance(self) -> bool:
        """Take in what is done and start what is due; whether anything is still to be done."""
        for key in [key for key, future in self._pending.items() if future.done()]:
            self._take_investigated(self._ledger.groups[key], self._pending.pop(key))
        due = [
            group
            for key, group in self._ledger.groups.items()
            if key not in self._pending and group.due(self.firsts_only)
        ]
        due.sort(key=lambda group: group.rank)
        for group in due[: self._at_once - len(self._pending)]:
            suspect = self._ledger.suspect(group)
            future = self._threads.submit(investigate, suspect, self._runner, self._budget)
            self._pending[group.target, group.signature] = future
            future.add_done_callback(lambda _: self._runner.wake())
        return bool(self._pending or due)

    def stop(self) -> None:
        """Give up what is under way; what is done already still counts."""
        self._runner.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for key, future in self._pending.items():
            if future.done():
                self._take_investigated(self._ledger.groups[key], future)
        self._pending.clear()

    def _take_investigated(self, group: Group, done: Future[Example]) -> None:
        try:
            example = done.result()
        except CancelledError:
            return
        except Exception:
            self.troubles.append(traceback.format_exc())
            example = raw_finding(self._ledger.suspect(group))
        group.take(example)
        self._keep(example)
