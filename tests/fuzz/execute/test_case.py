"""One case: what a wrong compiler does is a finding of its clause, and nothing is left behind."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from fuzz.corpus.case_file import read
from fuzz.execute import call as call_module
from fuzz.execute.call import Result
from fuzz.execute.case import execute
from fuzz.program.decode import Call, Program, Ref, Scenario, Seq, Statement, Storage
from fuzz.targets.builtin_targets import reset_dynamo
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target
from tests.fuzz.bad_targets import (
    breaks_its_process,
    cannot_compile,
    copies_alias,
    detaches_in_company,
    differentiates_once,
    doubles_duplicate,
    doubles_gradients,
    drops_mutation,
    gives_more,
    gives_more_at_first,
    gives_much_more,
    good,
    keeps_an_argument,
    leaves,
    quadruples_gradients,
    raises_after_a_write,
    remembers_the_size,
    runs_twice,
)
from tests.support.fuzz.small_programs import (
    CUBE_TWICE,
    DOUBLE_IN_PLACE,
    DUPLICATE,
    EXPONENTIAL,
    LOST_THROUGH_EXPAND,
    RETURN_VIEW,
    SINE,
    SINE_OF_ANOTHER_SIZE,
    SQUARE_AND_THEN_IN_TWO_THREADS,
    SQUARE_IN_TWO_THREADS,
    SQUARE_OF_LEAF,
    call,
    program,
)
from tests.support.versions import needs_torch

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


def _target(compiler: Compiler) -> Target:
    return Target("under-test", "", compiler)


@pytest.mark.parametrize(
    ("compiler", "program", "clause"),
    [
        (drops_mutation, DOUBLE_IN_PLACE, "input-data"),
        (copies_alias, RETURN_VIEW, "aliasing"),
        (doubles_duplicate, DUPLICATE, "gradients"),
        (leaves, SINE, "errors"),
        (cannot_compile, SINE, "errors"),
    ],
)
def test_a_wrong_compiler_is_found_by_its_clause(compiler: Compiler, program: Program, clause: str) -> None:
    result = execute(program, _target(compiler))
    assert result.outcome == "finding"
    assert clause in {finding.clause for finding in result.findings}
    if clause != "aliasing":
        assert result.findings[0].clause == clause


@pytest.mark.parametrize(
    ("compiler", "program", "findings"),
    [
        (keeps_an_argument, SINE, [("lifetime", "arg[0]")]),
        (runs_twice, SINE, [("once", "call")]),
        (differentiates_once, CUBE_TWICE, [("double-backward", "grad of arg[0] in step 1")]),
        (doubles_gradients, CUBE_TWICE, [("gradients", "grad of arg[0] in step 1")]),
        (remembers_the_size, SINE_OF_ANOTHER_SIZE, [("repeat", "call 2: values: out")]),
        (detaches_in_company, SQUARE_IN_TWO_THREADS, [("threads", "call 1: autograd-metadata: out")]),
        (
            detaches_in_company,
            SQUARE_AND_THEN_IN_TWO_THREADS,
            [("threads", "call 2: autograd-metadata: out")],
        ),
    ],
)
def test_what_shows_in_steps_and_later_calls_is_found(
    compiler: Compiler, program: Program, findings: list[tuple[str, str]]
) -> None:
    target = Target("under-test", "", compiler, once=True)
    assert [(one.clause, one.path) for one in execute(program, target).findings][:1] == findings


@pytest.mark.parametrize("compiler", [drops_mutation, cannot_compile])
def test_what_is_wrong_in_one_thread_is_no_matter_of_threads(compiler: Compiler) -> None:
    """Nor of repetition, whatever calls there were before."""
    call = Call(DOUBLE_IN_PLACE.storages, DOUBLE_IN_PLACE.arguments, Scenario(threads=True))
    for subject in (
        replace(DOUBLE_IN_PLACE, scenario=call.scenario),
        replace(DOUBLE_IN_PLACE, later=(call,)),
    ):
        target = Target("under-test", "", compiler)
        assert execute(subject, target).findings == execute(DOUBLE_IN_PLACE, target).findings != ()


def test_two_threads_call_at_once_once_one_has_called() -> None:
    at_once: list[int] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        begun: list[None] = []

        def compiled(*args: Any) -> Any:
            begun.append(None)
            time.sleep(0.1)
            at_once.append(len(begun))
            return function(*args)

        return compiled

    subject = replace(CUBE_TWICE, scenario=replace(CUBE_TWICE.scenario, threads=True))
    assert execute(subject, Target("under-test", "", counted)).outcome == "agree"
    assert at_once == [1, 2, 2]


def test_no_other_case_runs_where_threads_went_wrong() -> None:
    target = Target("under-test", "", detaches_in_company)
    assert not execute(SQUARE_IN_TWO_THREADS, target).intact
    assert execute(SQUARE_OF_LEAF, target).intact


COUNTED_SINE = replace(SINE, statements=(call("count"), *SINE.statements))


@pytest.mark.parametrize("subject", [SINE, COUNTED_SINE], ids=["without state", "with state"])
@pytest.mark.parametrize(("calls", "outcome"), [(1, "agree"), (2, "agree"), (9, "finding")])
def test_what_is_taken_once_is_no_leak(
    subject: Program, calls: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, left = [0], [64] * calls
    monkeypatch.setattr("oracles.observation.leaks.allocated_bytes", lambda: taken[0])

    def takes(function: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(*args: Any) -> Any:
            taken[0] += left.pop() if left else 0
            return function(*args)

        return compiled

    result = execute(subject, Target("under-test", "", takes))
    assert result.outcome == outcome
    assert [(one.clause, one.path) for one in result.findings] == [("lifetime", "memory")] * (calls == 9)


def test_what_is_wrong_in_a_program_without_a_twin_is_found() -> None:
    """Its bits are shown as another dtype, so that nothing can be computed in double precision instead."""
    shown = Statement("view_dtype", ("a0",), (("dtype", "int32"),), ("v0",))
    subject = replace(SINE, statements=(*SINE.statements, replace(shown, results=("v9",))))
    shifted = Target("under-test", "", lambda function: lambda value: function(value) + 0.25)
    assert execute(subject, find_target("eager")).outcome == "agree"
    assert [one.clause for one in execute(subject, shifted).findings][:1] == ["values"]


def test_the_twin_in_double_precision_is_made_where_numbers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.execute.case.upcast", None)
    assert execute(SINE, find_target("eager")).outcome == "agree"
    with pytest.raises(TypeError):
        execute(SINE, Target("under-test", "", lambda function: lambda value: function(value) + 0.25))


def test_who_promises_the_same_kernels_is_held_to_every_bit() -> None:
    def nudges(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda value: torch.nextafter(function(value), torch.tensor(9.0))

    assert execute(SINE, Target("under-test", "", nudges)).outcome == "agree"
    result = execute(SINE, Target("under-test", "", nudges, exact=True))
    assert [one.clause for one in result.findings] == ["values"]


def test_what_a_later_call_gets_wrong_by_itself_is_no_matter_of_repetition() -> None:
    def wrong_when_tall(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda value: function(value) + (value.shape[0] == 4)

    result = execute(SINE_OF_ANOTHER_SIZE, _target(wrong_when_tall))
    assert [(finding.clause, finding.path) for finding in result.findings] == [("values", "out")]


def test_only_who_promises_it_is_asked_to_run_the_function_once() -> None:
    assert execute(SINE, _target(runs_twice)).outcome == "agree"


@pytest.mark.parametrize(
    ("program", "name"),
    [(CUBE_TWICE, "eager"), (SINE_OF_ANOTHER_SIZE, "eager"), (SINE_OF_ANOTHER_SIZE, "aot")],
)
def test_targets_agree_on_steps_and_later_calls(program: Program, name: str) -> None:
    assert execute(program, find_target(name)).outcome == "agree"


@pytest.mark.parametrize("threshold", [1, 100_000])
def test_a_target_that_breaks_torch_for_its_process_is_said_to(threshold: int) -> None:
    exponential = replace(SINE, statements=(call("exp", "a0", to="v0"),))
    before = gc.get_threshold()
    gc.set_threshold(threshold)
    try:
        result = execute(exponential, _target(breaks_its_process))
        assert (result.outcome, result.intact) == ("finding", False)
        # The same whenever Python would have collected what the target left behind.
        assert result.findings[0].target == "RuntimeError: cannot do that"
    finally:
        gc.set_threshold(*before)
        _get_current_dispatch_mode().__exit__(None, None, None)
    assert execute(exponential, _target(cannot_compile)).intact
    assert execute(SINE, _target(breaks_its_process)).outcome == "agree"


@pytest.mark.parametrize("threshold", [1, 100_000])
def test_a_control_that_breaks_its_process_speaks_for_nobody(threshold: int) -> None:
    """Whether it is broken within a call, after which modes are left again, or stays so."""
    alone = execute(EXPONENTIAL, _target(gives_more)).findings
    target = Target("under-test", "", gives_more, controls=("tests.fuzz.bad_targets:breaks_its_process",))
    before = gc.get_threshold()
    gc.set_threshold(threshold)
    try:
        result = execute(EXPONENTIAL, target)
        assert (result.outcome, result.intact) == ("finding", threshold == 1)
        assert result.findings == alone != ()
    finally:
        gc.set_threshold(*before)
        while (left := _get_current_dispatch_mode()) is not None:
            left.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("compiler", "program", "clause"),
    [
        (copies_alias, RETURN_VIEW, "aliasing"),
        (gives_more, SINE, "values"),
        (cannot_compile, SINE, "errors"),
        (doubles_gradients, CUBE_TWICE, "gradients"),
        (remembers_the_size, SINE_OF_ANOTHER_SIZE, "repeat"),
    ],
)
def test_what_the_control_does_too_proves_nothing(compiler: Compiler, program: Program, clause: str) -> None:
    control = f"tests.fuzz.bad_targets:{compiler.__name__}"
    result = execute(program, Target("under-test", "", compiler, controls=("eager", control)))
    assert (result.outcome, result.findings) == ("poisoned", ())
    assert result.reason.startswith(f"{control} does it too: {clause}/")


@pytest.mark.parametrize(
    ("compiler", "control", "program", "clause"),
    [
        (copies_alias, good, RETURN_VIEW, "aliasing"),  # a fault in a place where the control is right
        (drops_mutation, copies_alias, DOUBLE_IN_PLACE, "input-data"),
        (gives_much_more, gives_more, SINE, "values"),  # the same place and clause, another number
        (quadruples_gradients, doubles_gradients, CUBE_TWICE, "gradients"),
        (cannot_compile, leaves, SINE, "errors"),  # another exception
        (raises_after_a_write, cannot_compile, SINE, "errors"),  # the same one, with another mark
        (good, gives_more, SINE, None),
    ],
)
def test_what_the_control_does_not_do_is_a_finding(
    compiler: Compiler, control: Compiler, program: Program, clause: str | None
) -> None:
    target = Target("under-test", "", compiler, controls=(f"tests.fuzz.bad_targets:{control.__name__}",))
    result = execute(program, target)
    assert [finding.clause for finding in result.findings][:1] == ([] if clause is None else [clause])
    # What it shares with the control is not among them.
    assert set(result.findings) <= set(execute(program, _target(compiler)).findings)


@needs_torch("<2.14", "torch 2.14 loses no write to an argument of one element")
def test_a_control_is_forgotten_before_the_target_compiles() -> None:
    """Once Dynamo has compiled this for another backend it compiles it otherwise, and no write is lost."""
    lost = read(Path(__file__).parents[3] / "corpus" / "scalar-write-lost.json")
    target = find_target("torch-aot-eager")
    assert target.controls == ("torch-dynamo",)
    assert "input-data" in [finding.clause for finding in execute(lost.program, target).findings]


def test_what_the_control_raises_too_proves_nothing_whatever_else_is_raised() -> None:
    """Dynamo drops that a hook asks whether there is a gradient (that of torch 2.11 does not). After a write
    to a result there is another reason to raise, and which of them is met first is nobody's business."""
    statements = (
        call("mul_number", "a0", to="v0", value=2.0),
        Statement("unbind", ("v0",), (("dim", 0),), ("v1", "v2")),
        call("register_hook", "v1", value=2.0),
        call("sigmoid", "v2", to="v3"),
    )
    storage = Storage("float32", (2, 2), seed=1, requires_grad=True)
    two = program(*statements, returns=Ref("v3"), storage=storage)
    target = find_target("aot-compile")
    target.prepare()
    result = execute(two, target)
    if torch.__version__ < "2.12":
        assert result.outcome == "agree"
        return
    assert result.outcome == "poisoned"
    assert result.reason.startswith("torch-dynamo does it too: errors/backward")


def test_what_the_control_does_wrong_elsewhere_does_not_count() -> None:
    statements = (call("sin", "a0", to="v0"), call("cos", "a0", to="v1"))
    two = program(*statements, returns=Seq("tuple", (Ref("v0"), Ref("v1"))))

    def with_control(compiler: Compiler, control: Compiler) -> Result:
        controls = (f"tests.fuzz.bad_targets:{control.__name__}",)
        return execute(two, Target("under-test", "", compiler, controls=controls))

    assert with_control(gives_more_at_first, gives_more).outcome == "poisoned"
    (finding,) = with_control(gives_more, gives_more_at_first).findings
    assert finding.path == "out[1]"


def test_a_control_that_draws_is_asked_what_it_does_to_eager() -> None:
    """It differs from itself, so nothing can be held against it."""
    statements = (call("sin", "a0", to="v0"), call("cos", "a0", to="v1"))
    two = program(*statements, returns=Seq("tuple", (Ref("v0"), Ref("v1"))))
    controls = ("tests.fuzz.bad_targets:gives_more_at_first_and_anything_else",)

    def with_control(compiler: Compiler) -> Result:
        return execute(two, Target("under-test", "", compiler, controls=controls))

    assert with_control(gives_more_at_first).outcome == "poisoned"
    assert [finding.path for finding in with_control(gives_more).findings] == ["out[1]"]
    assert [finding.path for finding in with_control(gives_much_more).findings] == ["out[0]", "out[1]"]


def test_a_backend_of_dynamos_answers_for_itself_alone() -> None:
    def compile_wrongly(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(function, backend=lambda graph, _: drops_mutation(graph))
        return compiled

    target = Target("under-test", "", compile_wrongly, reset=reset_dynamo, controls=("torch-dynamo",))
    assert execute(DOUBLE_IN_PLACE, target).findings[0].clause == "input-data"
    assert execute(SINE, target).outcome == "agree"


@pytest.mark.parametrize("compiler", [drops_mutation, copies_alias, doubles_duplicate])
def test_a_wrong_compiler_agrees_where_its_fault_does_not_matter(compiler: Compiler) -> None:
    assert execute(SINE, _target(compiler)).outcome == "agree"


@pytest.mark.parametrize("program", [DOUBLE_IN_PLACE, RETURN_VIEW, SINE, SQUARE_OF_LEAF, DUPLICATE])
@pytest.mark.parametrize("name", ["eager", "torch-aot-function", "aot"])
def test_targets_agree_on_simple_programs(program: Program, name: str) -> None:
    assert execute(program, find_target(name)).outcome == "agree"


def test_stock_torch_differs_where_it_is_known_to() -> None:
    assert execute(LOST_THROUGH_EXPAND, find_target("torch-aot-function")).findings[0].clause == "input-data"
    target = find_target("torch-aot-eager")
    target.prepare()
    assert execute(LOST_THROUGH_EXPAND, target).findings[0].clause == "input-data"


def test_a_refusal_is_counted_by_its_reason() -> None:
    class TooHard(Exception):
        pass

    def declines(function: Callable[..., Any]) -> Callable[..., Any]:
        raise TooHard

    target = Target("under-test", "", declines, lambda error: type(error).__name__)
    result = execute(SINE, target)
    assert (result.outcome, result.reason) == ("refused", "TooHard")


def test_a_refusal_that_left_marks_is_a_finding() -> None:
    class TooHard(Exception):
        pass

    def declines_late(function: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(value: torch.Tensor) -> None:
            value.zero_()
            raise TooHard

        return compiled

    target = Target("under-test", "", declines_late, lambda error: type(error).__name__)
    result = execute(SINE, target)
    assert (result.outcome, result.findings[0].clause) == ("finding", "refusals")
    result = execute(SINE, replace(target, in_pieces=True))
    assert (result.outcome, result.reason) == ("refused", "TooHard")


def test_nothing_is_left_behind() -> None:
    def leaks(function: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(*args: Any) -> Any:
            torch.set_grad_enabled(False)
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True)
            torch.rand(7)
            warnings.warn("noise", stacklevel=1)
            return function(*args)

        return compiled

    resets = []
    target = Target("under-test", "", leaks, reset=lambda: resets.append(1))
    before = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = execute(SINE, target)
    assert {finding.clause for finding in result.findings} == {"ambient", "randomness"}
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(before, torch.get_rng_state())
    assert resets == [1]


def test_the_target_is_reset_even_when_it_fails() -> None:
    resets = []
    execute(SINE, Target("under-test", "", cannot_compile, reset=lambda: resets.append(1)))
    assert resets == [1]


def test_a_function_is_compiled_once_for_a_case() -> None:
    compiled = []

    def counts(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled.append(function)
        return function

    execute(SQUARE_OF_LEAF, _target(counts))
    assert len(compiled) == 1


def test_a_result_survives_its_way_through_json() -> None:
    result = execute(DOUBLE_IN_PLACE, _target(drops_mutation))
    assert Result.from_json(result.to_json()) == result


def test_the_same_case_gives_the_same_result() -> None:
    first, second = (execute(DUPLICATE, _target(doubles_duplicate)) for _ in range(2))
    assert first.findings == second.findings


def test_a_target_that_leaves_torch_broken_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The observer runs torch as well, and must not be blamed; it has looked at eager before."""
    observe = call_module.run_and_observe

    def fails_on_targets(program: Program, function: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(function, call_module.LazyCompiled):
            raise RuntimeError("dispatcher lost")
        return observe(program, function, *rest, **options)

    monkeypatch.setattr(call_module, "run_and_observe", fails_on_targets)
    result = execute(SINE, find_target("eager"))
    assert (result.outcome, result.intact) == ("finding", False)
    assert "all can be looked at in eager, RuntimeError: dispatcher lost in the target" in str(
        result.findings[0]
    )
    monkeypatch.setattr(call_module, "_is_torch_intact", lambda: False)
    result = execute(SINE, find_target("eager"))
    assert (result.outcome, result.intact) == ("finding", False)
    assert "dispatcher lost in the target" in str(result.findings[0])
