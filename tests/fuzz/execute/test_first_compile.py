"""What only the first compile of a process gets wrong is found, in one thread and in two."""

from __future__ import annotations

import pytest

from fuzz.choices import SeededChoices
from fuzz.execute.case import execute
from fuzz.execute.first_compile import execute_first, in_two_threads
from fuzz.generate import generate
from fuzz.program.decode import Program
from fuzz.targets.catalog import find_target
from tests.support.fuzz.small_programs import SINE

BAD = "tests.fuzz.first_compile_targets"


@pytest.mark.nightly
@pytest.mark.parametrize("program", [SINE, in_two_threads(SINE)])
def test_eager_is_right_at_once(program: Program) -> None:
    assert execute_first(program, "eager").outcome == "agree"


def test_what_the_first_compile_gets_wrong_is_found() -> None:
    name = f"{BAD}:fails_at_first"
    found = execute_first(SINE, name)
    assert [finding.clause for finding in found.findings] == ["errors"]
    execute(SINE, find_target(name))  # as a worker is forked from a process that has compiled
    assert execute(SINE, find_target(name)).outcome == "agree"


def test_two_threads_that_compile_first_are_seen() -> None:
    name = f"{BAD}:sets_up_slowly"
    assert execute(in_two_threads(SINE), find_target(name)).outcome == "agree"
    found = execute_first(in_two_threads(SINE), name)
    assert {finding.clause for finding in found.findings} == {"threads"}


@pytest.mark.nightly
def test_a_process_that_dies_is_a_finding() -> None:
    assert "takes the process down" in execute_first(SINE, f"{BAD}:segfaults_always").reason
    assert "timeout" in execute_first(SINE, f"{BAD}:hangs_always", seconds=15).findings[0].target


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["aot", "aot-dynamic", "aot-compile", "aot-inductor"])
@pytest.mark.parametrize("index", range(20))
def test_the_first_compile_of_a_process(target: str, index: int) -> None:
    if (reason := find_target(target).available()) is not None:
        pytest.skip(reason)
    program = generate(SeededChoices(11, index), "single")
    if index % 2 and program.module is None:
        program = in_two_threads(program)
    result = execute_first(program, target)
    assert result.outcome != "finding", result.reason
