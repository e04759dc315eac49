"""A campaign under attack accounts for every case exactly once (the long form is in `chaos.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import ENDED, attack

from fuzz.campaign.store import Store
from fuzz.campaign.summary import summarize

CASES = 24


@pytest.mark.timeout(600)
def test_every_case_is_accounted_for_exactly_once(tmp_path: Path) -> None:
    found = attack(tmp_path / "out", CASES, every=0.2, paced=True)
    assert found.status == ENDED, found.output
    assert found.indices == list(range(CASES))
    assert found.acknowledged_lost == 0
    assert found.drivers_killed == 2
    assert found.workers_killed > 5
    with Store.read(tmp_path / "out") as store:
        summary = summarize(store)
    assert summary.troubles == []
    assert found.sessions == 3
    assert summary.total("cases") == CASES
    assert sum(bucket.count for bucket in summary.buckets) == summary.total("findings")
    deaths = {bucket.example.seen.signature for bucket in summary.buckets}
    assert len(deaths) >= 3, "the target does harm in several ways"


@pytest.mark.nightly
@pytest.mark.timeout(6 * 3600)
def test_twenty_thousand_cases_are_accounted_for_exactly_once(tmp_path: Path) -> None:
    found = attack(tmp_path / "out", 20_000, every=0.05, jobs=4)
    assert found.status == ENDED, found.output
    assert found.indices == list(range(20_000))
    assert (found.acknowledged_lost, found.drivers_killed) == (0, 2)
