"""Purity of buckets: into how many buckets one fault falls, and how many faults share a bucket.

One bug should be one bucket. Each fault is a compiler that runs the function and then does one thing wrong,
so every finding of its campaign is that one bug. A fault that shows in several ways (a lost write is also a
wrong value, if the argument is returned alone) makes several buckets, each with its own signature.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from bench.report import Table
from fuzz.campaign.configuration import Configuration
from fuzz.campaign.devices import workers
from fuzz.campaign.driver import Campaign

FAULTS = (
    "drops_mutation",
    "copies_alias",
    "doubles_duplicate",
    "crashes_on_exp",
    "loses_requires_grad",
    "draws",
    "leaks_grad_mode",
    "returns_a_list",
    "unsqueezes_the_argument",
    "hides_the_version",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--cases", type=int, default=200, help="programs for each fault (default: 200)")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this one (default: all)")
    parser.add_argument("--jobs", type=int, default=workers(), help="worker processes")


def measure(options: argparse.Namespace) -> list[Table]:
    """Run a campaign for each fault, from the repository's root."""
    rows: list[tuple[str | float | int | None, ...]] = []
    owners: dict[str, set[str]] = defaultdict(set)
    chosen = options.fault or FAULTS
    for fault in chosen:
        configuration = Configuration(
            targets=(f"tests.fuzz.bad_targets:{fault}",),
            cases=options.cases,
            jobs=options.jobs,
            limit=10.0,
        )
        summary = Campaign(configuration).run()
        found = [bucket.name for bucket in summary.buckets]
        for name in found:
            owners[name].add(fault)
        signatures = {bucket.example.seen.signature for bucket in summary.buckets}
        examples = sum(bucket.count for bucket in summary.buckets)
        largest = max((bucket.count for bucket in summary.buckets), default=0)
        share = largest / examples if examples else None
        rows.append((fault, summary.total("findings"), len(signatures), len(found), share))
    shared = tuple(
        (name, len(faults), ", ".join(sorted(faults))) for name, faults in owners.items() if len(faults) > 1
    )
    buckets = sum(int(row[3] or 0) for row in rows)
    pairs = sum(len(faults) for faults in owners.values())
    return [
        Table(
            f"buckets for each fault, {options.cases} programs each",
            ("fault", "findings", "signatures", "buckets", "share of the largest"),
            tuple(rows),
            (
                f"{buckets / len(chosen):.2f} buckets for each fault",
                f"{pairs / max(len(owners), 1):.2f} faults for each bucket",
            ),
        ),
        Table("buckets that several faults share", ("bucket", "faults", "which"), shared),
    ]
