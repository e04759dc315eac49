"""A campaign under attack accounts for every case exactly once (longer: `tests/support/fuzz/chaos.py`)."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from fuzz.campaign.store import Store
from fuzz.campaign.summary import summarize
from fuzz.campaign.workers import handlers
from fuzz.program.printer import load
from tests.fuzz import bad_targets
from tests.support.fuzz.chaos import ENDED, attack

CASES = 16
# How `bad_targets.chaos` takes a process down.
DEATHS = {
    0: "errors/call: crash, killed by SIGSEGV",
    1: "errors/call: crash, killed by SIGABRT",
    5: "errors/call: crash, exited with status",
}
WAITS = 2  # for ever: the attack would kill it every time


def _harm(seed: int) -> dict[int, int]:
    """The cases of a campaign to which its target does harm, and which."""
    functions = (load(handlers.program(seed, index, "mixed")).f for index in range(CASES))
    harm = {index: bad_targets.harm(function) for index, function in enumerate(functions)}
    return {index: kind for index, kind in harm.items() if kind is not None}


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_case_is_accounted_for_exactly_once(tmp_path: Path) -> None:
    seeds = ((seed, _harm(seed)) for seed in itertools.count(1))
    chosen = (found for found in seeds if WAITS not in found[1].values())
    seed, harm = next(found for found in chosen if DEATHS.keys() <= {*found[1].values()})
    found = attack(tmp_path / "out", CASES, every=0.1, paced=True, driver_kills=1, programs=seed)
    assert found.status == ENDED, found.output
    assert found.indices == list(range(CASES))
    assert found.acknowledged_lost == 0
    assert found.drivers_killed == 1
    assert found.workers_killed > 5
    assert found.deaths == {index: DEATHS[kind] for index, kind in harm.items() if kind in DEATHS}
    with Store.read(tmp_path / "out") as store:
        summary = summarize(store)
    assert summary.troubles == []
    assert found.sessions == 2
    assert summary.total("cases") == CASES
    assert sum(bucket.count for bucket in summary.buckets) == summary.total("findings")


@pytest.mark.nightly
@pytest.mark.timeout(6 * 3600)
def test_twenty_thousand_cases_are_accounted_for_exactly_once(tmp_path: Path) -> None:
    found = attack(tmp_path / "out", 20_000, every=0.05, jobs=4)
    assert found.status == ENDED, found.output
    assert found.indices == list(range(20_000))
    assert (found.acknowledged_lost, found.drivers_killed) == (0, 2)
