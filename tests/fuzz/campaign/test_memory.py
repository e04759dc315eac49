"""Memory of a campaign: measured as it is, and flat once it is warm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.campaign import memory_gauge
from fuzz.campaign.configuration import Budget, Configuration
from fuzz.campaign.driver import Campaign
from fuzz.campaign.memory_gauge import MIB, Gauge, Growth, Sample, memory_growth, resident_memory
from fuzz.campaign.store import Store
from fuzz.campaign.summary import summarize
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Answer, Job
from fuzz.report import json_output, tables

pytestmark = pytest.mark.usefixtures("helpers_are_importable")

CASES = 600  # Every operator is met for the first time in the first few hundred.
# What a third of a worker's cases may add to it: a twentieth of a megabyte each.
ROOM = 10 * MIB


def _of_one_worker(target: str, cases: int) -> list[int]:
    """What one worker has after each of its cases."""
    items = tuple(handlers.case_item(0, index, "mixed", "cpu", target) for index in range(cases))
    with Pool(handlers.HANDLER, jobs=1, warm=[target]) as pool:
        events = list(pool.run([Job(items, 60.0)]))
    found = [event.resident for event in events if isinstance(event, Answer)]
    assert len(found) == cases
    return found


def _grown(found: list[int]) -> int:
    """By how much the last third of the cases is above the second."""
    third = len(found) // 3
    return max(found[2 * third :]) - max(found[third : 2 * third])


@pytest.mark.nightly
def test_a_worker_does_not_grow_once_it_is_warm() -> None:
    assert _grown(_of_one_worker("aot", CASES)) < ROOM


def test_a_worker_that_leaks_is_seen_to() -> None:
    assert _grown(_of_one_worker("tests.fuzz.bad_targets:leaks", 90)) > 90 // 3 * MIB // 2


@pytest.mark.nightly
def test_the_driver_does_not_grow_once_it_is_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_gauge, "SAMPLE_SECONDS", 0.2)
    configuration = Configuration(
        ("eager", "tests.fuzz.bad_targets:copies_alias"), cases=300, jobs=2, budget=Budget(evaluations=5)
    )
    with Store.create(tmp_path, configuration) as store:
        Campaign(configuration, store).run()
        summary = summarize(store)
        samples = store.memory()
    driver, worker = summary.memory
    assert driver.end - driver.warm < ROOM
    assert min(sample.driver for sample in samples) > 50 * MIB
    assert worker.end > 50 * MIB
    assert "Memory: driver" in tables.campaign_table(summary)
    assert json_output.campaign_json(summary)["memory"]["driver"] == {"warm": driver.warm, "end": driver.end}
    drawn = [one for one in summary.course if one.driver]
    assert max(one.driver for one in drawn) == max(sample.driver for sample in samples)


def test_a_sample_is_what_the_workers_said_since_the_last_one() -> None:
    gauge = Gauge()
    gauge.heard(5)
    gauge.heard(9)
    gauge.heard(7)
    first = gauge.read(1.0)
    assert first is not None and (first.at, first.worker) == (1.0, 9)
    assert first.driver == pytest.approx(resident_memory(), rel=0.2)
    gauge.heard(3)
    assert gauge.read(1.0 + memory_gauge.SAMPLE_SECONDS / 2) is None
    second = gauge.read(1.0 + memory_gauge.SAMPLE_SECONDS)
    assert second is not None and second.worker == 3


def test_growth_is_from_the_second_quarter_to_the_last() -> None:
    samples = [Sample(float(at), 1000 + at, 50) for at in range(101)]
    samples[5] = replace(samples[5], worker=900)
    assert memory_growth(samples, 100.0) == (
        Growth("driver", 1050, 1100),
        Growth("largest worker", 50, 50),
    )
    assert memory_growth(samples[:20], 100.0) == ()
    silent = [replace(one, worker=0) if one.at < 60 else one for one in samples]
    assert [one.process for one in memory_growth(silent, 100.0)] == ["driver"]
