"""What stock targets decline on purpose is refused, and nothing else that they raise."""

from __future__ import annotations

import pytest

from fuzz.execute.case import execute
from fuzz.program.decode import Program, Ref, Root, Scenario, Seq, Storage, View
from fuzz.targets.aot_autograd_refusals import AOT_AUTOGRAD, aot_autograd_refusal
from fuzz.targets.catalog import find_target
from oracles import Backward
from tests.support.fuzz.small_programs import call

VECTOR = Storage("float32", (4,), 1, requires_grad=True)
DOUBLE = Program(
    (VECTOR,),
    (Root(0),),
    (Ref("a0"),),
    (call("cos", "a0", to="v0"),),
    Ref("v0"),
    scenario=Scenario(steps=(Backward(how="double"),)),
)
OTHER_DTYPE = Program(
    (Storage("float32", (4,), 1),),
    (Root(0), View(0, (4,), (1,), 0, "view", "int32")),
    (Ref("a0"), Ref("a1")),
    (call("mul_number_", "a0", value=2.0),),
    Seq("tuple", (Ref("a1"),)),
)


@pytest.mark.parametrize(
    ("program", "reason"),
    [(DOUBLE, "double backward"), (OTHER_DTYPE, "an input mutation of views of different dtypes")],
)
def test_what_aot_autograd_says_that_it_does_not_support_is_refused(program: Program, reason: str) -> None:
    result = execute(program, find_target("torch-aot-function"))
    assert (result.outcome, result.reason) == ("refused", reason)


def test_through_dynamo_the_reason_is_the_backends() -> None:
    import torch._dynamo.exc

    for row in AOT_AUTOGRAD:
        error = {"RuntimeError": RuntimeError, "AssertionError": AssertionError}[row.type](row.message)
        failed = torch._dynamo.exc.BackendCompilerFailed(lambda: None, error, None)
        assert aot_autograd_refusal(failed) == row.reason
        assert find_target("torch-inductor").refusal(error) == row.reason


def test_other_types_and_other_messages_are_no_refusals() -> None:
    (row, *_) = AOT_AUTOGRAD

    class Own(RuntimeError):
        pass

    assert aot_autograd_refusal(Own(row.message)) is None
    assert aot_autograd_refusal(AssertionError(row.message)) is None
    assert aot_autograd_refusal(RuntimeError(f"failed: {row.message}")) is None
    assert aot_autograd_refusal(RuntimeError("is not supported")) is None
