"""Which recorded case explains a bucket, so that it is no news."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.corpus import buckets
from fuzz.corpus.case_file import AGREES, DIFFERS, Case, Origin
from fuzz.corpus.recorded_cases import RecordedCase, find_recorded_case
from fuzz.program.decode import Program
from oracles import Finding
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, LOST_THROUGH_EXPAND, SINE, call

TARGET, TORCH = "torch-aot-eager", "2.13.0+cpu"
LOST = Finding("input-data", "arg[0]", "1.0", "2.0", "arg[0] at element 0: 1.0 in eager, 2.0 in the target")
WRONG = Finding("values", "out", "1.0", "2.0", "out at element 0: 1.0 in eager, 2.0 in the target")
LARGER = replace(
    LOST_THROUGH_EXPAND, statements=(call("sin", "a0", to="w0"), *LOST_THROUGH_EXPAND.statements)
)


def _case(program: Program = LOST_THROUGH_EXPAND, issue: int | None = 197448, **changes: object) -> Case:
    case = Case(
        program,
        buckets.bucket((LOST,), program),
        "input-data",
        "2.13.0",
        Origin(TARGET, 0, 1, "mixed"),
        {TARGET: DIFFERS, "aot": AGREES},
        (LOST,),
        note="lost",
        issue=issue,
    )
    return replace(case, **changes)  # type: ignore[arg-type]


def _found(
    program: Program,
    *cases: Case,
    target: str = TARGET,
    finding: Finding = LOST,
    controls: tuple[str, ...] = (),
) -> RecordedCase | None:
    files = [(Path(f"corpus/{number}.json"), case) for number, case in enumerate(cases)]
    bucket = buckets.bucket((finding,), program)
    return find_recorded_case(files, (target, *controls), TORCH, bucket, (finding,), program)


def test_the_same_bucket_is_explained() -> None:
    assert _found(LOST_THROUGH_EXPAND, _case()) == RecordedCase("corpus/0.json", 197448, "lost")


def test_a_case_of_a_control_explains_as_well() -> None:
    found = _found(LOST_THROUGH_EXPAND, _case(), target="torch-inductor", controls=("torch-dynamo", TARGET))
    assert found is not None and found.issue == 197448


def test_a_program_that_contains_the_cases_program_is_explained() -> None:
    found = _found(LARGER, _case(DOUBLE_IN_PLACE, None), _case())
    assert found is not None and found.file == "corpus/1.json", "the larger one explains more"
    assert RecordedCase.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("case", "target", "finding"),
    [
        (_case(SINE), TARGET, LOST),
        (_case(), "aot", LOST),
        (_case(), "torch-inductor", LOST),
        (_case(), TARGET, WRONG),
        (_case(versions={TARGET: ">=2.14"}), TARGET, LOST),
    ],
)
def test_another_program_target_difference_or_torch_is_news(
    case: Case, target: str, finding: Finding
) -> None:
    assert _found(DOUBLE_IN_PLACE, case, target=target, finding=finding) is None
