"""Programs of one or two statements that the tests of the fuzzer share."""

from __future__ import annotations

from dataclasses import replace

from fuzz.program.decode import (
    Call,
    Constant,
    Duplicate,
    Program,
    Ref,
    Require,
    Root,
    Scenario,
    Seq,
    Statement,
    Storage,
    Tree,
    View,
    Write,
)
from oracles import Backward


def call(operator: str, *operands: str, to: str = "", **attributes: Constant) -> Statement:
    """One statement; `to` names its result."""
    return Statement(operator, operands, tuple(attributes.items()), (to,) if to else ())


def program(*statements: Statement, returns: Tree | None = None, storage: Storage | None = None) -> Program:
    """A program on one argument, which it returns unless `returns` says otherwise."""
    argument = Ref("a0")
    storages = (storage or Storage("float32", (2, 3), 1),)
    return Program(storages, (Root(0),), (argument,), statements, returns or argument)


DOUBLE_IN_PLACE = program(call("mul_number_", "a0", value=2.0), returns=Seq("tuple", ()))
RETURN_VIEW = program(call("t", "a0", to="v0"), returns=Ref("v0"))
SINE = program(call("sin", "a0", to="v0"), returns=Ref("v0"))
EXPONENTIAL = program(call("exp", "a0", to="v0"), returns=Ref("v0"))
SQUARE_OF_LEAF = program(
    call("square", "a0", to="v0"), returns=Ref("v0"), storage=Storage("float32", (3,), 1, requires_grad=True)
)
DUPLICATE = Program(
    (Storage("float32", (3,), 1, requires_grad=True),),
    (Root(0), Duplicate(0)),
    (Ref("a0"), Ref("a1")),
    (call("mul", "a0", "a1", to="v0"),),
    Ref("v0"),
)
CUBE_TWICE = replace(
    program(
        call("square", "a0", to="v0"),
        call("mul", "v0", "a0", to="v1"),
        returns=Ref("v1"),
        storage=Storage("float32", (3,), 1, requires_grad=True),
    ),
    scenario=Scenario(steps=(Backward(how="double"), Write("a0"), Backward(how="accumulate"), Backward())),
)
REQUIRED_AFTER_A_VIEW = replace(
    program(call("t", "a0", to="v0"), call("mul_number_", "a0", value=2.0), returns=Ref("v0")),
    scenario=Scenario(steps=(Require("a0"), Backward(retain=True), Backward(how="accumulate"))),
)
SINE_OF_ANOTHER_SIZE = replace(SINE, later=(Call((Storage("float32", (4, 2), 2),), (Root(0),)),))
SQUARE_OF_ANOTHER_SIZE = replace(
    SQUARE_OF_LEAF, later=(Call((Storage("float32", (4,), 1, requires_grad=True),), (Root(0),)),)
)
SQUARE_IN_TWO_THREADS = replace(SQUARE_OF_LEAF, scenario=Scenario(threads=True))
SQUARE_AND_THEN_IN_TWO_THREADS = replace(
    SQUARE_OF_LEAF,
    later=(Call(SQUARE_OF_LEAF.storages, SQUARE_OF_LEAF.arguments, SQUARE_IN_TWO_THREADS.scenario),),
)
# Stock torch 2.13: the write to the expanded view is lost (pytorch issue 197448).
LOST_THROUGH_EXPAND = program(
    call("expand", "a0", to="v0", size=(3,)), call("zero_", "v0"), storage=Storage("float32", (1,), 1)
)
# Stock torch 2.13, through Dynamo: the write to a 0-d float64 argument is lost.
LOST_IN_SCALAR = program(call("mul_number_", "a0", value=2.0), storage=Storage("float64", (), 1))
# Stock torch 2.13: an internal assertion.
TWO_MUTATED_ALIASES = Program(
    (Storage("float32", (3,), 1, requires_grad=True, leaf=False),),
    (Root(0), View(0, (2,), (1,), 1)),
    (Ref("a0"), Ref("a1")),
    (call("mul_number_", "a0", value=2.0), call("mul_number_", "a1", value=2.0)),
    Ref("a0"),
)
