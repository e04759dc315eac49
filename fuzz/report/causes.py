"""Causes: group the buckets of a campaign that are one bug, so that each bug is one row.

In: a `Summary`. Out: `Cause`s, worst first. Buckets of exceptions are grouped by type, gist of the message,
and the function that raised, whatever the operators of their programs. Files of earlier versions do not have
the function; then the signature stands for it. Every other bucket is a cause of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuzz.campaign.records import STATES
from fuzz.corpus import buckets
from fuzz.corpus.buckets import NO_EXCEPTION
from fuzz.corpus.headline import headline
from fuzz.corpus.severity import Severity

if TYPE_CHECKING:
    from fuzz.campaign.ledger import Bucket
    from fuzz.campaign.summary import Summary

NEW, RECORDED, KNOWN = "NEW", "recorded", "known"
NEWS = (NEW, RECORDED, KNOWN)


@dataclass(frozen=True, slots=True)
class Cause:
    """One bug of one target.

    Attributes:
        buckets: its buckets, the most instructive first.
        news: one of `NEWS`, that of its newest bucket.
        issue: its number in pytorch/pytorch, if it has one.
        file: the recorded case that explains it, or "".
        origin: the function that raised, or "".
    """

    name: str
    target: str
    severity: Severity
    headline: str
    news: str
    issue: int | None
    file: str
    origin: str
    buckets: tuple[Bucket, ...]

    @property
    def count(self) -> int:
        """The number of its findings."""
        return sum(bucket.count for bucket in self.buckets)

    @property
    def best(self) -> Bucket:
        """The bucket that shows it best."""
        return self.buckets[0]


def causes(summary: Summary) -> list[Cause]:
    """The causes of a campaign, worst first.

    Equally bad ones are in this order: new, certain, visible in results or arguments, frequent, small.
    """
    grouped: dict[tuple[str, str], list[Bucket]] = {}
    for bucket in summary.buckets:
        grouped.setdefault((bucket.target, cause_name(bucket)), []).append(bucket)
    found = [_cause(name, group, summary) for (_, name), group in grouped.items()]
    return sorted(found, key=_order)


def cause_name(bucket: Bucket) -> str:
    """The name of a bucket's cause, which is equal for all its buckets."""
    finding, seen = bucket.finding, bucket.example.seen
    if finding.eager != NO_EXCEPTION:
        return bucket.name
    if seen.kind:
        return f"{buckets.signature((finding,))} {_frame(finding.message)}".rstrip()
    if not seen.origin:
        return buckets.signature((finding,))
    return f"{' '.join(buckets.words_of(finding.target))} in {seen.origin}"


def _cause(name: str, group: Sequence[Bucket], summary: Summary) -> Cause:
    ranked = sorted(group, key=lambda bucket: _worth(bucket, summary))
    best = ranked[0]
    standing, record = summary.standing(best), summary.record(best)
    upstream = None if standing is None else standing.issue.upstream
    issue = upstream if upstream is not None else None if record is None else record.issue
    return Cause(
        name=name,
        target=best.target,
        severity=best.severity,
        headline=headline(best.finding, best.example.program),
        news=news_of(best, summary),
        issue=issue,
        file="" if record is None else record.file,
        origin=best.example.seen.origin,
        buckets=tuple(ranked),
    )


def news_of(bucket: Bucket, summary: Summary) -> str:
    """Whether a bucket is new, recorded in the corpus, or a known issue: one of `NEWS`."""
    if summary.standing(bucket) is not None:
        return KNOWN
    return NEW if summary.record(bucket) is None else RECORDED


def _worth(bucket: Bucket, summary: Summary) -> tuple[int, int, int, int, int]:
    """A key by which the bucket that shows a cause best comes first."""
    example = bucket.example
    news = NEWS.index(news_of(bucket, summary))
    state = STATES.index(example.state)
    return bucket.severity, news, state, example.statements, bucket.first_case


def _order(cause: Cause) -> tuple[bool, int, int, int, bool, int, int, int, str]:
    best = cause.best
    # No fresh worker has shown it, so it is chance or due to an earlier case.
    doubtful = best.example.state == "unconfirmed"
    sure = ("shown", "confirmed", "unreduced", "flaky", "unconfirmed").index(best.example.state)
    news = NEWS.index(cause.news)
    size = best.example.statements
    # The memory belongs to no argument, as that of a custom operator with a wrong schema.
    hidden = best.finding.path.startswith("tensor")
    order = (cause.severity, news, max(sure - 1, 0), hidden, -cause.count, size, best.first_case, cause.name)
    return doubtful, *order


def _frame(message: str) -> str:
    """The place where a process died, from the message of its death."""
    found = re.search(r", in ([^()]*)\); eager returns$", message)
    return found[1] if found else ""
