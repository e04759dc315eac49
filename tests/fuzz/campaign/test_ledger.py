"""Which findings are looked at closely, in which order when there is no time for all, and how they count."""

from __future__ import annotations

from collections.abc import Mapping

from fuzz.campaign.ledger import MOST_EXAMPLES, Group, GroupKey, Ledger
from fuzz.campaign.records import Example, RunOutcome, Suspect
from fuzz.corpus import buckets
from fuzz.corpus.containment import bare_operators
from fuzz.corpus.severity import Severity
from fuzz.program.decode import Program, Ref
from oracles import Finding
from tests.support.fuzz.small_programs import (
    DOUBLE_IN_PLACE,
    EXPONENTIAL,
    LOST_THROUGH_EXPAND,
    RETURN_VIEW,
    SINE,
    call,
    program,
)

DRAWS = program(call("rand_like", "a0", to="v0"), returns=Ref("v0"))
TARGET = "torch-aot-eager"
WRONG = Finding("values", "out", "1.0", "2.0", "out at element 0: 1.0 in eager, 2.0 in the target")
RAISES = Finding("errors", "call", "no exception", "RuntimeError: no", "the call: no exception in eager, ...")
BOTH = (
    Finding("errors", "backward", "no exception", "RuntimeError: no", "backward: no exception ..."),
    WRONG,
)
SEEN = RunOutcome("finding", "signature", (WRONG,), "", 0.1)


def _example(bucket: str, index: int = 0, program: Program = DOUBLE_IN_PLACE) -> Example:
    suspect = Suspect(TARGET, index, program, SEEN)
    return Example(suspect, program, SEEN, bucket, "", "shown", 1)


def _group(signature: str, severity: Severity, findings: int, *names: str) -> Group:
    group = Group(GroupKey(TARGET, signature, severity, False), signature)
    for index in range(findings):
        group.add(index, 0.0, bare_operators(DOUBLE_IN_PLACE))
    for name in names:
        place = group.next_place()
        assert place is not None
        group.take(_example(name, place))
    return group


def _ledger(programs: list[Program], findings: Mapping[int, tuple[Finding, ...]]) -> Ledger:
    def seen(index: int) -> RunOutcome:
        found = findings[index]
        return RunOutcome("finding", buckets.signature(found), found, "", 0.1)

    ledger = Ledger((TARGET,), lambda target, index: Suspect(target, index, programs[index], seen(index)))
    for index in findings:
        ledger.arrive(TARGET, index, seen(index), float(index))
    ledger.settle()
    return ledger


def test_a_bucket_that_is_known_doubles_the_distance() -> None:
    group = _group("strides/strides of out", Severity.METADATA, 20, "a", "b", "b", "b", "c")
    assert sorted(group.examples) == [0, 1, 2, 4, 8]
    assert group.position == 9


def test_there_is_an_end_to_it() -> None:
    names = [str(i) for i in range(MOST_EXAMPLES)]
    group = _group("strides/strides of out", Severity.METADATA, 100, *names)
    assert not group.due()
    group = _group("values/out elements", Severity.SILENT, 2, "a", "b")
    assert not group.due()
    assert not _group("values/out elements", Severity.SILENT, 2, "a").due(firsts_only=True)


def test_what_is_silent_comes_before_all_that_is_loud() -> None:
    unlike = _group("values/out elements", Severity.SILENT, 30, "a")
    unlike.add(30, 0.0, bare_operators(SINE))
    order = [
        _group("values/out elements", Severity.SILENT, 3),
        _group("aliasing/storage of out", Severity.MEMORY, 30),
        unlike,
        _group("errors/call: RuntimeError shape is invalid", Severity.ERROR, 50),
        _group("autograd-metadata/base of out", Severity.GRADIENTS, 90),
        _group("values/out elements", Severity.SILENT, 30, "a", "a", "a"),
        _group("errors/call: RuntimeError shape is invalid", Severity.ERROR, 50, "a"),
    ]
    ranks = [group.rank for group in order]
    assert ranks == sorted(ranks)


def test_a_silent_finding_that_is_like_no_example_is_one_at_once() -> None:
    group = _group("values/out elements", Severity.SILENT, 8, "a", "a", "a")
    assert sorted(group.examples) == [0, 1, 3]
    group.add(8, 0.0, bare_operators(SINE))
    assert (group.next_place(), group.next_place(firsts_only=True)) == (7, 7), "the schedule's comes first"
    group.take(_example("a", 7))
    assert group.next_place(firsts_only=True) == 8
    group.take(_example("b", 8, SINE))
    group.add(9, 0.0, bare_operators(SINE))
    assert group.next_place(firsts_only=True) is None


def test_silent_findings_stand_with_no_others_and_those_that_draw_apart() -> None:
    programs = [DOUBLE_IN_PLACE, DRAWS, DOUBLE_IN_PLACE, DOUBLE_IN_PLACE]
    ledger = _ledger(programs, {0: (WRONG,), 1: (WRONG,), 2: BOTH, 3: BOTH[:1]})
    keys = [(key.label.split("/")[0], key.severity, key.draws) for key in ledger.groups]
    assert keys == [
        ("values", Severity.SILENT, False),
        ("values", Severity.SILENT, True),
        ("errors", Severity.SILENT, False),
        ("errors", Severity.ERROR, False),
    ]


def test_a_finding_counts_with_the_example_that_it_is_like() -> None:
    programs = [SINE, LOST_THROUGH_EXPAND, SINE, EXPONENTIAL, RETURN_VIEW]
    ledger = _ledger(programs, dict.fromkeys(range(5), (WRONG,)))
    two = _example("two", 1, LOST_THROUGH_EXPAND)
    ledger.restore({(TARGET, 0): _example("one", 0, SINE), (TARGET, 1): two})
    assert [(bucket.name, bucket.count, bucket.unlike) for bucket in ledger.buckets()] == [
        ("one", 3, 0),
        ("two", 2, 1),
    ]


def test_examples_of_another_schedule_count_as_well() -> None:
    ledger = _ledger([DOUBLE_IN_PLACE] * 6, dict.fromkeys(range(6), (RAISES,)))
    ledger.restore({(TARGET, index): _example(str(index), index) for index in (0, 4)})
    assert [(bucket.name, bucket.count) for bucket in ledger.buckets()] == [("0", 4), ("4", 2)]
    (group,) = ledger.groups.values()
    assert group.next_place() == 1


def test_what_a_control_does_as_well_is_counted_once_for_all_targets() -> None:
    ledger = Ledger((TARGET, "torch-inductor"), lambda target, index: _example("").suspect)
    for target, index in ((TARGET, 0), ("torch-inductor", 0), ("torch-inductor", 1)):
        reason = "torch-dynamo does it too: values/out elements"
        ledger.arrive(target, index, RunOutcome("poisoned", "", (), reason, 0.1), 0.0)
    ledger.arrive(TARGET, 1, RunOutcome("poisoned", "", (), "eager does it too: timeout", 0.1), 0.0)
    ledger.settle()
    (row,) = ledger.below()
    assert (row.control, row.signature, row.cases) == ("torch-dynamo", "values/out elements", 2)
    assert (row.first_case, row.severity) == (0, Severity.SILENT)
