"""Replay graphs: whether `aot` still makes the same graphs, wrappers and guards of what it compiles.

A refactoring of `aot` changes nothing of what it compiles. Generated programs, small models, the calls of
`bench calls` and the operators and modules of torch's databases are compiled, through each front end; what is
made of each is kept as a digest: graphs, joint graphs, wrappers, guards (the tests of the inline cache
included), the metadata that `aot.explain` prints, and the outcome. With `--against` it is compared with what
another run has kept, and the exit status is 1 where anything differs.

Each case has a process of its own, so that it does not depend on what was compiled before. Addresses,
folders, and names of modules of `aot` are left out; names of nodes and of generated variables are not.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import itertools
import json
import multiprocessing
import re
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.fuzzer.cases import forked
from bench.report import Table
from fuzz.execute.garbage import sweep_garbage

if TYPE_CHECKING:
    from bench.compiler.replay_cases import Case

SECONDS = 1800  # on the wall, after which a case is one that hangs
CASES = 2000
_SHOWN = 10  # differences that are shown
_LINES = 24  # of each
_DIGITS = 20  # of SHA-256
_DIFFER = "cases that differ"

Digests = dict[str, dict[str, str]]
"""The digest of each part of each case, by name."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--cases", type=int, default=CASES, help=f"generated programs (default: {CASES})")
    parser.add_argument("--seed", type=int, default=0, help="of the programs (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases of such names (default: all)")
    parser.add_argument("--output", type=Path, help="the JSON file to write: a digest of each part of a case")
    parser.add_argument("--against", type=Path, help="such a file, to compare with")
    parser.add_argument("--texts", type=Path, help="the folder to keep texts in, under their digests")


def measure(options: argparse.Namespace) -> list[Table]:
    """Compile every case, and compare."""
    before: Digests | None = None
    if options.against is not None:
        known: Digests = json.loads(options.against.read_text(encoding="utf-8"))
        before = {name: parts for name, parts in known.items() if re.search(options.only, name)}
    start = time.monotonic()
    digests = replay(options.cases, options.seed, options.only, options.jobs, options.texts)
    seconds = time.monotonic() - start
    if options.output is not None:
        options.output.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    changes = [] if before is None else find_changes(before, digests)
    counted = Counter(part for parts in digests.values() for part in parts)
    changed = Counter(change.part for change in changes)
    summary = f"{len(digests):,} cases in {seconds:.0f} seconds"
    if before is not None:
        summary += f"; {len({change.case for change in changes}):,} differ from {options.against}"
    rows = tuple(
        (part, counted[part], None if before is None else changed[part]) for part in sorted(counted | changed)
    )
    tables = [Table("what aot makes of the cases", ("part", "cases", "differ"), rows, (summary,))]
    if changes:
        cases = itertools.groupby(changes, key=lambda change: change.case)
        lines = tuple((case, ", ".join(change.part for change in ones)) for case, ones in cases)
        tables.append(Table(_DIFFER, ("case", "parts"), lines, tuple(_differences(changes, options.texts))))
    return tables


def status(tables: Sequence[Table]) -> int:
    """The exit status: 1 if anything has changed."""
    return int(any(table.title == _DIFFER for table in tables))


def replay(count: int, seed: int, only: str = "", jobs: int = 1, texts: Path | None = None) -> Digests:
    """Compile everything: the digest of each part of each case.

    Args:
        count: how many generated programs.
        only: the pattern that a case's name has to contain.
        texts: the folder to keep texts in.

    Raises:
        RuntimeError: the process ends that the cases are forked from.
    """
    options = (count, seed, only, jobs, texts)
    digests: Digests | None
    digests, failure, _ = forked(_replay_all, options)  # so that nothing of it stays in this process
    if digests is None:
        raise RuntimeError(failure)
    return digests


def _replay_all(options: tuple[int, int, str, int, Path | None]) -> Digests:
    count, seed, only, jobs, texts = options
    # (They import torch's databases, without which the other commands start sooner.)
    from bench.compiler import replay_cases
    from bench.compiler.generated_code import watch_sources

    every = (*replay_cases.programs(count, seed), *replay_cases.others())
    chosen = [case for case in every if re.search(only, case.name)]
    if texts is not None:
        texts.mkdir(parents=True, exist_ok=True)
    watch_sources()
    replay_cases.prepare()
    sweep_garbage()
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, fork, _set_cases, (chosen, texts)) as executor:
        found = list(executor.map(_replay_apart, range(len(chosen))))
    return {case.name: parts for case, parts in zip(chosen, found, strict=True)}


_cases: list[Case] = []  # of a worker, which is forked and inherits them
_texts: Path | None = None


def _set_cases(cases: list[Case], texts: Path | None) -> None:
    global _texts
    _cases[:] = cases
    _texts = texts


def _replay_apart(number: int) -> dict[str, str]:
    """The digests of a case, which has a process of its own."""
    parts, failure, _ = forked(_replay, number)
    if parts is None:
        return {"outcome": f"the process ended: {failure.splitlines()[-1]}"}
    digests: dict[str, str] = parts
    return digests


def _replay(number: int) -> dict[str, str]:
    from bench.compiler.generated_code import CodeRecorder

    case = _cases[number]
    signal.alarm(SECONDS)
    with warnings.catch_warnings(), CodeRecorder() as recorder:
        warnings.simplefilter("ignore")
        try:
            case.run(recorder)
        except Exception as error:
            recorder.add_error(error)
    digests = {}
    for part, text in recorder.texts().items():
        digests[part] = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
        if _texts is not None:
            _file(_texts, digests[part]).write_text(text, encoding="utf-8")
    return digests


def _file(texts: Path, digest: str) -> Path:
    return texts / f"{digest}.txt"


@dataclass(frozen=True, slots=True)
class Change:
    """A part of a case that differs: its digests before and after; "" where there is no such part."""

    case: str
    part: str
    before: str
    after: str


def find_changes(before: Digests, after: Digests) -> list[Change]:
    """What differs between two runs, by case. A case that only one of them has differs in all its parts."""
    changes = []
    for case in {**before, **after}:
        old, new = before.get(case, {}), after.get(case, {})
        changes += [
            Change(case, part, old.get(part, ""), new.get(part, ""))
            for part in {**old, **new}
            if old.get(part) != new.get(part)
        ]
    return changes


def _differences(changes: Sequence[Change], texts: Path | None) -> Iterator[str]:
    """The first lines of the first differences, of which both texts have been kept."""
    if texts is None:
        return
    pairs = {(change.before, change.after): change for change in reversed(changes)}
    for change in itertools.islice(reversed(pairs.values()), _SHOWN):
        files = [_file(texts, digest) for digest in (change.before, change.after)]
        if all(file.is_file() for file in files):
            before, after = (file.read_text(encoding="utf-8").splitlines() for file in files)
            lines = itertools.islice(difflib.unified_diff(before, after, n=1, lineterm=""), 2, _LINES)
            yield "\n".join((f"{change.case}: {change.part}", *lines, ""))
