"""Programs of which arguments are views of wrapper subclasses, or what these are views of."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fuzz.choices import SeededChoices
from fuzz.corpus import buckets
from fuzz.execute.case import execute
from fuzz.features.traits import features
from fuzz.generate import generate
from fuzz.generate.profiles import PROFILES
from fuzz.ir.nodes import Call, View
from fuzz.program.decode import (
    Program,
    ProgramError,
    Ref,
    Root,
    Seq,
    Storage,
    check,
    from_json,
    split_calls,
    to_json,
)
from fuzz.program.printer import load
from fuzz.reduce import reduce
from fuzz.targets.catalog import find_target
from tests.support.fuzz.small_programs import call

ROW = View(0, (3,), (1,), 3, wrapped="two", base="wrapper")
COLUMN = View(0, (2,), (3,), 1, wrapped="two", base="wrapper")
WHOLE = View(0, (2, 3), (3, 1), 0, wrapped="two", base="wrapper")
# A row and a column of one wrapper, which is a2; its first part is on the memory of a3.
FAMILY = Program(
    (Storage("float32", (2, 3), 1, requires_grad=True, leaf=False),),
    (ROW, COLUMN, WHOLE, Root(0)),
    tuple(map(Ref, ("a0", "a1", "a2", "a3"))),
    (
        call("mul_number_", "a0", value=2.0),
        call("sin", "a1", to="v0"),
        call("sin_", "a1"),
        call("mul", "a2", "a3", to="v1"),
    ),
    Seq("tuple", (Ref("v0"), Ref("v1"))),
)
HIDDEN = dataclasses.replace(
    FAMILY,
    arguments=(ROW, dataclasses.replace(COLUMN, via="no_grad"), Root(0)),
    parameters=FAMILY.parameters[:3],
    statements=(call("mul_number_", "a0", value=2.0), call("mul", "a0", "a0", to="v0")),
    returns=Ref("v0"),
)
AGAIN = dataclasses.replace(
    FAMILY,
    later=(
        Call(FAMILY.storages, (ROW, dataclasses.replace(COLUMN, base="root"), WHOLE, Root(0))),
        Call(
            FAMILY.storages,
            (*(dataclasses.replace(one, wrapped="one") for one in (ROW, COLUMN, WHOLE)), Root(0)),
        ),
    ),
)


def test_arguments_are_made_as_said() -> None:
    (row, column, whole, root), leaves, tensors = load(FAMILY).make()
    assert tensors["two0"] is whole and not whole._is_view() and whole.grad_fn is not None
    assert row._base is whole and column._base is whole and root is tensors["s0"]
    assert (tuple(row.shape), row.stride(), column.stride()) == ((3,), (1,), (3,))
    assert row.first.data_ptr() == root[1].data_ptr() and row.second.data_ptr() != row.first.data_ptr()
    (gradient,) = torch.autograd.grad((row * 3).sum(), leaves["leaf0"])
    assert torch.equal(gradient, torch.tensor([[0.0, 0, 0], [3, 3, 3]]))
    (_, hidden, _), _, _ = load(HIDDEN).make()
    with pytest.raises(RuntimeError, match="no_grad mode"):
        hidden.mul_(2)


@pytest.mark.parametrize("program", [FAMILY, HIDDEN, AGAIN], ids=["family", "hidden", "again"])
def test_they_survive_json(program: Program) -> None:
    check(program)
    assert from_json(to_json(program)) == program
    assert "of wrapper" in buckets.bucket_arguments(program)


@pytest.mark.parametrize(
    ("change", "place", "what"),
    [
        ({"wrapped": None}, "base", "wrapped views"),
        ({"via": "detach"}, "via", "none of a wrapper"),
        ({"via": "parameter"}, "via", "none of a wrapper"),
        ({"via": "no_grad", "leaf": True}, "base", "no leaf"),
        ({"dtype": "int32"}, "base", "its dtype"),
        ({"lazy": "neg"}, "base", "not lazy"),
    ],
)
def test_a_hostile_view_is_refused_with_its_place(change: dict[str, Any], place: str, what: str) -> None:
    document = to_json(FAMILY)
    document["arguments"][0].update(change)
    with pytest.raises(ProgramError, match=what) as refused:
        from_json(document)
    assert refused.value.place == f"arguments[0].{place}"


def test_the_format_before_had_none() -> None:
    assert from_json({**to_json(FAMILY), "format": 11}).arguments == FAMILY.arguments


def test_the_features_are_told() -> None:
    assert {"subclass: argument is a view", "subclass: two on one base"} <= features(FAMILY)
    alone = dataclasses.replace(FAMILY, arguments=(WHOLE, COLUMN, Root(0)), parameters=FAMILY.parameters[:3])
    alone = dataclasses.replace(alone, statements=(), returns=Ref("a0"))
    assert "alias: base and view" in features(alone)
    assert "argument: view of an alias" not in features(FAMILY)


@pytest.mark.parametrize("name", ["eager", "aot", "aot-min-cut", "aot-rng", "aot-dynamic"])
@pytest.mark.parametrize("program", [FAMILY, HIDDEN, AGAIN], ids=["family", "hidden", "again"])
def test_targets_compile_them(name: str, program: Program) -> None:
    result = execute(program, find_target(name))
    assert (result.outcome, result.findings) == ("agree", ())


def test_generated_programs_run_and_agree() -> None:
    profile = dataclasses.replace(PROFILES["aliasing"], wrapped=1.0)
    programs = [generate(SeededChoices(11, index), profile) for index in range(100)]
    having = [
        program
        for program in programs
        if any(
            isinstance(a, View) and a.base == "wrapper" for one in split_calls(program) for a in one.arguments
        )
    ]
    assert len(having) > 30
    outcomes = [execute(program, find_target("aot")).outcome for program in having]
    assert set(outcomes) <= {"agree", "refused"}
    assert outcomes.count("agree") >= 0.9 * len(outcomes)


def test_views_are_reduced_away_where_they_do_not_matter() -> None:
    wraps = lambda program: "subclass: argument" in features(program)  # noqa: E731
    (argument,) = reduce(AGAIN, wraps).program.arguments
    assert isinstance(argument, View) and (argument.wrapped, argument.base) == ("one", "root")
    views = lambda program: "subclass: argument is a view" in features(program)  # noqa: E731
    (argument,) = reduce(AGAIN, views).program.arguments
    assert isinstance(argument, View) and (argument.wrapped, argument.base) == ("one", "wrapper")
