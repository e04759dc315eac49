"""Many nights in one table and one page: courses of faults, their order, caveats, links, and the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.records import Example, RunOutcome, Suspect
from fuzz.campaign.store import Row, Store
from fuzz.campaign.summary import summarize
from fuzz.cli import main
from fuzz.report.causes import KNOWN
from fuzz.report.history import Course, History, campaign_history, history_table
from fuzz.report.history_page import history_page
from oracles import Finding
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE

TARGET = "torch-aot-eager"
WRONG = Finding("values", "out", "1.0", "<b>2</b>", "out: 1.0 in eager, 2 in the target")
STRIDES = Finding("strides", "out", "(1,)", "(2,)", "out: other strides")
FINDINGS = {"values/out": WRONG, "strides/out": STRIDES}


def _night(
    folder: Path,
    day: int,
    found: Mapping[str, int],
    *,
    target: str = TARGET,
    seed: int = 1,
    ended: str = "complete",
) -> Path:
    """A campaign's folder of which each finding is in so many cases."""
    with Store.create(folder, Configuration(targets=(target,), seed=seed, cases=20)) as store:
        index = 0
        for name, cases in found.items():
            finding, bucket = FINDINGS[name], f"{name}/in-place/a"
            seen = RunOutcome("finding", bucket, (finding,), "it", 0.1)
            for _ in range(cases):
                suspect = Suspect(target, index, DOUBLE_IN_PLACE, seen)
                store.keep(Example(suspect, DOUBLE_IN_PLACE, seen, bucket, "", "shown", 3, ()))
                store.add(Row(target, index, seen, float(index)))
                index += 1
        store.add(Row(target, index, RunOutcome("agree", "", (), "agree", 0.1), float(index)))
        store.set("started", f"2026-11-{day:02} 02:00:00", 5.0)
        store.set("ended", ended, 5.0)
        store.commit(5.0)
    return folder


def _history(folders: list[Path]) -> History:
    summaries = []
    for folder in folders:
        with Store.read(folder) as store:
            summaries.append(summarize(store))
    return campaign_history(summaries)


@pytest.mark.parametrize(
    ("nights", "course"),
    [
        ([0, 2], Course.NEW),
        ([1, 2], Course.STANDING),
        ([0, 1, 1], Course.STANDING),
        ([1, 0, 2], Course.BACK),
        ([1, 0], Course.UNSEEN),
        ([3], Course.NEW),
    ],
)
def test_a_fault_has_a_course(tmp_path: Path, nights: list[int], course: Course) -> None:
    folders = [
        _night(tmp_path / str(day), day + 1, {"values/out": count} if count else {})
        for day, count in enumerate(nights)
    ]
    history = _history(folders[::-1])  # in any order
    assert [fault.course for fault in history.faults] == [course]
    assert history.faults[0].counts == tuple(nights)
    assert [night.causes for night in history.nights] == [int(bool(count)) for count in nights]


def test_what_is_worst_comes_first_and_what_is_not_seen_last(tmp_path: Path) -> None:
    both = _night(tmp_path / "1", 1, {"strides/out": 1, "values/out": 2})
    one = _night(tmp_path / "2", 2, {"strides/out": 4})
    other = _night(tmp_path / "3", 3, {"values/out": 1}, target="torch-inductor", seed=2, ended="")
    history = _history([both, one, other])
    rows = [
        (fault.cause.target, fault.cause.severity.label, fault.course, fault.counts)
        for fault in history.faults
    ]
    assert rows == [
        ("torch-inductor", "silent", Course.NEW, (None, None, 1)),
        (TARGET, "metadata", Course.STANDING, (1, 4, None)),
        (TARGET, "silent", Course.UNSEEN, (2, 0, None)),
    ]
    text = history_table(history)
    assert "3 nights, 3 faults: 1 new, 0 back, 1 standing, 1 not seen" in text
    assert "different programs" in text and "1 of the nights is not complete" in text


def test_the_page_needs_nothing_else_and_links_to_the_pages_of_nights(tmp_path: Path) -> None:
    first = _night(tmp_path / "a night", 1, {"values/out": 1})
    second = _night(tmp_path / "2", 2, {"values/out": 30})
    (first / "report.html").write_text("", encoding="utf-8")
    page = history_page(_history([first, second]), tmp_path)
    assert 'href="a%20night/report.html"' in page and 'href="2/report.html"' not in page
    assert 'class="heat heat5">30<' in page and 'class="heat heat1">1<' in page
    assert "<script" not in page and 'src="' not in page and "default-src 'none'" in page


def test_the_command_writes_the_page_and_says_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = _night(tmp_path / "1", 1, {}), _night(tmp_path / "2", 2, {"values/out": 1})
    page = tmp_path / "history.html"
    assert main(["history", str(first), str(second), "--out", str(page), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert [(fault["course"], fault["counts"]) for fault in printed["faults"]] == [("new", [0, 1])]
    assert [night["causes"] for night in printed["nights"]] == [0, 1]
    assert "<h1>History of nights</h1>" in page.read_text(encoding="utf-8")
    assert main(["history", str(second), str(second), "--out", str(page)]) == 0
    assert main(["history", str(first), "--out", str(page)]) == 0
    assert main(["history", str(tmp_path / "none"), "--out", str(page)]) == 2
    assert main(["history", str(first), "--out", str(tmp_path / "no" / "folder.html")]) == 2


def test_a_known_issue_is_no_news(tmp_path: Path) -> None:
    history = _history([_night(tmp_path / "1", 1, {}), _night(tmp_path / "2", 2, {"values/out": 1})])
    assert history.has_news
    fault = replace(history.faults[0], cause=replace(history.faults[0].cause, news=KNOWN))
    assert fault.course is Course.NEW and not replace(history, faults=(fault,)).has_news
