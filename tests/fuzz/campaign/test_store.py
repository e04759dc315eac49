"""The campaign's file: nothing acknowledged is lost, and what cannot be used is said."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.campaign import configuration as configurations
from fuzz.campaign.configuration import Configuration
from fuzz.campaign.export import lines
from fuzz.campaign.memory_gauge import Sample
from fuzz.campaign.records import Example, RunOutcome, Suspect, example_from_json, example_to_json
from fuzz.campaign.store import FILE, VERSION, Row, Store
from fuzz.campaign.summary import rebuild_ledger, summarize
from fuzz.cli import main
from fuzz.errors import StoreError
from oracles import Finding
from tests.support.fuzz.small_programs import LOST_THROUGH_EXPAND, SINE

CONFIGURATION = Configuration(targets=("eager", "aot"), seed=5, cases=10)
SAMPLE = Sample(1.0, 300 << 20, 200 << 20)
FINDING = Finding("values", "out", "1", "2", "out: 1 in eager, 2 in the target")
AGREES = RunOutcome("agree", "", (), "agree", 0.1, traits=("dtype:float32", "kind:view"))
DIFFERS = RunOutcome("finding", "values/out", (FINDING,), "it differs", 0.2, traits=("dtype:float32",))
EXAMPLE = Example(
    Suspect("aot", 1, LOST_THROUGH_EXPAND, DIFFERS),
    SINE,
    DIFFERS,
    "values/out/x/a",
    "script",
    "flaky",
    7,
    ("agree",),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A campaign of which three cases were acknowledged, one of them out of order."""
    with Store.create(tmp_path / "out", CONFIGURATION) as store:
        store.add(Row("aot", 0, AGREES, 0.1))
        store.cover(AGREES.traits)
        store.add(Row("aot", 1, DIFFERS, 0.2))
        store.keep(replace(EXAMPLE, seen=replace(DIFFERS, traits=())))
        store.add(Row("aot", 3, AGREES, 0.3))
        store.commit(1.5)
        store.add(Row("aot", 4, AGREES, 0.4))
    return tmp_path / "out"


def test_what_was_acknowledged_is_there_and_the_rest_is_not(folder: Path) -> None:
    with Store.read(folder) as store:
        assert [(row.target, row.index, row.seen.outcome) for row in store.rows()] == [
            ("aot", 0, "agree"),
            ("aot", 1, "finding"),
            ("aot", 3, "agree"),
        ]
        assert store.elapsed == 1.5
        assert store.configuration == CONFIGURATION
        assert store.seen("aot", 1) == replace(DIFFERS, traits=())
        assert store.traits()["aot", "dtype:float32", "agree"] == 2
        assert store.pairs() == {("dtype:float32", "kind:view"): 1}


def test_only_what_has_nothing_missing_before_it_counts_and_the_rest_is_not_run_again(folder: Path) -> None:
    with Store.read(folder) as store:
        ledger = rebuild_ledger(store)
        assert summarize(store).tallies["aot"].cases == 2
    assert ledger.lines["aot"].settled == 2
    assert ledger.lines["aot"].knows(3) and not ledger.lines["aot"].knows(2)
    (bucket,) = ledger.buckets()
    assert (bucket.name, bucket.example.replays) == ("values/out/x/a", ("agree",))


def test_records_come_back_as_they_were() -> None:
    example = replace(EXAMPLE, suspect=replace(EXAMPLE.suspect, seen=replace(DIFFERS, traits=())))
    example = replace(example, seen=replace(DIFFERS, traits=()))
    assert example_from_json(json.loads(json.dumps(example_to_json(example)))) == example
    data = json.loads(json.dumps(configurations.to_json(CONFIGURATION)))
    assert configurations.from_json(data) == CONFIGURATION


def test_an_export_has_a_line_for_everything(folder: Path) -> None:
    with Store.read(folder) as store:
        objects = [json.loads(line) for line in lines(store)]
    kinds = [item["kind"] for item in objects]
    assert (kinds.count("campaign"), kinds.count("case"), kinds.count("example")) == (1, 3, 1)
    (finding,) = [item for item in objects if item["kind"] == "case" and item["signature"]]
    assert finding["findings"][0]["message"] == FINDING.message
    assert finding["died"] == ""


def test_a_folder_is_used_once(folder: Path) -> None:
    with pytest.raises(StoreError, match="already holds a campaign"):
        Store.create(folder, CONFIGURATION)


def test_a_second_driver_is_kept_out_and_a_reader_is_not(folder: Path) -> None:
    with Store.open(folder) as store:
        with pytest.raises(StoreError, match="is in use"):
            Store.open(folder)
        store.add(Row("eager", 0, AGREES, 2.0))
        store.commit(2.0)
        with Store.read(folder) as reader:
            assert reader.elapsed == 2.0
    Store.open(folder).close()


def test_a_folder_that_cannot_be_made_is_said_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write a campaign"):
        Store.create(tmp_path / "file" / "out", CONFIGURATION)


def test_what_is_no_campaign_is_said(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no campaign\.sqlite"):
        Store.open(tmp_path)
    (tmp_path / FILE).write_bytes(b"nonsense" * 1000)
    for way in (Store.open, Store.read):
        with pytest.raises(StoreError, match="file is not a database"):
            way(tmp_path)


def test_a_file_of_another_version_is_refused_with_words(folder: Path) -> None:
    database = sqlite3.connect(folder / FILE)
    for version, words in ((1, "an earlier version"), (VERSION + 1, "another version")):
        database.execute("update campaign set value = ? where key = 'version'", (str(version),))
        database.commit()
        with pytest.raises(StoreError, match=words):
            Store.open(folder)
        with pytest.raises(StoreError, match=words):
            Store.read(folder)


@pytest.fixture
def schema_2(folder: Path) -> Path:
    """The same as the last version wrote it, which knew nothing of memory."""
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        database.execute("drop table memory")
        database.execute("update campaign set value = '2' where key = 'version'")
        database.commit()
    return folder


def test_a_file_of_the_last_version_is_read_as_it_is(schema_2: Path) -> None:
    before = (schema_2 / FILE).read_bytes()
    with Store.read(schema_2) as store:
        summary = summarize(store)
        assert store.memory() == [] and summary.memory == ()
    assert summary.tallies["aot"].cases == 2
    assert (schema_2 / FILE).read_bytes() == before


def test_a_file_of_the_last_version_is_gone_on_with(schema_2: Path) -> None:
    with Store.open(schema_2) as store:
        store.measure(SAMPLE)
        store.commit(2.0)
    with Store.read(schema_2) as store:
        assert store.get("version") == VERSION
        assert (store.elapsed, store.memory()) == (2.0, [SAMPLE])
        assert [row.index for row in store.rows()] == [0, 1, 3]


def test_a_writer_that_is_killed_loses_nothing_acknowledged(tmp_path: Path) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.fuzz.campaign.test_store import *
store = Store.create(Path({str(tmp_path)!r}) / "out", CONFIGURATION)
for index in range(100000):
    store.add(Row("aot", index, DIFFERS, 0.1))
    store.commit(float(index))
    print(index, flush=True)
    if index == 200:
        store.add(Row("aot", index + 1, DIFFERS, 0.1))
        os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    acknowledged = [int(line) for line in done.stdout.split()]
    with Store.open(tmp_path / "out") as store:
        assert [row.index for row in store.rows()] == acknowledged == list(range(201))
        assert store.seen("aot", 200).findings == (FINDING,)


def test_a_file_on_a_read_only_disk_can_be_read(folder: Path) -> None:
    for file in folder.glob(f"{FILE}-*"):
        file.unlink()
    os.chmod(folder / FILE, 0o400)
    os.chmod(folder, 0o500)
    try:
        with Store.read(folder) as store:
            assert store.elapsed == 1.5
    finally:
        os.chmod(folder, 0o700)


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("versions", "[null]"),
        ("versions", '{"torch": 3}'),
        ("sessions", '[{"started": ""}]'),
        ("sessions", "3"),
        ("troubles", "[3]"),
        ("elapsed", '"long"'),
        ("version", "no JSON"),
        ("configuration", "[" * 100_000),
    ],
)
def test_a_fact_that_is_damaged_is_named(
    fact: str, value: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(sqlite3.connect(folder / FILE, isolation_level=None)) as database:
        database.execute("update campaign set value = ? where key = ?", (value, fact))
    for words in (["report"], ["diff", str(folder)], ["export"]):
        command = [words[0], str(folder), *words[1:]]
        status = main(command)
        err = capsys.readouterr().err
        if status:  # (what a command does not ask for it cannot miss)
            assert status == 2 and "a damaged one" in err and fact in err, (command, err)
        else:
            assert words == ["export"]
    with pytest.raises(StoreError, match="a damaged one"), Store.open(folder) as store:
        store.get(fact)


@pytest.mark.parametrize("part", range(12))
def test_a_file_that_is_damaged_anywhere_is_said_to_be(
    part: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray((folder / FILE).read_bytes())
    start = part * len(data) // 12
    if part % 3:
        data[start : start + 600] = bytes((part * 37 + 7 * at) % 256 for at in range(600))
    else:
        del data[start + 100 :]
    (folder / FILE).write_bytes(data)
    assert main(["report", str(folder)]) in (0, 2)
    capsys.readouterr()
    assert main(["diff", str(folder), str(folder)]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
