"""Which findings are looked at closely, and in which order when there is no time for all."""

from __future__ import annotations

from fuzz.campaign.ledger import MOST_EXAMPLES, Group
from fuzz.campaign.records import Example, RunOutcome, Suspect
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE

SEEN = RunOutcome("finding", "signature", (), "", 0.1)


def _example(bucket: str) -> Example:
    suspect = Suspect("torch-aot-eager", 0, DOUBLE_IN_PLACE, SEEN)
    return Example(suspect, DOUBLE_IN_PLACE, SEEN, bucket, "", "shown", 1)


def _group(signature: str, findings: int, *buckets: str) -> Group:
    group = Group("torch-aot-eager", signature, list(range(findings)), [0.0] * findings)
    for bucket in buckets:
        assert group.due()
        group.take(_example(bucket))
    return group


def test_a_bucket_that_is_known_doubles_the_distance() -> None:
    group = _group("values/out elements", 20, "a", "b", "b", "b", "c")
    assert sorted(group.examples) == [0, 1, 2, 4, 8]
    assert group.position == 9


def test_there_is_an_end_to_it() -> None:
    group = _group("values/out elements", 100, *(str(i) for i in range(MOST_EXAMPLES)))
    assert not group.due()
    group = _group("values/out elements", 2, "a", "b")
    assert not group.due()
    assert not _group("values/out elements", 2, "a").due(firsts_only=True)


def test_what_says_least_is_not_done_with_its_first_example() -> None:
    order = [
        _group("values/out elements", 30, "a"),
        _group("values/out elements", 30, "a", "a", "a"),
        _group("values/out elements", 3),
        _group("strides/strides of out", 3),
        _group("errors/call: RuntimeError shape is invalid", 50),
        _group("autograd-metadata/base of out", 90, "a"),
        _group("strides/strides of out", 3, "a"),
        _group("errors/call: RuntimeError shape is invalid", 50, "a"),
    ]
    ranks = [group.rank for group in order]
    assert ranks == sorted(ranks)
