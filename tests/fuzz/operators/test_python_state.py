"""Programs that read and write Python state, and calls under function modes: each side has its own state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuzz import Target
from fuzz.choices import SeededChoices
from fuzz.execute.case import execute
from fuzz.features.program_features import features
from fuzz.features.table import PYTHON_FEATURES
from fuzz.generate import generate
from fuzz.ir.nodes import (
    Call,
    Module,
    Program,
    Ref,
    Region,
    Root,
    Scenario,
    Seq,
    Statement,
    Storage,
    Tree,
)
from fuzz.operators import OPERATORS, Kind, Operator
from fuzz.program.decode import ProgramError, check, from_json, to_json
from fuzz.program.printer import load, render
from fuzz.reduce import reduce
from fuzz.repro import script as repro_script
from fuzz.targets.catalog import find_target
from tests.fuzz import stateful_targets
from tests.support.fuzz.small_programs import call, program

Function = Callable[..., Any]


def three_times(one: Program, *scenarios: Scenario) -> Program:
    """A program whose function is called three times, with other values each time."""
    around = scenarios or (Scenario(), Scenario())
    later = [
        Call(tuple(replace(s, seed=s.seed + i) for s in one.storages), one.arguments, scenario)
        for i, scenario in enumerate(around, start=1)
    ]
    return replace(one, later=tuple(later))


def of_a_module(one: Program) -> Program:
    return replace(one, module=Module(), parameters=one.parameters)


def single(row: Operator) -> Program:
    """A program of one statement, which gives what that gives."""
    operands = ("a0",) * len(row.operands)
    made = ("v0",) if row.differentiable else ()
    returns: Tree = Ref("v0") if made else Seq("tuple", ())
    return program(
        Statement(row.name, operands, (), made), returns=returns, storage=Storage("float32", (3,), 1)
    )


CATCHING = ("cholesky_or_double", "inverse_or_double", "rows_or_nearest")
ROWS = [row for row in OPERATORS.values() if row.kind is Kind.PYTHON]
OTHERS = (*CATCHING, "embedding_sparse", "embedding_within", "checkpoint_number")  # need other operands
PLAIN = {row.name: single(row) for row in ROWS if row.name not in OTHERS}
COUNTED = three_times(program(call("count"), call("read_count", "a0", to="v0"), returns=Ref("v0")))
SINE_SWAPPED = program(call("sin", "a0", to="v0"), returns=Ref("v0"))


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("name", PLAIN)
def test_eager_agrees_with_itself(name: str, module: bool) -> None:
    one = three_times(PLAIN[name])
    one = of_a_module(one) if module else one
    assert from_json(to_json(one)) == one
    assert execute(one, find_target("eager")).outcome == "agree"
    assert PYTHON_FEATURES[name] in features(one)
    assert ("python: of a module" in features(one)) == (module and OPERATORS[name].stateful)


def test_state_is_that_of_the_call_before() -> None:
    loaded = load(COUNTED)
    seen = [loaded.f(*make()[0]) / make()[0][0] for make in loaded.makes]
    assert [value.flatten()[0].item() for value in seen] == [3.0, 4.0, 5.0]
    assert vars(loaded.state) == {"calls": 3}


class TooHard(Exception):
    """What a target raises that declines."""


def _runs_and_refuses(function: Function) -> Function:
    def compiled(*args: Any) -> Any:
        function(*args)
        raise TooHard

    return compiled


def _refuses(function: Function) -> Function:
    def compiled(*args: Any) -> Any:
        raise TooHard

    return compiled


def _under_test(compile_function: Callable[[Function], Function]) -> Target:
    return Target("under-test", "", compile_function, lambda e: "hard" if isinstance(e, TooHard) else None)


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("name", ["count", "log_size", "switch_flag", "hook_module", "switch_training"])
def test_what_is_written_once_alone_is_found(name: str, module: bool) -> None:
    one = three_times(PLAIN[name])
    one = of_a_module(one) if module else one
    result = execute(one, _under_test(stateful_targets.runs_once))
    assert result.outcome == "finding"
    assert {finding.clause for finding in result.findings} == {"repeat"}
    assert any(": once: state" in finding.path for finding in result.findings)


# What eager leaves the same when it is called twice, and what it moves on each time.
_AGAIN = ("mark", "keep_entry", "cached", "lazily", "use_deterministic", "enter_mode")
_MOVES = (
    *("count", "log_size", "switch_flag", "first_time", "running", "optimizer_step", "switch_training"),
    "hook_module",
)


@pytest.mark.parametrize("name", _MOVES)
def test_what_a_refused_call_leaves_is_found(name: str) -> None:
    result = execute(PLAIN[name], _under_test(_runs_and_refuses))
    assert (result.outcome, {finding.clause for finding in result.findings}) == ("finding", {"refusals"})


@pytest.mark.parametrize("name", _AGAIN)
def test_what_eager_leaves_too_and_can_do_twice_is_right(name: str) -> None:
    assert execute(PLAIN[name], _under_test(_runs_and_refuses)).outcome == "refused"


@pytest.mark.parametrize("name", PLAIN)
def test_a_clean_refusal_is_one_and_later_calls_go_on(name: str) -> None:
    assert execute(three_times(PLAIN[name]), _under_test(_refuses)).outcome == "refused"


def test_calls_after_one_that_raises_are_compared_no_more_where_it_left_less() -> None:
    """What eager has written before it raises a target may take back; then later calls find another state."""
    statements = (call("keep_entry", "a0"), call("inverse_of_zeros", to="v0", count=2))
    raising = three_times(program(*statements, returns=Ref("v0")))

    def takes_back(function: Function) -> Function:
        state = function.__globals__["state"]

        def compiled(*args: Any) -> Any:
            before = dict(state.entries)
            try:
                return function(*args)
            except Exception:
                state.entries = before
                raise

        return compiled

    assert execute(raising, _under_test(takes_back)).outcome == "agree"
    once = three_times(program(statements[0], returns=Ref("a0")))
    assert execute(once, _under_test(takes_back)).outcome == "agree"


def test_a_later_call_is_tried_alone_with_the_state_before_it() -> None:
    def wrong_from_four(function: Function) -> Function:
        return lambda *args: function(*args) * (1 if function.__globals__["state"].calls < 2 else 2)

    result = execute(COUNTED, _under_test(wrong_from_four))
    assert [(finding.clause, finding.path) for finding in result.findings] == [("values", "out")]


@pytest.mark.parametrize(
    ("one", "fault", "clause"),
    [
        (COUNTED, "runs_once", "repeat"),
        (PLAIN["count"], "refuses_after_a_run", "refusals"),
        (of_a_module(PLAIN["switch_training"]), "refuses_after_a_run", "refusals"),
        (PLAIN["mark"], "drops_attributes", "once"),
        (replace(SINE_SWAPPED, scenario=Scenario(swapped=True)), "ignores_modes", "values"),
    ],
)
def test_a_script_shows_it(one: Program, fault: str, clause: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"tests.fuzz.stateful_targets:{fault}"
    result = execute(one, find_target(name))
    assert result.findings[0].clause == clause
    for script, status in (
        (repro_script.repro_script(one, name, result.findings[0]), 1),
        (repro_script.repro_script(one, "eager", result.findings[0]), 0),
    ):
        with torch.enable_grad(), pytest.raises(SystemExit) as left:
            exec(compile(script, "repro.py", "exec"), {"__name__": "__main__"})
        assert left.value.code == status, capsys.readouterr().out


def test_a_function_mode_is_around_the_calls_that_say_so() -> None:
    one = three_times(SINE_SWAPPED, Scenario(swapped=True), Scenario())
    assert "class Swap(torch.overrides.TorchFunctionMode):" in render(one)
    assert {"repeat: other function mode", "mode: swapped around"} <= features(one)
    assert execute(one, find_target("eager")).outcome == "agree"
    inside = replace(
        program(replace(call("sin", "a0", to="v0"), block=0), returns=Ref("v0")), blocks=(Region("swapped"),)
    )
    loaded = load(inside)
    args, *_ = loaded.make()
    assert torch.equal(loaded.f(*args), args[0].cos())
    assert "mode: swapped" in features(inside)


def test_marked_arguments_have_an_attribute() -> None:
    one = program(call("getattr_mark", "a0", to="v0"), returns=Ref("v0"))
    marked = three_times(one, Scenario(marked=("a0",)), Scenario())
    plain, other, _ = load(marked).makes
    assert not hasattr(plain()[0][0], "mark") and other()[0][0].mark
    assert {"python: marked", "repeat: other attribute"} <= features(marked)
    assert execute(marked, find_target("eager")).outcome == "agree"
    with pytest.raises(ProgramError, match=r"scenario.marked\[0\]"):
        check(replace(one, scenario=Scenario(marked=("a1",))))


def test_two_threads_share_no_state() -> None:
    with pytest.raises(ProgramError, match="two threads would share"):
        check(replace(PLAIN["count"], scenario=Scenario(threads=True)))


def test_what_raises_for_its_numbers_is_caught() -> None:
    one = Program(
        (Storage("float32", (2, 2), 1), Storage("int64", (4,), 1)),
        (Root(0), Root(1)),
        (Ref("a0"), Ref("a1")),
        (
            call("cholesky_or_double", "a0", to="v0"),
            call("inverse_or_double", "a0", to="v1"),
            call("rows_or_nearest", "a0", "a1", to="v2"),
        ),
        Seq("tuple", (Ref("v0"), Ref("v1"), Ref("v2"))),
    )
    loaded = load(one)
    x, index = loaded.make()[0]
    factor, _, rows = loaded.f(x, index)
    assert torch.equal(factor, x.tril() * 2) and torch.equal(rows, x[index.clamp(0, 1)])
    positive = x @ x.mT + torch.eye(2)
    assert torch.equal(loaded.f(positive, index.abs() % 2)[0], torch.linalg.cholesky(positive))
    assert "python: caught" in features(one)
    assert execute(one, find_target("eager")).outcome == "agree"


def test_a_program_is_reduced_to_what_is_written() -> None:
    one = replace(
        three_times(
            program(
                call("mul_number", "a0", to="v0", value=2.0),
                call("count"),
                call("sin", "v0", to="v1"),
                returns=Ref("v1"),
            ),
            Scenario(swapped=True, marked=("a0",)),
            Scenario(marked=("a0",)),
        ),
        scenario=Scenario(marked=("a0",)),
    )

    def counts(candidate: Program) -> bool:
        return any(statement.operator == "count" for statement in candidate.statements)

    smaller = reduce(one, counts).program
    assert [statement.operator for statement in smaller.statements] == ["count"]
    assert (smaller.later, smaller.scenario) == ((), Scenario())


def test_the_profile_makes_them_all_and_mixed_has_a_share() -> None:
    made = [generate(SeededChoices(0, i), "python") for i in range(600)]
    for one in made[:100]:
        check(one)
    used = {statement.operator for one in made for statement in one.statements}
    assert used >= {row.name for row in ROWS}
    mixed = [generate(SeededChoices(0, i)) for i in range(600)]
    touched = [o for o in mixed if any(OPERATORS[s.operator].kind is Kind.PYTHON for s in o.statements)]
    assert 10 <= len(touched) <= 120
