"""The IR reads back from its JSON, and a hostile document is refused with the place."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from small_programs import SINE_OF_ANOTHER_SIZE

from fuzz.choices import Random
from fuzz.follow import defined
from fuzz.generate import generate
from fuzz.program import (
    FORMAT,
    Autocast,
    Branch,
    Call,
    Dict,
    Lit,
    Loop,
    Program,
    ProgramError,
    Ref,
    Region,
    Require,
    Root,
    Same,
    Scalar,
    Scenario,
    Seq,
    Statement,
    Storage,
    View,
    Write,
    check,
    from_json,
    references,
    to_json,
    trace,
)
from fuzz.source import load
from fuzz.strategies import programs
from oracles import Backward

PROGRAM = Program(
    storages=(Storage("float32", (3, 4), 1, True, False), Storage("int64", (3,), 2)),
    arguments=(Root(0), View(0, (2, 2), (4, 1), 5, "detach"), Same(0), Root(1), Scalar(math.inf)),
    parameters=(Ref("a0"), Seq("list", (Ref("a1"), Dict((("k", Ref("a2")),)))), Ref("a3"), Ref("a4")),
    statements=(
        Statement("sin", ("a0",), (), ("v0",)),
        Statement("unbind", ("v0",), (("dim", 0),), ("v1", "v2", "v3"), 0),
        Statement("select", ("a0",), (("dim", 0), ("index", 1)), ("v4",)),
        Statement("mul_number_", ("v4",), (("value", 2.0),), ()),
        Statement("zeros", (), (("size", (2, 3)), ("dtype", "float64")), ("v5",)),
    ),
    returns=Seq("tuple", (Ref("v0"), Lit(None), Dict((("x", Ref("a4")), ("y", Lit(3)))), Ref("v5"))),
    scenario=Scenario(
        *("cuda:1", False, (0, 2)),
        steps=(
            Backward((1,), "double", True),
            Write("v0"),
            Write("a1"),
            Require("v0"),
            Backward(how="accumulate"),
        ),
    ),
    later=(
        Call(
            (Storage("float64", (3, 5), 1), Storage("int64", (4,), 2)),
            (Root(0), View(0, (2,), (4,), 5, "data"), Root(0), Root(1), Scalar(None)),
            Scenario("cuda:1"),
        ),
    ),
    blocks=(Region("no_grad"),),
)
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
        Seq("tuple", (Ref("v0"), Lit(3j))),
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
        program = generate(Random(2, index))
        assert from_json(json.loads(json.dumps(to_json(program)))) == program


def drop_format_10(document: dict[str, Any]) -> None:
    """Take away what format 10 brought: lazy arguments, views of aliases, roots that are detached since or
    were made in inference mode, calls under autocast."""
    for call in (document, *document["later"]):
        assert call["scenario"].pop("autocast") is None
        for storage in call["storages"]:
            assert (storage.pop("detached"), storage.pop("inference")) == (False, False)
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
            assert storage.pop("special") is False


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
    with pytest.raises(ProgramError, match="the field 'special' is missing"):
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
    assert list(references(PROGRAM.returns)) == ["v0", "a4", "v5"]


def test_trace_knows_the_values() -> None:
    state = trace(PROGRAM)
    assert state.tensor("v1").meta.size == (4,)
    assert state.tensor("a2") is state.tensor("a0")
    assert state.tensor("a1").memory == state.tensor("v4").memory


Change = Callable[[dict[str, Any]], object]


def put(*path: Any, value: object) -> Change:
    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    return change


def drop(*path: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for step in path[:-1]:
            inner = inner[step]
        del inner[path[-1]]

    return change


def nested(depth: int) -> Any:
    tree: Any = {"ref": "v0"}
    for _ in range(depth):
        tree = {"tuple": [tree]}
    return tree


def parts(*numbers: object) -> dict[str, object]:
    """A complex number as JSON."""
    return {"complex": list(numbers)}


def nested_list(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def loop(count: object) -> dict[str, object]:
    return {"kind": "for", "count": count, "within": -1}


def branch(argument: str) -> dict[str, object]:
    return {"kind": "if", "argument": argument, "value": 1, "holds": True, "within": -1}


def autocast(dtype: str) -> dict[str, object]:
    return {"kind": "autocast", "dtype": dtype, "enabled": True, "within": -1}


HOSTILE: list[tuple[Change, str, str]] = [
    (put("format", value=FORMAT + 1), "format", f"found format version {FORMAT + 1}, expected {FORMAT}"),
    (put("format", value="1"), "format", f"expected {FORMAT}"),
    (put("format", value=True), "format", f"expected {FORMAT}"),
    (drop("format"), "format", "found format version None"),
    (drop("storages"), "program", "'storages' is missing"),
    (put("extra", value=1), "program", "unknown field 'extra'"),
    (put("storages", value={}), "storages", "expected a list"),
    (put("storages", value=[{}] * 33), "storages", "33 items, at most 32"),
    (put("arguments", 1, "dtype", value="bool"), "arguments[1].dtype", "float32 seen as bool"),
    (put("arguments", 1, "dtype", value="complex32"), "arguments[1].dtype", "not known"),
    (
        put("arguments", 1, "dtype", value="complex128"),
        "arguments[1]",
        "reaches element 10 of a storage of 3",
    ),
    (put("arguments", 1, "leaf", value=1), "arguments[1].leaf", "expected true or false"),
    (put("storages", 0, "dtype", value="int64"), "storages[0].requires_grad", "cannot require grad"),
    (put("storages", 0, "size", value=[10**6, 10**6]), "storages[0].size", "1000000000000 elements"),
    (put("storages", 0, "size", value=[10**12]), "storages[0].size[0]", "out of range"),
    (put("storages", 0, "size", value=[1] * 9), "storages[0].size", "9 items, at most 8"),
    (put("storages", 0, "size", value=[-1]), "storages[0].size[0]", "-1 is out of range"),
    (put("storages", 0, "size", value=[2.0]), "storages[0].size[0]", "expected an integer"),
    (put("storages", 0, "size", value="34"), "storages[0].size", "expected a list"),
    (put("storages", 0, "dtype", value="float128"), "storages[0].dtype", "'float128' is not known"),
    (put("storages", 0, "dtype", value=["float32"]), "storages[0].dtype", "not known"),
    (put("storages", 0, "seed", value=True), "storages[0].seed", "expected an integer"),
    (put("storages", 0, "leaf", value=1), "storages[0].leaf", "expected true or false"),
    (put("storages", 1, "requires_grad", value=True), "storages[1].requires_grad", "cannot require grad"),
    (put("storages", 1, "leaf", value=False), "storages[1].leaf", "always a leaf"),
    (put("storages", 1, "special", value=True), "storages[1].special", "int64 has no special values"),
    (put("storages", 0, "special", value=1), "storages[0].special", "expected true or false"),
    (put("storages", 1, "fill", value=1), "storages[1]", "unknown field 'fill'"),
    (put("arguments", 0, value={"kind": "file", "path": "x"}), "arguments[0].kind", "'file'"),
    (put("arguments", 0, value=None), "arguments[0].kind", "unknown argument kind"),
    (put("arguments", 0, "storage", value=7), "arguments[0].storage", "7 is out of range"),
    (put("arguments", 0, "storage", value=-1), "arguments[0].storage", "-1 is out of range"),
    (put("arguments", 1, "offset", value=8), "arguments[1]", "reaches element 13 of a storage of 12"),
    (put("arguments", 1, "stride", value=[100, 1]), "arguments[1]", "reaches element 106"),
    (put("arguments", 1, "stride", value=[2**31 + 1, 1]), "arguments[1].stride[0]", "out of range"),
    (put("arguments", 1, "stride", value=[4]), "arguments[1].stride", "shorter than the size"),
    (put("arguments", 1, "stride", value=[-4, 1]), "arguments[1].stride[0]", "out of range"),
    (put("arguments", 1, "via", value="exec"), "arguments[1].via", "'exec' is not known"),
    (put("arguments", 2, "argument", value=2), "arguments[2].argument", "2 is out of range"),
    (put("arguments", 4, "value", value=nested_list(40)), "arguments[4].value", "nested too deeply"),
    (put("arguments", 4, "value", value="x" * 100), "arguments[4].value", "a text of 100 characters"),
    (put("arguments", 4, "value", value=10**30), "arguments[4].value", "out of range"),
    (put("arguments", 4, "value", value={"float": "1"}), "arguments[4].value.float", "'1' is not known"),
    (put("arguments", 4, "value", value=parts(1.0)), "arguments[4].value.complex", "two fractions"),
    (put("arguments", 4, "value", value=parts(1.0, "2")), "arguments[4].value.complex", "two fractions"),
    (put("arguments", 4, "value", value=parts(1.0, math.inf)), "arguments[4].value.complex", "two fractions"),
    (put("arguments", 4, "value", value=parts(1.0, 2.0, 3.0)), "arguments[4].value.complex", "3 items"),
    (put("arguments", 4, "value", value=parts(1.0, 2.0) | {"float": "nan"}), "arguments[4].value", "unknown"),
    (put("parameters", 0, value={"ref": "a3"}), "parameters", "name each argument once"),
    (put("parameters", value=[]), "parameters", "there are 5 arguments"),
    (put("parameters", 0, value={"ref": "__import__"}), "parameters[0]", "is not a name"),
    (put("statements", 3, "operator", value="os.system"), "statements[3].operator", "'os.system'"),
    (put("statements", 3, "operator", value=["mul"]), "statements[3].operator", "unknown operator"),
    (put("statements", 3, "operator", value=None), "statements[3].operator", "unknown operator None"),
    (put("statements", 0, "operands", value=["a0", "a0"]), "statements[0].operands", "takes 1, found 2"),
    (put("statements", 0, "operands", value=["a0;exit()"]), "statements[0].operands[0]", "is not a name"),
    (put("statements", 0, "operands", value=[0]), "statements[0].operands[0]", "0 is not a name"),
    (put("statements", 0, "operands", value=["v9"]), "statements[0]", "v9 is not defined"),
    (put("statements", 0, "operands", value=["v5"]), "statements[0]", "v5 is not defined"),
    (put("statements", 0, "operands", value=["a4"]), "statements[0]", "a4 is not a tensor"),
    (put("statements", 0, "operands", value=["a3"]), "statements[0]", "a3 is int64"),
    (put("statements", 0, "results", value=["a9"]), "statements[0].results", "an argument's name"),
    (put("statements", 2, "results", value=["v0"]), "statements[2]", "defined already"),
    (put("statements", 1, "results", value=["v1", "v2"]), "statements[1]", "it has 3 results, not 2"),
    (put("statements", 0, "block", value="autocast"), "statements[0].block", "expected an integer"),
    (put("statements", 0, "block", value=1), "statements[0].block", "there is no such block"),
    (put("statements", 4, "block", value=0), "statements", "block 0 do not stand together"),
    (put("statements", 1, "block", value=-1), "blocks[0]", "no statement is in it"),
    (put("blocks", value=[{}] * 33), "blocks", "33 items, at most 32"),
    (put("blocks", 0, "kind", value="while"), "blocks[0].kind", "unknown block 'while'"),
    (put("blocks", 0, "kind", value=["for"]), "blocks[0].kind", "unknown block a list"),
    (put("blocks", 0, "within", value=0), "blocks[0].within", "0 is out of range"),
    (put("blocks", 0, value=loop(0)), "blocks[0].count", "0 is out of range"),
    (put("blocks", 0, value=loop(10**9)), "blocks[0].count", "out of range"),
    (put("blocks", 0, value=loop(True)), "blocks[0].count", "expected an integer"),
    (put("blocks", 0, value=branch("a0")), "blocks[0]", "a0 is no Python value"),
    (put("blocks", 0, value=branch("v0")), "blocks[0]", "v0 is no Python value"),
    (put("blocks", 0, value=branch("a9")), "blocks[0]", "a9 is no Python value"),
    (put("blocks", 0, value=branch("a4; exit()")), "blocks[0].argument", "is not a name"),
    (put("blocks", 0, value=autocast("float64")), "blocks[0].dtype", "'float64' is not known"),
    (put("statements", 0, "code", value="x"), "statements[0]", "unknown field 'code'"),
    (drop("statements", 0, "block"), "statements[0]", "'block' is missing"),
    (drop("statements", 2, "attributes", "dim"), "statements[2].attributes", "'dim' is missing"),
    (put("statements", 2, "attributes", "out", value=1), "statements[2].attributes", "unknown field 'out'"),
    (
        put("statements", 2, "attributes", "dim", value="0); import os; (0"),
        "statements[2].attributes.dim",
        "is not of type int",
    ),
    (put("statements", 2, "attributes", "dim", value=True), "statements[2].attributes.dim", "of type int"),
    (put("statements", 2, "attributes", "dim", value=5), "statements[2]", "dimension 5"),
    (put("statements", 2, "attributes", "index", value=3), "statements[2]", "index 3"),
    (put("statements", 4, "attributes", "size", value=[10**4, 10**4]), "statements[4]", "out of range"),
    (put("statements", 4, "attributes", "size", value=[4000, 4000]), "statements[4]", "larger than any"),
    (put("statements", 4, "attributes", "size", value=[1] * 9), "statements[4]", "larger than any"),
    (put("statements", 4, "attributes", "dtype", value="object"), "statements[4].attributes.dtype", "dtype"),
    (put("statements", value=[{}] * 201), "statements", "201 items, at most 200"),
    (put("returns", value={"ref": "v9"}), "returns", "v9 is not defined"),
    (put("returns", value=nested(5000)), "returns", "nested too deeply"),
    (put("returns", value={"call": []}), "returns", "'call' is not a tree"),
    (put("returns", value={"ref": "a0", "lit": 1}), "returns", "is not a tree"),
    (put("returns", value={"tuple": [{"lit": None}] * 257}), "returns", "257 items"),
    (put("returns", value={"dict": [["k", {"lit": 1}], ["k", {"lit": 2}]]}), "returns", "twice"),
    (put("returns", value={"dict": [[1, {"lit": 1}]]}), "returns.dict[0]", "not a pair"),
    (put("scenario", "device", value="cuda:99"), "scenario.device", "unknown device"),
    (put("scenario", "device", value="cpu'); exit()"), "scenario.device", "unknown device"),
    (put("scenario", "grad", value=None), "scenario.grad", "expected true or false"),
    (put("scenario", "differentiate", value=[-1]), "scenario.differentiate[0]", "out of range"),
    (put("scenario", value=[]), "scenario", "expected an object"),
    (put("scenario", "steps", value=[{"write": "a0"}] * 17), "scenario.steps", "17 items, at most 16"),
    (put("scenario", "steps", 0, "backward", value="twice"), "scenario.steps[0].backward", "not known"),
    (put("scenario", "steps", 0, "retain", value=1), "scenario.steps[0].retain", "true or false"),
    (put("scenario", "steps", 0, "roots", value=[-1]), "scenario.steps[0].roots[0]", "out of range"),
    (put("scenario", "steps", 1, "write", value="x"), "scenario.steps[1].write", "is not a name"),
    (put("scenario", "steps", 1, "write", value="v1"), "scenario.steps[1]", "v1 is no argument"),
    (put("scenario", "steps", 1, "write", value="a4"), "scenario.steps[1]", "a4 is no argument"),
    (put("scenario", "steps", 1, "more", value=1), "scenario.steps[1]", "unknown field 'more'"),
    (put("later", value=[{}] * 17), "later", "17 items, at most 16"),
    (put("later", 0, value=[]), "later[0]", "expected an object"),
    (drop("later", 0, "arguments", 4), "later[0]", "4 arguments, the first call has 5"),
    (put("later", 0, "arguments", value=[]), "later[0]", "0 arguments, the first call has 5"),
    (put("later", 0, "arguments", 1, "offset", value=14), "later[0].arguments[1]", "reaches element 18"),
    (put("later", 0, "scenario", "device", value="cpu"), "later[0].scenario.device", "not the first call's"),
    (put("later", 0, "storages", 0, "size", value=[2, 5]), "later[0] with", "it has 2 results, not 3"),
    (put("later", 0, "arguments", 0, "storage", value=1), "later[0] with statements[0]", "a0 is int64"),
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_document_is_refused_with_its_place(number: int) -> None:
    change, place, message = HOSTILE[number]
    document = to_json(PROGRAM)
    change(document)
    with pytest.raises(ProgramError) as caught:
        from_json(document)
    assert (caught.value.place or "program").startswith(place), str(caught.value)
    assert message in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("document", [None, [], 3, "text", [to_json(PROGRAM)]])
def test_what_is_no_object_is_refused(document: object) -> None:
    with pytest.raises(ProgramError, match="expected an object"):
        from_json(document)


def test_values_cannot_grow_without_bound() -> None:
    """Each statement doubles a tensor: the reader stops at its bound instead of following."""
    statements = tuple(
        Statement("cat", (f"v{i - 1}" if i else "a0",) * 2, (("dim", 0),), (f"v{i}",)) for i in range(150)
    )
    program = Program((Storage("float32", (4,), 0),), (Root(0),), (Ref("a0"),), statements, Ref("v0"))
    tracemalloc.start()
    with pytest.raises(ProgramError, match=r"statements\[10\]: cat: .* larger than any"):
        from_json(to_json(program))
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


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
    assert defined(BLOCKS) == {"a0", "a1", "v0", "v1", "v2"}
    one_arm = dataclasses.replace(
        BLOCKS, statements=BLOCKS.statements[:4], blocks=BLOCKS.blocks[:3], returns=Ref("v0"), later=()
    )
    check(one_arm)
    assert defined(one_arm) == {"a0", "a1", "v0", "v1"}
    # An arm that is no `else`, as something stands between.
    between = Statement("sin", ("a0",), (), ("v3",))
    apart = (*BLOCKS.statements[:4], between, BLOCKS.statements[4])
    assert "v2" not in defined(dataclasses.replace(BLOCKS, statements=apart))


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
        Lit(None),
        blocks=(Loop(2),),
    )
    with pytest.raises(ProgramError, match=r"statements\[2\]: its text has another size"):
        check(program)
    check(dataclasses.replace(program, blocks=(Loop(1),)))


def test_turns_are_bounded() -> None:
    neg = Statement("neg", ("a0",), (), ("v0",), 2)
    program = dataclasses.replace(
        BLOCKS, statements=(neg,) * 10, returns=Lit(None), blocks=(Loop(4), Loop(4, 0), Loop(4, 1)), later=()
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
        Lit(None),
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


def test_check_asks_what_from_json_asks() -> None:
    check(PROGRAM)
    with pytest.raises(ProgramError, match=r"statements\[0\]: unbind: v0 is not defined"):
        check(dataclasses.replace(PROGRAM, statements=PROGRAM.statements[1:2]))


def test_reading_changes_nothing_in_the_document() -> None:
    document = to_json(PROGRAM)
    before = copy.deepcopy(document)
    from_json(document)
    assert document == before
