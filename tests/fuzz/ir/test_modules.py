"""Programs whose function is a module's: what the module holds is an argument like any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuzz.corpus import buckets
from fuzz.execute.case import execute
from fuzz.features.program_features import features
from fuzz.ir.nodes import Branch, Call, Module, Scalar, View, Write
from fuzz.program.decode import (
    Duplicate,
    Program,
    ProgramError,
    Ref,
    Root,
    Scenario,
    Seq,
    Storage,
    check,
    from_json,
    to_json,
)
from fuzz.program.printer import load
from fuzz.reduce import reduce
from fuzz.repro import script
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target
from oracles import Backward
from tests.support.fuzz.outcomes import assert_found
from tests.support.fuzz.small_programs import call

# a0 is passed; the module holds a parameter twice, a buffer, a number, and asks whether it trains.
LAYER = Program(
    storages=(Storage("float32", (3,), 1), Storage("float32", (3,), 2), Storage("float32", (3,), 3)),
    arguments=(
        Root(0),
        View(1, (3,), (1,), 0, "parameter", None, leaf=True),
        Root(2),
        Duplicate(1),
        Scalar(0.5),
        Scalar(True),
    ),
    parameters=(Ref("a0"),),
    statements=(
        call("mul", "a0", "a1", to="v0"),
        call("mul_number_", "a2", value=2.0),
        replace(call("mul", "v0", "a3", to="v0"), block=0),
        call("add", "v0", "a2", to="v1"),
    ),
    returns=Ref("v1"),
    blocks=(Branch("a5", True),),
    module=Module(("a1", "a2", "a3", "a4"), "a5"),
)
EVALUATED = replace(LAYER, arguments=(*LAYER.arguments[:5], Scalar(False)))
AGAIN = replace(
    LAYER, later=(Call(LAYER.storages, EVALUATED.arguments), Call(LAYER.storages, LAYER.arguments))
)


def test_the_text_is_a_module() -> None:
    loaded = load(LAYER)
    args, leaves, tensors = loaded.make()
    module: Any = loaded.f
    assert isinstance(module, torch.nn.Module)
    assert len(args) == 1
    assert list(dict(module.named_parameters())) == ["a1"]
    assert module.a3 is module.a1 is leaves["a1"]
    assert list(dict(module.named_buffers())) == ["a2"]
    assert tensors["a2"] is module.a2
    assert (module.a4, module.training) == (0.5, True)
    parameter, buffer = module.a1.detach().clone(), module.a2.clone()
    assert torch.equal(module(*args), args[0] * parameter * parameter + 2 * buffer)
    assert torch.equal(module.a2, 2 * buffer)


def test_each_call_gives_the_module_what_it_is_called_with() -> None:
    loaded = load(AGAIN)
    module: Any = loaded.f
    seen = []
    for make in loaded.makes:
        args, _, _ = make()
        seen.append((module.training, id(module.a1), module(*args).tolist()))
    (_, first, trained), (_, second, evaluated), (_, _, trained_again) = seen
    assert [training for training, _, _ in seen] == [True, False, True]
    assert first != second
    assert trained == trained_again != evaluated


def test_it_survives_json_and_earlier_formats_have_none() -> None:
    for program in (LAYER, AGAIN):
        assert from_json(to_json(program)) == program
    plain = replace(LAYER, module=None, parameters=tuple(Ref(f"a{i}") for i in range(6)))
    document = to_json(plain)
    del document["module"]
    del document["arguments"][1]["wrapped"]
    assert from_json({**document, "format": 6}) == plain


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"held": ["a1", "a2", "a3"], "training": "a5", "attributes": []}, "parameters"),  # nowhere
        ({"held": ["a0", "a1", "a2", "a3", "a4"], "training": "a5", "attributes": []}, "parameters"),  # twice
        ({"held": ["a1", "a2", "a3", "v0"], "training": "a5", "attributes": []}, "parameters"),
        ({"held": ["a1", "a2", "a3", "a5"], "training": "a4", "attributes": []}, "arguments[4]"),
        ({"held": ["a1", "a2", "a4", "a5"], "training": "a3", "attributes": []}, "arguments[3]"),
        ({"held": "a1", "training": "a5", "attributes": []}, "module.held"),
        ({"held": ["a1", "a2", "a3", "a4"], "training": 5, "attributes": []}, "module.training"),
        ({"held": ["a1", "a2", "a3", "a4"], "training": "a5", "attributes": ["a0"]}, "module.attributes"),
        ({"held": ["a1", "a2", "a3", "a4"], "training": "a5", "attributes": 1}, "module.attributes"),
        ({"held": ["a1", "a2", "a3", "a4"]}, "module"),
        ([], "module"),
    ],
)
def test_a_hostile_module_is_refused_with_its_place(change: object, place: str) -> None:
    with pytest.raises(ProgramError) as refused:
        from_json({**to_json(LAYER), "module": change})
    assert refused.value.place.startswith(place)


def test_a_tensor_may_be_an_attribute_only() -> None:
    plain = replace(AGAIN, module=Module(("a1", "a2", "a3", "a4"), "a5", ("a2",)))
    loaded = load(plain)
    loaded.make()
    module: Any = loaded.f
    assert not dict(module.named_buffers()) and type(module.a2) is torch.Tensor
    assert from_json(to_json(plain)) == plain
    assert "module: tensor attribute" in features(plain)
    assert "module: buffer" not in features(plain)
    assert execute(plain, find_target("aot")).outcome == "agree"
    assert execute(plain, find_target("torch-dynamo")).outcome == "agree"
    document = to_json(AGAIN)
    del document["module"]["attributes"]
    assert from_json({**document, "format": 10}) == AGAIN


def test_a_later_call_says_as_well_whether_it_trains() -> None:
    later = Call(LAYER.storages, (*LAYER.arguments[:5], Scalar(1.5)))
    with pytest.raises(ProgramError, match=r"later\[0\].arguments\[5\]"):
        check(replace(LAYER, later=(later,)))


def test_a_parameter_is_a_leaf_or_requires_no_grad() -> None:
    whole = Storage("int64", (3,), 1)
    numbers = View(0, (3,), (1,), 0, "parameter", None, leaf=True)
    held = Program((whole,), (numbers,), (), (), Ref("a0"), module=Module(("a0",)))
    with pytest.raises(ProgramError, match="cannot be a leaf"):
        check(held)
    frozen = replace(held, arguments=(replace(numbers, leaf=False),))
    module: Any = load(frozen).f
    load(frozen).make()
    args, _, _ = (loaded := load(frozen)).make()
    assert args == () and type(loaded.f(*args)) is torch.nn.Parameter
    assert module is not loaded.f


def test_the_features_are_told() -> None:
    assert {name for name in features(AGAIN) if name.startswith(("module", "flow"))} == {
        *("module: its function", "module: parameter", "module: buffer", "module: tied"),
        *("module: attribute", "module: training", "module: evaluation"),
        *("flow: branch", "flow: training"),
    }
    assert "data: of a module" in features(LAYER)


@pytest.mark.parametrize(
    "name", ["aot", "aot-min-cut", "aot-rng", "aot-dynamic", "aot-compile", "torch-aot-eager"]
)
@pytest.mark.parametrize("program", [LAYER, EVALUATED, AGAIN], ids=["training", "evaluation", "in turn"])
def test_targets_compile_modules(name: str, program: Program) -> None:
    target = find_target(name)
    target.prepare()
    result = execute(program, target)
    assert (result.outcome, result.findings) == ("agree", ())


def test_a_target_that_takes_no_modules_says_so() -> None:
    assert execute(LAYER, find_target("torch-aot-function")).reason == "lacks module"


def freezes(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a module holds is a constant, without a gradient."""

    def compiled(*args: Any) -> Any:
        assert isinstance(function, torch.nn.Module)
        state = {name: value.detach() for name, value in function.named_parameters(remove_duplicate=False)}
        return torch.func.functional_call(function, state, args, tie_weights=False)

    return compiled


def forgets_buffers(function: Callable[..., Any]) -> Callable[..., Any]:
    def compiled(*args: Any) -> Any:
        assert isinstance(function, torch.nn.Module)
        state = {name: value.clone() for name, value in function.named_buffers()}
        return torch.func.functional_call(function, state, args)

    return compiled


def stays_in_training(function: Callable[..., Any]) -> Callable[..., Any]:
    def compiled(*args: Any) -> Any:
        assert isinstance(function, torch.nn.Module)
        return function.train()(*args)

    return compiled


def keeps_the_first_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    first: dict[str, torch.Tensor] = {}

    def compiled(*args: Any) -> Any:
        assert isinstance(function, torch.nn.Module)
        if not first:
            first.update(function.named_parameters())
        return torch.func.functional_call(function, first, args)

    return compiled


@pytest.mark.parametrize(
    ("compiler", "program", "clause"),
    [
        (freezes, LAYER, "autograd-metadata"),
        (forgets_buffers, LAYER, "input-data"),
        (stays_in_training, EVALUATED, "values"),
        (keeps_the_first_parameters, AGAIN, "repeat"),
    ],
)
def test_what_a_compiler_does_to_a_module_is_found(
    compiler: Callable[..., Any], program: Program, clause: str
) -> None:
    assert_found(compiler, program, clause)


def test_what_is_held_is_written_to_between_forward_and_backward() -> None:
    squares = replace(
        LAYER,
        statements=(call("mul", "a1", "a1", to="v0"),),
        returns=Ref("v0"),
        blocks=(),
        scenario=Scenario(steps=(Write("a1"), Backward())),
    )
    assert "gradient: after a write to an argument" in features(squares)
    assert execute(squares, find_target("aot")).outcome == "agree"

    def copies(function: Callable[..., Any]) -> Callable[..., Any]:
        """So that nobody notices the write."""

        def compiled(*args: Any) -> Any:
            assert isinstance(function, torch.nn.Module)
            state = {name: value * 1 for name, value in function.named_parameters()}
            return torch.func.functional_call(function, state, args)

        return compiled

    found = execute(squares, Target("under-test", "", copies))
    assert any("modified by an inplace operation" in finding.eager for finding in found.findings)


def test_a_module_is_reduced_away_where_it_does_not_matter() -> None:
    squares = lambda program: any(s.operator == "mul" for s in program.statements)  # noqa: E731
    assert reduce(AGAIN, squares).program.module is None
    holds = lambda program: program.module is not None and "module: buffer" in features(program)  # noqa: E731
    smallest = reduce(AGAIN, holds).program
    assert (smallest.statements, smallest.arguments, smallest.parameters) == ((), (Root(0),), ())
    assert smallest.module == Module(("a0",))


def test_what_is_not_held_any_more_is_passed_in_its_place() -> None:
    held = replace(LAYER, returns=Seq("tuple", (Ref("v1"), Ref("a3"))))
    needs_the_mode = lambda program: program.module is not None and program.module.training  # noqa: E731
    smallest = reduce(held, lambda program: bool(needs_the_mode(program)) and len(program.statements) > 1)
    module = smallest.program.module
    assert module is not None and module.held == ()
    check(smallest.program)


def test_a_script_shows_a_modules_difference(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "module_compilers.py").write_text(
        "def trains(f):\n    return lambda *args: f.train()(*args)\n"
    )
    target = find_target("module_compilers:trains")
    finding = buckets.primary_finding(execute(EVALUATED, target).findings)
    text = script.repro_script(EVALUATED, "module_compilers:trains", finding)
    with torch.enable_grad(), pytest.raises(SystemExit) as left:
        exec(compile(text, "repro.py", "exec"), {"__name__": "__main__"})
    assert left.value.code == 1
    assert "eager: " in capsys.readouterr().out
    for name, clause in (("aot", "values"), ("aot", "once"), ("aot-dynamic", "values")):
        text = script.repro_script(LAYER, name, replace(finding, clause=clause))
        with torch.enable_grad(), pytest.raises(SystemExit) as left:
            exec(compile(text, "repro.py", "exec"), {"__name__": "__main__"})
        assert left.value.code == 0, (name, clause)
