"""`aotfuzz corpus add`, `list`, `check`, `prune` and `minimize`: a folder of recorded cases kept in order."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from tabulate import tabulate

from fuzz.campaign.devices import workers
from fuzz.campaign.replay import LEFT_OUT, Replayed, replay
from fuzz.campaign.store import FILE
from fuzz.commands.cases import read_all
from fuzz.commands.output import FINDINGS, NOTHING_NEW, WRONG, people, say, say_object
from fuzz.corpus import case_file
from fuzz.corpus.case_file import AGREES, DIFFERS, Case
from fuzz.corpus.collection import Collection, is_canonical
from fuzz.errors import ConfigurationError, DeviceError
from fuzz.safe_text import one_line, shell_command
from fuzz.targets.builtin_targets import SHIPPED
from fuzz.targets.catalog import usable_targets


def add(options: argparse.Namespace) -> int:
    """Record new cases, after each was run again.

    Exit status 1 if one is not as its file says, 2 if one cannot be read.
    """
    also = [target.name for target in usable_targets(options.target)]
    folder: Path = options.corpus
    if folder.exists():
        collection = Collection.load(folder)
    else:
        collection = Collection(folder, {}, (), ())
    cases, errors = read_all(_sources(options.paths))
    changed = lacking = False
    for file, case in cases:
        there = collection.holds(case)
        if there is not None:
            say(f"{file}: is there already, as {there}")
            continue
        names = list(dict.fromkeys([*(name for name in case.expected if name in SHIPPED), *also]))
        if not names:
            given = shell_command("--target", next(iter(case.expected)))
            say(
                f"aotfuzz: {file}: not added: it is run first, and its target does not ship; add {given}",
                sys.stderr,
            )
            lacking = True
            continue
        rows = replay([(file, case)], names, jobs_at_once=options.jobs or workers())
        wrong = [row for row in rows if row.outcome == LEFT_OUT or (row.expected and not row.as_expected)]
        if wrong:
            changed = True
            for row in wrong:
                gives = f"it gives {row.bucket or f'{row.outcome} {row.reason}'}"
                said = row.reason if row.outcome == LEFT_OUT else gives
                say(f"aotfuzz: {file}: not added: on {row.target} {said}", sys.stderr)
            continue
        for name in case.expected:
            if name not in names:
                say(f"{file}: not run on {name}, which no --target names")
        case = replace(
            case,
            expected={**case.expected, **_behaviour_seen_for_corpus(rows)},
            issue=options.issue or case.issue,
            note=case.note if options.note is None else options.note,
        )
        written = _free(folder, case_file.case_slug(case.bucket, case.origin.target))
        _write(written, case)
        collection.cases[written] = case
        say(f"{file}: added as {written}")
    if errors or lacking:
        return WRONG
    return FINDINGS if changed else NOTHING_NEW


def _free(folder: Path, name: str) -> Path:
    """A file name that is not used yet, because different buckets may give one name."""
    names = itertools.chain((name,), (f"{name}-{number}" for number in itertools.count(2)))
    return next(file for one in names if not (file := folder / f"{one}.json").exists())


def _sources(paths: Iterable[Path]) -> Iterator[Path]:
    """The cases of paths. A campaign's folder stands for the cases in it."""
    for path in paths:
        yield path / "corpus" if (path / FILE).is_file() else path


def _behaviour_seen_for_corpus(rows: Sequence[Replayed]) -> dict[str, str]:
    """What a case's targets did, if that can be expected of them again."""
    found = {}
    for row in rows:
        if row.outcome == "finding" and row.same_bucket:
            found[row.target] = DIFFERS
        elif row.outcome == "agree":
            found[row.target] = AGREES
    return found


def listing(options: argparse.Namespace) -> int:
    """List the cases. Exit status 2 if a file cannot be read."""
    collection = Collection.load(options.corpus)
    for error in collection.errors:
        say(f"aotfuzz: {error}", sys.stderr)
    if options.markdown:
        say(_findings_as_markdown(collection))
        return WRONG if collection.errors else NOTHING_NEW
    rows = [
        {
            "file": file.name,
            "bucket": case.bucket,
            "statements": len(case.program.statements),
            "issue": case.issue,
            "torch": case.torch,
            "differs": [name for name, state in case.expected.items() if state == DIFFERS],
            "agrees": [name for name, state in case.expected.items() if state == AGREES],
            "note": case.note,
        }
        for file, case in collection.cases.items()
    ]
    headers = ("file", "bucket", "statements", "issue", "torch", "differs", "agrees")
    table = [tuple(_cell(row[key]) for key in headers) for row in rows]
    say(tabulate(table, headers=headers), people(options))
    if options.json:
        say_object({"cases": rows, "errors": [str(error) for error in collection.errors]})
    return WRONG if collection.errors else NOTHING_NEW


def _findings_as_markdown(collection: Collection) -> str:
    """The differences from eager as Markdown, by target; those with an upstream number come first."""
    cases = sorted(
        (-len(differs), differs, case.issue is None, case.bucket, file.name, case)
        for file, case in collection.cases.items()
        if (differs := sorted(name for name, state in case.expected.items() if state == DIFFERS))
    )
    rows = [
        (
            ", ".join(f"`{name}`" for name in differs),
            _markdown(case.torch),
            _markdown(case.note),
            f"[{_markdown(name.removesuffix('.json'))}](../../corpus/{quote(name)})",
            f"[{case.issue}](https://github.com/pytorch/pytorch/issues/{case.issue})" if case.issue else "",
        )
        for _, differs, _, _, name, case in cases
    ]
    head = ("target", "torch", "what is wrong", "case", "upstream")
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def _markdown(text: str) -> str:
    """A stranger's text as a cell of a Markdown table.

    It cannot end a cell or a line, nor be a tag or a link.
    """
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return text.replace("|", r"\|").replace("](", r"\](")


def _cell(value: object) -> object:
    """A value as a cell of a table on a terminal."""
    text = ", ".join(value) if isinstance(value, list) else value
    return one_line(text) if isinstance(text, str) else text


def check(options: argparse.Namespace) -> int:
    """Find mistakes without running anything. Exit status 1 if there are any."""
    collection = Collection.load(options.corpus)
    if options.fix:
        for file, case in collection.cases.items():
            if not is_canonical(file, case):
                _write(file, case)
                say(f"{file}: rewritten")
    problems = collection.problems()
    for file, text in problems:
        say(one_line(f"{file}: {text}"))
    say(f"{len(collection.cases)} cases, {len(problems)} problems", sys.stderr)
    return FINDINGS if problems else NOTHING_NEW


def prune(options: argparse.Namespace) -> int:
    """Remove cases whose bucket another one has."""
    collection = Collection.load(options.corpus)
    for error in collection.errors:
        say(f"aotfuzz: {error}", sys.stderr)
    superfluous = collection.superfluous()
    for file, kept in superfluous:
        if not options.dry_run:
            _remove(file)
        say(f"{file}: {'would be ' if options.dry_run else ''}removed, {kept.name} has the same bucket")
    say(f"{len(superfluous)} of {len(collection.cases)} cases are superfluous", sys.stderr)
    return WRONG if collection.errors else NOTHING_NEW


def minimize(options: argparse.Namespace) -> int:
    """Reduce cases in their files. Exit status 1 if one no longer differs, 2 if one cannot be read or run."""
    from fuzz.campaign.reduce_case import reduce_case

    if options.target:
        usable_targets([options.target])
    cases, errors = read_all(options.paths or [options.corpus])
    status = WRONG if errors else NOTHING_NEW
    for file, case in cases:
        target = options.target or case.origin.target
        if target not in SHIPPED and not options.target:
            say(f"aotfuzz: {file}: is of {target}; name it with --target to run it", sys.stderr)
            status = WRONG
            continue
        try:
            reduced = reduce_case(case, target)
        except DeviceError as error:
            say(f"aotfuzz: {file}: {error}", sys.stderr)
            status = WRONG
            continue
        if reduced.case is None:
            say(f"aotfuzz: {file}: {reduced.said}", sys.stderr)
            status = max(status, FINDINGS)
        elif len(case_file.case_text(reduced.case)) >= len(case_file.case_text(case)):
            say(f"{file}: cannot be made smaller")
        else:
            said = _minimize_corpus_case(file, case, replace(reduced.case, origin=case.origin))
            say(f"{file}: {said or reduced.said}")
    return status


def _minimize_corpus_case(file: Path, case: Case, smaller: Case) -> str:
    """Write a smaller case if its other targets still do what is expected. Returns why not, or ""."""
    names = [name for name in case.expected if name in SHIPPED]
    rows = replay([(file, smaller)], names) if names else []
    for row in rows:
        if not row.as_expected:
            return f"kept as it is: the smaller one gives {row.bucket or row.outcome} on {row.target}"
    _write(file, smaller)
    return ""


def _write(file: Path, case: Case) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        case_file.write_case(file, case)
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror or error}") from error


def _remove(file: Path) -> None:
    try:
        file.unlink()
    except OSError as error:
        raise ConfigurationError(f"cannot remove {file}: {error.strerror or error}") from error
