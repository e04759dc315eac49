"""Known issues: what they cover, what has become of them, and what a wrong file is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.campaign.known_issue_status import known_issue_standings, unchecked_standings
from fuzz.corpus import case_file
from fuzz.corpus.collection import Collection
from fuzz.corpus.known_issues import Issue, IssueStatus, read_known_issues
from fuzz.errors import CorpusError
from tests.fuzz.corpus.test_corpus import CASE
from tests.support.fuzz.small_programs import LOST_THROUGH_EXPAND, SINE

BUCKET = "input-data/arg elements/expand + in-place/a"
LOST = Issue(
    "lost",
    ("torch-aot-function",),
    case="lost.json",
    signature="input-data/arg elements",
    operators=("expand",),
)


def test_an_issue_covers_its_buckets_on_its_targets_and_nothing_else() -> None:
    assert LOST.covers("torch-aot-function", BUCKET, LOST_THROUGH_EXPAND)
    assert LOST.covers("torch-aot-function", "unreduced/input-data/arg elements", LOST_THROUGH_EXPAND)
    assert not LOST.covers("aot", BUCKET, LOST_THROUGH_EXPAND)
    assert not LOST.covers("torch-aot-function", "input-data/arg elements/sin/a", SINE), "no expand in it"
    assert not LOST.covers("torch-aot-function", "values/out elements/expand/a", LOST_THROUGH_EXPAND)
    assert not replace(LOST, expected="agrees").covers("torch-aot-function", BUCKET, LOST_THROUGH_EXPAND)


def test_whole_buckets_may_be_named_with_stars() -> None:
    issue = Issue("x", ("t",), buckets=("input-data/*/expand + *",))
    assert issue.covers("t", BUCKET, SINE)
    assert not issue.covers("t", "values/" + BUCKET, SINE)


def test_versions_bound_an_issue() -> None:
    issue = replace(LOST, torch=">=2.11,<2.13")
    assert issue.concerns("2.12.1+cpu")
    assert not issue.concerns("2.13.0")
    assert issue.concerns("2.13.0.dev20260101") is False
    (standing,) = known_issue_standings([issue], Path(), ["torch-aot-function"], "2.13.0")
    assert standing.state == "elsewhere"
    assert not standing.covers("torch-aot-function", BUCKET, LOST_THROUGH_EXPAND)


def test_what_became_of_an_issue_is_seen_by_running_its_case(tmp_path: Path) -> None:
    case_file.write_case(tmp_path / "lost.json", replace(CASE, program=LOST_THROUGH_EXPAND, bucket=BUCKET))
    case_file.write_case(tmp_path / "fine.json", replace(CASE, program=SINE, bucket=BUCKET))
    issues = [
        LOST,
        replace(LOST, case="fine.json"),
        replace(LOST, case=""),
        replace(LOST, expected="agrees"),
        replace(LOST, expected="agrees", case="fine.json"),
        replace(LOST, targets=("another",)),
    ]
    found = known_issue_standings(issues, tmp_path, ["torch-aot-function"], "2.13.0")
    assert [one.state for one in found] == ["reproduces", "gone", "unchecked", "back", "fixed"]
    assert [IssueStatus.from_json(one.to_json()) for one in found] == list(found)
    assert {one.state for one in unchecked_standings(issues, ["torch-aot-function"], "2.13.0")} == {
        "unchecked"
    }


GOOD = """format = 1
[[issue]]
title = "lost"
targets = ["aot"]
signature = "input-data/*"
"""


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(GOOD)
    assert read_known_issues(tmp_path / "known.toml") == (Issue("lost", ("aot",), signature="input-data/*"),)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "not TOML"),
        ("issue = []", "not a list of known issues of format 1"),
        (GOOD.replace("format = 1", "format = 2"), "not a list of known issues of format 1"),
        (GOOD + "run = 'rm -rf'", "unknown field 'run'"),
        (GOOD.replace('title = "lost"', ""), "title: is missing"),
        (GOOD.replace('["aot"]', "[]"), "targets: is missing"),
        (GOOD.replace("signature", "note"), "unknown field 'note'"),
        (GOOD.replace('signature = "input-data/*"', ""), "covers nothing"),
        (GOOD + 'expected = "maybe"', "expected: is neither"),
        (GOOD + 'case = "../../etc/passwd"', "is not the name of a file"),
        (GOOD + 'torch = "new"', "not a range of versions"),
        (GOOD + "upstream = -1", "not an issue's number"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("#" * 2_000_000, "larger than"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(text)
    with pytest.raises(CorpusError) as raised:
        read_known_issues(tmp_path / "known.toml")
    assert complaint in str(raised.value)
    assert "known.toml" in str(raised.value)


def test_the_projects_own_corpus_is_in_order() -> None:
    collection = Collection.load(Path(__file__).parents[3] / "corpus")
    # A file in yesterday's form is read as well; `aotfuzz corpus check --fix` rewrites it.
    assert [text for _, text in collection.problems() if "today's form" not in text] == []
    assert len(collection.issues) >= 12


def test_an_issue_covers_what_draws_and_not_what_is_silently_wrong_beside_it() -> None:
    name = "unreduced/input-data/arg elements"
    assert LOST.covers("torch-aot-function", f"{name}/random", LOST_THROUGH_EXPAND)
    assert not LOST.covers("torch-aot-function", f"{name}/silent", LOST_THROUGH_EXPAND)
