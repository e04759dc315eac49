"""What became of a case under two torches, and which cases deserve an example."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.records import RunOutcome
from fuzz.campaign.store import Row, Store
from fuzz.campaign.torch_pair.transitions import (
    Kind,
    case_pairs,
    outcome_counts,
    transition_kind,
    transition_ledgers,
    transitions,
)
from oracles import Finding

FINDING = Finding("values", "out", "1.0", "2.0", "out: 1.0 in eager, 2.0 in the target")


def agree() -> RunOutcome:
    return RunOutcome("agree", "", (), "agree", 0.1)


def refused(reason: str = "no strides") -> RunOutcome:
    return RunOutcome("refused", "", (), reason, 0.1)


def poisoned() -> RunOutcome:
    return RunOutcome("poisoned", "", (), "eager is unstable", 0.1)


def finding(signature: str = "values/out", kind: str = "") -> RunOutcome:
    return RunOutcome("finding", signature, (FINDING,), "it", 0.1, kind)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (agree(), agree(), None),
        (agree(), finding(), Kind.APPEARED),
        (refused(), finding(), Kind.APPEARED),
        (finding(), agree(), Kind.GONE),
        (finding(), refused(), Kind.GONE),
        (finding(), finding(), None),
        (finding(), finding("strides/out"), Kind.CHANGED),
        (agree(), refused(), Kind.REFUSAL_APPEARED),
        (refused(), agree(), Kind.REFUSAL_GONE),
        (refused(), refused("another reason"), None),
        (poisoned(), finding(), Kind.UNDECIDED),
        (finding(), poisoned(), Kind.UNDECIDED),
        (poisoned(), agree(), None),
        (refused(), poisoned(), None),
    ],
)
def test_each_pair_of_outcomes_has_its_kind(before: RunOutcome, after: RunOutcome, kind: Kind | None) -> None:
    assert transition_kind(before, after) is kind


def _stores(before: list[RunOutcome], after: list[RunOutcome]) -> tuple[Store, Store]:
    stores = []
    for outcomes in (before, after):
        store = Store.in_memory(Configuration(targets=("aot",), cases=len(outcomes)))
        for index, seen in enumerate(outcomes):
            store.add(Row("aot", index, seen, float(index)))
        store.commit(1.0)
        stores.append(store)
    return stores[0], stores[1]


def test_cases_are_joined_by_number_and_counted_by_what_became_of_them() -> None:
    before = [agree(), agree(), refused(), finding(), finding("strides/out", "crash"), agree()]
    after = [finding("strides/out"), finding("strides/out"), agree(), agree(), agree()]
    pairs = case_pairs(*_stores(before, after))
    assert len(pairs) == 5, "what only one of them ran is left out"
    assert outcome_counts(pairs)["aot"] == {
        ("agree", "finding"): 2,
        ("refused", "agree"): 1,
        ("finding", "agree"): 2,
    }
    found = transitions(pairs)
    assert [(row.kind, row.before, row.after, row.died, row.cases) for row in found] == [
        (Kind.APPEARED, "agree", "strides/out", "", (0, 1)),
        (Kind.GONE, "values/out", "agree", "", (3,)),
        (Kind.GONE, "strides/out", "agree", "crash", (4,)),
        (Kind.REFUSAL_GONE, "refused: no strides", "agree", "", (2,)),
    ]


def test_a_new_bug_with_the_signature_of_an_old_one_has_a_group_of_its_own() -> None:
    before = [finding("old"), agree(), refused(), finding("old"), finding("gone")]
    after = [finding("old"), finding("old"), finding("old"), finding("new"), agree()]
    stores = _stores(before, after)
    ledgers = transition_ledgers(case_pairs(*stores), *stores)
    groups = {
        kind: {key.label: group.indices for key, group in ledger.groups.items()}
        for kind, (ledger, _) in ledgers.items()
    }
    assert groups == {
        Kind.APPEARED: {"agree -> old": [1], "refused -> old": [2]},
        Kind.CHANGED: {"old -> new": [3]},
        Kind.GONE: {"agree -> gone": [4]},
    }
    (ledger, cases) = ledgers[Kind.GONE]
    (group,) = ledger.groups.values()
    assert ledger.suspect(group).seen.signature == "gone", "of the side that shows it"
    assert cases["aot", 4].other.seen.outcome == "agree"


def test_nothing_differs_between_a_campaign_and_itself(tmp_path: Path) -> None:
    store, _ = _stores([agree(), finding(), poisoned()], [])
    pairs = case_pairs(store, store)
    assert len(pairs) == 3
    assert transitions(pairs) == []
