"""HTML report: a campaign as one self-contained HTML page, without network and other files.

In: a `Summary`. Out: the text of the page. It can be read in light and dark, on a narrow screen, on paper,
and without its script, which only filters and copies text. Sources, scripts and commands are shown up to
MOST_TEXT characters in all, the worst buckets first. The page says how many buckets have theirs only in the
campaign's folder. Invariant: texts of programs and targets are escaped. The page's policy
(Content-Security-Policy) forbids every other script, and everything from outside.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from fuzz.campaign.ledger import Bucket
from fuzz.campaign.memory_gauge import MIB
from fuzz.campaign.progress import duration_in_words
from fuzz.corpus.headline import headline
from fuzz.corpus.known_issues import IssueStatus
from fuzz.corpus.recorded_cases import RecordedCase
from fuzz.features.program_features import FEATURES
from fuzz.features.traits import OPERATOR, TRAITS
from fuzz.operators import OPERATORS
from fuzz.program.printer import render
from fuzz.report import bucket_legend, charts
from fuzz.report.causes import NEWS, Cause, causes
from fuzz.report.screen import below_you
from fuzz.safe_text import escape_unprintable, shell_command

if TYPE_CHECKING:
    from fuzz.campaign.summary import Summary

MOST_TEXT = 450_000
TEMPLATE = "page.html.jinja"
SCRIPT = "script.js.jinja"
ISSUES = "https://github.com/pytorch/pytorch/issues/"
BUCKET_STATES = {
    "shown": "its script shows it",
    "confirmed": "seen again in a fresh process",
    "flaky": "flaky",
    "unconfirmed": "not seen in a fresh process",
    "unreduced": "not reduced",
}
DOUBTS = {"unreduced": "not reduced", "flaky": "flaky", "unconfirmed": "not confirmed"}


@dataclass(frozen=True, slots=True)
class _BucketEntry:
    """One bucket on the page. `findings`, `source`, `script` and `steps` are empty if there is no room.

    `links` has the addresses of its corpus file and script, `record_link` that of the recorded case. `steps`
    has the commands to go on with it, each with its purpose.
    """

    bucket: Bucket
    seen: str
    standing: IssueStatus | None
    record: RecordedCase | None
    record_link: str
    findings: Sequence[Any]
    message: str
    headline: str
    links: tuple[str, str] | None
    source: str
    script: str
    steps: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _CauseEntry:
    """One cause on the page. `state` is its news in lower case, `doubt` what is not certain about it."""

    cause: Cause
    anchor: str
    state: str
    doubt: str
    issue_link: str
    buckets: Sequence[_BucketEntry]


def report_page(summary: Summary, folder: Path | None = None) -> str:
    """The text of the HTML page.

    Args:
        summary: the campaign.
        folder: the folder of the page, to which its links are relative; by default the campaign's.
    """
    place = Path(summary.folder) if folder is None else folder
    entries = _cause_entries(summary, causes(summary), place)
    coverage = summary.coverage
    groups = _traits_html(summary)
    order = {name: place for place, name in enumerate(TRAITS)}
    met = sorted(groups, key=lambda name: (order.get(name, len(order)), name))
    general = [name for name in met if not name.startswith(OPERATOR)]
    used = [name for name in met if name.startswith(OPERATOR)]
    news = Counter(entry.state for entry in entries)
    script = _template_text(SCRIPT)
    text = page_template(TEMPLATE).render(
        summary=summary,
        entries=entries,
        groups=_groups_by_target(entries),
        news_counts={name.lower(): news[name.lower()] for name in NEWS},
        tiles=_tiles(summary),
        by_severity=_counts_in_order(entry.cause.severity.label for entry in entries),
        by_target=_counts_in_order(entry.cause.target for entry in entries),
        by_state=[(name.lower(), news[name.lower()]) for name in NEWS if news[name.lower()]],
        legend=bucket_legend,
        issues=ISSUES,
        below_you=below_you,
        hidden=sum(not bucket.source for entry in entries for bucket in entry.buckets),
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
            name: _useful_share(tally.agree + tally.findings, tally.cases)
            for name, tally in summary.tallies.items()
        },
        script=script,
        policy=_content_policy(script),
    )
    return escape_unprintable(text)


def _content_policy(script: str) -> str:
    """The policy that allows this script only, and forbids loading anything."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _tiles(summary: Summary) -> list[tuple[str, str]]:
    """The figures at the top of the page."""
    cases, findings = summary.total("cases"), summary.total("findings")
    rate = cases / summary.seconds if summary.seconds else 0.0
    below = sum(row.cases for row in summary.below)
    return [
        ("cases", str(cases)),
        ("a second", f"{rate:.1f}"),
        ("proved something", _useful_share(summary.total("agree") + findings, cases)),
        ("findings", str(findings)),
        ("buckets", str(len(summary.buckets))),
        *([("also wrong below", str(below))] if below else []),
    ]


def _useful_share(useful: int, cases: int) -> str:
    return f"{100 * useful / cases:.1f} %" if cases else "-"


def _counts_in_order(names: Iterable[str]) -> list[tuple[str, int]]:
    """Each name with its count, in the order of the causes."""
    return list(Counter(names).items())


def _groups_by_target(entries: Sequence[_CauseEntry]) -> list[tuple[str, list[_CauseEntry]]]:
    """The causes of each target, worst first. The target with the worst cause comes first."""
    groups: dict[str, list[_CauseEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.cause.target, []).append(entry)
    return list(groups.items())


def rerun_command(summary: Summary) -> str:
    """The command line that runs the same cases again."""
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


def _cause_entries(summary: Summary, found: Sequence[Cause], place: Path) -> list[_CauseEntry]:
    """Each cause with its buckets, worst first.

    The buckets that show a cause best get their sources first.
    """
    room = MOST_TEXT
    shown: dict[tuple[str, str], _BucketEntry] = {}
    best = [cause.best for cause in found]
    for bucket in (*best, *(bucket for cause in found for bucket in cause.buckets[1:])):
        entry = _bucket_entry(summary, bucket, place)
        room -= len(entry.source) + len(entry.script) + sum(len(command) for _, command in entry.steps)
        if room < 0:
            entry = replace(entry, findings=(), source="", script="", steps=())
        shown[bucket.target, bucket.name] = entry
    return [
        _CauseEntry(
            cause=cause,
            anchor=f"cause-{number}",
            state=cause.news.lower(),
            doubt=DOUBTS.get(cause.best.example.state, ""),
            issue_link="" if cause.issue is None else f"{ISSUES}{cause.issue}",
            buckets=[shown[bucket.target, bucket.name] for bucket in cause.buckets],
        )
        for number, cause in enumerate(found)
    ]


def _bucket_entry(summary: Summary, bucket: Bucket, place: Path) -> _BucketEntry:
    example, record = bucket.example, summary.record(bucket)
    files = summary.files.get((bucket.target, bucket.name))
    return _BucketEntry(
        bucket=bucket,
        seen=BUCKET_STATES[example.state],
        standing=summary.standing(bucket),
        record=record,
        record_link=_link(record.file, place) if record and os.path.isfile(record.file) else "",
        findings=example.seen.findings[:8],
        message=bucket.finding.message,
        headline=headline(bucket.finding, example.program),
        links=None if files is None else (_link(files[0], place), _link(files[1], place)),
        source=render(example.program).rstrip(),
        script=example.script.rstrip(),
        steps=[] if files is None else next_steps(summary, bucket),
    )


def next_steps(summary: Summary, bucket: Bucket) -> list[tuple[str, str]]:
    """The next commands for a bucket with files, each with its purpose."""
    file, script = summary.files[bucket.target, bucket.name]
    smaller = f"{Path(file).stem}-smaller.json"
    steps = [
        ("See it again with torch alone:", ("python", script)),
        ("Print its arguments, source and differences:", ("aotfuzz", "show", file)),
        (
            "Reduce its program further:",
            ("aotfuzz", "reduce", file, "--target", bucket.target, "--out", smaller),
        ),
        ("Find the layer of torch that is to blame:", ("aotfuzz", "bisect", file)),
        ("Write the report for upstream:", ("aotfuzz", "repro", "--format", "issue", "--check", file)),
    ]
    if summary.record(bucket) is None and summary.standing(bucket) is None:
        steps.append(("Keep it, so that it is no news tomorrow:", ("aotfuzz", "corpus", "add", file)))
    return [(purpose, shell_command(*words)) for purpose, words in steps]


def _link(file: str, place: Path) -> str:
    """The address of a file relative to the page's folder, so that links survive a move of the folder."""
    return quote_from_bytes(os.fsencode(Path(os.path.relpath(file, place)).as_posix()))


def _traits_html(summary: Summary) -> dict[str, dict[str, int]]:
    """For each trait the number of cases of all targets, by outcome."""
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
    """The drawings of the campaign's course, each with its caption."""
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
    """A template of this package. Templates may include each other."""
    environment = Environment(
        loader=FunctionLoader(_template_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code_words"] = code_words
    return environment.get_template(name)


def code_words(text: str) -> Markup:
    """Text with code between backticks as HTML; all of it is escaped.

    >>> print(code_words("`view` & `a<b`"))
    <code>view</code> &amp; <code>a&lt;b</code>
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )


def _template_text(name: str) -> str:
    return resources.files("fuzz.report").joinpath(name).read_text(encoding="utf-8")
