"""The state says beforehand what eager refuses, what is undefined, and what a program's memory is."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch

from fuzz.abstract import eager_rules
from fuzz.choices import SeededChoices
from fuzz.generate import generate
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

LEAF = Storage("float32", (2, 3), 1, requires_grad=True)
HISTORY = Storage("float32", (2, 3), 1, requires_grad=True, leaf=False)
PLAIN = Storage("float32", (2, 3), 1)
VIEW = View(0, (3,), (1,), 1)


def program(storage: Storage, argument: Argument, *statements: Statement) -> Program:
    """`a0` as given on a storage, and `a1` a plain tensor beside it."""
    storages = (storage, Storage("float32", (4,), 2))
    return Program(storages, (argument, Root(1)), (Ref("a0"), Ref("a1")), statements, Seq("tuple", ()))


def illegal(program: Program) -> str | None:
    state = initial_state(program)
    for i, statement in enumerate(program.statements):
        row = OPERATORS[statement.operator]
        modes = state.modes(program.blocks, statement.block)
        use = state.use(row, statement.operands, dict(statement.attributes), modes)
        reason = eager_rules.eager_error_now(use)
        if reason:
            return reason
        interpret_statement(state, i, statement, program.blocks)
    return None


def raises(program: Program) -> bool:
    loaded = load(program)
    try:
        loaded.f(*loaded.make()[0])
    except RuntimeError:
        return True
    return False


CHANGES = {
    "t_": call("t_", "a0"),
    "swapdims_": call("swapdims_", "a0", dim0=0, dim1=-1),
    "unsqueeze_": call("unsqueeze_", "a0", dim=0),
    "resize_": call("resize_", "a0", size=(2,)),
    "resize_as_": call("resize_as_", "a0", "a0"),
    "set_": call("set_", "a0", "a1"),
    "set_storage_": call("set_storage_", "a0", "a1", size=(2,), stride=(2,), offset=1),
    "set_empty_": call("set_empty_", "a0"),
    "set_data_": call("set_data_", "a0", "a1"),
    "detach_": call("detach_", "a0"),
    "requires_grad_": call("requires_grad_", "a0", value=True),
    "requires_grad_ False": call("requires_grad_", "a0", value=False),
    "zero_": call("zero_", "a0"),
    "mul_number_": call("mul_number_", "a0", value=2.0),
}


@pytest.mark.parametrize("mode", ["inherit", "no_grad"])
@pytest.mark.parametrize("via", ["root", "view", "detach", "data", "no_grad", "expanded"])
@pytest.mark.parametrize("storage", [LEAF, HISTORY, PLAIN], ids=["leaf", "history", "plain"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_eager_refuses_is_known(name: str, storage: Storage, via: str, mode: str) -> None:
    statement = CHANGES[name]
    argument: Argument = Root(0)
    if via == "expanded":
        argument = View(0, (2, 3), (0, 1), 0)
    elif via != "root":
        argument = View(0, (3,), (1,), 1, via)
    blocks = () if mode == "inherit" else (Region(mode),)
    changed = replace(statement, block=len(blocks) - 1)
    case = replace(program(storage, argument, changed), blocks=blocks)
    assert raises(case) == (illegal(case) is not None), load(case).text


def test_a_view_whose_base_has_a_history_since_counts_as_a_leaf_until_it_is_used() -> None:
    storages = (PLAIN, HISTORY)
    arguments = (Root(0), VIEW, Root(1))
    write = (call("mul_", "a0", "a2"), call("zero_", "a1"))
    use = call("sin", "a1", to="v0")
    for statements in (write, (write[0], use, write[1])):
        case = Program(storages, arguments, (Ref("a0"), Ref("a1"), Ref("a2")), statements, Ref("a2"))
        assert raises(case) == (illegal(case) is not None) == (use not in statements)


# ---------------------------------------------------------------------------------------------------------
# memory that resize_ adds


GROW = call("resize_", "a0", size=(2, 5))
FILL_NEW = call("setitem_slice_number", "a0", dim=0, start=1, end=2, step=1, value=2.0)


def test_what_is_added_must_be_written() -> None:
    with pytest.raises(ProgramError, match="never written"):
        check(program(PLAIN, Root(0), GROW))
    with pytest.raises(ProgramError, match="never written"):
        check(program(PLAIN, VIEW, GROW, call("mul_number", "a1", value=2.0, to="v0")))
    check(program(PLAIN, Root(0), GROW, call("zero_", "a0")))
    check(program(PLAIN, Root(0), GROW, FILL_NEW))


@pytest.mark.parametrize(
    "read", [call("sin", "a0", to="v0"), call("mul_number_", "a0", value=2.0), call("add_", "a0", "a0")]
)
def test_what_is_added_is_not_read_before_it_is_written(read: Statement) -> None:
    with pytest.raises(ProgramError, match="nothing has been written to"):
        check(program(PLAIN, Root(0), GROW, read))
    check(program(PLAIN, Root(0), GROW, FILL_NEW, read))


def test_a_smaller_size_adds_nothing() -> None:
    for size in ((2,), (3, 2), (0,), ()):
        shrink = call("resize_", "a0", size=size)
        assert not final_state(program(PLAIN, Root(0), shrink, call("sin", "a0", to="v0"))).undefined
        # Back to what its storage has had all along.
        again = call("resize_", "a0", size=(2, 3))
        check(program(PLAIN, Root(0), shrink, again, call("sin", "a0", to="v0")))


def test_what_is_added_to_a_lazily_conjugated_tensor_must_be_written() -> None:
    empty = Storage("complex64", (0,), 1)
    conjugated = call("conj", "a0", to="v0")
    grow = call("resize_", "v0", size=(1,))
    with pytest.raises(ProgramError, match="nothing has been written to"):
        check(program(empty, Root(0), conjugated, grow, call("sin", "v0", to="v1")))
    fill = call("fill_", "v0", value=2.0)
    check(program(empty, Root(0), conjugated, grow, fill, call("sin", "v0", to="v1")))


def test_other_views_of_a_grown_storage_may_be_read() -> None:
    case = Program(
        (PLAIN,),
        (Root(0), VIEW),
        (Ref("a0"), Ref("a1")),
        (GROW, call("sin", "a1", to="v0"), call("fill_", "a0", value=2.0)),
        Ref("v0"),
    )
    check(case)


@pytest.mark.parametrize("indices", [range(100), pytest.param(range(100, 600), marks=pytest.mark.nightly)])
@pytest.mark.parametrize("profile", ["metadata", "aliasing", "mixed"])
def test_no_program_shows_uninitialized_memory(profile: str, indices: range) -> None:
    """torch can fill new memory with NaN and with large integers: nobody must see them.

    The first hundred programs of a profile run always, five hundred more nightly.
    """
    grown = 0
    for index in indices:
        case = generate(SeededChoices(12, index), profile)
        grown += any(statement.operator.startswith("resize_") for statement in case.statements)
        assert not final_state(case).undefined
        plain, filled = visible(case), visible_when_filled(case)
        for name in plain:
            assert torch.equal(plain[name].nan_to_num(), filled[name].nan_to_num()), load(case).text
            assert plain[name].isnan().sum() == filled[name].isnan().sum(), load(case).text
    assert grown >= len(indices) / 200


def visible(case: Program) -> dict[str, torch.Tensor]:
    loaded = load(case)
    args, _, tensors = loaded.make()
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    result: Any = ()
    try:
        with torch.inference_mode(case.scenario.inference), torch.set_grad_enabled(case.scenario.grad):
            result = loaded.f(*args)
    except (RuntimeError, IndexError, ValueError):  # eager refuses inputs
        pass
    found = [leaf for leaf in torch.utils._pytree.tree_leaves((result, args)) if torch.is_tensor(leaf)]
    named = {f"seen {i}": tensor.detach().clone() for i, tensor in enumerate(found)}
    return named | {name: tensor.detach().clone() for name, tensor in tensors.items()}


def visible_when_filled(case: Program) -> dict[str, torch.Tensor]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        return visible(case)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("used", ["contiguous", "alias"])
def test_what_gives_its_operand_itself_does_not_come_to_autograd(used: str) -> None:
    """A view whose base has a history since has none at hand before autograd comes by it."""
    views = tuple(View(0, (3,), (1,), 3 * row) for row in (0, 1))
    changed = Program(
        (PLAIN, replace(LEAF, size=(3,))),
        (*views, Root(1)),
        (Ref("a0"), Ref("a1"), Ref("a2")),
        (
            call("mul_", "a1", "a2"),
            call(used, "a0", to="v0"),
            call("mul_number_", "a0", value=2.0),
        ),
        Seq("tuple", ()),
    )
    assert (illegal(changed) is not None) == raises(changed) == (used == "contiguous")


@pytest.mark.parametrize("itself", [call("flatten", "v0", start=0, end=0, to="v2"), None])
def test_one_of_several_results_stays_one_where_an_operator_gives_it_itself(itself: Statement | None) -> None:
    """Eager crashes where one that is to keep its gradient is written to."""
    both = Statement("foreach_exp", ("a0", "a0"), (), ("v0", "v1"))
    statements = [both, *([itself] if itself else []), call("retain_grad", "v2" if itself else "v0")]
    with pytest.raises(ProgramError, match="one of several results"):
        check(program(HISTORY, Root(0), *statements))
    check(program(HISTORY, Root(0), call("sin", "a0", to="v0"), call("retain_grad", "v0")))
