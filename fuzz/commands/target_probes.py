"""`aotfuzz probe`: what a target takes, one trait of programs at a time."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from shutil import get_terminal_size

from fuzz.campaign.configuration import campaign_versions
from fuzz.campaign.devices import workers
from fuzz.commands.output import FINDINGS, NOTHING_NEW, people, say, say_object
from fuzz.errors import StoreError
from fuzz.probe.ask import Answer, lacked_traits, probe_target
from fuzz.probe.capability_file import capability_text
from fuzz.probe.probe_table import WIDTH, probe_table
from fuzz.targets.catalog import usable_targets

_WRONG = ("wrong", "crash", "hang")


def probe(options: argparse.Namespace) -> int:
    """Try a target with each trait that programs may have.

    Exit status 1 if something is wrong, crashes or hangs.
    """
    [target] = usable_targets([options.target])
    file: Path = options.out or Path(f"{_file_name(target.name)}.toml")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # it is found before minutes are spent
        raise StoreError(f"cannot write {file}: {error}") from error
    start = time.monotonic()

    def watch(what: str, count: int) -> None:
        say(f"{time.monotonic() - start:5.0f} s: {count} questions about {what}", sys.stderr)

    answers = probe_target(
        target.name, jobs=options.jobs or workers("cpu"), limit=options.case_timeout, watch=watch
    )
    scripts = _write_scripts(file.parent / f"{file.stem}-repro", answers)
    torch_version = campaign_versions()["torch"]
    _write(file, capability_text(target.name, torch_version, answers, file))
    width = max(80, get_terminal_size((WIDTH, 40)).columns)
    say(probe_table(answers, everything=options.all, width=width), people(options))
    left_out = len(lacked_traits(answers))
    said = f"{file} leaves {left_out} of {len(answers)} traits out"
    say(said + (f"; scripts of what is wrong are in {scripts}" if scripts else ""), people(options))
    if options.json:
        rows = [{"trait": one.trait, "state": one.state, "message": one.message} for one in answers]
        say_object({"target": target.name, "torch": torch_version, "file": str(file), "answers": rows})
    return FINDINGS if any(one.state in _WRONG for one in answers) else NOTHING_NEW


def _write_scripts(folder: Path, answers: list[Answer]) -> Path | None:
    """Write a script for each answer that has one, and return their folder; None if none has."""
    shown = [answer for answer in answers if answer.script]
    if not shown:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.strerror or error}; choose --out") from error
    for answer in shown:
        _write(folder / f"{_file_name(answer.trait)}.py", answer.script)
    return folder


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}; choose --out") from error


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "target"
