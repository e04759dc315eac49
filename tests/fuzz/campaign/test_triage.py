"""Who is investigated first, and how the time is shared between what is silent and what is loud."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any, cast

import pytest

from fuzz.campaign import triage as module
from fuzz.campaign.configuration import Budget
from fuzz.campaign.investigate import Runner
from fuzz.campaign.ledger import Ledger, raw_finding
from fuzz.campaign.records import Example, RunOutcome, Suspect
from fuzz.campaign.triage import Triage
from fuzz.corpus import buckets
from oracles import Finding
from tests.support.fuzz.small_programs import SINE

TARGET = "torch-aot-eager"


def _seen(index: int, silent: bool) -> RunOutcome:
    finding = (
        Finding("values", f"out[{index}]", "1.0", "2.0", f"out{'x' * index} at element 0: 1.0 in eager, ...")
        if silent
        else Finding("errors", "call", "no exception", f"E{'x' * index}: no", "the call: ...")
    )
    return RunOutcome("finding", buckets.signature((finding,)), (finding,), "", 0.1)


class _NoPool:
    def wake(self) -> None:
        """Nobody waits."""

    def cancel(self) -> None:
        """Nothing runs."""


class _Bench:
    """A triage whose investigations end when they are told to, and the budget that each was given."""

    def __init__(self, silent: list[bool], seconds: float | None, at_once: int = 2) -> None:
        def look(target: str, index: int) -> Suspect:
            return Suspect(target, index, SINE, _seen(index, silent[index]))

        self.release = Event()
        self.begun: list[int] = []
        self.budgets: dict[int, float] = {}
        self.hurried: dict[int, Any] = {}
        self.kept: list[Example] = []
        self.ledger = Ledger((TARGET,), look)
        for index in range(len(silent)):
            self.ledger.arrive(TARGET, index, _seen(index, silent[index]), 0.0)
        self.ledger.settle()
        budget = Budget(seconds=60.0)
        runner = cast(Runner, _NoPool())
        self.triage = Triage(
            self.ledger, runner, self.kept.append, at_once=at_once, budget=budget, seconds=seconds
        )

    def investigate(self, suspect: Suspect, _runner: Any, budget: Budget, **more: Any) -> Example:
        self.begun.append(suspect.index)
        self.budgets[suspect.index] = budget.seconds
        self.hurried[suspect.index] = more["hurried"]
        assert self.release.wait(30)
        return raw_finding(suspect)

    def advance(self, elapsed: float) -> list[int]:
        """The cases whose investigation this begins."""
        before = set(self.triage._pending)
        self.triage.advance(elapsed)
        began = [self.triage._pending[key].group for key in self.triage._pending if key not in before]
        return sorted(group.indices[0] for group in began)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[_Bench] = []

    def make(silent: list[bool], seconds: float | None = 120.0, at_once: int = 2) -> _Bench:
        made.append(_Bench(silent, seconds, at_once))
        monkeypatch.setattr(module, "investigate", made[-1].investigate)
        return made[-1]

    yield make
    for one in made:
        one.release.set()
        one.triage.stop()


def test_silent_ones_come_first_and_may_have_all_workers(bench: Any) -> None:
    mixed = bench([False, False, True, False, True, True])
    assert mixed.advance(30.0) == [0, 2, 4], "two silent ones, and of the loud ones half as many"
    assert mixed.advance(31.0) == []


def test_loud_ones_have_half_of_the_time(bench: Any) -> None:
    loud = bench([False] * 6)
    assert loud.advance(10.0) == [0]
    alone = bench([False] * 6, at_once=1)
    assert alone.advance(0.0) == [0]
    alone.release.set()
    alone.triage._threads.shutdown(wait=True)
    alone.triage._rest_seconds = 60.0
    assert not alone.triage._may_begin(next(iter(alone.ledger.groups.values())), 100.0)


def test_where_cases_bound_a_campaign_all_workers_are_for_whatever_is_due(bench: Any) -> None:
    loud = bench([False] * 6, None)
    assert loud.advance(0.0) == [0, 1]


def test_one_reduction_takes_no_more_than_its_part_of_the_time(bench: Any) -> None:
    mixed = bench([False, True], 60.0)
    assert mixed.advance(10.0) == [0, 1]
    mixed.release.set()
    mixed.triage._threads.shutdown(wait=True)
    assert mixed.budgets == {0: 7.5, 1: 15.0}


def test_when_time_is_up_loud_ones_end_with_what_they_have_and_then_all(bench: Any) -> None:
    mixed = bench([False, True, True, True])
    mixed.advance(30.0)
    mixed.triage.hurry(loud_only=True)
    mixed.triage.firsts_only = True
    assert mixed.triage._pending
    hurried = {work.group.is_silent: work.hurry.is_set() for work in mixed.triage._pending.values()}
    assert hurried == {True: False, False: True}
    mixed.triage.hurry(loud_only=False)
    assert all(work.hurry.is_set() for work in mixed.triage._pending.values())
    assert mixed.advance(121.0) == [], "nothing begins any more"
