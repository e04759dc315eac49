"""What a campaign shows meanwhile: a table on a terminal, plain lines in a log."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fuzz.campaign import progress as campaign_progress
from fuzz.campaign.configuration import Configuration
from fuzz.campaign.driver import Progress
from fuzz.campaign.ledger import Tally
from fuzz.campaign.workers.protocol import WorkerStatus

CONFIGURATION = Configuration(targets=("aot",), seconds=60.0)
TALLY = Tally(cases=40, agree=30, findings=10, crashes=2)
WORKERS = [
    WorkerStatus("running", "aot 17-30", 0.4),
    WorkerStatus("reducing", "aot 3", 2.0),
    WorkerStatus("idle"),
]
PROGRESS = Progress(20.0, {"aot": TALLY}, 3, WORKERS, False, 40.0)


def _rendered(progress: Progress) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(campaign_progress.progress_view(CONFIGURATION, progress))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_a_terminal_shows_targets_workers_buckets_and_the_time_left() -> None:
    text = _rendered(PROGRESS)
    assert "20 s of 60 s: 40 cases (2.0/s), 10 findings in 3 buckets, 40 s left" in text
    for words in ("aot 17-30", "0.4 s", "reducing", "idle", "crashes", "Ctrl-C"):
        assert words in text


def test_a_narrow_terminal_shows_whole_words() -> None:
    console = Console(file=io.StringIO(), width=80)
    tally = Tally(cases=12345, agree=12000, poisoned=100, refused=45, findings=200)
    console.print(
        campaign_progress.progress_view(
            CONFIGURATION, replace(PROGRESS, tallies={"torch-aot-function": tally})
        )
    )
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    (head,) = [line for line in text.splitlines() if "poisoned" in line]
    assert head.split() == [*campaign_progress._COLUMNS]


def test_many_workers_are_summed_up() -> None:
    many = Progress(20.0, {"aot": TALLY}, 3, [WorkerStatus("idle")] * 40, True, None)
    text = _rendered(many)
    assert "and 24 more" in text
    assert "finishing" in text


def test_a_log_gets_a_plain_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    with campaign_progress.progress_shown(CONFIGURATION, log) as watch:
        watch(PROGRESS)
        assert log.getvalue() == "", "not at once"
        monkeypatch.setattr(campaign_progress, "LINE_SECONDS", 0.0)
        watch(PROGRESS)
        watch(PROGRESS)
    assert log.getvalue().splitlines() == [campaign_progress.progress_line(CONFIGURATION, PROGRESS)] * 2
    assert "\x1b" not in log.getvalue()


def test_a_log_that_nobody_reads_stops_nothing() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with campaign_progress.progress_shown(CONFIGURATION, Closed()) as watch:
        watch._last = float("-inf")  # type: ignore[attr-defined]
        watch(PROGRESS)
        watch(PROGRESS)


def test_durations_are_read_easily() -> None:
    assert [campaign_progress.duration_in_words(n) for n in (0.4, 59.6, 3599, 3600)] == [
        "0 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
    ]
