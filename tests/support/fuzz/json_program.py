"""A program that has a part of each kind that the JSON of the IR knows."""

from __future__ import annotations

import math

from fuzz.program.decode import (
    Call,
    Dict,
    Duplicate,
    Literal,
    Program,
    Ref,
    Region,
    Require,
    Root,
    Scalar,
    Scenario,
    Seq,
    Statement,
    Storage,
    View,
    Write,
)
from oracles import Backward

PROGRAM = Program(
    storages=(Storage("float32", (3, 4), 1, True, False), Storage("int64", (3,), 2)),
    arguments=(Root(0), View(0, (2, 2), (4, 1), 5, "detach"), Duplicate(0), Root(1), Scalar(math.inf)),
    parameters=(Ref("a0"), Seq("list", (Ref("a1"), Dict((("k", Ref("a2")),)))), Ref("a3"), Ref("a4")),
    statements=(
        Statement("sin", ("a0",), (), ("v0",)),
        Statement("unbind", ("v0",), (("dim", 0),), ("v1", "v2", "v3"), 0),
        Statement("select", ("a0",), (("dim", 0), ("index", 1)), ("v4",)),
        Statement("mul_number_", ("v4",), (("value", 2.0),), ()),
        Statement("zeros", (), (("size", (2, 3)), ("dtype", "float64")), ("v5",)),
    ),
    returns=Seq("tuple", (Ref("v0"), Literal(None), Dict((("x", Ref("a4")), ("y", Literal(3)))), Ref("v5"))),
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
