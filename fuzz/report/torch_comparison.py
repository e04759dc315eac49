"""Torch comparison: a comparison of two versions of torch as text: what appeared, changed and is gone.

In: a `TorchDifference`. Out: text for a terminal, or plain data for `--json`. It also shows where eager
itself differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from fuzz.campaign.torch_pair.eager_pass import DIFFERS, OUTCOMES, UNDECIDED
from fuzz.campaign.torch_pair.transitions import EXAMINED, Kind
from fuzz.corpus import buckets
from fuzz.program.printer import render
from fuzz.report.diff import campaign_facts, compare_campaigns, tally_differences
from fuzz.report.tables import SHOWN, STATES, shorten
from fuzz.safe_text import one_line

if TYPE_CHECKING:
    from fuzz.campaign.ledger import Bucket
    from fuzz.campaign.torch_pair.folder import EagerCase
    from fuzz.campaign.torch_pair.torch_difference import TorchDifference

TITLES = {
    Kind.APPEARED: "Differences from eager that appeared",
    Kind.CHANGED: "Differences from eager that changed",
    Kind.GONE: "Differences from eager that are gone",
    Kind.REFUSAL_APPEARED: "Refusals that appeared",
    Kind.REFUSAL_GONE: "Refusals that are gone",
    Kind.UNDECIDED: "Undecided: a difference on one side, and on the other the case proves nothing",
}
# The most programs with different eager results that are listed for each kind.
_PROGRAMS_SHOWN = 5
_EXAMINED_HEADERS = ("target", "bucket", "cases", "statements", "first case", "other side", "state")


def torch_comparison_table(difference: TorchDifference) -> str:
    """A comparison as text: both campaigns, each kind of transition, eager, and the sources."""
    before, after = difference.before, difference.after
    facts = [("interpreter", *difference.request.pythons), *campaign_facts(before, after)]
    parts = [
        tabulate(facts, headers=("", "before", "after")),
        tally_differences(before, after, ("before", "after")),
        _outcomes_table(difference),
    ]
    parts += [_kind_table(difference, kind) for kind in Kind]
    parts.append(_eager_table(difference))
    parts += [f"Note: {caveat}." for caveat in comparison_caveats(difference)]
    parts += _sources(difference)
    return "\n\n".join(parts)


def verdict(difference: TorchDifference) -> str:
    """The comparison in one line.

    "Differences from eager: 3 appeared (in 2 buckets), 0 changed, 5 gone (in 1 bucket). Refusals: ..."
    """
    words = []
    for kind, said in ((Kind.APPEARED, "appeared"), (Kind.CHANGED, "changed"), (Kind.GONE, "gone")):
        found = len(difference.buckets[kind])
        within = f" (in {found} {'bucket' if found == 1 else 'buckets'})" if found else ""
        words.append(f"{difference.cases(kind)} {said}{within}")
    refusals = difference.cases(Kind.REFUSAL_APPEARED), difference.cases(Kind.REFUSAL_GONE)
    eager = difference.eager_counts[DIFFERS]
    return (
        f"Differences from eager: {', '.join(words)}. Refusals: {refusals[0]} appeared, {refusals[1]} gone. "
        f"Eager itself differs on {eager} of {len(difference.eager)} programs."
    )


def comparison_caveats(difference: TorchDifference) -> list[str]:
    """The other reasons for which a difference may be missing."""
    found = [*compare_campaigns(difference.before, difference.after).caveats]
    if difference.left:
        found.append(f"{difference.left} groups of cases are still to be reduced")
    wanted = difference.request.configuration.cases or 0
    if len(difference.eager) < wanted:
        found.append(f"eager was compared on {len(difference.eager)} of {wanted} programs")
    if difference.before.versions["torch"] == difference.after.versions["torch"]:
        found.append("both interpreters have the same version of torch")
    return found


def eager_groups(difference: TorchDifference, outcome: str) -> list[tuple[str, list[EagerCase]]]:
    """The programs whose eager results differ, or are undecided, by what differs; the most frequent first."""
    groups: dict[str, list[EagerCase]] = {}
    for _, case in sorted(difference.eager.items()):
        if case.outcome == outcome:
            key = buckets.signature(case.findings) if case.findings else case.reason.partition(": ")[0]
            groups.setdefault(key, []).append(case)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def other_side(difference: TorchDifference, kind: Kind, bucket: Bucket) -> str:
    """The result of the other torch on the case of a bucket's example, in words."""
    return difference.others.get((kind, bucket.target, bucket.example.suspect.index), "")


def torch_comparison_json(difference: TorchDifference) -> dict[str, Any]:
    """The object that `aotfuzz compare --json` prints.

    `before` and `after` have the interpreter, its versions, and the counts of its campaign by target.
    `appeared`, `changed` and `gone` have `cases` and `buckets`. `refusals_appeared`, `refusals_gone` and
    `undecided` have `cases` and `transitions`. `eager` counts the programs by the results of the two eagers,
    and lists those that differ. `interrupted` says that the comparison ended early.
    """
    configuration = difference.request.configuration
    return {
        "before": _side_json(difference, 0),
        "after": _side_json(difference, 1),
        "cases": configuration.cases,
        "seed": configuration.seed,
        "profile": configuration.profile,
        "outcomes": {
            target: {f"{one} -> {other}": count for (one, other), count in sorted(counts.items())}
            for target, counts in difference.outcomes.items()
        },
        **{kind.value: _examined_json(difference, kind) for kind in EXAMINED},
        "refusals_appeared": _transitions_json(difference, Kind.REFUSAL_APPEARED),
        "refusals_gone": _transitions_json(difference, Kind.REFUSAL_GONE),
        "undecided": _transitions_json(difference, Kind.UNDECIDED),
        "eager": _eager_json(difference),
        "caveats": comparison_caveats(difference),
        "interrupted": not difference.complete,
        "news": difference.news,
    }


def _outcomes_table(difference: TorchDifference) -> str:
    rows = [
        (target, one, other, count, "" if one == other else "*")
        for target, counts in difference.outcomes.items()
        for (one, other), count in sorted(counts.items())
    ]
    return "Cases by outcome\n" + tabulate(rows, headers=("target", "before", "after", "cases", ""))


def _kind_table(difference: TorchDifference, kind: Kind) -> str:
    rows: Sequence[tuple[object, ...]]
    headers: tuple[str, ...]
    if kind in EXAMINED:
        headers = _EXAMINED_HEADERS
        rows = [
            (
                bucket.target,
                shorten(bucket.name, 80),
                bucket.count,
                bucket.example.statements,
                bucket.first_case,
                shorten(other_side(difference, kind, bucket), 50),
                STATES[bucket.example.state],
            )
            for bucket in difference.buckets[kind]
        ]
    else:
        headers = ("target", "before", "after", "cases", "first case")
        rows = [
            (row.target, shorten(row.before, 70), shorten(row.after, 70), len(row.cases), row.cases[0])
            for row in difference.of_kind(kind)
        ]
    title = f"{TITLES[kind]}: {_cases(difference.cases(kind))}"
    parts = [f"{title}\n{tabulate(rows, headers=headers)}" if rows else title]
    died = Counter(row.died for row in difference.of_kind(kind) for _ in row.cases if row.died)
    parts += [f"Of these {count} {word}." for word, count in sorted(died.items())]
    return "\n".join(parts)


def _cases(count: int) -> str:
    return f"{count} {'case' if count == 1 else 'cases'}"


def _eager_table(difference: TorchDifference) -> str:
    counts = difference.eager_counts
    said = ", ".join(f"{name} {counts[name]}" for name in OUTCOMES)
    rows = [
        (word, shorten(name, 80), len(cases), ", ".join(str(case.index) for case in cases[:_PROGRAMS_SHOWN]))
        for word in (DIFFERS, UNDECIDED)
        for name, cases in eager_groups(difference, word)
    ]
    table = tabulate(rows, headers=("", "what", "programs", "such as")) if rows else ""
    return f"Eager itself, {len(difference.eager)} programs: {said}\n{table}".rstrip()


def _sources(difference: TorchDifference) -> list[str]:
    """The smallest programs of bugs that appeared or changed."""
    found = [(kind, bucket) for kind in (Kind.APPEARED, Kind.CHANGED) for bucket in difference.buckets[kind]]
    texts = []
    for kind, bucket in sorted(found, key=lambda item: item[1].example.statements)[:SHOWN]:
        _, script = difference.files.get((kind, bucket.target, bucket.name), (None, None))
        lines = [
            f"--- {kind}: {bucket.name} on {bucket.target}",
            f"    {one_line(buckets.primary_finding(bucket.example.seen.findings).message)}",
            *([f"    {script}"] if script else []),
            render(bucket.example.program).rstrip(),
        ]
        texts.append("\n".join(lines))
    return texts


def _side_json(difference: TorchDifference, side: int) -> dict[str, Any]:
    summary = (difference.before, difference.after)[side]
    counts = ("cases", "agree", "poisoned", "refused", "findings", "crashes", "timeouts")
    return {
        "interpreter": difference.request.pythons[side],
        "versions": dict(summary.versions),
        "targets": {
            target: {name: getattr(tally, name) for name in counts}
            for target, tally in summary.tallies.items()
        },
    }


def _examined_json(difference: TorchDifference, kind: Kind) -> dict[str, Any]:
    rows = []
    for bucket in difference.buckets[kind]:
        file, script = difference.files.get((kind, bucket.target, bucket.name), (None, None))
        rows.append(
            {
                "bucket": bucket.name,
                "target": bucket.target,
                "clause": bucket.clause,
                "count": bucket.count,
                "statements": bucket.example.statements,
                "first_case": bucket.first_case,
                "other_side": other_side(difference, kind, bucket),
                "state": bucket.example.state,
                "message": buckets.primary_finding(bucket.example.seen.findings).message,
                "corpus_file": file,
                "repro": script,
            }
        )
    died = Counter(row.died for row in difference.of_kind(kind) for _ in row.cases if row.died)
    return {
        "cases": difference.cases(kind),
        "crashes": died["crash"],
        "timeouts": died["timeout"],
        "buckets": rows,
    }


def _transitions_json(difference: TorchDifference, kind: Kind) -> dict[str, Any]:
    return {
        "cases": difference.cases(kind),
        "transitions": [
            {"target": row.target, "before": row.before, "after": row.after, "cases": list(row.cases)}
            for row in difference.of_kind(kind)
        ],
    }


def _eager_json(difference: TorchDifference) -> dict[str, Any]:
    counts = difference.eager_counts
    return {
        "programs": len(difference.eager),
        **{name.replace(" ", "_"): counts[name] for name in OUTCOMES},
        "differences": [
            {"what": name, "cases": [case.index for case in cases], "message": cases[0].reason}
            for name, cases in eager_groups(difference, DIFFERS)
        ],
    }
