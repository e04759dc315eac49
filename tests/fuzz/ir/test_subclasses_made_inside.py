"""Programs that make wrapper subclasses and take them apart, nested ones, and aliases with a history."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzz.choices import SeededChoices
from fuzz.execute.case import execute
from fuzz.features.traits import features
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES
from fuzz.ir.nodes import View
from fuzz.operators import Kind
from fuzz.program.decode import (
    OPERATORS,
    Program,
    ProgramError,
    Ref,
    Root,
    Scenario,
    Seq,
    Storage,
    Write,
    check,
    final_state,
    from_json,
    to_json,
)
from fuzz.program.printer import load
from fuzz.reduce import reduce
from fuzz.repro import script
from fuzz.targets.catalog import find_target
from tests.support.fuzz.outcomes import assert_found, exit_status
from tests.support.fuzz.small_programs import call

FLOAT = Storage("float32", (2, 3), 1, requires_grad=True)
NESTED = View(1, (2, 3), (3, 1), 0, wrapped="nested")
LEAF = View(0, (2, 3), (3, 1), 0, "detach", leaf=True, wrapped="nested")
# a0 is nested and has a history, a1 is plain and on the memory of a0's innermost part.
MADE = Program(
    (Storage("int64", (2,), 1), FLOAT),
    (NESTED, Root(1)),
    (Ref("a0"), Ref("a1")),
    (
        call("wrap", "a1", to="v0"),
        call("mul", "a0", "v0", to="v1"),
        call("unwrap", "v1", to="v2"),
        call("tanh_", "v2"),
        call("wrap_twice", "v2", to="v3"),
        call("function_alias", "a1", to="v4"),
    ),
    Seq("tuple", tuple(map(Ref, ("v1", "v2", "v3", "v4")))),
)
PLAIN = Program(
    (FLOAT,),
    (Root(0),),
    (Ref("a0"),),
    (call("wrap", "a0", to="v0"), call("sin", "v0", to="v1"), call("unwrap", "v1", to="v2")),
    Ref("v2"),
)
SHRUNK = Program(
    (Storage("float32", (2, 3), 1), Storage("float32", (2, 3), 2)),
    (dataclasses.replace(LEAF, leaf=False), View(1, (2, 3), (3, 1), 0, "detach", wrapped="two")),
    (Ref("a0"), Ref("a1")),
    (
        call("resize_", "a0", size=(2, 2)),
        call("mul_number_", "a0", value=2.0),
        call("resize_", "a1", size=(3,)),
    ),
    Ref("a1"),
)
PROGRAMS = {"made": MADE, "plain": PLAIN, "shrunk": SHRUNK}


def test_arguments_are_made_as_said() -> None:
    (nested, plain), leaves, _ = load(MADE).make()
    assert [type(one).__name__ for one in (nested, nested.first, nested.second)] == [
        "Wrapper",
        "Wrapper",
        "Tensor",
    ]
    assert nested.first.second is None and nested.first.first.data_ptr() == plain.data_ptr()
    (gradient,) = torch.autograd.grad((nested * 3).sum(), leaves["s1"])
    assert torch.equal(gradient, torch.full((2, 3), 3.0))
    (leaf,), _, _ = load(
        dataclasses.replace(PLAIN, arguments=(LEAF,), statements=(), returns=Ref("a0"))
    ).make()
    assert leaf.is_leaf and leaf.requires_grad and type(leaf.first).__name__ == "Wrapper"


def test_what_is_made_and_taken_apart_is_known() -> None:
    state = final_state(MADE)
    tensor = state.tensor
    assert [name for name in state.names if tensor(name).wrapped] == ["a0", "v0", "v1", "v3"]
    assert len({tensor(name).memory for name in ("a0", "a1", "v0", "v4")}) == 1
    assert len({tensor(name).memory for name in ("v1", "v2", "v3")}) == 1
    # An alias counts with what it is one of, and so does a part; a wrapper counts by itself.
    assert tensor("v4").clock is tensor("a1").clock is not tensor("v0").clock
    assert tensor("v2").clock is not tensor("v1").clock is not tensor("v3").clock
    assert all(tensor(name).requires_grad and tensor(name).base is None for name in ("v0", "v2", "v3", "v4"))
    args, _, _ = load(MADE).make()
    whole, part, twice, alias = load(MADE).f(*args)
    assert whole.first.first.data_ptr() == part.data_ptr() == twice.second.data_ptr()
    assert part.grad_fn is not None and not any(one._is_view() for one in (whole, part, twice, alias))
    before = alias._version
    with torch.no_grad():
        args[1].mul_(2)
    assert alias._version == before + 1


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_they_survive_json(program: Program) -> None:
    check(program)
    assert from_json(to_json(program)) == program
    assert from_json({**to_json(program), "format": 12}) == program


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (call("wrap", "a0", to="v9"), "what is wrapped is plain"),
        (call("unwrap", "a1", to="v9"), "can be taken apart"),
        (call("resize_", "a0", size=(7,)), "outgrown"),
        (call("function_alias", "a0", to="v9"), "custom function"),
    ],
)
def test_what_is_not_drawn_is_no_program(statement: Any, why: str) -> None:
    with pytest.raises(ProgramError, match=why):
        check(dataclasses.replace(MADE, statements=(statement,), returns=Ref("a0")))


def test_the_features_are_told() -> None:
    assert {"subclass: nested", "subclass: made", "subclass: taken apart"} <= features(MADE)
    assert {"subclass: made", "subclass: taken apart"} <= features(PLAIN)
    assert "subclass: argument" not in features(PLAIN)


@pytest.mark.parametrize("name", ["eager", "aot", "aot-min-cut", "aot-rng", "aot-dynamic"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_targets_compile_them(name: str, program: Program) -> None:
    result = execute(program, find_target(name))
    assert (result.outcome, result.findings) == ("agree", ())


def _copies_results(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is taken apart lies elsewhere than what it was a part of."""

    def compiled(*args: Any) -> Any:
        return tuple(one if type(one).__name__ == "Wrapper" else one.clone() for one in function(*args))

    return compiled


def _counts_apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """Aliases are there, with counters of their own."""

    def compiled(*args: Any) -> Any:
        return tuple(one if type(one).__name__ == "Wrapper" else _Apart.apply(one) for one in function(*args))

    return compiled


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.data

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


@pytest.mark.parametrize(("compiler", "clause"), [(_copies_results, "aliasing"), (_counts_apart, "versions")])
def test_what_a_compiler_gets_wrong_is_found(compiler: Callable[..., Any], clause: str) -> None:
    assert_found(compiler, MADE, clause)


@pytest.mark.parametrize("indices", [range(60), pytest.param(range(60, 160), marks=pytest.mark.nightly)])
def test_generated_programs_run_and_agree(indices: range) -> None:
    profile = dataclasses.replace(PROFILES["aliasing"], wrapped=1.0)
    having = {}
    for index in indices:
        program = generate(SeededChoices(12, index), profile)
        kinds = {OPERATORS[statement.operator].kind for statement in program.statements}
        if Kind.WRAPPER in kinds or "subclass: nested" in features(program):
            having[index] = program
    assert len(having) > len(indices) / 4
    outcomes = [execute(program, find_target("aot")).outcome for program in having.values()]
    assert set(outcomes) <= {"agree", "refused"}
    assert outcomes.count("agree") >= 0.9 * len(outcomes)


def test_some_programs_wrap_though_no_argument_is_wrapped() -> None:
    profile = dataclasses.replace(PROFILES["mixed"], mixture=(), wrapped=0.9, module=0.0)
    programs = [generate(SeededChoices(13, index), profile) for index in range(300)]
    told = [features(program) for program in programs]
    assert any("subclass: made" in one and "subclass: argument" not in one for one in told)


def test_nesting_is_reduced_away_where_it_does_not_matter() -> None:
    kinds = {"subclass: argument": "one", "subclass: two parts": "two", "subclass: nested": "nested"}
    for feature, kind in kinds.items():
        given = dataclasses.replace(MADE, arguments=(dataclasses.replace(NESTED, wrapped="nested"), Root(1)))
        if feature == "subclass: two parts":
            given = dataclasses.replace(MADE, arguments=(dataclasses.replace(NESTED, wrapped="two"), Root(1)))
        (argument,) = reduce(given, lambda program, told=feature: told in features(program)).program.arguments  # type: ignore[misc]
        assert isinstance(argument, View) and argument.wrapped == kind
    smallest = reduce(MADE, lambda program: "subclass: taken apart" in features(program)).program
    assert [statement.operator for statement in smallest.statements][-1:] == ["unwrap"]
    assert len(smallest.statements) <= 2


COMPILERS = """
import torch

class Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.data

    @staticmethod
    def backward(ctx, gradient):
        return gradient

def counts_apart(f):
    def compiled(*args):
        return tuple(one if type(one).__name__ == "Wrapper" else Apart.apply(one) for one in f(*args))
    return compiled
"""


@pytest.mark.parametrize("steps", [(), (Write("v4"),)])
def test_a_script_tells_which_counter_did_not_move(
    steps: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "counting_compilers.py").write_text(COMPILERS)
    program = dataclasses.replace(MADE, scenario=Scenario(steps=steps))
    [finding, *_] = execute(program, find_target("counting_compilers:counts_apart")).findings
    assert finding.clause == "versions"
    assert exit_status(script.repro_script(program, "counting_compilers:counts_apart", finding)) == 1
    assert re.search(r"version counter.*\n *eager: +True\n *target: False", capsys.readouterr().out)
    text = script.repro_script(program, "aot", finding)
    assert "class Unwrap" in text and "class Alias" in text and text.count("class Wrapper") == 1
    assert exit_status(text) == 0, capsys.readouterr().out
