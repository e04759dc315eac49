"""A campaign as one HTML page that needs nothing else: no network, no script, no other file.

It can be read in light and dark, on a narrow screen and on paper. Everything that a program or a target made
up is escaped. Sources and scripts are shown up to MOST_TEXT characters in all, news and the worst first; the
page says how many buckets have theirs in the campaign's folder only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from fuzz.campaign.ledger import Bucket
from fuzz.campaign.memory_gauge import MIB
from fuzz.campaign.progress import duration_in_words
from fuzz.corpus.known_issues import IssueStatus
from fuzz.corpus.recorded_cases import RecordedCase
from fuzz.features.program_features import FEATURES
from fuzz.features.traits import OPERATOR, TRAITS
from fuzz.operators import OPERATORS
from fuzz.program.printer import render
from fuzz.report import charts
from fuzz.report.causes import Cause, causes
from fuzz.report.headline import headline
from fuzz.report.screen import below_you
from fuzz.safe_text import escape_unprintable, shell_command

if TYPE_CHECKING:
    from fuzz.campaign.summary import Summary

MOST_TEXT = 450_000
TEMPLATE = "page.html.jinja"
BUCKET_STATES = {
    "shown": "its script shows it",
    "confirmed": "seen again in a fresh process",
    "flaky": "flaky",
    "unconfirmed": "not seen in a fresh process",
    "unreduced": "not reduced",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One bucket as the page shows it; `source` and `script` are "" where there is no room."""

    bucket: Bucket
    anchor: str
    state: str
    standing: IssueStatus | None
    findings: Sequence[Any]
    message: str
    headline: str
    record: RecordedCase | None
    files: tuple[str, str] | None
    source: str
    script: str


def report_page(summary: Summary) -> str:
    """The text of the page."""
    entries = _bucket_entries_html(summary, causes(summary))
    coverage = summary.coverage
    groups = _traits_html(summary)
    order = {name: place for place, name in enumerate(TRAITS)}
    met = sorted(groups, key=lambda name: (order.get(name, len(order)), name))
    general = [name for name in met if not name.startswith(OPERATOR)]
    used = [name for name in met if name.startswith(OPERATOR)]
    text = page_template(TEMPLATE).render(
        summary=summary,
        new=[entry for entry in entries if entry.standing is None],
        known=[entry for entry in entries if entry.standing is not None],
        below_you=below_you,
        hidden=sum(not entry.source for entry in entries),
        duration=duration_in_words(summary.seconds),
        command=rerun_command(summary),
        shares={name: charts.shares_chart(_counts(tally), name) for name, tally in summary.tallies.items()},
        course=_course_charts(summary),
        traits=[(name, groups[name]) for name in general],
        operators=[(name.removeprefix(OPERATOR), groups[name]) for name in used],
        unused=sorted(name for name in OPERATORS if f"{OPERATOR}{name}" not in groups),
        unmet=[name for name in FEATURES if name not in groups],
        trait_map=charts.heat_chart(general, coverage.pairs, cell=14, labels=True),
        operator_map=charts.heat_chart(used, coverage.pairs, cell=3, labels=False),
        operator_pairs=_reached(used, coverage.pairs),
        useful={
            name: f"{100 * (tally.agree + tally.findings) / tally.cases:.1f} %" if tally.cases else "-"
            for name, tally in summary.tallies.items()
        },
    )
    return escape_unprintable(text)


def rerun_command(summary: Summary) -> str:
    """The command line that gives the same cases again."""
    configuration = summary.configuration
    words = ["aotfuzz", "run"]
    for name in configuration.targets:
        words += ["--target", name]
    words += ["--seed", str(configuration.seed), "--profile", configuration.profile]
    words += ["--clauses", ",".join(configuration.clauses)] if configuration.clauses else []
    if configuration.device != "cpu":
        words += ["--device", configuration.device]
    cases = configuration.cases or max((tally.cases for tally in summary.tallies.values()), default=0)
    words += ["--cases", str(max(cases, 1)), "--case-timeout", f"{configuration.limit:g}"]
    return shell_command(*words)


def _bucket_entries_html(summary: Summary, found: Sequence[Cause]) -> list[_Entry]:
    """Each bucket: news before what is known, and the worst of these first."""
    entries, room = [], MOST_TEXT
    ordered = [bucket for cause in found for bucket in cause.buckets]
    ordered.sort(key=lambda bucket: summary.standing(bucket) is not None)
    for number, bucket in enumerate(ordered):
        example = bucket.example
        source, script = render(example.program).rstrip(), example.script.rstrip()
        room -= len(source) + len(script)
        if room < 0:
            source = script = ""
        entries.append(
            _Entry(
                bucket=bucket,
                anchor=f"bucket-{number}",
                state=BUCKET_STATES[example.state],
                standing=summary.standing(bucket),
                findings=example.seen.findings[:8],
                message=bucket.finding.message,
                headline=headline(bucket.finding, example.program),
                record=summary.record(bucket),
                files=summary.files.get((bucket.target, bucket.name)),
                source=source,
                script=script,
            )
        )
    return entries


def _traits_html(summary: Summary) -> dict[str, dict[str, int]]:
    """For each trait how many cases of all targets came out how."""
    found: dict[str, dict[str, int]] = {}
    for (_, trait, outcome), cases in summary.coverage.traits.items():
        counts = found.setdefault(
            trait, dict.fromkeys(("cases", "agree", "poisoned", "refused", "findings"), 0)
        )
        counts["cases"] += cases
        counts["findings" if outcome == "finding" else outcome] += cases
    return found


def _counts(tally: Any) -> dict[str, int]:
    names = ("cases", "agree", "poisoned", "refused", "findings")
    return {name: getattr(tally, name) for name in names}


def _course_charts(summary: Summary) -> list[tuple[str, str]]:
    """The drawings of what happened when, each with its caption."""
    course, end = summary.course, duration_in_words(summary.seconds)
    widths = [
        after - before
        for before, after in zip(
            (0.0, *(one.until for one in course)), (one.until for one in course), strict=False
        )
    ]
    rates = [one.cases / width if width else 0.0 for one, width in zip(course, widths, strict=True)]
    findings = list(accumulate(one.findings for one in course))
    found = list(accumulate(one.buckets for one in course))
    driver, worker = [[getattr(one, name) / MIB for one in course] for name in ("driver", "worker")]
    return [
        ("Cases a second", charts.bars_chart(rates, "cases/s", end, "cases a second over time")),
        ("Findings so far", charts.steps_chart(findings, "findings", end, "findings over time")),
        ("Buckets so far", charts.steps_chart(found, "buckets", end, "buckets over time")),
        ("Memory of the driver", charts.bars_chart(driver, "MiB", end, "memory of the driver over time")),
        (
            "Memory of the largest worker",
            charts.bars_chart(worker, "MiB", end, "memory of the largest worker over time"),
        ),
    ]


def _reached(names: Sequence[str], pairs: Any) -> tuple[int, int]:
    inside = set(names)
    reached = sum(a in inside and b in inside for a, b in pairs)
    return reached, len(names) * (len(names) - 1) // 2


@cache
def page_template(name: str) -> Template:
    """A template of this package; they may include each other."""
    environment = Environment(
        loader=FunctionLoader(_template_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _template_text(name: str) -> str:
    return resources.files("fuzz.report").joinpath(name).read_text(encoding="utf-8")
