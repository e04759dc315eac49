"""Every public report: aot is right about it or refuses it by name, and torch is as the report says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import aot
from fuzz.features.traits import TRAITS
from fuzz.patterns import matches
from tests.reports.page import page
from tests.reports.report import TARGETS, Program, Report, findings, state
from tests.reports.table import REPORTS
from tests.reports.unaided import CAMPAIGNS, searched
from tests.support.agreement import assert_agrees, assert_same_story, checking_nop

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "historical.md"


def _named(check: Callable[[], None]) -> str:
    if not isinstance(check, functools.partial):
        return check.__name__.strip("_")
    words: list[Any] = [check.func, *check.args, *check.keywords.values()]
    return "-".join(str(getattr(word, "__name__", word)).strip("_") for word in words)


CHECKS = [
    pytest.param(check, id=f"{report.name}-{_named(check)}") for report in REPORTS for check in report.checks
]
STORIES = [
    pytest.param(program, id=f"{report.name}-{number}")
    for report in REPORTS
    for number, program in enumerate((report.program, *report.variants))
    if program.story is not None and not program.refused
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name)
def test_aot_agrees_with_eager(report: Report) -> None:
    for program in (report.program, *report.variants):
        if program.story is None or program.refused:
            _assert_right(program)


@pytest.mark.both_devices
@pytest.mark.parametrize("program", STORIES)
def test_a_story_with_aot_is_that_with_eager(program: Program) -> None:
    assert program.story is not None
    assert_same_story(program.function, program.story)


@pytest.mark.both_devices
@pytest.mark.parametrize("check", CHECKS)
def test_what_a_report_asks_of_aot_besides(check: Callable[[], None]) -> None:
    check()


def _assert_right(program: Program) -> None:
    if program.story is not None:
        with pytest.raises(aot.Unsupported, match=program.refused):
            program.story(aot.aot_function(program.function, checking_nop))
        return
    if program.refused:
        arguments, before = list(program.make()), list(program.make())
        with pytest.raises(aot.Unsupported, match=program.refused):
            aot.aot_function(program.function, checking_nop)(*arguments)
        assert all(map(torch.equal, arguments, before))
        assert [a._version for a in arguments] == [b._version for b in before]
        return
    assert_agrees(
        program.function,
        program.make,
        grad=program.grad,
        differentiate=program.differentiate,
        steps=program.steps,
        backward_raises=program.backward_raises,
    )


MEASURED = [report for report in REPORTS if report.expected(torch.__version__) is not None]
"""The reports of which the state is recorded for this torch."""


# (A state changes when torch does. Through Dynamo a look takes twice as long, so this is left to the nights.)
@pytest.mark.parametrize("target", [TARGETS[0], pytest.param(TARGETS[1], marks=pytest.mark.nightly)])
@pytest.mark.parametrize("report", MEASURED, ids=lambda report: report.name)
def test_torch_is_as_the_report_says(report: Report, target: str) -> None:
    stock = report.expected(torch.__version__)
    assert stock is not None and state(findings(report.program, target)) == stock.of(target)


def test_the_state_is_recorded_of_all_that_stock_has() -> None:
    """The others are about a graph compiler and a partitioner, of which the two targets have none."""
    unknown = {number for report in REPORTS if report.expected("2.13.0") is None for number in report.numbers}
    assert unknown == {191002, 151799, 197039}


def test_the_numbers_are_those_of_different_reports() -> None:
    names = [(report.repository, number) for report in REPORTS for number in report.numbers]
    assert len(set(names)) == len(names) >= 107


def test_what_reports_need_are_traits() -> None:
    for report in REPORTS:
        for pattern in report.needs or ():
            assert any(matches(pattern, trait) for trait in TRAITS), (report.name, pattern)


def test_campaigns_show_only_what_is_wrong_as_reported() -> None:
    for campaign in CAMPAIGNS:
        assert campaign.shown.keys() <= {report.name for report in searched(campaign.target)}


def test_the_page_is_written_from_the_reports() -> None:
    assert PAGE.read_text() == page(), "python -m tests.reports.page > docs/measurements/historical.md"
