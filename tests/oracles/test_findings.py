"""Findings are plain strings about a clause of the contract."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from oracles import CLAUSES, Finding, Outcome, Verdict


def test_a_finding_is_json_and_comes_back_equal() -> None:
    finding = Finding("strides", "out[0]", "(1, 2)", "(2, 1)", "strides of out[0]: ...")
    assert Finding(**json.loads(json.dumps(asdict(finding)))) == finding
    assert str(finding) == "strides: strides of out[0]: ..."


def test_only_clauses_of_the_contract() -> None:
    assert len(set(CLAUSES)) == len(CLAUSES) == 19
    with pytest.raises(ValueError, match="'stride' is no clause of the contract; known are errors, "):
        Finding("stride", "out", "", "", "")


def test_outcomes_are_words() -> None:
    assert [str(outcome) for outcome in Outcome] == ["agree", "poisoned", "finding"]
    assert Verdict(Outcome.AGREE).findings == ()
