"""`aotfuzz compare`, and `resume` and `report` of its folder: the same programs under two torches."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.devices import workers
from fuzz.campaign.torch_pair.folder import PAGE, SIDES, write_text
from fuzz.campaign.torch_pair.sessions import begin_comparison, resume_comparison
from fuzz.campaign.torch_pair.torch_difference import (
    TorchDifference,
    read_torch_difference,
    write_example_files,
)
from fuzz.commands.output import FINDINGS, NOTHING_NEW, WRONG, people, say, say_object
from fuzz.errors import ConfigurationError, StoreError
from fuzz.generate.profile_names import find_profile, profile_name
from fuzz.report.comparison_page import comparison_page
from fuzz.report.torch_comparison import torch_comparison_json, torch_comparison_table, verdict
from fuzz.safe_text import shell_command


def compare(options: argparse.Namespace) -> int:
    """Run a comparison in a folder of its own."""
    if len(options.python) != 2:
        raise ConfigurationError(
            f"compare takes --python twice, before and after; it was given {len(options.python)} times"
        )
    profile = profile_name(options.profile, options.operators, options.without_operators)
    find_profile(profile)
    configuration = Configuration(
        targets=tuple(dict.fromkeys(options.target)),
        seed=options.seed,
        profile=profile,
        device=options.device,
        jobs=options.jobs or workers(options.device),
        cases=options.cases,
        limit=options.case_timeout,
    )
    folder = options.out or Path("campaigns") / f"{time.strftime('%Y%m%d-%H%M%S')}-compare{options.seed}"
    say(f"Results go to {folder}", sys.stderr)
    before, after = options.python
    return _run_and_tell(
        options, folder, lambda: begin_comparison(folder, (before, after), configuration, _watch)
    )


def resume(options: argparse.Namespace) -> int:
    """Continue a comparison. With --cases both campaigns become longer."""
    if options.seconds:
        raise ConfigurationError(
            f"{options.folder} holds a comparison, which is bounded by cases: the two run the same programs"
        )
    if options.known not in (None, "none"):
        raise ConfigurationError(f"{options.folder} holds a comparison, for which no issue is known")
    say(f"Going on in {options.folder}", sys.stderr)
    return _run_and_tell(
        options,
        options.folder,
        lambda: resume_comparison(options.folder, _watch, cases=options.cases, jobs=options.jobs),
    )


def report(options: argparse.Namespace) -> int:
    """Print a comparison and write its page."""
    difference = read_torch_difference(options.folder)
    _tell(options, difference, options.out or options.folder / PAGE)
    return NOTHING_NEW


def _run_and_tell(options: argparse.Namespace, folder: Path, session: Callable[[], list[str]]) -> int:
    """Run a session, and print the result, also if it was interrupted."""
    troubles: list[str] = []
    try:
        troubles = session()
    except KeyboardInterrupt:
        again = shell_command("aotfuzz", "resume", folder)
        say(f"Interrupted; `{again}` goes on from there", sys.stderr)
        if not all((folder / name).is_dir() for name in SIDES):
            return WRONG
    difference = read_torch_difference(folder)
    write_example_files(difference)
    difference = read_torch_difference(folder)
    _tell(options, difference, folder / PAGE)
    troubles += difference.before.troubles + difference.after.troubles
    for text in troubles:
        say(f"Trouble: {text}", sys.stderr)
    if troubles:
        return WRONG
    return FINDINGS if difference.news else NOTHING_NEW


def _tell(options: argparse.Namespace, difference: TorchDifference, page: Path) -> None:
    say(torch_comparison_table(difference), people(options))
    say(verdict(difference), people(options))
    try:
        write_text(page, comparison_page(difference))
    except StoreError as error:
        raise StoreError(f"{error}; choose another with --out") from error
    say(f"The page is {page}", sys.stderr)
    if options.json:
        say_object(torch_comparison_json(difference))


def _watch(text: str) -> None:
    say(text, sys.stderr)
