"""A program prints as Python that runs alone, and that is what runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fuzz.choices import SeededChoices
from fuzz.generate import generate
from fuzz.operators.dtypes import DTYPES
from fuzz.program.decode import (
    Autocast,
    Branch,
    Dict,
    Duplicate,
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
)
from fuzz.program.printer import load, render, upcast

HIDDEN = View(0, (2,), (1,), 1, "no_grad")
PROGRAM = Program(
    storages=(Storage("float32", (2, 3), 5, True, False), Storage("int64", (4,), 2)),
    arguments=(Root(0), HIDDEN, Duplicate(0), Root(1), Scalar(0.5)),
    parameters=(Ref("a0"), Seq("list", (Ref("a1"), Dict((("key", Ref("a2")),)))), Ref("a3"), Ref("a4")),
    statements=(
        Statement("index_select", ("a0", "a3"), (("dim", -1),), ("v0",)),
        Statement("t_", ("a0",), (), (), 0),
        Statement("split", ("v0",), (("dim", 1), ("length", 2)), ("v1", "v2"), 0),
        Statement("setitem_slice", ("v0", "a1"), (("dim", 1), ("start", 0), ("end", 4), ("step", 2)), ()),
        Statement("zeros", (), (("size", (2,)), ("dtype", "float64")), ("v3",)),
        Statement("mul_argument", ("a0", "a4"), (), ("v4",)),
    ),
    returns=Seq("tuple", (Ref("v1"), Literal(None), Dict((("k", Ref("a0")),)), Ref("v4"))),
    blocks=(Region("no_grad"),),
)

TEXT = """\
import torch


def make():
    leaf0 = (LEAF).to(torch.float32).requires_grad_()  # float32[2, 3]
    s0 = leaf0 * 1
    s1 = ((torch.arange(4) * 7 + 2) % 5 - 2).to(torch.int64)  # int64[4]
    a0 = s0
    with torch.no_grad():
        a1 = s0.as_strided((2,), (1,), 1)  # float32[2]
    a2 = a0
    a3 = s1
    a4 = 0.5
    args = (a0, [a1, {"key": a2}], a3, a4)
    leaves = {"leaf0": leaf0}
    tensors = {"leaf0": leaf0, "s0": s0, "s1": s1}
    return args, leaves, tensors


def f(a0, p1, a3, a4):
    a1 = p1[0]
    a2 = p1[1]["key"]
    v0 = a0.index_select(-1, a3 % 3)  # float32[2, 4]
    with torch.no_grad():
        a0.t_()  # float32[3, 2]
        [v1, v2] = v0.split(2, 1)  # float32[2, 2], float32[2, 2]
    v0[:, 0:4:2] = a1
    v3 = torch.zeros((2,), dtype=torch.float64)  # float64[2]
    v4 = a0 * a4  # float32[3, 2]
    return (v1, None, {"k": a0}, v4)
"""


def test_the_text_is_the_programs() -> None:
    assert render(PROGRAM) == TEXT.replace("LEAF", "(torch.arange(6).reshape(2, 3) * 7 + 5) % 13 / 4 - 1.625")


def test_a_checkpointed_part_that_gives_nothing_is_called() -> None:
    nothing = Statement("unbind", ("a0",), (("dim", 0),), (), 0)
    double = Statement("mul_number", ("a0",), (("value", 2.0),), ("v0",))
    program = Program(
        (Storage("float32", (0, 2), 1),),
        (Root(0),),
        (Ref("a0"),),
        (nothing, double),
        Ref("v0"),
        blocks=(Region("checkpoint"),),
    )
    loaded = load(program)
    assert "\n    torch.utils.checkpoint.checkpoint(part0, a0, use_reentrant=False)\n" in loaded.text
    args, _, _ = loaded.make()
    assert loaded.f(*args).shape == (0, 2)


def test_the_device_is_printed() -> None:
    text = render(dataclasses.replace(PROGRAM, scenario=Scenario("cuda:0")))
    assert 'torch.arange(4, device="cuda:0")' in text
    assert 'torch.zeros((2,), dtype=torch.float64, device="cuda:0")' in text


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.stride() == b.stride()
            and torch.equal(a.detach().nan_to_num(), b.detach().nan_to_num())
        )
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    return bool(a == b)


def test_what_is_printed_is_what_runs() -> None:
    for index in range(60):
        program = generate(SeededChoices(8, index))
        loaded = load(program)
        assert loaded.text == render(program)
        alone: dict[str, Any] = {}
        exec(loaded.text, alone)
        outcomes = []
        for make, f in ((loaded.make, loaded.f), (alone["make"], alone["f"])):
            torch.manual_seed(0)
            args, _, tensors = make()
            with torch.set_grad_enabled(program.scenario.grad):
                try:
                    result = f(*args)
                except (RuntimeError, ValueError) as error:
                    result = type(error).__name__
            outcomes.append((result, {name: tensor.detach() for name, tensor in tensors.items()}))
        assert equal(*outcomes), loaded.text


def test_every_call_makes_fresh_tensors() -> None:
    arguments = (PROGRAM.arguments[0], dataclasses.replace(HIDDEN, via="detach"), *PROGRAM.arguments[2:])
    loaded = load(dataclasses.replace(PROGRAM, arguments=arguments))
    first, second = loaded.make(), loaded.make()
    loaded.f(*first[0])
    assert first[0][0].shape == (3, 2)
    assert second[0][0].shape == (2, 3)
    shared = {t.data_ptr() for t in first[2].values()} & {t.data_ptr() for t in second[2].values()}
    assert not shared


def test_make_gives_arguments_leaves_and_tensors() -> None:
    (a0, [a1, inner], a3, a4), leaves, tensors = load(PROGRAM).make()
    assert inner["key"] is a0 is tensors["s0"]
    assert a1._base is a0
    assert a3 is tensors["s1"]
    assert a4 == 0.5
    assert leaves == {"leaf0": tensors["leaf0"]}
    assert leaves["leaf0"].is_leaf
    assert not a0.is_leaf
    for via, shares_version in (("detach", True), ("data", False)):
        hidden = dataclasses.replace(HIDDEN, via=via)
        arguments = (PROGRAM.arguments[0], hidden, *PROGRAM.arguments[2:])
        program = dataclasses.replace(PROGRAM, arguments=arguments)
        (root, [alias, _], _, _), _, _ = load(program).make()
        assert not alias.requires_grad
        assert alias.data_ptr() == root.data_ptr() + 4
        version = root._version
        alias.mul_(2)
        assert (root._version > version) == shares_version


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("size", [(), (0,), (7,), (2, 3, 4)])
def test_values_are_small_and_exact(dtype: str, size: tuple[int, ...]) -> None:
    program = Program((Storage(dtype, size, 9),), (Root(0),), (Ref("a0"),), (), Ref("a0"))
    (value,), _, _ = load(program).make()
    assert value.dtype == getattr(torch, dtype)
    assert value.shape == size
    assert value._base is None
    twin = upcast(program)
    assert twin is not None
    reference = load(twin).make()[0][0]
    assert torch.equal(value.to(torch.complex128), reference.to(torch.complex128))
    if value.is_floating_point() and value.numel():
        assert value.abs().min() > 0
        assert value.abs().max() < 2


def test_upcast_changes_floating_dtypes_alone() -> None:
    half = Statement("ones", (), (("size", (2,)), ("dtype", "float16")), ("v5",))
    whole = Statement("ones", (), (("size", (2,)), ("dtype", "int64")), ("v6",))
    program = upcast(dataclasses.replace(PROGRAM, statements=(*PROGRAM.statements, half, whole)))
    assert program is not None
    assert [storage.dtype for storage in program.storages] == ["float64", "int64"]
    assert dict(program.statements[-2].attributes)["dtype"] == "float64"
    assert dict(program.statements[-1].attributes)["dtype"] == "int64"


@pytest.mark.parametrize(
    ("given", "made", "operator"),
    [("bfloat16", "float32", "to_copy"), ("float32", "float32", "to"), ("int64", "float32", "to")],
)
def test_what_is_converted_is_another_tensor_in_a_twin_too(given: str, made: str, operator: str) -> None:
    convert = Statement("to", ("a0",), (("dtype", made),), ("v0",))
    twin = upcast(Program((Storage(given, (4,), 1),), (Root(0),), (Ref("a0"),), (convert,), Ref("v0")))
    assert twin is not None
    assert [one.operator for one in twin.statements] == [operator]
    check(twin)


def test_what_a_call_does_not_come_by_need_not_fit_its_twin() -> None:
    """As in a later call that is given fewer dimensions than the first."""
    inside = Statement("transpose", ("a0",), (("dim0", 0), ("dim1", 1)), ("v0",), block=0)
    after = Statement("sin", ("a0",), (), ("v1",), block=1)
    program = Program(
        (Storage("float32", (4,), 1),),
        (Root(0), Scalar(2)),
        (Ref("a0"), Ref("a1")),
        (inside, after),
        Ref("v1"),
        blocks=(Branch("a1", 1, True), Branch("a1", 2, True)),
    )
    twin = upcast(program)
    assert twin is not None and twin.blocks == ()
    assert [one.operator for one in twin.statements] == ["sin"]
    assert upcast(dataclasses.replace(program, arguments=(Root(0), Scalar(1)))) is None


def test_upcast_programs_are_valid() -> None:
    for index in range(200):
        twin = upcast(generate(SeededChoices(4, index)))
        if twin is not None:
            check(twin)


def test_a_program_that_looks_at_bytes_has_no_twin() -> None:
    for dtype, root, twin in (
        ("float32", "int64", None),
        ("int16", "int64", "int16"),
        ("complex64", "float32", "complex128"),
        ("float32", "complex64", "float64"),
    ):
        view = View(0, (1,), (1,), 0, dtype=dtype)
        exact = upcast(Program((Storage(root, (4,), 1),), (view,), (Ref("a0"),), (), Ref("a0")))
        assert (None if exact is None else exact.arguments[0].dtype) == twin


def test_numbers_that_are_seen_as_bytes_alone_stay_in_a_twin_as_they_are() -> None:
    seen = View(0, (4,), (1,), 0, dtype="int32")
    program = Program((Storage("float32", (4,), 1),), (seen,), (Ref("a0"),), (), Ref("a0"))
    assert upcast(program) == program
    assert upcast(dataclasses.replace(program, arguments=(seen, Root(0)))) is None


def test_a_statement_that_looks_at_bytes_leaves_no_twin() -> None:
    for shown, given, twin in (
        ("int32", "float32", None),
        ("float32", "int64", None),
        ("int16", "int64", "int16"),
        ("complex64", "float32", "complex128"),
        ("float32", "complex64", "float64"),
        ("float64", "complex128", "float64"),
        ("bool", "float32", None),
    ):
        view = Statement("view_dtype", ("a0",), (("dtype", shown),), ("v0",))
        exact = upcast(Program((Storage(given, (4,), 1),), (Root(0),), (Ref("a0"),), (view,), Ref("v0")))
        assert (None if exact is None else dict(exact.statements[0].attributes)["dtype"]) == twin


def test_an_invalid_program_is_not_run() -> None:
    bad = dataclasses.replace(PROGRAM, statements=(Statement("sin", ("a3",), (), ("v0",)),), blocks=())
    with pytest.raises(ProgramError, match=r"statements\[0\]: sin: a3 is int64"):
        load(bad)


BLOCKS = Program(
    storages=(Storage("float32", (2, 2), 1),),
    arguments=(Root(0), Scalar("text")),
    parameters=(Ref("a0"), Ref("a1")),
    statements=(
        Statement("clone", ("a0",), (), ("v0",)),
        Statement("mm", ("v0", "a0"), (), ("v1",), 1),
        Statement("mul_number", ("v0",), (("value", 2.0),), ("v0",), 0),
        Statement("index_select", ("v0", "a2"), (("dim", 0),), ("v2",), 2),
        Statement("cos", ("v0",), (), ("v0",), 4),
        Statement("neg", ("v0",), (), ("v2",), 4),
        Statement("set_grad_enabled", (), (("enabled", False),), ()),
    ),
    returns=Seq("tuple", (Ref("v1"), Ref("v2"))),
    blocks=(
        Loop(3),
        Autocast("bfloat16", within=0),
        Branch("a1", "text"),
        Branch("a1", "text", False),
        Region("checkpoint", within=3),
    ),
)
BLOCKS = dataclasses.replace(
    BLOCKS,
    storages=(*BLOCKS.storages, Storage("int64", (3,), 1)),
    arguments=(*BLOCKS.arguments, Root(1)),
    parameters=(*BLOCKS.parameters, Ref("a2")),
)


def test_blocks_are_printed_one_in_another() -> None:
    assert render(BLOCKS).split("def f")[1] == (
        """(a0, a1, a2):
    v0 = a0.clone()  # float32[2, 2]
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            v1 = v0 @ a0  # bfloat16[2, 2]
        v0 = v0 * 2.0  # float32[2, 2]
    if a1 == "text":
        v2 = v0.index_select(0, a2 % 2)  # float32[3, 2]
    else:
        def part4(v0):
            v0 = v0.cos()  # float32[2, 2]
            v2 = -v0  # float32[2, 2]
            return v0, v2
        v0, v2 = torch.utils.checkpoint.checkpoint(part4, v0, use_reentrant=False)
    torch.set_grad_enabled(False)
    return (v1, v2)
"""
    )


@pytest.mark.parametrize("value", ["text", None])
def test_blocks_run_as_their_outline_says(value: str | None) -> None:
    program = dataclasses.replace(BLOCKS, arguments=(Root(0), Scalar(value), Root(1)))
    loaded = load(program)
    x, _, index = loaded.make()[0]
    with torch.enable_grad():
        product, chosen = loaded.f(x, value, index)
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(product, ((x * 4).bfloat16() @ x.bfloat16()))
    expected = (x * 8)[index % 2] if value == "text" else -(x * 8).cos()
    torch.testing.assert_close(chosen, expected)
    known = final_state(program).tensor("v2").meta
    assert known.size == tuple(chosen.shape)
