"""The folder of a campaign: one SQLite file written as results come, a corpus file and a script per bucket.

    DIR/campaign.sqlite     everything: configuration, versions, one row per case, findings, investigated
                            examples, coverage of traits, memory over time, known issues, sessions
    DIR/corpus/*.json       one reduced case per bucket and target
    DIR/repro/*.py          the script that shows it with torch alone

The driver alone writes. A case's row, its findings and what it adds to the coverage are one transaction;
write-ahead logging with `synchronous=NORMAL` loses nothing of what was committed when a process is killed. A
folder that cannot be written is found out before the campaign starts; a disk that fills up later raises
StoreError from the next `commit`, and what was committed stays readable. A lock, which the kernel drops when
its holder dies, keeps a second driver out.

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
# What makes a file of an earlier schema one of the next.
_MIGRATIONS = {2: _MEMORY}


def _is_session(value: Any) -> bool:
    return isinstance(value, dict) and {"started", "from", "ended"} <= value.keys()


# What facts are like that are taken as they are. (What becomes an object is checked when it is made.)
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
    """One case on one target as the file has it; `at` is seconds since the campaign's start."""

    target: str
    index: int
    seen: RunOutcome
    at: float


class Store:
    """A campaign's file. Made by `create`, `open`, `read` or `in_memory`."""

    def __init__(self, folder: Path | None, database: sqlite3.Connection, lock: int | None) -> None:
        self.folder = folder
        self._database = database
        self._lock = lock
        self._traits: Counter[tuple[str, str, str]] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._writing = False

    @classmethod
    def create(cls, folder: Path, configuration: Configuration) -> Self:
        """Make the folder and its file; StoreError if that fails or if a campaign is there already."""
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
        """A store without a folder, for a campaign that nobody wants to keep."""
        store = cls(None, sqlite3.connect(":memory:", isolation_level=None), None)
        store._begin_campaign(configuration)
        return store

    @classmethod
    def open(cls, folder: Path) -> Self:
        """A campaign's file, to go on; StoreError if there is none, or it is damaged, or in use."""
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
        """A campaign's file, to look at; it may be in use. StoreError if it cannot be read."""
        file = _existing(folder)
        try:
            store = cls(folder, _open_database_for_reading(file), None)
            if store.get("version") != VERSION:
                # A file that is only read stays as it is: the copy is what is brought up to date.
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
        """Close the file; what was committed is there."""
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # What the driver writes.

    def add(self, row: Row) -> None:
        """Write a case; it counts from the next `commit` on. StoreError if the disk refuses."""
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
        """Acknowledge what was written, `elapsed` seconds after the start; StoreError if the disk refuses."""
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
        """Write a file into a part of the folder, whole or not at all; StoreError if the disk refuses."""
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
        """What the campaign runs."""
        return configurations.from_json(self.get("configuration"))

    @property
    def elapsed(self) -> float:
        """Seconds that the campaign has run, all sessions together."""
        return float(self.get("elapsed"))

    def get(self, key: str, default: Any = None) -> Any:
        """One fact about the campaign; StoreError if that is not what a campaign writes."""
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
        """Every case in the file, without the text of its findings, by target and case number."""
        query = "select target, case_index, outcome, signature, reason, seconds, kind, at from results"
        for target, index, outcome, signature, reason, seconds, kind, at in self._query_database(query):
            yield Row(target, index, RunOutcome(outcome, signature, (), reason, seconds, kind), at)

    def seen(self, target: str, index: int) -> RunOutcome:
        """What was seen of a finding."""
        query = "select record from findings where target = ? and case_index = ?"
        ((record,),) = self._query_database(query, target, index)
        return run_from_json(json.loads(record))

    def examples(self) -> dict[tuple[str, int], Example]:
        """Every investigated example, by target and case."""
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
        """Cases by target, trait and outcome."""
        query = "select target, trait, outcome, cases from traits"
        return {(target, trait, outcome): n for target, trait, outcome, n in self._query_database(query)}

    def pairs(self) -> dict[tuple[str, str], int]:
        """Programs by pair of traits, each pair once and in alphabetical order."""
        query = "select trait, other, cases from pairs"
        return {(trait, other): n for trait, other, n in self._query_database(query)}

    def memory(self) -> list[Sample]:
        """How much memory was in use, over time."""
        return [
            Sample(*row) for row in self._query_database("select at, driver, worker from memory order by at")
        ]

    def _query_database(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a query; StoreError if the file is damaged."""
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
        """Bring a file of an earlier schema up to date, all at once; StoreError if that cannot be."""
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
    """This moment, in UTC."""
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
    """Open for reading; where even the files beside a log cannot be made, as it is on the disk."""
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
