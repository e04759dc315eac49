"""The table of accepted differences: how a row works, and that each row is still needed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import oracles.comparison.accepted_differences
from oracles import Finding, Observation, compare, observe
from oracles.comparison.accepted_differences import DIVERGENCES, Divergence
from tests.support.oracles.oracle_cases import leaf

SHOWN_BY: dict[str, None] = {}
"""For each row of the table a program that shows the difference; there is no row."""


def strides_of_out(finding: Finding, eager: Observation, target: Observation) -> bool:
    return finding.clause == "strides" and eager.generator == target.generator


ROW = Divergence("strides", "for this test only", strides_of_out)


def test_every_row_has_a_program_that_needs_it() -> None:
    assert {row.name for row in DIVERGENCES} == set(SHOWN_BY)


def turned(w: Tensor) -> Tensor:
    y = w.sin()
    y.data = y.detach().t().contiguous().t()
    return y


def test_compare_leaves_out_what_a_row_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    eager, target = observe(torch.sin, leaf), observe(turned, leaf)
    assert [finding.clause for finding in compare(eager, target)] == ["strides"]
    monkeypatch.setattr(oracles.comparison.accepted_differences, "DIVERGENCES", (ROW,))
    assert compare(eager, target) == ()


def test_a_row_accepts_nothing_that_it_does_not_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracles.comparison.accepted_differences, "DIVERGENCES", (ROW,))
    eager, target = observe(torch.sin, leaf), observe(lambda w: turned(w) * 2, leaf)
    assert "values" in {finding.clause for finding in compare(eager, target)}
    assert "strides" not in {finding.clause for finding in compare(eager, target)}
