"""What operators do outside of a program is seen: how often, in which order, forward and backward."""

from __future__ import annotations

import pytest

from fuzz.execute.case import Result, execute
from fuzz.features.program_features import features
from fuzz.program.decode import Program, Ref, Storage
from fuzz.program.printer import render
from fuzz.targets.catalog import find_target
from tests.fuzz import bad_targets  # noqa: F401  (targets are found by its name)
from tests.support.fuzz.small_programs import call, program

LEAF = Storage("float32", (3,), 1, requires_grad=True)
NOTED = program(
    call("effect_note", "a0"),
    call("mul_number", "a0", to="v0", value=2.0),
    call("effect_note", "v0"),
    returns=Ref("v0"),
)
TAPPED = program(
    call("effect_tap", "a0", to="v0"),
    call("sin", "v0", to="v1"),
    call("effect_tap", "v1", to="v2"),
    returns=Ref("v2"),
    storage=LEAF,
)


def _run(one: Program, name: str) -> Result:
    target = find_target(name)
    target.prepare()
    return execute(one, target)


@pytest.mark.parametrize("target", ["eager", "aot", "aot-min-cut"])
@pytest.mark.parametrize("one", [NOTED, TAPPED])
def test_what_is_noted_is_the_same(one: Program, target: str) -> None:
    assert "notes = torch.ops.aotfuzz.notes.zero_()" in render(one)
    assert "operator: acts outside" in features(one)
    assert _run(one, target).outcome == "agree"


@pytest.mark.parametrize(
    ("one", "target"),
    [
        (NOTED, "notes_once_more"),
        (NOTED, "notes_in_another_order"),
        (TAPPED, "notes_once_more"),
        (TAPPED, "notes_in_another_order"),
        (TAPPED, "notes_once_more_in_the_backward"),
    ],
)
def test_what_is_noted_otherwise_is_found(one: Program, target: str) -> None:
    result = _run(one, f"tests.fuzz.bad_targets:{target}")
    assert result.outcome == "finding"
    assert {finding.path for finding in result.findings} == {"tensor['notes']"}
