"""One fault, one row: exceptions by what raised them, everything else by its bucket."""

from __future__ import annotations

from dataclasses import replace

from fuzz.corpus import buckets
from fuzz.corpus.severity import Severity
from fuzz.report.causes import causes
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, LOST_THROUGH_EXPAND, SINE
from tests.support.fuzz.summaries import Found, raises, summary_of, wrong

HERE, THERE = "torch._functorch.alias.gen_alias", "torch._dynamo.guards.check"
SHAPE = raises("RuntimeError: shape [2, 3] is invalid")


def test_one_exception_of_one_function_is_one_cause_whatever_the_program() -> None:
    found = [
        Found(SHAPE, SINE, origin=HERE),
        Found(raises("RuntimeError: shape [7] is invalid", "backward"), LOST_THROUGH_EXPAND, origin=HERE),
        Found(SHAPE, DOUBLE_IN_PLACE, origin=THERE),
        Found(raises("IndexError: shape [2, 3] is invalid"), SINE, origin=HERE),
    ]
    rows = causes(summary_of(found))
    assert sorted((row.origin, len(row.buckets)) for row in rows) == [(THERE, 1), (HERE, 1), (HERE, 2)]
    (both,) = [row for row in rows if len(row.buckets) == 2]
    assert both.best.example.statements == 1, "the smallest program shows it"
    assert both.count == 2


def test_where_the_function_is_not_known_the_signature_tells() -> None:
    found = [Found(SHAPE, SINE), Found(SHAPE, LOST_THROUGH_EXPAND), Found(raises("RuntimeError: no"), SINE)]
    rows = causes(summary_of(found))
    assert sorted((row.name, len(row.buckets)) for row in rows) == [
        ("errors/call: RuntimeError no", 1),
        ("errors/call: RuntimeError shape is invalid", 2),
    ]


def test_what_is_silently_wrong_is_told_apart_by_its_program() -> None:
    rows = causes(summary_of([Found(wrong(), SINE), Found(wrong(), LOST_THROUGH_EXPAND)]))
    assert [len(row.buckets) for row in rows] == [1, 1]
    assert {row.severity for row in rows} == {Severity.SILENT}


def test_deaths_are_told_apart_by_where_they_happen() -> None:
    stacks = [f'File "/x/{name}.py", line 3 in run' for name in ("one", "two", "two")]
    deaths = [buckets.death("crash", "killed by SIGSEGV", stack) for stack in stacks]
    programs = (SINE, DOUBLE_IN_PLACE, LOST_THROUGH_EXPAND)
    found = [Found(one, given, kind="crash") for one, given in zip(deaths, programs, strict=True)]
    assert sorted(len(row.buckets) for row in causes(summary_of(found))) == [1, 2]


def test_of_equally_bad_ones_what_is_sure_and_frequent_comes_first() -> None:
    flaky = Found(wrong("values", "out", "out[1] at element 0"), SINE, "flaky")
    rows = causes(summary_of([flaky, Found(wrong(), DOUBLE_IN_PLACE), replace(flaky, state="unreduced")]))
    assert [row.best.example.state for row in rows] == ["shown", "unreduced", "flaky"]


def test_what_no_fresh_worker_has_shown_comes_last() -> None:
    hang = buckets.death("timeout", "30 s", "")
    late = wrong("lifetime", "memory", "memory of a call")
    rows = causes(summary_of([Found(hang, SINE, "unconfirmed", kind="timeout"), Found(late)]))
    assert [row.severity for row in rows] == [Severity.BOOKKEEPING, Severity.HANG]
