"""`fuzz.programs` is a strategy that other people's tests can use."""

from __future__ import annotations

import logging
import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.logging import LogCaptureHandler
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.errors import NoSuchExample

from fuzz import programs
from fuzz.generate.profiles import PROFILES, Profile
from fuzz.operators import OPERATORS, Kind
from fuzz.program.decode import Program, check
from tests.support.fuzz.in_eager import execute, expected_to_raise, shows_bytes

QUICK = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEARCH = settings(max_examples=100, deadline=None, database=None, derandomize=True)


def writes(program: Program) -> bool:
    return any(OPERATORS[statement.operator].writes for statement in program.statements)


@pytest.mark.parametrize("profile", PROFILES)
def test_examples_are_valid(profile: str) -> None:
    @given(programs(profile))
    @QUICK
    def valid(program: Program) -> None:
        check(program)

    valid()


@given(programs("single"))
@QUICK
def test_examples_run(program: Program) -> None:
    outcome = execute(program)
    if isinstance(outcome, torch.linalg.LinAlgError) and shows_bytes(program):
        return  # of integers so large that the identity which is added is rounded away
    assert isinstance(outcome, Exception) == expected_to_raise(program)


def test_a_failing_example_shrinks() -> None:
    kinds = ((Kind.VIEW, 1), (Kind.IN_PLACE, 1))
    small = replace(PROFILES["aliasing"], kinds=kinds, arguments=(1, 2), statements=(1, 4))
    found = find(programs(small), writes, settings=SEARCH)
    assert len(found.statements) <= 2
    assert len(found.arguments) == 1


def test_a_profile_of_ones_own() -> None:
    profile = Profile("views only", kinds=((Kind.VIEW, 1),), statements=(1, 3), reckless=0.0)

    @given(programs(profile))
    @QUICK
    def views(program: Program) -> None:
        assert all(OPERATORS[statement.operator].kind is Kind.VIEW for statement in program.statements)

    views()
    with pytest.raises(NoSuchExample):
        find(programs(profile), writes, settings=SEARCH)


def test_an_unknown_profile_is_named() -> None:
    with pytest.raises(ValueError, match="no profile is named 'wild'; there are uniform"):
        programs("wild")


def loses_writes(function: Callable[..., Any]) -> Callable[..., Any]:
    def compiled(*args: Any) -> Any:
        kept = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, args)
        return function(*kept)

    return compiled


def test_the_documented_example_holds_a_compiler_to_what_it_writes() -> None:
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "fuzz-your-backend.md").read_text()
    [example] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "@given" in block]
    # What it finds need not shrink.
    search = settings(SEARCH, phases=[Phase.generate])
    namespace: dict[str, Any] = {"my_compiler": lambda function: function, "search": search}
    exec(example.replace("deadline=None", "search"), namespace)
    test = namespace["test_arguments_are_written_to"]
    test()
    namespace["my_compiler"] = loses_writes
    with pytest.raises(AssertionError):
        test()


def test_a_failing_example_is_shown_as_its_source() -> None:
    @settings(max_examples=20, phases=[Phase.generate], derandomize=True, database=None, deadline=None)
    @given(programs("single"))
    def fails(program: Program) -> None:
        assert not program.statements

    with pytest.raises(AssertionError) as failure:
        fails()
    shown = "\n".join(failure.value.__notes__)
    assert "import torch" in shown and "def f(" in shown and "Program(" not in shown
    first, last = shown.index("\n", shown.index("program=")) + 1, shown.rindex(",\n")
    compile(textwrap.dedent(shown[first:last]), "example.py", "exec")


def test_torch_s_trace_is_not_in_the_report_of_a_test() -> None:
    trace, handler = logging.getLogger("torch.__trace"), LogCaptureHandler()
    trace.addHandler(handler)
    kept = [one for one in trace.handlers if not isinstance(one, LogCaptureHandler)]
    try:
        find(programs("single"), lambda program: True)
        assert trace.handlers == kept
    finally:
        trace.removeHandler(handler)
