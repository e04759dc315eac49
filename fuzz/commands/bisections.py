"""`aotfuzz bisect` and `aotfuzz corpus date`: since when something is wrong, and in which layer of torch."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from fuzz.bisection import commits, layers, versions
from fuzz.bisection.corpus_dates import date_cases, write_script
from fuzz.bisection.environments import install_torch
from fuzz.bisection.layers import Blame
from fuzz.bisection.trial import Outcome, RecordedCase, Script, Trial, Verdict
from fuzz.bisection.versions import History, VersionOutcome
from fuzz.campaign.devices import workers
from fuzz.commands.cases import read_all
from fuzz.commands.output import FINDINGS, NOTHING_NEW, WRONG, people, say, say_object
from fuzz.corpus import case_file, dates
from fuzz.corpus.case_file import Case
from fuzz.errors import ConfigurationError, CorpusError, ScriptError
from fuzz.interpreters import Interpreter, find_interpreter
from fuzz.safe_text import one_line
from fuzz.targets.builtin_targets import SHIPPED

_AOT_FUNCTION = "torch-aot-function"


def bisect(options: argparse.Namespace) -> int:
    """Find since when a case or a script is wrong. Exit status 0 if there is an answer, else 1."""
    if (options.git is None) != (options.build is None) or bool(options.git) != bool(
        options.good and options.bad
    ):
        raise ConfigurationError("--git REPO needs --good A, --bad B and --build COMMAND, and they need it")
    case = case_file.read(options.what) if options.what.suffix == ".json" else None
    if case is None and not options.what.is_file():
        raise ConfigurationError(f"{options.what} is neither a corpus file nor a script")
    trial = _trial(options, case)
    if options.git is not None:
        return _bisect_commits(options, trial)
    return _bisect_torch(options, case, trial)


def _trial(options: argparse.Namespace, case: Case | None) -> Trial:
    """What is run: a script unchanged, or a case on the given target, or else on the one that found it."""
    if case is None:
        if options.target:
            raise ConfigurationError("--target is for a corpus file: a script compiles by itself")
        return Script(options.what, tuple(shlex.split(options.script_args)))
    if options.script_args:
        raise ConfigurationError("--script-args is for a script: a corpus file takes no arguments")
    target: str = options.target or case.origin.target
    if target not in SHIPPED and not options.target:
        what = f"{target!r} does not ship with aotfuzz, and a file must not have it imported"
        raise CorpusError(options.what, "origin.target", what, "name it with --target")
    return RecordedCase(options.what, target)


def _bisect_commits(options: argparse.Namespace, trial: Trial) -> int:
    if options.python and len(options.python) > 1:
        raise ConfigurationError("--git takes one --python: its commits are what differs")
    python = options.python[0] if options.python else sys.executable
    asked = commits.Bisection(
        options.git,
        options.good,
        options.bad,
        options.build,
        trial,
        find_interpreter(python, torch_only=isinstance(trial, Script)),
        options.limit,
    )

    def report(commit: commits.Commit, outcome: Outcome) -> None:
        say(f"{commit}: {_words_of(outcome)}", sys.stderr)

    found = commits.find_commit(asked, report=report)
    stream = people(options)
    if len(found.commits) == 1:
        say(f"first wrong: {found.commits[0]}", stream)
        say(f"last right:  {found.before}", stream)
    else:
        say("first wrong is any of these; what lies between cannot be tried:", stream)
        for commit in found.commits:
            say(f"  {commit}", stream)
    if options.json:
        say_object({"trial": trial.name, "commits": found.to_json()})
    return NOTHING_NEW if len(found.commits) == 1 else FINDINGS


def _bisect_torch(options: argparse.Namespace, case: Case | None, trial: Trial) -> int:
    """Bisect over the versions of torch, then over the layers of the newest one that is wrong."""
    interpreters = _interpreters(options, torch_only=case is None)
    stream = people(options)

    def report(at: VersionOutcome) -> None:
        say(f"torch {at.torch}: {_words_of(at.outcome)}", sys.stderr)

    history = versions.try_versions(trial, interpreters, limit=options.limit, report=report)
    say(_history_table(history), stream)
    wrong = [at for at in history.outcomes if at.outcome.verdict is Verdict.WRONG]
    blame = None
    if wrong:
        interpreter = next(one for one in interpreters if one.python == wrong[-1].python)
        blame = _blame(options, case, trial, interpreter)
        say(_blame_text(blame), stream)
    else:
        say(f"{trial.name} is wrong under none of them", stream)
    if options.json:
        say_object({"trial": trial.name, "history": history.to_json(), "blame": blame and blame.to_json()})
    return NOTHING_NEW if blame is not None and blame.layer else FINDINGS


def _blame(options: argparse.Namespace, case: Case | None, trial: Trial, interpreter: Interpreter) -> Blame:
    """The layer of an interpreter's torch that is wrong."""
    torch = interpreter.torch
    folder = options.out / f"{options.what.stem}-torch-{dates.public_version(torch)}"
    if isinstance(trial, RecordedCase) and case is not None:
        if trial.target == _AOT_FUNCTION:
            said = "torch's AOTAutograd without Dynamo and without a compiler behind it"
            return Blame(torch, dates.AOT_AUTOGRAD, layers.LABELS[dates.AOT_AUTOGRAD], said=said)
        try:
            script = write_script(case, trial.target, folder)
        except OSError as error:
            raise ConfigurationError(f"cannot write {folder}: {error.strerror or error}") from error
    else:
        assert isinstance(trial, Script)
        script = trial
    try:
        return layers.find_layer(interpreter, script, folder=folder, limit=options.limit)
    except ScriptError as error:
        return Blame(torch, "", said=str(error))


def _interpreters(options: argparse.Namespace, *, torch_only: bool = False) -> list[Interpreter]:
    """The interpreters of the options, and those of installed versions; else this one."""
    found = [find_interpreter(python, torch_only=torch_only) for python in options.python]
    for version in options.torch:
        installed = install_torch(
            version,
            options.out,
            say=lambda text: say(text, sys.stderr),
            pip_arguments=shlex.split(options.pip_args),
        )
        found.append(installed)
    return found or [find_interpreter(sys.executable, torch_only=torch_only)]


def _words_of(outcome: Outcome) -> str:
    return one_line(f"{outcome.verdict}" + (f" ({outcome.said})" if outcome.said else ""))


def _history_table(history: History) -> str:
    rows = [(at.torch, str(at.outcome.verdict), one_line(at.outcome.said)[:100]) for at in history.outcomes]
    facts = [
        ("last right", history.last_right or "none of these"),
        ("first wrong", history.first_wrong or "none of these"),
        ("mended in", history.mended_in or "none of these"),
    ]
    return "\n\n".join((tabulate(rows, headers=("torch", "verdict", "")), tabulate(facts, tablefmt="plain")))


def _blame_text(blame: Blame) -> str:
    """The layer, its part, and two commands that differ by one step."""
    which = "" if blame.number is None else f"number {blame.number} of {blame.applications}, from 0"
    facts = [
        ("layer", blame.layer or "none found"),
        ("part", blame.part),
        ("which", " ".join(filter(None, (which, one_line(blame.name))))),
        ("label", blame.label),
        ("because", one_line(blame.said)),
    ]
    lines = ["", f"with torch {blame.torch}", tabulate([fact for fact in facts if fact[1]], tablefmt="plain")]
    if blame.right is not None and blame.wrong is not None:
        checked = "both were run" if blame.is_confirmed else "run once more, they did not end like that"
        lines += ["", f"right, and wrong, one step apart ({checked}):"]
    lines += [command.text for command in (blame.right, blame.wrong) if command is not None]
    return "\n".join(lines)


def date(options: argparse.Namespace) -> int:
    """Record what each version of torch does with each case.

    Exit status 1 if a layer is not found, 2 if a file cannot be read.
    """
    cases, errors = read_all(options.paths or [options.corpus])
    interpreters = _interpreters(options)
    dated = date_cases(
        cases,
        interpreters,
        folder=options.out,
        jobs=options.jobs or workers(),
        report=lambda text: say(text, sys.stderr),
    )
    rows: list[tuple[str, ...]] = []
    for at, (file, before) in zip(dated, cases, strict=True):
        if at.case != before:
            _write(file, at.case)
        if at.said:
            say(f"aotfuzz: {file}: no layer: {at.said}", sys.stderr)
        rows += _date_rows(at.case, file)
    say(tabulate(rows, headers=("case", "target", "seen", "layer")), people(options))
    if options.json:
        say_object({"cases": {str(at.file): _date_json(at.case) for at in dated}})
    if errors:
        return WRONG
    return FINDINGS if any(at.said for at in dated) else NOTHING_NEW


def _date_rows(case: Case, file: Path) -> Iterable[tuple[str, ...]]:
    for target, seen in case.dated.items():
        states = ", ".join(f"{version} {state}" for version, state in seen.items())
        yield one_line(file.stem)[:60], target, states, case.layer


def _date_json(case: Case) -> dict[str, Any]:
    return {
        dates.DATED: {target: dict(seen) for target, seen in case.dated.items()},
        dates.LAYER: case.layer or None,
    }


def _write(file: Path, case: Case) -> None:
    try:
        case_file.write_case(file, case)
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror or error}") from error
