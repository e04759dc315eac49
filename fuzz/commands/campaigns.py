"""`aotfuzz run`, `resume`, `report`, `diff` and `export`: campaigns, and what is read of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size

from fuzz.campaign.configuration import Configuration, campaign_versions, generator_fingerprint
from fuzz.campaign.devices import require_device, workers
from fuzz.campaign.ledger import Bucket
from fuzz.campaign.store import Store
from fuzz.campaign.summary import Summary, find_recorded_cases, store_recorded_cases, summarize
from fuzz.campaign.torch_pair.folder import is_comparison
from fuzz.commands.output import FINDINGS, GONE, NOTHING_NEW, WRONG, people, say, say_object
from fuzz.corpus.collection import Collection
from fuzz.corpus.known_issues import NAME, Issue
from fuzz.corpus.known_issues import read_known_issues as read_known
from fuzz.errors import ConfigurationError, StoreError
from fuzz.generate.profile_names import no_profile_imported
from fuzz.report import json_output, tables
from fuzz.report.screen import HEIGHT, MIN_WIDTH, WIDTH, campaign_screen
from fuzz.safe_text import shell_command
from fuzz.targets.clause_sets import clauses_of
from fuzz.targets.target import Target

DEFAULT_SECONDS = 60.0
REPORT = "report.html"


def run(options: argparse.Namespace) -> int:
    """Run a campaign in a folder of its own."""
    configuration = _campaign_configuration(options)
    issues, cases = _known_issues_of_options(options.known)
    folder = options.out or _new_folder(configuration.seed)
    with Store.create(folder, configuration) as store:
        say(f"Results go to {folder}", sys.stderr)
        return _run_campaign(options, configuration, store, issues, cases)


def resume(options: argparse.Namespace) -> int:
    """Continue a campaign, or a comparison of two; its bounds may be changed."""
    if is_comparison(options.folder):
        from fuzz.commands import comparisons

        return comparisons.resume(options)
    from fuzz.targets.catalog import usable_targets

    issues, cases = _known_issues_of_options(options.known)
    with Store.open(options.folder) as store:
        with _refusing_damaged_campaign(options.folder):
            configuration = store.configuration
        if options.jobs:
            configuration = replace(configuration, jobs=options.jobs)
        if options.seconds or options.cases:
            configuration = replace(configuration, seconds=options.seconds, cases=options.cases)
        usable_targets(list(configuration.targets))
        _require_same_campaign(store, configuration)
        store.set("configuration", _plain(configuration), store.elapsed)
        say(f"Going on in {options.folder} after {store.elapsed:.0f} s", sys.stderr)
        return _run_campaign(options, configuration, store, issues, cases)


def report(options: argparse.Namespace) -> int:
    """Print a campaign, or a comparison of two, and write its page."""
    if is_comparison(options.folder):
        from fuzz.commands import comparisons

        if options.junit or options.sarif:
            raise ConfigurationError(
                f"--junit and --sarif are for campaigns, and {options.folder} is a comparison of two torches"
            )
        with nullcontext() if options.import_profile else no_profile_imported():
            return comparisons.report(options)
    from fuzz.report.html_report import report_page

    with _read_campaign(options.folder, options.import_profile) as store:
        summary = summarize(store)
        file: Path = options.out or options.folder / REPORT
        told, text = _in_words(summary, options.all), report_page(summary, file.parent)
    say(told, people(options))
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"cannot write {file}: {error.strerror or error}; choose another with --out"
        ) from error
    _write_ci_formats(options, summary)
    say(f"The page is {file}", sys.stderr)
    if options.json:
        say_object(json_output.campaign_json(summary))
    return NOTHING_NEW


def diff(options: argparse.Namespace) -> int:
    """Compare two campaigns. Exit status 1 if their buckets differ."""
    from fuzz.report.diff import compare_campaigns, diff_table

    summaries = []
    for folder in (options.before, options.after):
        with _read_campaign(folder, options.import_profile) as store:
            summaries.append(summarize(store))
    found = compare_campaigns(*summaries)
    _write_ci_formats(options, found.after, found.only_after)
    say(diff_table(found), people(options))
    if options.json:
        say_object(json_output.difference_json(found))
    return FINDINGS if found.only_before or found.only_after else NOTHING_NEW


def history(options: argparse.Namespace) -> int:
    """Print the faults of many nights, and write their page.

    Exit status 1 if there is news (`History.has_news`).
    """
    from fuzz.report.history import campaign_history, history_table
    from fuzz.report.history_page import history_page

    summaries = []
    for folder in options.folders:
        with _read_campaign(folder, options.import_profile) as store:
            summaries.append(summarize(store))
    found = campaign_history(summaries)
    file: Path = options.out
    try:
        file.write_text(history_page(found, file.parent), encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"cannot write {file}: {error.strerror or error}; choose another with --out"
        ) from error
    say(history_table(found), people(options))
    say(f"The page is {file}", sys.stderr)
    if options.json:
        say_object(json_output.history_json(found))
    return FINDINGS if found.has_news else NOTHING_NEW


def _write_ci_formats(
    options: argparse.Namespace, summary: Summary, only: Sequence[Bucket] | None = None
) -> None:
    """Write the files for continuous integration that the options name.

    Raises:
        StoreError: that fails.
    """
    from fuzz.report.ci_formats import FORMATS

    for name, text_of in FORMATS.items():
        file: Path | None = getattr(options, name)
        if file is not None:
            try:
                file.write_text(text_of(summary, only), encoding="utf-8")
            except OSError as error:
                raise StoreError(f"cannot write {file}: {error.strerror or error}") from error


def export(options: argparse.Namespace) -> int:
    """Print a campaign as JSON lines."""
    from fuzz.campaign.export import lines

    with _read_campaign(options.folder, options.import_profile) as store:
        if options.out is None:
            for text in lines(store):
                say(text)
            return NOTHING_NEW
        try:
            with options.out.open("w", encoding="utf-8") as file:
                file.writelines(f"{text}\n" for text in lines(store))
        except OSError as error:
            raise StoreError(f"cannot write {options.out}: {error.strerror or error}") from error
    return NOTHING_NEW


@contextmanager
def _read_campaign(folder: Path, import_profile: bool) -> Iterator[Store]:
    """The store of a campaign, perhaps of a stranger.

    Nothing that it names is imported, unless an option allows it.
    """
    imports = nullcontext() if import_profile else no_profile_imported()
    with imports, _refusing_damaged_campaign(folder), Store.read(folder) as store:
        yield store


@contextmanager
def _refusing_damaged_campaign(folder: Path) -> Iterator[None]:
    """While it lasts, any error of reading a campaign's file says that it is damaged."""
    try:
        yield
    except ConfigurationError as error:
        raise StoreError(f"{folder} holds no campaign that can be read so: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise StoreError(
            f"{folder} holds no campaign of aotfuzz, or a damaged one: {type(error).__name__}: {error}"
        ) from error


def _run_campaign(
    options: argparse.Namespace,
    configuration: Configuration,
    store: Store,
    issues: tuple[Issue, ...],
    cases: Path | None,
) -> int:
    from fuzz.campaign.driver import Campaign
    from fuzz.campaign.progress import progress_shown
    from fuzz.report.html_report import report_page

    with progress_shown(configuration, sys.stderr) as watch:
        with _refusing_damaged_campaign(store.folder or Path()):
            campaign = Campaign(configuration, store, watch)
        summary = campaign.run()
    try:
        summary = _with_standings(store, summary, issues, cases)
        summary = _with_recorded_cases(store, summary, cases)
        if store.folder is not None:
            store.file("", REPORT, report_page(summary))
    except StoreError as error:
        summary = replace(summary, troubles=[*summary.troubles, str(error)])
    say(_in_words(summary, all_=False), people(options))
    if options.json:
        say_object(json_output.campaign_json(summary))
    return status(summary)


def _in_words(summary: Summary, all_: bool) -> str:
    """A campaign as text: on one screen of the terminal's width, or all of it."""
    if all_:
        return tables.campaign_table(summary)
    return campaign_screen(summary, max(MIN_WIDTH, get_terminal_size((WIDTH, HEIGHT)).columns))


def status(summary: Summary) -> int:
    """The exit status of a campaign."""
    if summary.troubles:
        return WRONG
    if summary.new or summary.reticent or any(standing.state == "back" for standing in summary.known):
        return FINDINGS
    return GONE if summary.gone else NOTHING_NEW


def _with_standings(store: Store, summary: Summary, issues: tuple[Issue, ...], cases: Path | None) -> Summary:
    from fuzz.campaign.known_issue_status import known_issue_standings, unchecked_standings

    targets, torch_version = summary.configuration.targets, summary.versions["torch"]
    if summary.interrupted:
        known = unchecked_standings(issues, targets, torch_version)
    else:
        known = known_issue_standings(
            issues, cases or Path(), targets, torch_version, jobs_at_once=summary.configuration.jobs
        )
    store.set("known", [standing.to_json() for standing in known], store.elapsed)
    return replace(summary, known=known)


def _with_recorded_cases(store: Store, summary: Summary, cases: Path | None) -> Summary:
    """The summary with recorded cases that explain buckets. Files that cannot be read explain nothing."""
    collection = None if cases is None or not summary.buckets else Collection.load(cases)
    if collection is None:
        return summary
    if collection.errors:
        say(
            f"{len(collection.errors)} recorded cases in {cases} cannot be read, and explain nothing: "
            f"{shell_command('aotfuzz', 'corpus', 'check', '--corpus', cases or '')}",
            sys.stderr,
        )
    recorded = find_recorded_cases(summary.buckets, collection.cases, summary.versions["torch"])
    store_recorded_cases(store, recorded)
    return replace(summary, recorded=recorded)


def _known_issues_of_options(name: str | None) -> tuple[tuple[Issue, ...], Path | None]:
    """The known issues, and the folder of the recorded cases; None if there are none."""
    if name == "none":
        return (), None
    file = Path("corpus") / NAME if name is None else Path(name)
    if name is None and not file.exists():
        return (), file.parent if file.parent.is_dir() else None
    return read_known(file), file.parent


def _campaign_configuration(options: argparse.Namespace) -> Configuration:
    """The configuration of the campaign that the options ask for.

    Raises:
        FuzzError: it cannot run here.
    """
    from fuzz.generate.profile_names import find_profile, profile_name
    from fuzz.probe.capability_file import read_lacked_traits
    from fuzz.targets.catalog import usable_targets
    from fuzz.targets.target import lacked_by_all

    targets = usable_targets(options.target)
    lacks = lacked_by_all(targets)
    if options.capabilities is not None:
        lacks = (*lacks, *read_lacked_traits(options.capabilities))
    profile = profile_name(options.profile, options.operators, options.without_operators, lacks)
    find_profile(profile)
    if not options.cluster:
        require_device(options.device)
    seconds = options.seconds
    if seconds is None and options.cases is None:
        seconds = DEFAULT_SECONDS
    return Configuration(
        targets=tuple(target.name for target in targets),
        seed=options.seed,
        profile=profile,
        device=options.device,
        jobs=options.jobs or _default_jobs(options),
        seconds=seconds,
        cases=options.cases,
        limit=options.case_timeout,
        cluster=options.cluster,
        clauses=_judged_clauses(options, targets),
    )


def _judged_clauses(options: argparse.Namespace, targets: Sequence[Target]) -> tuple[str, ...]:
    """The clauses that the options name; none if these are all that the targets promise."""
    if not (options.clauses or options.without):
        return ()
    clauses = clauses_of(options.clauses or ("everything",), options.without)
    for target in targets:
        if not set(clauses) & set(target.promised):
            raise ConfigurationError(
                f"target {target.name!r} promises none of the clauses that are to be judged: it promises "
                f"{', '.join(target.promised)}"
            )
    return clauses


def _default_jobs(options: argparse.Namespace) -> int:
    """The default number of workers: for this machine, or for each node of a cluster.

    A local node has one.
    """
    if not options.cluster:
        return workers(options.device)
    return 1 if options.cluster.startswith("local:") else 0


def _require_same_campaign(store: Store, configuration: Configuration) -> None:
    """Refuse to continue a campaign whose file was made with other programs or another torch."""
    before, here = store.get("versions")["torch"], campaign_versions()["torch"]
    if before != here:
        raise StoreError(
            f"{store.folder} was run with torch {before}, and this is {here}; "
            "run a campaign of its own and compare the two with aotfuzz diff"
        )
    if store.get("versions")["generator"] != generator_fingerprint(configuration):
        raise StoreError(
            f"{store.folder} was run with another version of the generator, which made other programs of its "
            "seed; run a campaign of its own"
        )


def _plain(configuration: Configuration) -> object:
    from fuzz.campaign.configuration import to_json

    return to_json(configuration)


def _new_folder(seed: int) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    parent = Path("campaigns")
    names = (f"{stamp}-seed{seed}{suffix}" for suffix in ("", *(f"-{count}" for count in range(2, 100))))
    return next(folder for name in names if not (folder := parent / name).exists())
