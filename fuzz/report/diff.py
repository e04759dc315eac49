"""Diff: compare two campaigns, as of two versions of torch, two commits or two compilers.

difference = compare_campaigns(before, after)
difference.only_after       # buckets that the first campaign does not have
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

from fuzz.campaign.ledger import Bucket
from fuzz.campaign.summary import Summary

_COUNTS = ("cases", "agree", "poisoned", "refused", "findings", "crashes", "timeouts")


@dataclass(frozen=True, slots=True)
class Difference:
    """The buckets of two campaigns by where they occur, on the targets that both have.

    `caveats` say in words for which other reasons a bucket may be missing.
    """

    before: Summary
    after: Summary
    targets: tuple[str, ...]
    only_before: Sequence[Bucket]
    only_after: Sequence[Bucket]
    both: Sequence[tuple[Bucket, Bucket]]
    caveats: Sequence[str]


def compare_campaigns(before: Summary, after: Summary) -> Difference:
    """Compare two campaigns.

    Two campaigns of one target each are compared although the targets' names differ, because a bucket's name
    does not depend on the target.
    """
    lone = len(before.tallies) == len(after.tallies) == 1
    shared = tuple(name for name in before.tallies if name in after.tallies)

    def keyed(summary: Summary) -> dict[tuple[str, str], Bucket]:
        return {
            ("" if lone else bucket.target, bucket.name): bucket
            for bucket in summary.buckets
            if lone or bucket.target in shared
        }

    first, second = keyed(before), keyed(after)
    return Difference(
        before,
        after,
        tuple(before.tallies) if lone else shared,
        [bucket for key, bucket in first.items() if key not in second],
        [bucket for key, bucket in second.items() if key not in first],
        [(bucket, second[key]) for key, bucket in first.items() if key in second],
        tuple(_comparison_caveats(before, after, lone)),
    )


def diff_table(difference: Difference) -> str:
    """The comparison as text."""
    before, after = difference.before, difference.after
    parts = [
        tabulate(campaign_facts(before, after), headers=("", "first", "second")),
        tally_differences(before, after),
    ]
    for title, found in (
        ("Only in the first", difference.only_before),
        ("Only in the second", difference.only_after),
    ):
        rows = [(bucket.target, bucket.name, bucket.count, bucket.example.statements) for bucket in found]
        heading = tabulate(rows, headers=("target", "bucket", "count", "statements")) if rows else "nothing"
        parts.append(f"{title}: {len(rows)}\n{heading}")
    rows_both = [(one.target, one.name, one.count, other.count) for one, other in difference.both]
    listing = tabulate(rows_both, headers=("target", "bucket", "first", "second")) if rows_both else "nothing"
    parts.append(f"In both: {len(rows_both)}\n{listing}")
    parts += [f"Note: {caveat}." for caveat in difference.caveats]
    return "\n\n".join(parts)


def campaign_facts(before: Summary, after: Summary) -> list[tuple[str, object, object]]:
    """The versions, targets and bounds of two campaigns, as rows of a table."""
    facts: list[tuple[str, object, object]] = [
        (name, before.versions.get(name, ""), after.versions.get(name, ""))
        for name in dict.fromkeys([*before.versions, *after.versions])
    ]
    one, other = before.configuration, after.configuration
    facts += [
        ("targets", ", ".join(one.targets), ", ".join(other.targets)),
        ("seed", one.seed, other.seed),
        ("profile", one.profile, other.profile),
        ("seconds", f"{before.seconds:.0f}", f"{after.seconds:.0f}"),
    ]
    return facts


def tally_differences(before: Summary, after: Summary, names: tuple[str, str] = ("first", "second")) -> str:
    """The counts of two campaigns by target, with a row for each campaign, which `names` gives."""
    rows = [
        (name, which, *(getattr(summary.tallies[name], count) for count in _COUNTS))
        for name in dict.fromkeys([*before.tallies, *after.tallies])
        for which, summary in zip(names, (before, after), strict=True)
        if name in summary.tallies
    ]
    return tabulate(rows, headers=("target", "campaign", *_COUNTS))


def _comparison_caveats(before: Summary, after: Summary, lone: bool) -> list[str]:
    one, other = before.configuration, after.configuration
    found = []
    if set(one.clauses) != set(other.clauses):
        found.append("the two judged different clauses, so a bucket may be missing for that")
    if (one.seed, one.profile, one.device) != (other.seed, other.profile, other.device):
        found.append("the two ran different programs, so a bucket may be missing by chance")
    elif before.versions.get("generator") != after.versions.get("generator"):
        found.append("the generators differ, so the two ran different programs")
    else:
        cases = {
            name: (tally.cases, after.tallies[name].cases)
            for name, tally in before.tallies.items()
            if name in after.tallies
        }
        found += [
            f"on {name} the first ran {first} cases and the second {second}"
            for name, (first, second) in cases.items()
            if first != second
        ]
    missing = [name for name in before.tallies if name not in after.tallies]
    missing += [name for name in after.tallies if name not in before.tallies]
    if missing and not lone:
        found.append(f"only one of them ran {', '.join(missing)}")
    if before.interrupted or after.interrupted:
        found.append("not both are complete")
    return found
