"""What people read at the end: tables in a terminal, and the one JSON object that programs read.

Tables go to whatever stream the command line chose; the JSON keys are an interface and are documented with
`as_json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from fuzz import buckets
from fuzz.corpus import Case
from fuzz.errors import CorpusError
from fuzz.program import Program, Root, Same, Scalar, Storage, View
from fuzz.source import render

if TYPE_CHECKING:
    from fuzz.campaign.driver import Summary
    from fuzz.campaign.replay import Replayed

# How many buckets are shown with their source; the rest are in the table and in their files.
SHOWN = 5
_STATES = {
    "shown": "script shows it",
    "confirmed": "confirmed",
    "unconfirmed": "NOT CONFIRMED",
    "unreduced": "not reduced",
}


def as_json(summary: Summary) -> dict[str, Any]:
    """The object that `aotfuzz run --json` prints.

    `cases`, `agree`, `poisoned`, `refused`, `findings`, `crashes` and `timeouts` count pairs of a program and
    a target; crashes and timeouts are among the findings. `refusals` counts the refused ones by reason,
    `targets` has all counts by target, `troubles` the fuzzer's own mistakes. Each of `buckets` has `bucket`,
    `target`, `clause`, `count`, `statements` (of the reduced program), `first_case`, `first_seconds`,
    `repro` and `corpus_file` (paths, or null without a folder), `state` and `evaluations` (see
    `investigate.Example`) and `message`.
    """
    cases = summary.total("cases")
    refusals: dict[str, int] = {}
    for tally in summary.tallies.values():
        for reason, count in tally.refusals.items():
            refusals[reason] = refusals.get(reason, 0) + count
    counts = ("agree", "poisoned", "refused", "findings", "crashes", "timeouts")
    return {
        "cases": cases,
        **{name: summary.total(name) for name in counts},
        "refusals": dict(sorted(refusals.items())),
        "buckets": bucket_rows(summary),
        "cases_per_second": round(cases / summary.seconds, 2) if summary.seconds else 0.0,
        "seconds": round(summary.seconds, 2),
        "seed": summary.configuration.seed,
        "profile": summary.configuration.profile,
        "targets": {
            target: {"cases": tally.cases, **{name: getattr(tally, name) for name in counts}}
            for target, tally in summary.tallies.items()
        },
        "interrupted": summary.interrupted,
        "troubles": summary.troubles,
    }


def bucket_rows(summary: Summary) -> list[dict[str, Any]]:
    """The buckets of a campaign as plain data."""
    rows = []
    for bucket in summary.buckets:
        file, script = summary.files.get((bucket.target, bucket.name), (None, None))
        rows.append(
            {
                "bucket": bucket.name,
                "target": bucket.target,
                "clause": bucket.clause,
                "count": bucket.count,
                "statements": bucket.example.statements,
                "first_case": bucket.first_case,
                "first_seconds": round(bucket.first_seconds, 3),
                "repro": script,
                "corpus_file": file,
                "state": bucket.example.state,
                "evaluations": bucket.example.evaluations,
                "message": buckets.main(bucket.example.seen.findings).message,
            }
        )
    return rows


def campaign(summary: Summary) -> str:
    """A finished campaign as text: a row for each target, a row for each bucket, the smallest sources."""
    parts = [_targets(summary)]
    refusals = [
        (target, reason, count)
        for target, tally in summary.tallies.items()
        for reason, count in tally.refusals.most_common()
    ]
    if refusals:
        parts.append(tabulate(refusals, headers=("target", "refused because", "cases")))
    if summary.buckets:
        parts.append(_buckets(summary))
        parts.extend(_sources(summary))
    else:
        parts.append("No differences found.")
    if summary.interrupted:
        parts.append("Interrupted: this is what was found until then.")
    parts.extend(f"Trouble: {text}" for text in summary.troubles)
    return "\n\n".join(parts)


def replay(rows: Sequence[Replayed]) -> str:
    """Replayed corpus cases as text."""
    headers = ("file", "target", "outcome", "expected", "as expected", "bucket or reason")
    table = [
        (
            row.file.name,
            row.target,
            row.outcome,
            row.expected or "-",
            "yes" if row.as_expected else "NO",
            _short(row.bucket if row.outcome == "finding" else row.reason, 70),
        )
        for row in rows
    ]
    return tabulate(table, headers=headers)


def replay_as_json(rows: Sequence[Replayed], errors: Sequence[CorpusError]) -> dict[str, Any]:
    """The object that `aotfuzz replay --json` prints: counts, one entry per case and target, bad files."""
    outcomes = {"agree": "agree", "poisoned": "poisoned", "refused": "refused", "findings": "finding"}
    return {
        "cases": len({row.file for row in rows}),
        **{key: sum(row.outcome == word for row in rows) for key, word in outcomes.items()},
        "unexpected": sum(not row.as_expected for row in rows),
        "results": [row.to_json() for row in rows],
        "errors": [{"file": str(error.file), "place": error.place, "error": str(error)} for error in errors],
    }


def case(file: Path, recorded: Case) -> str:
    """A corpus file as text: what is known of it, its arguments, its source, what differed."""
    origin = recorded.origin
    facts = [
        ("file", file),
        ("bucket", recorded.bucket),
        ("note", recorded.note),
        ("upstream issue", recorded.issue or "none known"),
        ("seen on", f"{origin.target}, torch {recorded.torch}"),
        ("origin", f"seed {origin.seed}, case {origin.case}, profile {origin.profile}"),
        *((f"on {target}", state) for target, state in recorded.expected.items()),
    ]
    differences = [
        (finding.clause, finding.path, _short(finding.eager, 60), _short(finding.target, 60))
        for finding in recorded.findings
    ]
    parts = [
        tabulate(facts, tablefmt="plain"),
        tabulate(
            _arguments(recorded.program), headers=("argument", "is", "size", "stride", "offset", "autograd")
        ),
        render(recorded.program).rstrip(),
        tabulate(differences, headers=("clause", "where", "eager", origin.target))
        if differences
        else "No differences are recorded.",
    ]
    return "\n\n".join(parts)


def _arguments(program: Program) -> list[tuple[str, ...]]:
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
                        _autograd(storage),
                    )
                )
            case View(index, size, stride, offset, via):
                storage = program.storages[index]
                what = f"{via} of storage {index} ({storage.dtype} {list(storage.size)})"
                rows.append((name, what, str(list(size)), str(list(stride)), str(offset), _autograd(storage)))
            case Same(earlier):
                rows.append((name, f"the same object as a{earlier}", "", "", "", ""))
            case Scalar(value):
                rows.append((name, repr(value), "", "", "", ""))
    return rows


def _autograd(storage: Storage) -> str:
    if not storage.requires_grad:
        return ""
    return "leaf that requires grad" if storage.leaf else "result of a leaf that requires grad"


def _targets(summary: Summary) -> str:
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


def _buckets(summary: Summary) -> str:
    headers = ("target", "bucket", "count", "statements", "first case", "at s", "state")
    rows = [
        (
            bucket.target,
            _short(bucket.name, 80),
            bucket.count,
            f"{len(bucket.example.suspect.program.statements)} -> {bucket.example.statements}",
            bucket.first_case,
            f"{bucket.first_seconds:.1f}",
            _STATES[bucket.example.state],
        )
        for bucket in summary.buckets
    ]
    return tabulate(rows, headers=headers)


def _sources(summary: Summary) -> list[str]:
    smallest = sorted(summary.buckets, key=lambda bucket: (bucket.example.statements, bucket.first_case))
    texts = []
    for bucket in smallest[:SHOWN]:
        _, script = summary.files.get((bucket.target, bucket.name), (None, None))
        lines = [
            f"--- {bucket.name} on {bucket.target}",
            f"    {buckets.main(bucket.example.seen.findings).message}",
        ]
        if script is not None:
            lines.append(f"    {script}")
        lines.append(render(bucket.example.program).rstrip())
        texts.append("\n".join(lines))
    return texts


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
