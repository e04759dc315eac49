"""Store: the folder of a campaign, with an SQLite file, and a corpus file and a script for each bucket.

    DIR/campaign.sqlite     everything: configuration, versions, one row per case, findings, investigated
                            examples, coverage of traits, memory over time, known issues, sessions
    DIR/corpus/*.json       one reduced case per bucket and target
    DIR/repro/*.py          the script that shows it with torch alone

Only the driver writes. A case's row, its findings and its coverage are one transaction. Write-ahead logging
with `synchronous=NORMAL` loses nothing that was committed if a process is killed. A folder that cannot be
written is detected before the campaign starts. If the disk fills up later, the next `commit` raises
StoreError, and everything that was committed stays readable. A lock keeps a second driver out; the kernel
drops it when its holder dies.

    with Store.create(Path("found"), configuration) as store: ...
    with Store.open(Path("found")) as store: ...            # to go on
    with Store.read(Path("found")) as store: ...            # to look at, also while it is being written
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fuzz.campaign import configuration as configurations
from fuzz.campaign.configuration import Configuration
from fuzz.campaign.memory_gauge import Sample
from fuzz.campaign.records import (
    Example,
    RunOutcome,
    example_from_json,
    example_to_json,
    run_from_json,
    run_to_json,
)
from fuzz.errors import StoreError
from fuzz.program.decode import ProgramError
from fuzz.safe_text import shell_command

VERSION = 3
FILE = "campaign.sqlite"
LOCK = "campaign.lock"
_MEMORY = "create table memory (at real not null, driver integer not null, worker integer not null) strict;"
_ADD = "on conflict do update set cases = cases + excluded.cases"
_SCHEMA = f"""
{_MEMORY}
create table campaign (key text primary key, value text not null) strict;
create table results (
    target text not null, case_index integer not null, outcome text not null, reason text not null,
    signature text not null, kind text not null, seconds real not null, at real not null,
    primary key (target, case_index)
) strict, without rowid;
create table findings (
    target text not null, case_index integer not null, record text not null,
    primary key (target, case_index)
) strict;
create table examples (
    target text not null, case_index integer not null, bucket text not null, record text not null,
    primary key (target, case_index)
) strict;
create table traits (
    target text not null, trait text not null, outcome text not null, cases integer not null,
    primary key (target, trait, outcome)
) strict, without rowid;
create table pairs (
    trait text not null, other text not null, cases integer not null,
    primary key (trait, other)
) strict, without rowid;
"""
# For each schema, the statements that make a file of the one before it.
_MIGRATIONS = {2: _MEMORY}


def _is_session(value: Any) -> bool:
    return isinstance(value, dict) and {"started", "from", "ended"} <= value.keys()


# Tests of facts that stay plain data. Facts that become objects are checked when these are made.
_FACTS: Mapping[str, Callable[[Any], bool]] = {
    "versions": lambda value: isinstance(value, dict) and all(isinstance(v, str) for v in value.values()),
    "sessions": lambda value: isinstance(value, list) and all(map(_is_session, value)),
    "troubles": lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value),
    "known": lambda value: isinstance(value, list),
    "refuses": lambda value: isinstance(value, dict),
    "elapsed": lambda value: isinstance(value, int | float) and value >= 0,
    "started": lambda value: isinstance(value, str),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One case on one target, as in the file. `at` is in seconds since the campaign's start."""

    target: str
    index: int
    seen: RunOutcome
    at: float


class Store:
    """A campaign's file. `create`, `open`, `read` and `in_memory` make it."""

    def __init__(self, folder: Path | None, database: sqlite3.Connection, lock: int | None) -> None:
        self.folder = folder
        self._database = database
        self._lock = lock
        self._traits: Counter[tuple[str, str, str]] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._writing = False

    @classmethod
    def create(cls, folder: Path, configuration: Configuration) -> Self:
        """Make the folder and its file.

        Raises:
            StoreError: that fails, or there is a campaign already.
        """
        file = folder / FILE
        try:
            for part in ("corpus", "repro"):
                (folder / part).mkdir(parents=True, exist_ok=True)
            if file.exists():
                raise StoreError(
                    f"{folder} already holds a campaign; choose another folder with --out, "
                    f"or go on with: {shell_command('aotfuzz', 'resume', folder)}"
                )
            lock = _locked_campaign_folder(folder)
            store = cls(folder, _connect(file), lock)
            store._begin_campaign(configuration)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"cannot write a campaign to {folder}: {error}; choose another with --out"
            ) from error
        return store

    @classmethod
    def in_memory(cls, configuration: Configuration) -> Self:
        """A store without a folder, for a campaign that is not kept."""
        store = cls(None, sqlite3.connect(":memory:", isolation_level=None), None)
        store._begin_campaign(configuration)
        return store

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a campaign's file to go on.

        Raises:
            StoreError: there is none, it is damaged, or it is in use.
        """
        file = _existing(folder)
        with contextlib.ExitStack() as undo:
            try:
                lock = _locked_campaign_folder(folder)
                undo.callback(os.close, lock)
                store = cls(folder, _connect(file), lock)
                store._migrate()
            except (OSError, sqlite3.Error) as error:
                raise StoreError(f"{file} cannot be written: {error}") from error
            undo.pop_all()
        return store

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Open a campaign's file to look at. It may be in use.

        Raises:
            StoreError: it cannot be read.
        """
        file = _existing(folder)
        try:
            store = cls(folder, _open_database_for_reading(file), None)
            if store.get("version") != VERSION:
                # A file that is only read is not changed; a copy of it is migrated.
                store = cls(folder, _copy(store._database), None)
                store._migrate()
        except sqlite3.Error as error:
            raise StoreError(f"{file} cannot be read: {error}") from error
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Everything that was committed is in it."""
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # What the driver writes.

    def add(self, row: Row) -> None:
        """Write a case, which counts from the next `commit` on.

        Raises:
            StoreError: the disk refuses.
        """
        seen = row.seen
        values = (row.target, row.index, seen.outcome, seen.reason, seen.signature, seen.kind)
        self._write_database(
            "insert into results values (?, ?, ?, ?, ?, ?, ?, ?)", (*values, seen.seconds, row.at)
        )
        if seen.signature:
            record = json.dumps(run_to_json(seen))
            self._write_database("insert into findings values (?, ?, ?)", (row.target, row.index, record))
        for trait in seen.traits:
            self._traits[row.target, trait, seen.outcome] += 1

    def cover(self, traits: Iterable[str]) -> None:
        """Count the pairs of traits of one program, from the next `commit` on."""
        self._pairs.update(itertools.combinations(sorted(traits), 2))

    def keep(self, example: Example) -> None:
        """Write an investigated example, from the next `commit` on."""
        record = json.dumps(example_to_json(example))
        self._write_database(
            "insert or replace into examples values (?, ?, ?, ?)",
            (example.suspect.target, example.suspect.index, example.bucket, record),
        )

    def measure(self, sample: Sample) -> None:
        """Write how much memory there is in use, from the next `commit` on."""
        self._write_database("insert into memory values (?, ?, ?)", (sample.at, sample.driver, sample.worker))

    def commit(self, elapsed: float) -> None:
        """Commit what was written, `elapsed` seconds after the start.

        Raises:
            StoreError: the disk refuses.
        """
        if not self._writing:
            return
        traits, self._traits = self._traits, Counter()
        pairs, self._pairs = self._pairs, Counter()
        for trait, cases in traits.items():
            self._write_database(
                f"insert into traits values (?, ?, ?, ?) {_ADD}",
                (*trait, cases),
            )
        for pair, cases in pairs.items():
            self._write_database(
                f"insert into pairs values (?, ?, ?) {_ADD}",
                (*pair, cases),
            )
        self._set("elapsed", elapsed)
        try:
            self._database.execute("commit")
        except sqlite3.Error as error:
            raise self._store_error(error) from error
        self._writing = False

    def set(self, key: str, value: Any, elapsed: float) -> None:
        """Write one fact about the campaign and commit it."""
        self._set(key, value)
        self.commit(elapsed)

    def file(self, part: str, name: str, text: str) -> Path:
        """Write a file into a part of the folder, all of it or nothing.

        Raises:
            StoreError: the disk refuses.
        """
        assert self.folder is not None
        file = self.folder / part / name
        partial = file.with_name(f".{name}.{os.getpid()}")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(file)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StoreError(f"{self.folder} cannot be written any more: {error}") from error
        return file

    # What is in the file.

    @property
    def configuration(self) -> Configuration:
        """The campaign's configuration."""
        return configurations.from_json(self.get("configuration"))

    @property
    def elapsed(self) -> float:
        """The seconds that the campaign has run, in all sessions together."""
        return float(self.get("elapsed"))

    def get(self, key: str, default: Any = None) -> Any:
        """One fact about the campaign.

        Raises:
            StoreError: it is no value that a campaign writes.
        """
        for (value,) in self._query_database("select value from campaign where key = ?", key):
            try:
                found = json.loads(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise self._damaged(f"{key}: {error}") from error
            if key in _FACTS and not _FACTS[key](found):
                raise self._damaged(f"its {key} cannot be {_shorten_json(found)}")
            return found
        return default

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"{self.folder} holds no campaign of aotfuzz, or a damaged one: {what}")

    def rows(self) -> Iterator[Row]:
        """All cases in the file by target and case number, without the text of their findings."""
        query = "select target, case_index, outcome, signature, reason, seconds, kind, at from results"
        for target, index, outcome, signature, reason, seconds, kind, at in self._query_database(query):
            yield Row(target, index, RunOutcome(outcome, signature, (), reason, seconds, kind), at)

    def seen(self, target: str, index: int) -> RunOutcome:
        """The outcome of a case with a finding."""
        query = "select record from findings where target = ? and case_index = ?"
        ((record,),) = self._query_database(query, target, index)
        return run_from_json(json.loads(record))

    def examples(self) -> dict[tuple[str, int], Example]:
        """All investigated examples, by target and case."""
        found = {}
        for target, index, record in self._query_database("select target, case_index, record from examples"):
            try:
                found[target, index] = example_from_json(json.loads(record))
            except ProgramError as error:
                raise StoreError(
                    f"{self.folder}: case {index} on {target} holds a program that this version of aotfuzz "
                    f"does not read: {error}"
                ) from error
        return found

    def traits(self) -> dict[tuple[str, str, str], int]:
        """The number of cases by target, trait and outcome."""
        query = "select target, trait, outcome, cases from traits"
        return {(target, trait, outcome): n for target, trait, outcome, n in self._query_database(query)}

    def pairs(self) -> dict[tuple[str, str], int]:
        """The number of programs by pair of traits. Each pair is there once, in alphabetical order."""
        query = "select trait, other, cases from pairs"
        return {(trait, other): n for trait, other, n in self._query_database(query)}

    def memory(self) -> list[Sample]:
        """The samples of memory, over time."""
        return [
            Sample(*row) for row in self._query_database("select at, driver, worker from memory order by at")
        ]

    def _query_database(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a query.

        Raises:
            StoreError: the file is damaged.
        """
        try:
            yield from self._database.execute(query, values)
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _begin_campaign(self, configuration: Configuration) -> None:
        self._database.executescript(_SCHEMA)
        self._database.execute("begin")
        self._writing = True
        facts = {
            "version": VERSION,
            "configuration": configurations.to_json(configuration),
            "versions": {
                **configurations.campaign_versions(),
                "generator": configurations.generator_fingerprint(configuration),
            },
            "started": utc_now(),
            "sessions": [],
            "known": [],
            "troubles": [],
        }
        for key, value in facts.items():
            self._set(key, value)
        self.commit(0.0)

    def _migrate(self) -> None:
        """Migrate a file of an earlier schema, in one transaction.

        Raises:
            StoreError: that is not possible.
        """
        found = self.get("version")
        if found != VERSION and found not in _MIGRATIONS:
            age = "an earlier" if isinstance(found, int) and found < VERSION else "another"
            raise StoreError(
                f"{self.folder} was written by {age} version of aotfuzz (schema {found}, this one has "
                f"{VERSION}); use that version to read it, or run the campaign again: its programs depend on "
                "the seed alone"
            )
        if found != VERSION:
            for version in range(found, VERSION):
                self._write_database(_MIGRATIONS[version], ())
            self._set("version", VERSION)
            self.commit(self.elapsed)

    def _set(self, key: str, value: Any) -> None:
        self._write_database("insert or replace into campaign values (?, ?)", (key, json.dumps(value)))

    def _write_database(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            if not self._writing:
                self._database.execute("begin immediate")
                self._writing = True
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise self._store_error(error) from error

    def _store_error(self, error: Exception) -> StoreError:
        with contextlib.suppress(sqlite3.Error):
            self._database.execute("rollback")
        self._writing = False
        return StoreError(
            f"{self.folder} cannot be written any more: {error}; what was stored before is intact, and "
            f"`{shell_command('aotfuzz', 'resume', str(self.folder))}` goes on when there is room"
        )


def _shorten_json(value: Any) -> str:
    """The beginning of a value as JSON.

    >>> _shorten_json([1] * 100)
    '[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...'
    """
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def utc_now() -> str:
    """The present time in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _existing(folder: Path) -> Path:
    file = folder / FILE
    if not file.is_file():
        raise StoreError(f"{folder} holds no campaign: there is no {FILE} in it")
    return file


def _connect(file: Path) -> sqlite3.Connection:
    database = sqlite3.connect(file, isolation_level=None, timeout=30)
    database.execute("pragma journal_mode=wal")
    database.execute("pragma synchronous=normal")
    return database


def _open_database_for_reading(file: Path) -> sqlite3.Connection:
    """Open a file for reading.

    If not even a file beside it can be made for the log, read it without the log.
    """
    address = file.resolve().as_uri()
    try:
        database = sqlite3.connect(f"{address}?mode=ro", uri=True, isolation_level=None, timeout=30)
        database.execute("select count(*) from sqlite_schema").fetchone()
    except sqlite3.OperationalError:
        database = sqlite3.connect(f"{address}?immutable=1", uri=True, isolation_level=None)
    return database


def _copy(database: sqlite3.Connection) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", isolation_level=None)
    database.backup(copy)
    database.close()
    return copy


def _locked_campaign_folder(folder: Path) -> int:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StoreError(f"{folder} is in use: another aotfuzz is writing to it") from None
    return lock
