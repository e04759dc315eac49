"""JSON output: the one JSON object that `--json` prints, for programs. Its keys are an interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fuzz.corpus import buckets
from fuzz.corpus.headline import headline
from fuzz.errors import CorpusError
from fuzz.report.causes import Cause, causes

if TYPE_CHECKING:
    from fuzz.campaign.ledger import Bucket, Tally
    from fuzz.campaign.replay import Replayed
    from fuzz.campaign.summary import Summary
    from fuzz.report.diff import Difference
    from fuzz.report.history import History


def campaign_json(summary: Summary) -> dict[str, Any]:
    """The object that `aotfuzz run --json` prints.

    `cases`, `agree`, `poisoned`, `refused`, `findings`, `crashes` and `timeouts` count pairs of a program and
    a target; crashes and timeouts are among the findings. The other keys are:

    - `poisons`, `refusals`: the poisoned and refused pairs by reason (see `ledger.Tally`).
    - `targets`: all counts by target, with `poisons` and `refusals` of its own.
    - `reticent`: a sentence for each target that declines more than it may.
    - `troubles`: the fuzzer's own mistakes.
    - `buckets`: an object for each bucket, in the order of `causes`, worst first (see below).
    - `causes`: an object for each cause, with `cause`, `target`, `severity`, `headline`, `news` ("NEW",
      "recorded" or "known"), `issue`, `file`, `origin`, `count`, and `buckets` (their names, the best example
      first).
    - `below`: what layers below the targets do wrong too: `control`, `signature`, `severity`, `cases`,
      `first_case`, `targets`.
    - `new`: the number of buckets that are no known issue; `recorded`: those of them that a recorded case
      explains.
    - `memory`: the bytes of the driver and of the largest worker, when warm and at the end.
    - `known`: each known issue on each target with its `state`.

    Each of `buckets` has these keys:

    - `bucket`, `target`, `clause`, `count`, `message`, `severity` (`corpus.severity`), `headline`.
    - `statements`: of the reduced program.
    - `first_case`, `first_seconds`: of its first finding.
    - `repro`, `corpus_file`: paths, or null without a folder.
    - `state`, `evaluations`, `replays`: see `records.Example`.
    - `known`: the title of its known issue, else null.
    - `cause`: the name of one of `causes`.
    - `origin`: the function that raised, or "".
    - `unlike`: the number of its findings whose programs lack an operator of its example.
    - `recorded`: the `file`, `issue` and `note` of the recorded case that explains it, else null.
    """
    cases = summary.total("cases")
    found = causes(summary)
    counts = ("agree", "poisoned", "refused", "findings", "crashes", "timeouts")
    return {
        "cases": cases,
        **{name: summary.total(name) for name in counts},
        **_reasons_json(summary.tallies.values()),
        "buckets": _buckets_json(summary, found),
        "causes": [_cause_json(cause) for cause in found],
        "below": [
            {
                "control": row.control,
                "signature": row.signature,
                "severity": row.severity.label,
                "cases": row.cases,
                "first_case": row.first_case,
                "targets": list(row.targets),
            }
            for row in summary.below
        ],
        "new": len(summary.new),
        "recorded": sum(summary.record(bucket) is not None for bucket in summary.new),
        "known": [
            {"title": one.issue.title, "target": one.target, "state": one.state, "said": one.said}
            for one in summary.known
        ],
        "cases_per_second": round(cases / summary.seconds, 2) if summary.seconds else 0.0,
        "seconds": round(summary.seconds, 2),
        "seed": summary.configuration.seed,
        "profile": summary.configuration.profile,
        "clauses": list(summary.configuration.clauses),
        "targets": {
            target: {
                "cases": tally.cases,
                **{name: getattr(tally, name) for name in counts},
                **_reasons_json((tally,)),
            }
            for target, tally in summary.tallies.items()
        },
        "memory": {one.process: {"warm": one.warm, "end": one.end} for one in summary.memory},
        "interrupted": summary.interrupted,
        "reticent": dict(summary.reticent),
        "troubles": summary.troubles,
    }


def _reasons_json(tallies: Iterable[Tally]) -> dict[str, dict[str, int]]:
    """The reasons for poisoned and refused cases, with counts."""
    poisons: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for tally in tallies:
        poisons += tally.poisons
        refusals += tally.refusals
    return {"poisons": dict(sorted(poisons.items())), "refusals": dict(sorted(refusals.items()))}


def _cause_json(cause: Cause) -> dict[str, Any]:
    return {
        "cause": cause.name,
        "target": cause.target,
        "severity": cause.severity.label,
        "headline": cause.headline,
        "news": cause.news,
        "issue": cause.issue,
        "file": cause.file or None,
        "origin": cause.origin,
        "count": cause.count,
        "buckets": [bucket.name for bucket in cause.buckets],
    }


def _buckets_json(summary: Summary, found: Iterable[Cause]) -> list[dict[str, Any]]:
    rows = []
    for cause, bucket in ((one, bucket) for one in found for bucket in one.buckets):
        record = summary.record(bucket)
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
                "replays": list(bucket.example.replays),
                "known": None if (standing := summary.standing(bucket)) is None else standing.issue.title,
                "message": buckets.primary_finding(bucket.example.seen.findings).message,
                "severity": bucket.severity.label,
                "headline": headline(bucket.finding, bucket.example.program),
                "cause": cause.name,
                "origin": bucket.example.seen.origin,
                "unlike": bucket.unlike,
                "recorded": None if record is None else record.to_json(),
            }
        )
    return rows


def replay(rows: Sequence[Replayed], errors: Sequence[CorpusError]) -> dict[str, Any]:
    """The object that `aotfuzz replay --json` prints: counts, an entry for each case and target, and bad
    files.
    """
    outcomes = {
        **{"agree": "agree", "poisoned": "poisoned", "refused": "refused", "findings": "finding"},
        "left_out": "left out",
    }
    return {
        "cases": len({row.file for row in rows}),
        **{key: sum(row.outcome == word for row in rows) for key, word in outcomes.items()},
        "unexpected": sum(not row.as_expected for row in rows),
        "results": [row.to_json() for row in rows],
        "errors": [{"file": str(error.file), "place": error.place, "error": str(error)} for error in errors],
    }


def difference_json(found: Difference) -> dict[str, Any]:
    """The object that `aotfuzz diff --json` prints: buckets by where they occur, and caveats."""

    def plain(bucket: Bucket) -> dict[str, Any]:
        return {"target": bucket.target, "bucket": bucket.name, "count": bucket.count}

    return {
        "targets": list(found.targets),
        "only_before": [plain(bucket) for bucket in found.only_before],
        "only_after": [plain(bucket) for bucket in found.only_after],
        "both": [{**plain(one), "count_after": other.count} for one, other in found.both],
        "caveats": list(found.caveats),
    }


def history_json(found: History) -> dict[str, Any]:
    """The object that `aotfuzz history --json` prints: nights, and faults with their findings by night."""
    return {
        "nights": [asdict(night) for night in found.nights],
        "faults": [
            {**_cause_json(fault.cause), "course": fault.course.value, "counts": list(fault.counts)}
            for fault in found.faults
        ],
        "caveats": list(found.caveats),
    }
