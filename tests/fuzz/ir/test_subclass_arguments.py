"""Programs of which arguments are wrapper subclasses, made of one or two plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuzz.choices import SeededChoices
from fuzz.corpus import buckets
from fuzz.execute.case import execute
from fuzz.features.program_features import features
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES
from fuzz.ir.nodes import Call, Module, Statement, View, Write
from fuzz.program.decode import (
    WRAPPED,
    Duplicate,
    Program,
    ProgramError,
    Ref,
    Root,
    Scenario,
    Seq,
    Storage,
    check,
    final_state,
    from_json,
    to_json,
)
from fuzz.program.printer import load, upcast
from fuzz.reduce import reduce
from fuzz.repro import script
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target
from oracles import Backward
from tests.support.fuzz.outcomes import assert_found, exit_status
from tests.support.fuzz.small_programs import SINE, call

HELD = View(0, (2, 3), (3, 1), 0, "detach", None, leaf=True, wrapped="two")
FOLLOWED = View(1, (3, 2), (1, 3), 0, wrapped="one")
# a0 is a leaf of two parts, a1 has a history that leads to root 1, which is a2; a3 is a1 once more.
PAIR = Program(
    storages=(
        Storage("float32", (2, 3), 1),
        Storage("float32", (2, 3), 2, requires_grad=True, leaf=False),
    ),
    arguments=(HELD, FOLLOWED, Root(1), Duplicate(1)),
    parameters=tuple(map(Ref, ("a0", "a1", "a2", "a3"))),
    statements=(
        call("t", "a3", to="v0"),
        call("mul_number_", "a1", value=2.0),
        call("add", "a0", "a2", to="v1"),
        call("t", "a0", to="v2"),
    ),
    returns=Seq("tuple", tuple(map(Ref, ("v1", "v2", "a1")))),
)
PLAIN = replace(
    PAIR, arguments=(replace(HELD, wrapped=None), replace(FOLLOWED, wrapped=None), *PAIR.arguments[2:])
)
AGAIN = replace(
    PAIR,
    later=tuple(
        Call(PAIR.storages, (replace(HELD, wrapped=wrapped), *PAIR.arguments[1:]))
        for wrapped in ("twice", None, "two")
    ),
)
BUFFER = View(0, (2, 3), (3, 1), 0, "detach", wrapped="two")
WRITTEN = Program(
    (Storage("float32", (2, 3), 1),),
    (BUFFER, Root(0)),
    (Ref("a0"), Ref("a1")),
    (call("mul_number_", "a0", value=2.0), call("t", "a0", to="v0")),
    Ref("v0"),
)


def parts(tensor: Any) -> list[torch.Tensor]:
    names, _ = tensor.__tensor_flatten__()
    return [getattr(tensor, name) for name in names]


def test_arguments_are_made_as_said() -> None:
    (a0, a1, a2, a3), leaves, tensors = load(PAIR).make()
    assert [type(one).__name__ for one in (a0, a1, a2)] == ["Wrapper", "Wrapper", "Tensor"]
    assert a3 is a1 and leaves["a0"] is a0 and a0.is_leaf and a0.requires_grad
    assert a1.grad_fn is not None and a1.requires_grad
    first, second = parts(a0)
    assert first.data_ptr() == tensors["s0"].data_ptr() and second.data_ptr() != first.data_ptr()
    assert not torch.equal(first, second) and first.stride() == second.stride() == a0.stride() == (3, 1)
    (only,) = parts(a1)
    assert only.data_ptr() == a2.data_ptr() and not only.requires_grad
    (gradient,) = torch.autograd.grad((a1 * 3).sum(), leaves["leaf1"])
    assert torch.equal(gradient, torch.full((2, 3), 3.0))


def test_one_part_twice() -> None:
    twice = replace(PAIR, arguments=(replace(HELD, wrapped="twice"), *PAIR.arguments[1:]))
    (a0, *_), _, _ = load(twice).make()
    first, second = parts(a0)
    assert first is not second and first.data_ptr() == second.data_ptr()


def test_an_operation_is_one_on_each_part() -> None:
    loaded = load(WRITTEN)
    (wrapper, root), _, _ = loaded.make()
    before = [part.clone() for part in parts(wrapper)]
    view = loaded.f(wrapper, root)
    assert all(torch.equal(part, 2 * old) for part, old in zip(parts(wrapper), before, strict=True))
    assert torch.equal(root, 2 * before[0])
    assert view._base is wrapper and wrapper._version == 1 and root._version == 0
    assert [part.data_ptr() for part in parts(view)] == [part.data_ptr() for part in parts(wrapper)]


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("via", ["view", "detach", "parameter"])
def test_it_survives_json(wrapped: str, via: str) -> None:
    argument = replace(HELD, via=via, leaf=via != "view", wrapped=wrapped)
    program = replace(PAIR, arguments=(argument, *PAIR.arguments[1:]))
    assert from_json(to_json(program)) == program
    assert f"{wrapped}" in buckets.bucket_arguments(program)
    load(program).make()


def test_earlier_formats_have_none() -> None:
    document = to_json(replace(PLAIN, later=(Call(PLAIN.storages, PLAIN.arguments),)))
    for one in (document, *document["later"]):
        for argument in one["arguments"]:
            argument.pop("wrapped", None)
    assert from_json({**document, "format": 7}) == from_json({**document, "format": 7})
    assert from_json({**document, "format": 7}).arguments == PLAIN.arguments
    assert from_json({**document, "format": 7}).later[0].arguments == PLAIN.arguments
    with pytest.raises(ProgramError, match="the field 'wrapped' is missing"):
        from_json(document)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"wrapped": "three"}, "'three' is not known"),
        ({"wrapped": True}, "True is not known"),
        ({"wrapped": ["one"]}, "a list is not known"),
        ({"wrapped": "one", "via": "data", "leaf": False}, "cannot be wrapped"),
        ({"wrapped": "one", "via": "no_grad", "leaf": False}, "cannot be wrapped"),
    ],
)
def test_a_hostile_wrapper_is_refused_with_its_place(change: dict[str, object], what: str) -> None:
    document = to_json(PAIR)
    document["arguments"][0].update(change)
    with pytest.raises(ProgramError, match=what) as refused:
        from_json(document)
    assert refused.value.place == "arguments[0].wrapped"


def test_what_is_known_of_a_wrapper() -> None:
    state = final_state(PAIR)
    assert [name for name in state.names if state.tensor(name).wrapped] == [
        "a0",
        "a1",
        "a3",
        "v0",
        "v1",
        "v2",
    ]
    assert state.tensor("a1").memory == state.tensor("a2").memory
    assert state.tensor("a1").clock is not state.tensor("a2").clock
    assert not any(state.is_outdated(name) for name in ("v0", "v2", "a1"))
    unbound = replace(call("unbind", "a3", dim=0, to="v0"), results=("v0", "v1", "v2"))
    split = final_state(replace(PAIR, statements=(unbound, PAIR.statements[1]), returns=Ref("v0")))
    assert split.is_outdated("v0")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (call("resize_", "a0", size=(7,)), "outgrown"),
        (call("set_empty_", "a0"), "no storage"),
        (call("requires_grad_", "a0", value=True), "place in autograd"),
        (call("function_view", "a0", to="v9"), "custom function"),
        (call("foreach_mul_number_", "a0", value=2.0), "does not count"),
        (call("rfft", "a0", dim=1, to="v9"), "conj bits"),
    ],
)
def test_what_is_not_drawn_of_one_is_no_program(statement: Any, why: str) -> None:
    with pytest.raises(ProgramError, match=why):
        check(replace(WRITTEN, statements=(statement,), returns=Ref("a0")))


def test_its_shape_changes() -> None:
    reshaped = replace(WRITTEN, statements=(call("t_", "a0"),), returns=Ref("a0"))
    viewed = replace(WRITTEN, statements=(call("t", "a0", to="v0"), call("t_", "a0")))
    for program in (reshaped, viewed):
        check(program)
        assert execute(program, find_target("aot")).outcome == "agree"
    with pytest.raises(ProgramError, match="past autograd"):
        check(replace(WRITTEN, statements=(call("t", "a0", to="v0"), call("t_", "v0"))))


def test_the_float64_twin_is_wrapped_alike() -> None:
    twin = upcast(PAIR)
    assert twin is not None and twin.arguments == PAIR.arguments
    assert {storage.dtype for storage in twin.storages} == {"float64"}


def test_the_features_are_told() -> None:
    assert {name for name in features(PAIR) if name.startswith("subclass")} == {
        *("subclass: argument", "subclass: two parts", "subclass: leaf", "subclass: non-leaf"),
        *("subclass: part is an alias", "subclass: and plain", "subclass: written", "subclass: view"),
        *("subclass: output", "subclass: output view"),
    }
    assert "repeat: other class" in features(AGAIN) - features(PAIR)
    assert not any(name.startswith("subclass") for name in features(PLAIN))


@pytest.mark.parametrize("name", ["eager", "aot", "aot-min-cut", "aot-rng", "aot-dynamic"])
@pytest.mark.parametrize("program", [PAIR, AGAIN, WRITTEN], ids=["pair", "again", "written"])
def test_targets_compile_them(name: str, program: Program) -> None:
    result = execute(program, find_target(name))
    assert (result.outcome, result.findings) == ("agree", ())


def test_zeros_without_memory_stay_plain_where_they_meet_a_wrapper() -> None:
    """So is ATen's product of them, and so it is where they come from one segment into another."""
    storage = Storage("float32", (2, 2), 0, True)
    program = Program(
        (storage,),
        (View(0, (2, 2), (2, 1), 0, "view", wrapped="one"),),
        (Ref("a0"),),
        (Statement("exp", ("a0",), (), ("v0",)), Statement("sgn", ("v0",), (), ("v1",))),
        Seq("tuple", (Ref("v0"), Ref("v1"))),
    )
    assert execute(program, find_target("aot")).outcome == "agree"


def test_a_module_holds_them() -> None:
    parameter = replace(HELD, via="parameter")
    held = replace(
        PAIR,
        arguments=(parameter, *PAIR.arguments[1:]),
        parameters=(Ref("a1"), Ref("a2")),
        module=Module(("a0", "a3")),
    )
    loaded = load(held)
    loaded.make()
    module: Any = loaded.f
    assert isinstance(module.a0, torch.nn.Parameter) and type(module.a0).__name__ == "Wrapper"
    assert list(dict(module.named_buffers())) == ["a3"]
    assert {"module: parameter", "subclass: parameter"} <= features(held)
    assert execute(held, find_target("aot")).outcome == "agree"


def test_a_target_that_takes_none_says_so() -> None:
    target = Target("under-test", "", lambda function: function, lacks=("subclass",))
    assert execute(PAIR, target).reason == "lacks subclass"
    assert execute(PLAIN, target).outcome == "agree"


# ---- what a compiler may do to them


def _made(like: Any, *given: torch.Tensor) -> Any:
    inner = dict(zip(like.__tensor_flatten__()[0], given, strict=True))
    return type(like).__tensor_unflatten__(inner, None, None, None)


def _is_wrapper(value: Any) -> bool:
    return type(value).__name__ == "Wrapper"


def drops_inner_writes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function works on copies of what wrappers are made of."""

    def compiled(*args: Any) -> Any:
        return function(*(_made(a, *(p.clone() for p in parts(a))) if _is_wrapper(a) else a for a in args))

    return compiled


def forgets_the_second(function: Callable[..., Any]) -> Callable[..., Any]:
    """The first part is written to and the second one is left as it was."""

    def compiled(*args: Any) -> Any:
        before = [(part, part.clone()) for a in args if _is_wrapper(a) for part in parts(a)[1:]]
        result = function(*args)
        for part, old in before:
            part.copy_(old)
        return result

    return compiled


def returns_plain(function: Callable[..., Any]) -> Callable[..., Any]:
    def compiled(*args: Any) -> Any:
        result = function(*args)
        return result.first if _is_wrapper(result) else result

    return compiled


def loses_inner_aliases(function: Callable[..., Any]) -> Callable[..., Any]:
    """A result is made of copies."""

    def compiled(*args: Any) -> Any:
        result = function(*args)
        return _made(result, *(part.clone() for part in parts(result))) if _is_wrapper(result) else result

    return compiled


def detaches(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(*(a.detach() if _is_wrapper(a) else a for a in args))


def keeps_the_first_kind(function: Callable[..., Any]) -> Callable[..., Any]:
    """Later calls are answered with as many parts as the first one had."""
    first: list[int] = []

    def compiled(*args: Any) -> Any:
        count = len(parts(args[0])) if _is_wrapper(args[0]) else 0
        first.append(count)
        one = args[0] if count in (0, first[0]) else _made(args[0], *(parts(args[0]) * 2)[: first[0]])
        return function(one, *args[1:])

    return compiled


SQUARES = replace(
    WRITTEN, arguments=(replace(BUFFER, leaf=True), Root(0)), statements=(call("square", "a0", to="v0"),)
)
ONE = replace(WRITTEN, arguments=(replace(BUFFER, wrapped="one"), Root(0)))


@pytest.mark.parametrize(
    ("compiler", "program", "clause"),
    [
        (drops_inner_writes, WRITTEN, "input-data"),
        (forgets_the_second, WRITTEN, "input-data"),
        (returns_plain, WRITTEN, "structure"),
        (returns_plain, ONE, "structure"),
        (loses_inner_aliases, WRITTEN, "aliasing"),
        (detaches, SQUARES, "autograd-metadata"),
        (
            keeps_the_first_kind,
            replace(WRITTEN, later=(Call(WRITTEN.storages, ONE.arguments),)),
            "repeat",
        ),
    ],
)
def test_what_a_compiler_does_to_them_is_found(
    compiler: Callable[..., Any], program: Program, clause: str
) -> None:
    assert_found(compiler, program, clause)


def test_writes_and_second_derivatives_after_a_call() -> None:
    steps = (Write("a0"), Backward(how="double"), Backward(how="accumulate"))
    squares = replace(SQUARES, scenario=Scenario(steps=steps[1:]))
    assert execute(squares, find_target("aot")).outcome == "agree"
    noticed = replace(SQUARES, scenario=Scenario(steps=steps))

    def copies(function: Callable[..., Any]) -> Callable[..., Any]:
        """So that nobody notices the write."""
        return lambda *args: function(*(a * 1 if _is_wrapper(a) else a for a in args))

    assert execute(noticed, find_target("aot")).outcome == "agree"
    found = execute(noticed, Target("under-test", "", copies))
    assert any("modified by an inplace operation" in finding.eager for finding in found.findings)


# ---- generator, reducer, scripts


def _programs(count: int) -> list[Program]:
    often = replace(PROFILES["aliasing"], wrapped=1.0)
    found = [generate(SeededChoices(9, index), often) for index in range(count)]
    return [program for program in found if "subclass: argument" in features(program)]


def test_generated_programs_run_and_agree() -> None:
    programs = _programs(40)
    assert len(programs) > 25
    outcomes = [execute(program, find_target("aot")).outcome for program in programs]
    assert set(outcomes) <= {"agree", "poisoned", "refused"}
    assert outcomes.count("agree") >= 0.95 * len(outcomes)


def test_a_wrapper_is_reduced_away_where_it_does_not_matter() -> None:
    adds = lambda program: any(s.operator == "add" for s in program.statements)  # noqa: E731
    smallest = reduce(AGAIN, adds).program
    assert not any(isinstance(a, View) for a in smallest.arguments)
    wraps = lambda program: "subclass: argument" in features(program)  # noqa: E731
    smallest = reduce(AGAIN, wraps).program
    assert (smallest.statements, smallest.later) == ((), ())
    (argument,) = smallest.arguments
    assert isinstance(argument, View) and argument.wrapped == "one"
    pairs = lambda program: "subclass: two parts" in features(program)  # noqa: E731
    (argument,) = reduce(AGAIN, pairs).program.arguments
    assert isinstance(argument, View) and argument.wrapped == "two"


COMPILERS = """
def drops(f):
    def compiled(*args):
        made = [a for a in args]
        for i, a in enumerate(args):
            if type(a).__name__ == "Wrapper":
                made[i] = type(a)(*(getattr(a, name).clone() for name in a.__tensor_flatten__()[0]))
        return f(*made)
    return compiled
"""
CLAUSES = (
    *("structure", "values", "input-data", "input-metadata", "versions", "strides", "identity", "aliasing"),
    *("autograd-metadata", "gradients", "errors", "lifetime"),
)


def test_a_script_shows_the_difference(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wrapper_compilers.py").write_text(COMPILERS)
    finding = buckets.primary_finding(execute(WRITTEN, find_target("wrapper_compilers:drops")).findings)
    assert finding.clause == "input-data"
    assert exit_status(script.repro_script(WRITTEN, "wrapper_compilers:drops", finding)) == 1
    assert "eager: " in capsys.readouterr().out
    for clause in CLAUSES:
        for program in (WRITTEN, PAIR):
            text = script.repro_script(program, "aot", replace(finding, clause=clause, path="", message=""))
            assert exit_status(text) == 0, (clause, capsys.readouterr().out)


def test_programs_without_them_define_none() -> None:
    assert "Wrapper" not in load(SINE).text
    assert "Wrapper" in load(PAIR).text and "Wrap.apply" in load(PAIR).text
    assert "class Wrap(" not in load(WRITTEN).text
