"""Running statistics: operands that a row writes to beside its result, as eager lets it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fuzz.abstract import eager_rules
from fuzz.features.program_features import features
from fuzz.operators import OPERATORS
from fuzz.program.decode import (
    Argument,
    Program,
    ProgramError,
    Ref,
    Region,
    Root,
    Seq,
    Statement,
    Storage,
    View,
    check,
    final_state,
    initial_state,
    interpret_statement,
)
from fuzz.program.printer import load
from tests.support.fuzz.small_programs import call

INPUT = Storage("float32", (2, 3, 2), 1, requires_grad=True)
MEAN, VARIANCE = Storage("float32", (3,), 2), Storage("float32", (3,), 3)
FIRST = Root(1)
NORMS = ("batch_norm_running", "instance_norm_running")


def norm(name: str, *operands: str, to: str = "v0") -> Statement:
    attributes = {"momentum": 0.5} if name.endswith("running") else {}
    return call(name, *operands, to=to, **attributes)


def program(
    *statements: Statement,
    mean: Storage = MEAN,
    argument: Argument = FIRST,
    returns: tuple[str, ...] = ("v0",),
) -> Program:
    """`a0` is what is normalized, `a1` and `a2` are statistics, `a1` as given."""
    return Program(
        (INPUT, mean, VARIANCE),
        (Root(0), argument, Root(2)),
        tuple(map(Ref, ("a0", "a1", "a2"))),
        statements,
        Seq("tuple", tuple(map(Ref, returns))),
    )


def run(case: Program) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    loaded = load(case)
    args, _, tensors = loaded.make()
    results: Any = loaded.f(*args)
    return tensors, results


def raises(case: Program) -> bool:
    try:
        run(case)
    except RuntimeError:
        return True
    return False


def refused(case: Program) -> bool:
    """Whether a statement of a program is known to raise."""
    state = initial_state(case)
    for i, statement in enumerate(case.statements):
        modes = state.modes(case.blocks, statement.block)
        row = OPERATORS[statement.operator]
        if eager_rules.eager_error_now(state.use(row, statement.operands, dict(statement.attributes), modes)):
            return True
        interpret_statement(state, i, statement, case.blocks)
    return False


@pytest.mark.parametrize("mode", ["inherit", "no_grad", "inference_mode"])
@pytest.mark.parametrize("via", ["root", "view", "detach", "data", "no_grad"])
@pytest.mark.parametrize("kind", ["plain", "leaf", "history"])
@pytest.mark.parametrize("name", [*NORMS, "batch_norm_evaluated"])
def test_what_eager_refuses_is_known(name: str, kind: str, via: str, mode: str) -> None:
    mean = Storage("float32", (4,), 2, requires_grad=kind != "plain", leaf=kind != "history")
    argument: Argument = View(1, (3,), (1,), 1, via)
    if via == "root":
        mean, argument = replace(mean, size=(3,)), Root(1)
    blocks = () if mode == "inherit" else (Region(mode),)
    statement = replace(norm(name, "a0", "a1", "a2"), block=len(blocks) - 1)
    case = replace(program(statement, mean=mean, argument=argument, returns=()), blocks=blocks)
    assert raises(case) == refused(case), load(case).text


@pytest.mark.parametrize("name", NORMS)
def test_a_statistic_has_no_history(name: str) -> None:
    tensors, (result,) = run(program(norm(name, "a0", "a1", "a2")))
    state = final_state(program(norm(name, "a0", "a1", "a2")))
    assert result.requires_grad
    assert state.tensor("v0").requires_grad
    assert not tensors["s1"].requires_grad
    assert not state.tensor("a1").requires_grad


@pytest.mark.parametrize("between", ["nothing", "again", "write", "write to the other"])
@pytest.mark.parametrize("name", NORMS)
def test_what_a_backward_notices_of_statistics_is_known(name: str, between: str) -> None:
    more = {
        "nothing": (),
        "again": (norm(name, "a0", "a1", "a2", to="v1"),),
        "write": (call("mul_number_", "a1", value=2.0),),
        "write to the other": (call("mul_number_", "a2", value=2.0),),
    }[between]
    case = program(norm(name, "a0", "a1", "a2"), *more)
    _, (result,) = run(case)
    try:
        result.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        raised = True
    else:
        raised = False
    assert raised == bool(final_state(case).hazards)
    assert raised == (name == "batch_norm_running" and between.startswith("write"))


def test_a_norm_that_shares_its_version_counter_with_its_statistic() -> None:
    """The write to the statistic is one to what its own backward keeps, as far as autograd knows."""
    room = Storage("float32", (15,), 1, requires_grad=False)
    gain = Storage("float32", (2, 3, 2), 1, requires_grad=True)
    whole, mean = View(0, (2, 3, 2), (6, 2, 1), 0), View(0, (3,), (1,), 12)
    for name, notices in (("batch_norm_running", False), ("instance_norm_running", True)):
        case = Program(
            (room, VARIANCE, gain),
            (whole, mean, Root(1), Root(2)),
            tuple(map(Ref, ("a0", "a1", "a2", "a3"))),
            (
                norm(name, "a3", "a1", "a2"),
                call("mul", "a0", "a3", to="v1"),
                norm(name, "a3", "a1", "a2", to="v2"),
            ),
            Ref("v1"),
        )
        loaded = load(case)
        product = loaded.f(*loaded.make()[0])
        assert bool(final_state(case).hazards) == notices
        if notices:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.sum().backward()
        else:
            product.sum().backward()


def test_a_write_that_autograd_does_not_count_changes_a_gradient_unseen() -> None:
    """The backward with statistics that are only read needs their values: no program writes them so."""
    read, write = (
        norm("batch_norm_evaluated", "a0", "a1", "a2"),
        norm("batch_norm_running", "a0", "a1", "a2", to="v1"),
    )
    for first, second, corrupted in ((read, write, True), (write, write, False), (write, read, False)):
        state = initial_state(program())
        interpret_statement(state, 0, replace(first, results=("v8",)))
        use = state.use(OPERATORS[second.operator], second.operands, dict(second.attributes))
        assert eager_rules.corrupts_saved(use, state.kept) == corrupted


def overlapping(name: str, *operands: str) -> Program:
    """`a1` is normalized; `a2` is a part of it, `a4` expanded."""
    return Program(
        (MEAN, Storage("float32", (2, 3, 2), 1), VARIANCE, Storage("float32", (1,), 4)),
        (Root(0), Root(1), View(1, (3,), (2,), 0), Root(2), View(3, (3,), (0,), 0)),
        tuple(Ref(f"a{i}") for i in range(5)),
        (norm(name, "a1", *operands),),
        Ref("v0"),
    )


@pytest.mark.parametrize("operands", [("a0", "a0"), ("a2", "a3"), ("a3", "a2")])
@pytest.mark.parametrize("name", NORMS)
def test_statistics_that_overlap_an_operand_are_in_no_program(name: str, operands: tuple[str, ...]) -> None:
    with pytest.raises(ProgramError, match="overlaps an operand"):
        check(overlapping(name, *operands))


def test_expanded_statistics_are_refused_or_in_no_program() -> None:
    case = overlapping("instance_norm_running", "a3", "a4")
    assert raises(case)
    assert refused(case)
    with pytest.raises(ProgramError, match="elements overlap"):
        check(overlapping("batch_norm_running", "a3", "a4"))


@pytest.mark.parametrize("name", NORMS)
def test_a_checkpoint_writes_no_statistics(name: str) -> None:
    statement = replace(norm(name, "a0", "a1", "a2"), block=0)
    with pytest.raises(ProgramError, match="a backward repeats"):
        check(replace(program(statement), blocks=(Region("checkpoint"),)))


def test_the_features_name_what_is_written_beside_a_result() -> None:
    found = features(program(norm("batch_norm_running", "a0", "a1", "a2")))
    assert {"data: beside a result", "data: argument", "data: several arguments"} <= found
    assert "data: beside a result" not in features(program(norm("batch_norm_evaluated", "a0", "a1", "a2")))
