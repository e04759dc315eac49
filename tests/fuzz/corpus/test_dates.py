"""What each version of torch makes of a case, as a field of its file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.corpus.case_file import Case, case_text, read, write_case
from fuzz.corpus.dates import last_differing, merge_dates, public_version
from fuzz.errors import CorpusError
from fuzz.report.tables import case_table

CORPUS = Path(__file__).parents[3] / "corpus"
DATED = {
    "torch-aot-eager": {"2.11.0": "differs", "2.13.0": "differs", "2.15.0": "agrees"},
    "aot": {"2.13.0": "unclear", "2.15.0": "differs otherwise"},
}


@pytest.fixture
def case() -> Case:
    return replace(read(CORPUS / "scalar-write-lost.json"), dated={}, layer="")


def test_dates_are_written_and_read(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    dated = replace(case, dated=DATED, layer="AOTAutograd")
    write_case(file, dated)
    assert read(file) == dated
    assert f"{json.dumps('layer')}: {json.dumps('AOTAutograd')}" in file.read_text()
    text = case_table(file, dated)
    assert "differs in 2.11.0, differs in 2.13.0, agrees in 2.15.0" in text


def test_a_file_without_dates_is_read_and_stays_as_it_is(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    write_case(file, case)
    assert "dated" not in file.read_text()
    assert "layer" not in json.loads(file.read_text())
    assert (read(file).dated, read(file).layer) == ({}, "")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"dated": ["2.13.0"]}, "at dated"),
        ({"dated": {"aot": "differs"}}, "at dated.'aot'"),
        ({"dated": {"aot": {"new": "differs"}}}, "at dated.'aot': 'new' is no version"),
        ({"dated": {"aot": {"2.13.0": "perhaps"}}}, "at dated.'aot'.2.13.0"),
        ({"dated": {"a b": {"2.13.0": "agrees"}}}, "at dated: 'a b' is not a target's name"),
        ({"dated": {"aot": {f"2.{n}": "agrees" for n in range(101)}}}, "at most 100 versions"),
        ({"dated": {f"t{n}": {} for n in range(33)}}, "at most 32 targets"),
        ({"layer": "the middle"}, "at layer"),
    ],
)
def test_dates_that_are_none_are_refused(
    fields: dict[str, Any], place: str, case: Case, tmp_path: Path
) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({**json.loads(case_text(case)), **fields}))
    with pytest.raises(CorpusError, match=place):
        read(file)


def test_later_dates_are_put_in_by_age() -> None:
    merged = merge_dates(
        {"aot": {"2.13.0": "agrees"}}, {"aot": {"2.9.0": "differs", "2.13.0": "differs"}, "a": {}}
    )
    assert list(merged.items()) == [("a", {}), ("aot", {"2.9.0": "differs", "2.13.0": "differs"})]
    assert list(merged["aot"]) == ["2.9.0", "2.13.0"]


def test_the_last_that_differs_is_the_newest_version() -> None:
    assert last_differing(DATED, "torch-aot-eager") == "2.13.0"
    assert last_differing({"t": {"2.9.0": "differs", "2.11.0": "differs"}}, "t") == "2.11.0"
    assert last_differing(DATED, "aot") is None
    assert last_differing(DATED, "eager") is None


def test_a_version_is_written_without_its_build() -> None:
    assert public_version("2.13.0+cpu") == "2.13.0"
    assert public_version("2.16.0.dev20261101+cu132") == "2.16.0.dev20261101"
