"""A hostile document is refused with the place."""

from __future__ import annotations

import copy
import dataclasses
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from fuzz.program.decode import (
    FORMAT,
    Program,
    ProgramError,
    Ref,
    Root,
    Statement,
    Storage,
    check,
    from_json,
    to_json,
)
from tests.support.fuzz.json_program import PROGRAM

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
    (put("storages", 1, "values", value="special"), "storages[1].values", "int64 has no special values"),
    (put("storages", 0, "values", value="eval"), "storages[0].values", "'eval' is not known"),
    (put("storages", 0, "values", value=["limits"]), "storages[0].values", "not known"),
    (put("storages", 0, "precision", value="int64"), "storages[0].precision", "does not hold"),
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


def test_check_asks_what_from_json_asks() -> None:
    check(PROGRAM)
    with pytest.raises(ProgramError, match=r"statements\[0\]: unbind: v0 is not defined"):
        check(dataclasses.replace(PROGRAM, statements=PROGRAM.statements[1:2]))


def test_reading_changes_nothing_in_the_document() -> None:
    document = to_json(PROGRAM)
    before = copy.deepcopy(document)
    from_json(document)
    assert document == before
