"""`aotfuzz replay`, `reduce`, `minify`, `show`, `repro` and `targets`: recorded cases, and what runs them."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tabulate import tabulate

from fuzz.campaign.devices import workers
from fuzz.commands.output import FINDINGS, NOTHING_NEW, WRONG, people, say, say_object
from fuzz.corpus import case_file
from fuzz.corpus.case_file import Case
from fuzz.errors import ConfigurationError, CorpusError, NoDifference, TargetError
from fuzz.report import json_output, tables
from fuzz.safe_text import one_line, shell_command
from fuzz.targets.adapters import ADAPTED, adapter
from fuzz.targets.builtin_targets import SHIPPED
from fuzz.targets.catalog import find_target, usable_targets
from fuzz.targets.plugins import attribute, registered_targets


def replay(options: argparse.Namespace) -> int:
    """Run recorded cases again. Exit status 1 if one is not as its file says, 2 if a file cannot be read."""
    from fuzz.campaign.progress import count_shown
    from fuzz.campaign.replay import LEFT_OUT, planned_runs
    from fuzz.campaign.replay import replay as run

    targets = [target.name for target in usable_targets(options.target)]
    cases, errors = read_all(options.paths or [Path("corpus")])
    ungiven = {} if targets else _of_targets_that_are_not_given(cases)
    idle = [
        file for file, case in cases if not targets and not any(name in SHIPPED for name in case.expected)
    ]
    if cases and len(idle) == len(cases):
        raise ConfigurationError(
            f"nothing is expected of a target that ships with aotfuzz ({len(cases)} cases), and no file may "
            f"have another one imported; name it: {_with_targets(options.paths, ungiven)}"
        )
    rows = []
    if work := planned_runs(cases, targets):
        jobs, names = options.jobs or workers(), dict.fromkeys(name for _, _, name in work)
        which = "on" if targets else "each on those that its file expects something of, among"
        say(
            f"Replaying {len(cases)} cases {which} {', '.join(names)}: {len(work)} runs, {jobs} at once "
            "(--jobs); what each does is held against its file",
            sys.stderr,
        )
        with count_shown("runs", len(work), sys.stderr) as watch:
            rows = run(cases, targets, jobs_at_once=jobs, watch=watch)
    if rows:
        say(tables.replay(rows), people(options))
    unexpected = sum(not row.as_expected for row in rows)
    left_out = sum(row.outcome == LEFT_OUT for row in rows)
    said = f"{len(rows) - left_out} replayed, {unexpected} not as expected, {len(errors)} unreadable"
    said += f", {left_out} left out: their device is not here" if left_out else ""
    if ungiven:
        count = len({file for files in ungiven.values() for file in files})
        said += f", {count} not run on targets that are not given: {_with_targets(options.paths, ungiven)}"
    say(said, sys.stderr)
    if options.json:
        not_run = {name: [str(file) for file in files] for name, files in ungiven.items()}
        say_object({**json_output.replay(rows, errors), "not_run": not_run})
    if errors:
        return WRONG
    return FINDINGS if unexpected else NOTHING_NEW


def _of_targets_that_are_not_given(cases: Iterable[tuple[Path, Case]]) -> dict[str, list[Path]]:
    """Targets that do not ship but for which files have expectations, each with these files."""
    found: dict[str, list[Path]] = {}
    for file, case in cases:
        for name in case.expected:
            if name not in SHIPPED:
                found.setdefault(name, []).append(file)
    return found


def _with_targets(paths: Sequence[Path], names: Iterable[str]) -> str:
    """The command that replays files on these targets."""
    return shell_command(
        "aotfuzz", "replay", *paths, *(word for name in names for word in ("--target", name))
    )


def read_all(paths: Iterable[Path]) -> tuple[list[tuple[Path, Case]], Sequence[CorpusError]]:
    """The readable cases, and the errors of the others, which were printed already."""
    cases: list[tuple[Path, Case]] = []
    errors: list[CorpusError] = []
    for file in case_file.case_files(paths):
        try:
            cases.append((file, case_file.read(file)))
        except CorpusError as error:
            errors.append(error)
            say(f"aotfuzz: {error}", sys.stderr)
    return cases, errors


def reduce(options: argparse.Namespace) -> int:
    """Make a case smaller. Exit status 1 if it does not show the difference that its file records."""
    from fuzz.campaign.reduce_case import reduce_case

    case = case_file.read(options.file)
    (target,) = usable_targets([options.target])
    reduced = reduce_case(case, target.name)
    if reduced.case is None:
        say(f"aotfuzz: {options.file}: {reduced.said}", sys.stderr)
        return FINDINGS
    say(reduced.said, sys.stderr)
    if options.out is None:
        say(case_file.case_text(reduced.case).rstrip("\n"))
    else:
        try:
            case_file.write_case(options.out, reduced.case)
        except OSError as error:
            raise ConfigurationError(f"cannot write {options.out}: {error.strerror or error}") from error
    return NOTHING_NEW if reduced.as_recorded else FINDINGS


def minify(options: argparse.Namespace) -> int:
    """Print the script of a user's function, made smaller. Exit status 1 if it does not differ."""
    from fuzz.minify import minify as run

    given = f"function {options.function!r}"
    must_be = "a function without parameters that returns a function and a tuple of its arguments"
    make = attribute(given, options.function, must_be)
    try:
        function, args = make()
    except Exception as error:
        raise ConfigurationError(f"{given}: {type(error).__name__}: {error}; it must be {must_be}") from error
    try:
        minified = run(function, args, options.target, evaluations=options.evaluations)
    except NoDifference as error:
        say(f"aotfuzz: {error}", sys.stderr)
        return FINDINGS
    say(minified.text.rstrip("\n"))
    said = f"{minified.calls_before} -> {minified.calls} calls in {minified.evaluations} evaluations"
    say(f"{said}: {minified.bucket}", sys.stderr)
    return NOTHING_NEW


def show(options: argparse.Namespace) -> int:
    """Print cases for people. Exit status 2 if one cannot be read."""
    cases, errors = read_all(options.files)
    if cases:
        say("\n\n\n".join(tables.case_table(file, case) for file, case in cases))
    return WRONG if errors else NOTHING_NEW


def repro(options: argparse.Namespace) -> int:
    """Print a case's script, or a report of it.

    Exit status 1 if a report's case does not differ, or fails a check.
    """
    from fuzz.repro import script as scripts

    if options.format == "issue":
        return _report_case(options)
    if options.check:
        raise ConfigurationError("--check is about a report: add --format issue")
    case = case_file.read(options.file)
    target = options.target or case.origin.target
    if options.target:
        find_target(target)
    elif target not in SHIPPED:
        what = f"{target!r} does not ship with aotfuzz, and a file must not have it imported"
        raise CorpusError(options.file, "origin.target", what, "name it with --target to have its script")
    say(scripts.repro_script(case.program, target, scripts.main_finding(case)).rstrip("\n"))
    return NOTHING_NEW


def _report_case(options: argparse.Namespace) -> int:
    """Print a case as a report, after its reproducer has been run."""
    from fuzz.bisection.issue_evidence import report_case
    from fuzz.repro.issue_checks import check_issue

    case = case_file.read(options.file)
    target = options.target or _reported_target(options.file, case)
    usable_targets([target])
    try:
        text = report_case(case, target)
    except NoDifference as error:
        say(f"aotfuzz: {options.file}: {error}", sys.stderr)
        return FINDINGS
    if not options.check:
        say(text.rstrip("\n"))
        return NOTHING_NEW
    points = check_issue(text)
    rows = [
        (number, point.check.name, one_line(point.problem) or "yes", point.problem and point.check.remedy)
        for number, point in enumerate(points, start=1)
    ]
    say(tabulate(rows, headers=("", "point", "met", "what to do"), disable_numparse=True))
    return FINDINGS if any(point.problem for point in points) else NOTHING_NEW


def _reported_target(file: Path, case: Case) -> str:
    """The target of a case's report: its own, or the first of torch's that is expected to differ."""
    names = [case.origin.target, *case.expected]
    for name in names:
        is_others = name in ADAPTED or (name in SHIPPED and name.startswith("torch-"))
        if is_others and case.state(name, importlib.metadata.version("torch")) == case_file.DIFFERS:
            return name
    version = importlib.metadata.version("torch")
    what = f"no compiler of others is expected to differ under torch {version}"
    raise CorpusError(file, "expected", what, "there is nothing to report; --target T chooses one")


def targets(options: argparse.Namespace) -> int:
    """List the compilers that can be tested."""
    rows = [(target.name, target.description, target.available()) for target in SHIPPED.values()]
    rows += [
        (target.name, target.description, target.available())
        for target in (adapter(name).target for name in ADAPTED)
    ]
    rows += [_registered(name) for name in registered_targets()]
    if options.json:
        keys = ("name", "description", "unavailable")
        say_object({"targets": [dict(zip(keys, row, strict=True)) for row in rows]})
        return NOTHING_NEW
    for name, description, reason in rows:
        say(f"{name:26} {description}" + (f" (unavailable: {reason})" if reason else ""))
    say("backend:NAME              a backend of torch.compile, such as backend:cudagraphs")
    say("package.module:function   anybody's: function(f) returns f compiled")
    return NOTHING_NEW


def _registered(name: str) -> tuple[str, str, str | None]:
    """The row of a package's own target. A target that cannot be loaded is unavailable."""
    try:
        target = find_target(name)
    except TargetError as error:
        return name, "registered by an installed package", str(error)
    return name, target.description, target.available()
