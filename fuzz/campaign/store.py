"""The folder of a campaign: one SQLite file written as results come, a corpus file and a script per bucket.

    DIR/campaign.sqlite     configuration, versions, one row per case, findings, buckets, summary
    DIR/corpus/*.json       one reduced case per bucket and target
    DIR/repro/*.py          the script that shows it with torch alone

The driver alone writes. Write-ahead logging with `synchronous=NORMAL` loses nothing when a process is killed.
A folder that cannot be written is found out before the campaign starts; a disk that fills up later raises
StoreError from the next `commit`, and what was committed stays readable.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz import corpus
from fuzz.corpus import Case
from fuzz.errors import StoreError

VERSION = 1
FILE = "campaign.sqlite"
_SCHEMA = """
create table campaign (key text primary key, value text not null) strict;
create table results (
    target text not null, case_index integer not null, outcome text not null, reason text not null,
    signature text not null, seconds real not null, at real not null,
    primary key (target, case_index)
) strict, without rowid;
create table findings (
    target text not null, case_index integer not null, findings text not null, stack text not null,
    primary key (target, case_index)
) strict;
create table buckets (
    target text not null, bucket text not null, record text not null,
    primary key (target, bucket)
) strict;
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One case on one target: `at` is seconds since the start; `findings` and `stack` only for a finding."""

    target: str
    index: int
    outcome: str
    reason: str
    signature: str
    seconds: float
    at: float
    findings: tuple[Mapping[str, str], ...] = ()
    stack: str = ""


class Store:
    """A campaign's folder, open for writing."""

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        """Make the folder and its file; StoreError if that fails or if a campaign is there already."""
        self.folder = folder
        self._rows: list[Row] = []
        file = folder / FILE
        try:
            for part in ("corpus", "repro"):
                (folder / part).mkdir(parents=True, exist_ok=True)
            if file.exists():
                raise StoreError(f"{folder} already holds a campaign; choose another folder with --out")
            self._database = sqlite3.connect(file, isolation_level=None, timeout=30)
            self._database.execute("pragma journal_mode=wal")
            self._database.execute("pragma synchronous=normal")
            self._database.executescript(_SCHEMA)
            for key, value in {"version": VERSION, **configuration}.items():
                self._set(key, value)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"cannot write a campaign to {folder}: {error}; choose another with --out"
            ) from error

    def add(self, row: Row) -> None:
        """Remember a row for the next `commit`."""
        self._rows.append(row)

    def commit(self) -> None:
        """Write the remembered rows in one transaction; StoreError if the disk refuses."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        try:
            self._database.execute("begin")
            self._database.executemany(
                "insert or ignore into results values (?, ?, ?, ?, ?, ?, ?)",
                [(r.target, r.index, r.outcome, r.reason, r.signature, r.seconds, r.at) for r in rows],
            )
            self._database.executemany(
                "insert or ignore into findings values (?, ?, ?, ?)",
                [(r.target, r.index, json.dumps(r.findings), r.stack) for r in rows if r.findings],
            )
            self._database.execute("commit")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def bucket(self, target: str, bucket: str, case: Case, script: str) -> tuple[Path, Path]:
        """Write a bucket's corpus file and script; where they are. StoreError if the disk refuses."""
        name = corpus.slug(bucket, target)
        file, repro = self.folder / "corpus" / f"{name}.json", self.folder / "repro" / f"{name}.py"
        try:
            corpus.write(file, case)
            repro.write_text(script, encoding="utf-8")
        except OSError as error:
            raise self._failed(error) from error
        return file, repro

    def finish(self, buckets: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
        """Write the last rows, the buckets and the summary; StoreError if the disk refuses."""
        self.commit()
        try:
            self._database.execute("begin")
            self._database.executemany(
                "insert or replace into buckets values (?, ?, ?)",
                [(entry["target"], entry["bucket"], json.dumps(entry)) for entry in buckets],
            )
            self._set("summary", summary)
            self._database.execute("commit")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file; what was committed is there."""
        self._database.close()

    def _set(self, key: str, value: Any) -> None:
        self._database.execute("insert or replace into campaign values (?, ?)", (key, json.dumps(value)))

    def _failed(self, error: Exception) -> StoreError:
        with contextlib.suppress(sqlite3.Error):
            self._database.execute("rollback")
        return StoreError(f"{self.folder} cannot be written any more: {error}")
