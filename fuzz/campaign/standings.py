"""What has become of the known issues on the targets of a campaign: each one's recorded case run again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fuzz import corpus
from fuzz.campaign.replay import Replayed, replay
from fuzz.corpus import DIFFERS, Case
from fuzz.known import Issue, Standing


def standings(
    issues: Sequence[Issue], cases: Path, targets: Sequence[str], torch: str, *, jobs_at_once: int = 1
) -> tuple[Standing, ...]:
    """Each known issue on each of the targets that it is about; `cases` is the folder of the recorded cases.

    Raises CorpusError if a case that an issue names cannot be read.
    """
    return tuple(
        _standing(issue, target, row)
        for issue, target, row in _replayed(issues, cases, targets, torch, jobs_at_once)
    )


def unchecked(issues: Sequence[Issue], targets: Sequence[str], torch: str) -> tuple[Standing, ...]:
    """The same without running anything, for a campaign that was cut short."""
    return tuple(
        Standing(issue, target, "unchecked", "the campaign was not complete")
        if issue.concerns(torch)
        else _elsewhere(issue, target)
        for issue in issues
        for target in targets
        if target in issue.targets
    )


def _replayed(
    issues: Sequence[Issue], folder: Path, targets: Sequence[str], torch: str, jobs_at_once: int
) -> list[tuple[Issue, str, Replayed | str]]:
    """With what its case gave; in words why there is nothing to give."""
    found: list[tuple[Issue, str, Replayed | str]] = []
    for issue in issues:
        mine = [target for target in targets if target in issue.targets]
        if not mine:
            continue
        if not issue.concerns(torch):
            found += [(issue, target, "") for target in mine]
            continue
        if not issue.case:
            found += [(issue, target, "no recorded case is named") for target in mine]
            continue
        file = folder / issue.case
        work: list[tuple[Path, Case]] = [(file, corpus.read(file))]
        rows = replay(work, mine, jobs_at_once=jobs_at_once)
        found += [(issue, row.target, row) for row in rows]
    return found


def _standing(issue: Issue, target: str, row: Replayed | str) -> Standing:
    if isinstance(row, str):
        return Standing(issue, target, "unchecked", row) if row else _elsewhere(issue, target)
    differs = row.outcome == "finding"
    if issue.expected != DIFFERS:
        if differs:
            return Standing(issue, target, "back", f"{issue.case} differs again: {row.bucket}")
        return Standing(issue, target, "fixed", f"{issue.case}: {row.outcome}")
    if differs and row.same_bucket:
        return Standing(issue, target, "reproduces", f"{issue.case} shows it")
    said = f"another bucket: {row.bucket}" if differs else row.outcome
    return Standing(issue, target, "gone", f"{issue.case} no longer shows it: {said}")


def _elsewhere(issue: Issue, target: str) -> Standing:
    return Standing(issue, target, "elsewhere", f"is about torch {issue.torch}")
