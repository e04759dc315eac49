"""Comparison page: a comparison of two versions of torch as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuzz.campaign.ledger import Bucket
from fuzz.campaign.torch_pair.eager_pass import DIFFERS, OUTCOMES, UNDECIDED
from fuzz.campaign.torch_pair.transitions import EXAMINED, Kind, Transition
from fuzz.corpus import buckets
from fuzz.program.printer import render
from fuzz.report.diff import campaign_facts
from fuzz.report.html_report import BUCKET_STATES, MOST_TEXT, page_template
from fuzz.report.torch_comparison import TITLES, comparison_caveats, eager_groups, other_side, verdict
from fuzz.safe_text import escape_unprintable, shell_command

if TYPE_CHECKING:
    from fuzz.campaign.torch_pair.torch_difference import TorchDifference

TEMPLATE = "comparison.html.jinja"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One bucket on the page. `source` and `script` are "" if there is no room."""

    bucket: Bucket
    anchor: str
    state: str
    other_side: str
    message: str
    files: tuple[str, str] | None
    source: str
    script: str


@dataclass(frozen=True, slots=True)
class _Section:
    """One kind of transition."""

    anchor: str
    title: str
    cases: int
    entries: Sequence[_Entry] = ()
    rows: Sequence[Transition] = ()


def comparison_page(difference: TorchDifference) -> str:
    """The text of the HTML page."""
    before, after = difference.before, difference.after
    examined, hidden = _examined_sections(difference)
    others = [
        _Section(_anchor(kind), TITLES[kind], difference.cases(kind), rows=difference.of_kind(kind))
        for kind in Kind
        if kind not in EXAMINED
    ]
    text = page_template(TEMPLATE).render(
        difference=difference,
        before=before,
        after=after,
        configuration=difference.request.configuration,
        verdict=verdict(difference),
        caveats=comparison_caveats(difference),
        examined=examined,
        hidden=hidden,
        others=others,
        eager_outcomes=OUTCOMES,
        eager=[
            (outcome, name, cases)
            for outcome in (DIFFERS, UNDECIDED)
            for name, cases in eager_groups(difference, outcome)
        ],
        command=compare_command(difference),
        facts=[("interpreter", *difference.request.pythons), *campaign_facts(before, after)],
    )
    return escape_unprintable(text)


def compare_command(difference: TorchDifference) -> str:
    """The command line that compares the same programs again."""
    configuration = difference.request.configuration
    words = ["aotfuzz", "compare"]
    for python in difference.request.pythons:
        words += ["--python", python]
    for target in configuration.targets:
        words += ["--target", target]
    words += ["--seed", str(configuration.seed), "--profile", configuration.profile]
    if configuration.device != "cpu":
        words += ["--device", configuration.device]
    words += ["--cases", str(configuration.cases), "--case-timeout", f"{configuration.limit:g}"]
    return shell_command(*words)


def _examined_sections(difference: TorchDifference) -> tuple[list[_Section], int]:
    """A section for each kind of transition with reduced programs, and how many buckets lack a source."""
    sections, room, hidden = [], MOST_TEXT, 0
    for kind in EXAMINED:
        entries = []
        for number, bucket in enumerate(difference.buckets[kind]):
            example = bucket.example
            source, script = render(example.program).rstrip(), example.script.rstrip()
            room -= len(source) + len(script)
            if room < 0:
                source = script = ""
                hidden += 1
            entries.append(
                _Entry(
                    bucket,
                    f"{_anchor(kind)}-{number}",
                    BUCKET_STATES[example.state],
                    other_side(difference, kind, bucket),
                    buckets.primary_finding(example.seen.findings).message,
                    difference.files.get((kind, bucket.target, bucket.name)),
                    source,
                    script,
                )
            )
        sections.append(_Section(_anchor(kind), TITLES[kind], difference.cases(kind), entries))
    return sections, hidden


def _anchor(kind: Kind) -> str:
    return kind.value.replace(" ", "-")
