"""Known issue status: run the recorded case of each known issue again on the targets of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fuzz.campaign.replay import LEFT_OUT, Replayed, replay
from fuzz.corpus import case_file
from fuzz.corpus.case_file import DIFFERS, Case
from fuzz.corpus.known_issues import Issue, IssueStatus


def known_issue_standings(
    issues: Sequence[Issue], cases: Path, targets: Sequence[str], torch: str, *, jobs_at_once: int = 1
) -> tuple[IssueStatus, ...]:
    """The status of each known issue on each of the targets that it is about.

    `cases` is the folder of the recorded cases.

    Raises:
        CorpusError: a case that an issue names cannot be read.
    """
    found = []
    for target in targets:
        mine = [issue for issue in issues if target in issue.targets]
        here = [issue for issue in mine if issue.case and issue.concerns(torch)]
        work: list[tuple[Path, Case]] = [
            (cases / issue.case, case_file.read(cases / issue.case)) for issue in here
        ]
        rows = replay(work, [target], jobs_at_once=jobs_at_once) if work else []
        seen = dict(zip(here, rows, strict=True))
        found += [_known_issue_standing(issue, target, torch, seen.get(issue)) for issue in mine]
    return tuple(found)


def unchecked_standings(
    issues: Sequence[Issue], targets: Sequence[str], torch: str
) -> tuple[IssueStatus, ...]:
    """The status of known issues without running anything, for a campaign that was cut short."""
    return tuple(
        IssueStatus(issue, target, "unchecked", "the campaign was not complete")
        if issue.concerns(torch)
        else _elsewhere(issue, target)
        for issue in issues
        for target in targets
        if target in issue.targets
    )


def _known_issue_standing(issue: Issue, target: str, torch: str, row: Replayed | None) -> IssueStatus:
    """The status of an issue by the run of its case, or without a run."""
    if not issue.concerns(torch):
        return _elsewhere(issue, target)
    if row is None:
        return IssueStatus(issue, target, "unchecked", "no recorded case is named")
    if row.outcome == LEFT_OUT:
        return IssueStatus(issue, target, "unchecked", f"{issue.case}: {row.reason}")
    differs = row.outcome == "finding"
    if issue.expected != DIFFERS:
        if differs:
            return IssueStatus(issue, target, "back", f"{issue.case} differs again: {row.bucket}")
        return IssueStatus(issue, target, "fixed", f"{issue.case}: {row.outcome}")
    if differs and row.same_bucket:
        return IssueStatus(issue, target, "reproduces", f"{issue.case} shows it")
    said = f"another bucket: {row.bucket}" if differs else row.outcome
    return IssueStatus(issue, target, "gone", f"{issue.case} no longer shows it: {said}")


def _elsewhere(issue: Issue, target: str) -> IssueStatus:
    return IssueStatus(issue, target, "elsewhere", f"is about torch {issue.torch}")
