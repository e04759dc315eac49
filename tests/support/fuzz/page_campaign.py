"""A campaign made by hand in a folder, with files, for tests of its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fuzz.campaign.summary import Summary, bucket_file_names, case_of_bucket
from fuzz.corpus.case_file import case_text
from fuzz.corpus.known_issues import Issue, IssueStatus
from fuzz.corpus.recorded_cases import RecordedCase
from oracles import Finding
from tests.support.fuzz.small_programs import LOST_THROUGH_EXPAND
from tests.support.fuzz.summaries import TARGET, Found, raises, summary_of, wrong

OTHER_TARGET = "torch-aot-function"
HOSTILE = "</pre><script>alert(1)</script><img src=http://example.org/x onerror=alert(2)> \ud800 \x1b[2J"
FOUND = (
    Found(raises("RuntimeError: a view"), origin="torch.x.gen_alias"),
    Found(wrong("input-data", "arg0", "arg0 at element 0"), LOST_THROUGH_EXPAND),
    Found(wrong(), target=OTHER_TARGET),
    Found(wrong("gradients", "grad of arg0", "grad of arg0 at element 0"), state="unreduced"),
    Found(Finding("strides", "out", "(1,)", HOSTILE, f"strides of out: (1,) in eager, {HOSTILE}")),
)
"""One of them is recorded, and the loud one is known."""


def page_campaign(folder: Path) -> Summary:
    """The campaign, whose folder has a corpus file and a script for each bucket."""
    summary = summary_of(FOUND, targets=(TARGET, OTHER_TARGET))
    files = {}
    for bucket, name in zip(summary.buckets, bucket_file_names(summary.buckets), strict=True):
        case, script = folder / "corpus" / f"{name}.json", folder / "repro" / f"{name}.py"
        for file, text in (
            (case, case_text(case_of_bucket(bucket, summary.configuration, "2.13.0"))),
            (script, bucket.example.script),
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        files[bucket.target, bucket.name] = (str(case), str(script))
    (expanded,) = [bucket for bucket in summary.buckets if "expand" in bucket.name]
    record = RecordedCase(str(folder.parent / "cases" / "expanded.json"), 197448, "lost")
    known = Issue("a view raises", (TARGET,), upstream=198095, signature="errors/call: RuntimeError a view")
    return replace(
        summary,
        folder=str(folder),
        files=files,
        recorded={(TARGET, expanded.name): record},
        known=(IssueStatus(known, TARGET, "reproduces", "x.json shows it"),),
    )
