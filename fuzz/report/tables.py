"""Tables: a campaign, a replay or a corpus file as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tabulate import tabulate

from fuzz.campaign.memory_gauge import MIB
from fuzz.corpus.case_file import Case
from fuzz.program.decode import Duplicate, Program, Root, Scalar, Storage, View
from fuzz.program.printer import render
from fuzz.report.causes import Cause, causes, news_of
from fuzz.report.screen import below_you
from fuzz.safe_text import one_line, shorten_middle

if TYPE_CHECKING:
    from fuzz.campaign.ledger import Bucket
    from fuzz.campaign.replay import Replayed
    from fuzz.campaign.summary import Summary
    from fuzz.corpus.known_issues import IssueStatus

# How many buckets are shown with their source. The table and the files have the rest.
SHOWN = 5
STATES = {
    "shown": "script shows it",
    "confirmed": "confirmed",
    "flaky": "FLAKY",
    "unconfirmed": "NOT CONFIRMED",
    "unreduced": "not reduced",
}


def campaign_table(summary: Summary) -> str:
    """A finished campaign as text: a row for each target, cause, bucket and reason, and the worst sources."""
    parts = [_targets_table(summary)]
    if summary.below:
        parts.append(_below_table(summary))
    for word, counted in (("poisoned", "poisons"), ("refused", "refusals")):
        reasons = [
            (target, shorten(reason, 200), count)
            for target, tally in summary.tallies.items()
            for reason, count in getattr(tally, counted).most_common()
            if not below_you(reason)
        ]
        if reasons:
            parts.append(tabulate(reasons, headers=("target", f"{word} because", "cases")))
    if summary.buckets:
        found = causes(summary)
        parts.append(_causes_table(found))
        parts.append(_buckets_table(found, summary))
        parts.extend(_doubtful_findings_table(summary))
        parts.extend(_sources_table(found, summary))
    else:
        parts.append("No differences found.")
    parts.extend(f"Too much refused: {text}." for text in summary.reticent.values())
    if summary.known:
        parts.append(_known(summary))
    if summary.memory:
        parts.append(_memory(summary))
    if summary.interrupted:
        parts.append("Not complete: this is what was found until then.")
    parts.extend(f"Trouble: {text}" for text in summary.troubles)
    return "\n\n".join(parts)


def replay(rows: Sequence[Replayed]) -> str:
    """A replay of corpus cases as text."""
    headers = ("file", "target", "outcome", "expected", "as expected", "bucket or reason")
    table = [
        (
            one_line(row.file.name),
            row.target,
            row.outcome,
            row.expected or "-",
            "-" if row.outcome == "left out" else "yes" if row.as_expected else "NO",
            shorten(row.bucket if row.outcome == "finding" else row.reason, 70),
        )
        for row in rows
    ]
    return tabulate(table, headers=headers)


def case_table(file: Path, recorded: Case) -> str:
    """A corpus file as text: its header, arguments, source and findings."""
    origin = recorded.origin
    facts = [
        ("file", one_line(str(file))),
        ("bucket", one_line(recorded.bucket)),
        ("note", one_line(recorded.note)),
        ("upstream issue", recorded.issue or "none known"),
        ("seen on", one_line(f"{origin.target}, torch {recorded.torch}")),
        ("origin", one_line(f"seed {origin.seed}, case {origin.case}, profile {origin.profile}")),
        *((f"on {target}", state) for target, state in recorded.expected.items()),
        *((f"{target} was seen", _seen_states(states)) for target, states in recorded.dated.items()),
        *([("layer", recorded.layer)] if recorded.layer else []),
    ]
    differences = [
        (finding.clause, one_line(finding.path), shorten(finding.eager, 60), shorten(finding.target, 60))
        for finding in recorded.findings
    ]
    parts = [
        tabulate(facts, tablefmt="plain"),
        tabulate(
            _arguments_table(recorded.program),
            headers=("argument", "is", "size", "stride", "offset", "autograd"),
        ),
        render(recorded.program).rstrip(),
        tabulate(differences, headers=("clause", "where", "eager", origin.target))
        if differences
        else "No differences are recorded.",
    ]
    return "\n\n".join(parts)


def _seen_states(states: Mapping[str, str]) -> str:
    """The states of a target by version of torch."""
    return ", ".join(f"{state} in {one_line(version)}" for version, state in states.items())


def _arguments_table(program: Program) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for number, argument in enumerate(program.arguments):
        name = f"a{number}"
        match argument:
            case Root(index):
                storage = program.storages[index]
                rows.append(
                    (
                        name,
                        f"storage {index} ({storage.dtype})",
                        str(list(storage.size)),
                        "",
                        "",
                        _autograd_cell(storage),
                    )
                )
            case View(index, size, stride, offset, via, _, _, wrapped, lazy, base):
                storage = program.storages[index]
                what = f"{via} of storage {index} ({storage.dtype} {list(storage.size)})"
                what += "" if base == "root" else f", of its {base}"
                what += "" if wrapped is None else f", wrapped {wrapped}"
                what += "" if lazy is None else f", lazily {lazy}"
                rows.append(
                    (name, what, str(list(size)), str(list(stride)), str(offset), _autograd_cell(storage))
                )
            case Duplicate(earlier):
                rows.append((name, f"the same object as a{earlier}", "", "", "", ""))
            case Scalar(value):
                rows.append((name, repr(value), "", "", "", ""))
    return rows


def _autograd_cell(storage: Storage) -> str:
    if storage.inference:
        return "made in inference mode"
    if not storage.requires_grad:
        return ""
    if storage.detached:
        return "detached after views were taken of it"
    return "leaf that requires grad" if storage.leaf else "result of a leaf that requires grad"


def _targets_table(summary: Summary) -> str:
    headers = (
        "target",
        "cases",
        "agree",
        "poisoned",
        "refused",
        "findings",
        "crashes",
        "timeouts",
        "proved something",
        "cases/s",
    )
    rows = []
    for name, tally in summary.tallies.items():
        useful = tally.agree + tally.findings
        share = f"{100 * useful / tally.cases:.1f} %" if tally.cases else "-"
        rate = tally.cases / summary.seconds if summary.seconds else 0.0
        counts = (tally.cases, tally.agree, tally.poisoned, tally.refused, tally.findings)
        rows.append((name, *counts, tally.crashes, tally.timeouts, share, f"{rate:.1f}"))
    return tabulate(rows, headers=headers)


def _causes_table(found: Sequence[Cause]) -> str:
    """The causes, worst first."""
    headers = ("severity", "target", "what is wrong", "findings", "buckets", "news", "recorded case")
    rows = [
        (
            cause.severity.label,
            cause.target,
            shorten_middle(cause.headline, 110),
            cause.count,
            len(cause.buckets),
            cause.news if cause.issue is None else f"{cause.news} #{cause.issue}",
            one_line(cause.file),
        )
        for cause in found
    ]
    return tabulate(rows, headers=headers)


def _buckets_table(found: Sequence[Cause], summary: Summary) -> str:
    headers = ("target", "bucket", "count", "statements", "first case", "at s", "state", "known")
    rows = [
        (
            bucket.target,
            shorten_middle(bucket.name, 80),
            bucket.count,
            f"{len(bucket.example.suspect.program.statements)} -> {bucket.example.statements}",
            bucket.first_case,
            f"{bucket.first_seconds:.1f}",
            STATES[bucket.example.state],
            _news_in_short(bucket, summary),
        )
        for cause in found
        for bucket in cause.buckets
    ]
    return tabulate(rows, headers=headers)


def _news_in_short(bucket: Bucket, summary: Summary) -> str:
    standing = summary.standing(bucket)
    return news_of(bucket, summary) if standing is None else issue(standing)


def _below_table(summary: Summary) -> str:
    """The bugs of layers below the targets, worst first."""
    headers = ("also wrong below you", "severity", "what", "cases", "first case", "met on")
    rows = [
        (
            row.control,
            row.severity.label,
            shorten_middle(row.signature, 80),
            row.cases,
            row.first_case,
            ", ".join(row.targets),
        )
        for row in summary.below
    ]
    return tabulate(rows, headers=headers)


def issue(standing: IssueStatus) -> str:
    """The state of a known issue in a word or two."""
    upstream = standing.issue.upstream
    return "known" if upstream is None else f"#{upstream}"


def _known(summary: Summary) -> str:
    headers = ("known issue", "upstream", "target", "now", "")
    rows = [
        (shorten(one.issue.title, 60), one.issue.upstream or "", one.target, one.state, shorten(one.said, 60))
        for one in summary.known
    ]
    return tabulate(rows, headers=headers)


def _memory(summary: Summary) -> str:
    """The memory of the campaign, and whether it grew."""
    words = (
        f"{one.process} {one.end / MIB:.0f} MiB at the end, {one.warm / MIB:.0f} MiB when warm"
        for one in summary.memory
    )
    return f"Memory: {'; '.join(words)}."


def _doubtful_findings_table(summary: Summary) -> list[str]:
    """What fresh workers showed of findings that not all of them showed."""
    doubtful = [bucket for bucket in summary.buckets if bucket.example.replays]
    return [
        f"{bucket.target}, case {bucket.example.suspect.index}, {bucket.example.state}: "
        f"{bucket.example.suspect.seen.signature} in the campaign; alone in fresh workers: "
        + "; ".join(bucket.example.replays)
        for bucket in doubtful[:SHOWN]
    ]


def _sources_table(found: Sequence[Cause], summary: Summary) -> list[str]:
    """The programs of the worst causes."""
    texts = []
    for cause in found[:SHOWN]:
        bucket = cause.best
        _, script = summary.files.get((bucket.target, bucket.name), (None, None))
        lines = [
            f"--- {bucket.name} on {bucket.target}",
            f"    {one_line(bucket.finding.message)}",
        ]
        if script is not None:
            lines.append(f"    {script}")
        lines.append(render(bucket.example.program).rstrip())
        texts.append("\n".join(lines))
    return texts


def shorten(text: str, width: int) -> str:
    """Text on one line, cut to `width` characters."""
    text = one_line(text)
    return text if len(text) <= width else text[: width - 3] + "..."
