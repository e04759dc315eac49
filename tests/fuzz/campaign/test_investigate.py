"""Investigations: a finding that comes and goes is called flaky, and says what each run gave."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from fuzz.campaign.investigate import REPLAYS, Runner, investigate
from fuzz.campaign.records import RunOutcome, Suspect
from fuzz.campaign.workers.protocol import Answer, Death, Event, Job
from fuzz.choices import SeededChoices
from fuzz.corpus import buckets
from fuzz.generate import generate
from fuzz.program.decode import Program, from_json
from oracles import Finding
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE

FINDING = Finding("input-data", "arg[0]", "2.0", "1.0", "arg[0]: 2.0 in eager, 1.0 in the target")
DIFFERS = RunOutcome("finding", "input-data/arg", (FINDING,), "arg[0] differs", 0.1)
AGREES = RunOutcome("agree", "", (), "agree", 0.1)
OTHER = replace(DIFFERS, signature="values/out")
SUSPECT = Suspect("eager", 3, DOUBLE_IN_PLACE, DIFFERS)


class Scripted(Runner):
    """A runner whose fresh workers show one thing after the other, and whose used ones show the finding."""

    def __init__(self, *shown: RunOutcome) -> None:
        self.limit = 1.0
        self._shown: Iterator[RunOutcome] = iter(shown)

    def run(
        self, program: Program, target: str, *, fresh: bool = False, limit: float | None = None
    ) -> RunOutcome:
        return next(self._shown) if fresh else DIFFERS

    def shows(self, script: str, finding: Finding) -> bool:
        return True


def test_what_some_fresh_workers_show_is_flaky_and_says_what_the_others_gave() -> None:
    example = investigate(SUSPECT, Scripted(AGREES, DIFFERS, OTHER, DIFFERS))
    assert (example.state, example.bucket) == ("flaky", "flaky/input-data/arg")
    assert example.replays == ("agree", "as in the campaign", "finding: values/out", "as in the campaign")
    assert example.program == SUSPECT.program


def test_what_no_fresh_worker_shows_is_unconfirmed() -> None:
    poisoned = RunOutcome("poisoned", "", (), "eager is unstable", 0.1)
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

        def _submit(self, item: Any, fresh: bool, limit: float | None) -> Future[Event]:
            job = Job((item,), 1.0)
            self.left -= 1
            how = "killed by SIGKILL" if self.left >= 0 else "over the time limit of 1 s"
            future: Future[Event] = Future()
            future.set_result(Death(job, 0, "crash" if self.left >= 0 else "timeout", how, "", "", 0.1))
            return future

    seen = Killed(None, 1.0).run(DOUBLE_IN_PLACE, "eager")  # type: ignore[arg-type]
    assert seen.kind == (kind or "timeout")


class Pool:
    """A pool that answers at once, and notes what it is given."""

    def __init__(self) -> None:
        self.given: list[Program] = []

    def submit(self, job: Job) -> None:
        (item,) = job.items
        found: Any = {"outcome": "agree", "findings": [], "reason": "", "seconds": 0.1}
        if item["kind"] == "script":
            found = {"status": 0, "ends": []}
        if item["kind"] == "program":
            program = from_json(item["program"])
            self.given.append(program)
            if _writes(program):
                finding = dataclasses.asdict(FINDING)
                found = {"outcome": "finding", "findings": [finding], "reason": "", "seconds": 0.1}
        job.tag.set_result(Answer(job, 0, found, 0.1, 0))


def test_what_is_begun_ahead_is_run_once_and_changes_nothing() -> None:
    made = (generate(SeededChoices(4, index), "aliasing") for index in range(1000))
    program = next(p for p in made if len(p.statements) > 6 and _writes(p))
    seen = replace(DIFFERS, signature=buckets.signature((FINDING,)))
    suspect = Suspect("aot", 3, program, seen)
    alone, ahead = Pool(), Pool()
    one = investigate(suspect, Runner(alone, 1.0))  # type: ignore[arg-type]
    other = investigate(suspect, Runner(ahead, 1.0), ahead=True)  # type: ignore[arg-type]
    assert (one.program, one.evaluations) == (other.program, other.evaluations)
    assert [s.operator for s in one.program.statements] == ["mul_number_"]
    begun = Counter(ahead.given) - Counter(alone.given)
    assert set(Counter(alone.given)) <= set(ahead.given)
    assert begun and max(begun.values()) == 1
    assert len(ahead.given) < 2 * len(alone.given)


def _writes(program: Program) -> bool:
    return any(statement.operator == "mul_number_" for statement in program.statements)
