"""Investigations: a finding that comes and goes is called flaky, and says what each run gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from small_programs import DOUBLE_IN_PLACE

from fuzz.campaign.investigate import REPLAYS, Runner, investigate
from fuzz.campaign.records import Seen, Suspect
from fuzz.campaign.work import Death, Event, Job
from fuzz.program import Program
from oracles import Finding

FINDING = Finding("input-data", "arg[0]", "2.0", "1.0", "arg[0]: 2.0 in eager, 1.0 in the target")
DIFFERS = Seen("finding", "input-data/arg", (FINDING,), "arg[0] differs", 0.1)
AGREES = Seen("agree", "", (), "agree", 0.1)
OTHER = replace(DIFFERS, signature="values/out")
SUSPECT = Suspect("eager", 3, DOUBLE_IN_PLACE, DIFFERS)


class Scripted(Runner):
    """A runner whose fresh workers show one thing after the other, and whose used ones show the finding."""

    def __init__(self, *shown: Seen) -> None:
        self.limit = 1.0
        self._shown: Iterator[Seen] = iter(shown)

    def run(self, program: Program, target: str, *, fresh: bool = False, limit: float | None = None) -> Seen:
        return next(self._shown) if fresh else DIFFERS

    def shows(self, script: str) -> bool:
        return True


def test_what_some_fresh_workers_show_is_flaky_and_says_what_the_others_gave() -> None:
    example = investigate(SUSPECT, Scripted(AGREES, DIFFERS, OTHER, DIFFERS))
    assert (example.state, example.bucket) == ("flaky", "flaky/input-data/arg")
    assert example.replays == ("agree", "as in the campaign", "finding: values/out", "as in the campaign")
    assert example.program == SUSPECT.program


def test_what_no_fresh_worker_shows_is_unconfirmed() -> None:
    poisoned = Seen("poisoned", "", (), "eager is unstable", 0.1)
    example = investigate(SUSPECT, Scripted(AGREES, AGREES, poisoned, AGREES))
    assert (example.state, example.bucket) == ("unconfirmed", "unconfirmed/input-data/arg")
    assert example.replays == ("agree", "agree", "poisoned: eager is unstable", "agree")


def test_a_reduction_that_does_not_hold_is_looked_at_again() -> None:
    flaky = investigate(SUSPECT, Scripted(DIFFERS, AGREES, DIFFERS, AGREES, DIFFERS))
    assert flaky.state == "flaky"
    stable = investigate(SUSPECT, Scripted(DIFFERS, AGREES, *[DIFFERS] * (REPLAYS - 1)))
    assert stable.state == "shown"
    assert stable.program == SUSPECT.program, "the finding is real and its reduction was not"
    assert stable.replays == ()


def test_what_every_worker_shows_is_reduced_and_shown() -> None:
    example = investigate(SUSPECT, Scripted(DIFFERS, DIFFERS))
    assert example.state == "shown"
    assert example.evaluations > 0


@pytest.mark.parametrize(("deaths", "kind"), [(1, ""), (9, "crash")])
def test_a_run_whose_worker_is_killed_is_repeated(deaths: int, kind: str) -> None:
    class Killed(Runner):
        left = deaths

        def _ask_once(self, item: Any, fresh: bool, limit: float) -> Event:
            job = Job((item,), limit)
            self.left -= 1
            if self.left >= 0:
                return Death(job, 0, "crash", "killed by SIGKILL", "", "", 0.1)
            return Death(job, 0, "timeout", "over the time limit of 1 s", "", "", 0.1)

    seen = Killed(None, 1.0).run(DOUBLE_IN_PLACE, "eager")  # type: ignore[arg-type]
    assert seen.kind == (kind or "timeout")
