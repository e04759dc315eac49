"""The IR reads back from its JSON, and from that of older formats."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from fuzz.abstract.interpret import defined_names
from fuzz.choices import SeededChoices
from fuzz.generate import generate
from fuzz.generate.strategies import programs
from fuzz.program.decode import (
    Autocast,
    Branch,
    Call,
    Literal,
    Loop,
    Program,
    ProgramError,
    Ref,
    Region,
    Root,
    Scalar,
    Scenario,
    Seq,
    Statement,
    Storage,
    View,
    check,
    final_state,
    from_json,
    to_json,
    tree_references,
)
from fuzz.program.printer import load
from tests.support.fuzz.json_program import PROGRAM
from tests.support.fuzz.small_programs import SINE_OF_ANOTHER_SIZE

# A program with a block of each kind. The second call takes the other arm.
BLOCKS = Program(
    storages=(Storage("float32", (2, 2), 1),),
    arguments=(Root(0), Scalar(3)),
    parameters=(Ref("a0"), Ref("a1")),
    statements=(
        Statement("sin", ("a0",), (), ("v0",)),
        Statement("mm", ("v0", "a0"), (), ("v1",), 1),
        Statement("cos", ("v0",), (), ("v0",), 0),
        Statement("mul_argument", ("v0", "a1"), (), ("v2",), 2),
        Statement("exp", ("v0",), (), ("v2",), 4),
    ),
    returns=Seq("tuple", (Ref("v0"), Ref("v1"), Ref("v2"))),
    later=(Call((Storage("float32", (2, 2), 1),), (Root(0), Scalar(None)), Scenario()),),
    blocks=(
        Loop(3),
        Autocast("bfloat16", within=0),
        Branch("a1", 3),
        Branch("a1", 3, False),
        Region("checkpoint", within=3),
    ),
)
# What the formats before the fourth can say of it.
OLD = dataclasses.replace(PROGRAM, scenario=Scenario("cuda:1", False, (0, 2)), later=())


@pytest.mark.parametrize("program", [PROGRAM, BLOCKS])
def test_a_program_survives_json(program: Program) -> None:
    text = json.dumps(to_json(program), allow_nan=False)
    assert from_json(json.loads(text)) == program


def test_complex_numbers_survive_json() -> None:
    program = Program(
        (Storage("complex64", (2,), 1),),
        (Root(0), Scalar(-0.0 - 2j)),
        (Ref("a0"), Ref("a1")),
        (Statement("mul_complex_number", ("a0",), (("value", 1 - 0.5j),), ("v0",)),),
        Seq("tuple", (Ref("v0"), Literal(3j))),
    )
    found = from_json(json.loads(json.dumps(to_json(program), allow_nan=False)))
    assert found == program and repr(found) == repr(program)
    x, number = torch.tensor([1 + 1j, 2.0]), -0.0 - 2j
    result, three = load(program).f(x, number)
    assert torch.equal(result, x * (1 - 0.5j)) and three == 3j


@given(programs())
@settings(max_examples=60, deadline=None)
def test_generated_programs_survive_json(program: Program) -> None:
    assert from_json(json.loads(json.dumps(to_json(program), allow_nan=False))) == program


def test_many_generated_programs_survive_json() -> None:
    for index in range(300):
        program = generate(SeededChoices(2, index))
        assert from_json(json.loads(json.dumps(to_json(program)))) == program


def drop_format_10(document: dict[str, Any]) -> None:
    """Take away what format 15 brought: value classes but special values. And what 10 did: lazy arguments,
    views of aliases, roots that are detached since or were made in inference mode, calls under autocast."""
    for call in (document, *document["later"]):
        assert call["scenario"].pop("autocast") is None
        for storage in call["storages"]:
            assert (storage.pop("detached"), storage.pop("inference")) == (False, False)
            assert storage.pop("precision") is None
            storage["special"] = storage.pop("values") == "special"
        for argument in call["arguments"]:
            if argument["kind"] == "view":
                assert (argument.pop("lazy"), argument.pop("base")) == (None, "root")


def drop_format_9(document: dict[str, Any]) -> None:
    """Take away what format 9 brought, too: calls in two threads."""
    drop_format_10(document)
    for call in (document, *document["later"]):
        assert call["scenario"].pop("threads") is False


def drop_format_8(document: dict[str, Any]) -> None:
    """Take away what format 8 brought, too: wrapper subclasses."""
    drop_format_9(document)
    for call in (document, *document["later"]):
        for argument in call["arguments"]:
            if argument["kind"] == "view":
                assert argument.pop("wrapped") is None


def drop_format_6(document: dict[str, Any]) -> None:
    """Take away what formats 6 and 8 brought: blocks. A statement had a mode."""
    drop_format_8(document)
    blocks = document.pop("blocks")
    for statement in document["statements"]:
        number = statement.pop("block")
        statement["mode"] = "inherit" if number < 0 else blocks[number]["kind"]


def drop_format_5(document: dict[str, Any]) -> None:
    """Take away what format 5 brought, too: special values."""
    drop_format_6(document)
    for call in (document, *document["later"]):
        for storage in call["storages"]:
            del storage["special"]


def drop_format_4(document: dict[str, Any]) -> None:
    """Take away what formats 4 to 6 brought: later calls, and steps."""
    drop_format_5(document)
    del document["later"]
    del document["scenario"]["steps"]


def test_a_document_of_format_1_is_read() -> None:
    document = to_json(PROGRAM)
    document["format"] = 1
    for argument in document["arguments"]:
        if argument["kind"] == "view":
            assert argument.pop("dtype") is None
            assert argument.pop("leaf") is False
    assert document["scenario"].pop("inference") is False
    drop_format_4(document)
    before = copy.deepcopy(document)
    assert from_json(document) == OLD
    assert document == before
    document["format"] = 2
    with pytest.raises(ProgramError, match="the field 'dtype' is missing"):
        from_json(document)


def test_a_document_of_format_2_is_read() -> None:
    document = to_json(PROGRAM)
    document["format"] = 2
    assert document["scenario"].pop("inference") is False
    drop_format_4(document)
    assert from_json(document) == OLD
    document["format"] = 3
    with pytest.raises(ProgramError, match="the field 'inference' is missing"):
        from_json(document)


def test_a_document_of_format_3_is_read() -> None:
    document = to_json(PROGRAM)
    document["format"] = 3
    drop_format_4(document)
    assert from_json(document) == OLD
    document["format"] = 4
    with pytest.raises(ProgramError, match="the field 'later' is missing"):
        from_json(document)


def test_a_document_of_format_4_is_read() -> None:
    document = to_json(PROGRAM)
    document["format"] = 4
    drop_format_5(document)
    assert from_json(document) == PROGRAM
    document["format"] = 5
    with pytest.raises(ProgramError, match=r"the field '(values|precision)' is missing"):
        from_json(document)


def test_a_document_of_format_5_is_read() -> None:
    document = to_json(PROGRAM)
    document["format"] = 5
    drop_format_6(document)
    before = copy.deepcopy(document)
    assert from_json(document) == PROGRAM
    assert document == before
    document["statements"][2]["mode"] = "enable_grad"
    document["statements"][4]["mode"] = "enable_grad"
    program = from_json(document)
    assert program.blocks == (Region("no_grad"), Region("enable_grad"), Region("enable_grad"))
    assert [statement.block for statement in program.statements] == [-1, 0, 1, -1, 2]
    document["statements"][0]["mode"] = "autocast"
    with pytest.raises(ProgramError, match=r"statements\[0\].mode: 'autocast' is not known"):
        from_json(document)


def test_a_document_of_format_8_is_read() -> None:
    document = to_json(SINE_OF_ANOTHER_SIZE)
    document["format"] = 8
    drop_format_9(document)
    before = copy.deepcopy(document)
    assert from_json(document) == SINE_OF_ANOTHER_SIZE
    assert document == before
    document["format"] = 9
    with pytest.raises(ProgramError, match="scenario: the field 'threads' is missing"):
        from_json(document)


def test_a_document_of_format_9_is_read() -> None:
    document = to_json(PROGRAM)
    document["format"] = 9
    drop_format_10(document)
    before = copy.deepcopy(document)
    assert from_json(document) == PROGRAM
    assert document == before
    document["format"] = 10  # which has them all
    with pytest.raises(ProgramError, match=r"storages\[0\]: the field 'detached' is missing"):
        from_json(document)


def test_a_document_of_format_13_is_read() -> None:
    document = to_json(SINE_OF_ANOTHER_SIZE)
    document["format"] = 13
    for one in (document, *document["later"]):
        assert (one["scenario"].pop("swapped"), one["scenario"].pop("marked")) == (False, [])
    before = copy.deepcopy(document)
    assert from_json(document) == SINE_OF_ANOTHER_SIZE
    assert document == before
    document["format"] = 14
    with pytest.raises(ProgramError, match="scenario: the field 'marked' is missing"):
        from_json(document)


def test_references_are_in_order() -> None:
    assert list(tree_references(PROGRAM.returns)) == ["v0", "a4", "v5"]


def test_trace_knows_the_values() -> None:
    state = final_state(PROGRAM)
    assert state.tensor("v1").meta.size == (4,)
    assert state.tensor("a2") is state.tensor("a0")
    assert state.tensor("a1").memory == state.tensor("v4").memory


BAD_BLOCKS: dict[str, tuple[Program, str]] = {
    "too deep": (
        dataclasses.replace(BLOCKS, blocks=(*BLOCKS.blocks[:3], *(Loop(1, i) for i in (-1, 3, 4, 5)))),
        r"blocks\[6\].within: nested too deeply",
    ),
    "in a checkpoint": (
        dataclasses.replace(BLOCKS, blocks=(*BLOCKS.blocks, Loop(1, 4))),
        r"blocks\[5\].within: a block in a checkpoint",
    ),
    "asks again": (
        dataclasses.replace(BLOCKS, blocks=(*BLOCKS.blocks[:4], Branch("a1", 3, within=3))),
        r"blocks\[4\]: a block around it asks the same",
    ),
    "an arm that is not taken does not fit": (
        dataclasses.replace(
            BLOCKS,
            statements=(*BLOCKS.statements[:4], Statement("exp", ("v9",), (), ("v2",), 4)),
        ),
        r"blocks\[3\], if taken, statements\[4\]: exp: v9 is not defined",
    ),
    "not bound by the other arm": (
        dataclasses.replace(
            BLOCKS,
            statements=(*BLOCKS.statements[:4], Statement("exp", ("v0",), (), ("v3",), 4)),
        ),
        "returns: v2 is not defined on every way",
    ),
    "used after an arm that need not run": (
        dataclasses.replace(
            BLOCKS,
            statements=(*BLOCKS.statements[:4], Statement("exp", ("v2",), (), ("v3",))),
            blocks=BLOCKS.blocks[:3],
            returns=Ref("v0"),
            later=(),
        ),
        r"statements\[4\]: v2 is not defined on every way",
    ),
    "used in a block after the arm": (
        dataclasses.replace(
            BLOCKS,
            statements=(*BLOCKS.statements[:4], Statement("exp", ("v2",), (), ("v3",), 3)),
            blocks=(*BLOCKS.blocks[:3], Region("no_grad")),
            returns=Ref("v0"),
            later=(),
        ),
        r"statements\[4\]: v2 is not defined on every way",
    ),
}


@pytest.mark.parametrize("name", BAD_BLOCKS)
def test_bad_blocks_are_refused(name: str) -> None:
    program, message = BAD_BLOCKS[name]
    with pytest.raises(ProgramError, match=message):
        check(program)


def test_what_both_arms_bind_or_what_was_bound_before_is_defined() -> None:
    assert defined_names(BLOCKS) == {"a0", "a1", "v0", "v1", "v2"}
    one_arm = dataclasses.replace(
        BLOCKS, statements=BLOCKS.statements[:4], blocks=BLOCKS.blocks[:3], returns=Ref("v0"), later=()
    )
    check(one_arm)
    assert defined_names(one_arm) == {"a0", "a1", "v0", "v1"}
    # An arm that is no `else`, as something stands between.
    between = Statement("sin", ("a0",), (), ("v3",))
    apart = (*BLOCKS.statements[:4], between, BLOCKS.statements[4])
    assert "v2" not in defined_names(dataclasses.replace(BLOCKS, statements=apart))


def test_the_text_of_an_arm_has_one_size_in_all_calls() -> None:
    """The index is taken modulo the length of an argument, in an arm that the first call does not take."""
    chosen = Statement("index_select", ("a0", "a2"), (("dim", 0),), ("v0",), 0)
    index = Storage("int64", (2,), 1)

    def given(length: int, value: int) -> Call:
        storages = (Storage("float32", (length,), 1), index)
        return Call(storages, (Root(0), Scalar(value), Root(1)), Scenario())

    def program(*later: Call) -> Program:
        first = given(2, 1)
        names = (Ref("a0"), Ref("a1"), Ref("a2"))
        block = Branch("a1", 7)
        return Program(
            first.storages, first.arguments, names, (chosen,), Ref("a0"), later=later, blocks=(block,)
        )

    check(program(given(2, 7)))
    check(program(given(3, 1)))
    with pytest.raises(ProgramError, match=r"its text has another size now"):
        check(program(given(3, 7)))


def test_a_text_that_differs_between_turns_is_refused() -> None:
    """The index is taken modulo a length that grows from turn to turn."""
    index = Statement("arange", (), (("count", 2), ("dtype", "int64")), ("v0",))
    chosen = Statement("index_select", ("v1", "v0"), (("dim", 0),), ("v2",), 0)
    longer = Statement("cat", ("v1", "v1"), (("dim", 0),), ("v1",), 0)
    program = Program(
        (Storage("float32", (2,), 1),),
        (Root(0),),
        (Ref("a0"),),
        (index, Statement("clone", ("a0",), (), ("v1",)), chosen, longer),
        Literal(None),
        blocks=(Loop(2),),
    )
    with pytest.raises(ProgramError, match=r"statements\[2\]: its text has another size"):
        check(program)
    check(dataclasses.replace(program, blocks=(Loop(1),)))


def test_turns_are_bounded() -> None:
    neg = Statement("neg", ("a0",), (), ("v0",), 2)
    program = dataclasses.replace(
        BLOCKS,
        statements=(neg,) * 10,
        returns=Literal(None),
        blocks=(Loop(4), Loop(4, 0), Loop(4, 1)),
        later=(),
    )
    with pytest.raises(ProgramError, match="more than 400 statements run"):
        check(program)


def test_undefined_writes_are_refused() -> None:
    overlapping = View(0, (2, 3), (1, 1), 0)
    program = Program(
        (Storage("float32", (4,), 0),),
        (overlapping, Root(0)),
        (Ref("a0"), Ref("a1")),
        (Statement("neg_", ("a0",), (), ()),),
        Literal(None),
    )
    with pytest.raises(ProgramError, match="elements overlap"):
        check(program)
    # Each element gets the same value, whatever the order.
    check(dataclasses.replace(program, statements=(Statement("zero_", ("a0",), (), ()),)))
    shifted = dataclasses.replace(
        program,
        arguments=(View(0, (2,), (2,), 0), View(0, (2,), (1,), 1)),
        statements=(Statement("copy_", ("a0", "a1"), (), ()),),
    )
    with pytest.raises(ProgramError, match="overlaps an operand"):
        check(shifted)
    # Eager sees that dense ones overlap, and refuses the write.
    check(dataclasses.replace(shifted, arguments=(View(0, (3,), (1,), 0), View(0, (3,), (1,), 1))))
    disjoint = dataclasses.replace(shifted, arguments=(View(0, (2,), (1,), 0), View(0, (2,), (1,), 2)))
    check(disjoint)
