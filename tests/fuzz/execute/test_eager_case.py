"""Eager alone: what is seen of a program, and how another eager's observations of it are judged."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from fuzz.choices import SeededChoices
from fuzz.execute.eager_case import judge_eager, observe_eager
from fuzz.generate import generate
from fuzz.program.decode import Call, Program
from oracles import Observation
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, RETURN_VIEW, SINE


def _with_first_element(seen: Observation, add: float) -> Observation:
    """The observation of an eager whose result begins with another number."""
    state = seen.states[-1]
    assert state.value is not None
    (first,) = struct.unpack("<f", state.value.data[:4])
    data = struct.pack("<f", first + add) + state.value.data[4:]
    changed = replace(state, value=replace(state.value, data=data))
    return replace(seen, states=(*seen.states[:-1], changed))


@pytest.mark.parametrize("program", [SINE, DOUBLE_IN_PLACE, RETURN_VIEW])
def test_eager_agrees_with_itself(program: Program) -> None:
    seen = observe_eager(program)
    assert observe_eager(program) == seen
    assert judge_eager(program, seen).outcome == "agree"


@pytest.mark.parametrize("profile", ["mixed", "python", "calls"])
def test_each_call_of_a_program_is_seen(profile: str) -> None:
    programs = [generate(SeededChoices(3, index), profile) for index in range(8)]
    assert any(len(program.later) for program in programs) or profile == "mixed"
    for program in programs:
        seen = observe_eager(program)
        assert len(seen) == 1 + len(program.later)
        assert judge_eager(program, seen).outcome != "finding"


def test_rounding_is_within_the_policy_and_another_number_is_not() -> None:
    (seen,) = observe_eager(SINE)
    assert judge_eager(SINE, [_with_first_element(seen, 1e-9)]).outcome == "agree"
    result = judge_eager(SINE, [_with_first_element(seen, 0.5)])
    assert result.outcome == "finding"
    assert {finding.clause for finding in result.findings} >= {"values"}


def test_a_finding_of_a_later_call_says_so() -> None:
    program = replace(SINE, later=(_same_call(SINE),))
    first, second = observe_eager(program)
    result = judge_eager(program, [first, _with_first_element(second, 0.5)])
    assert result.findings[0].message.startswith("in call 2, ")


def test_another_number_of_calls_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="shorter"):
        judge_eager(SINE, [])


def _same_call(program: Program) -> Call:
    """The program's call once more."""
    return Call(program.storages, program.arguments, program.scenario)
