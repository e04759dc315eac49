"""What stock targets decline on purpose is refused, and nothing else that they raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzz.execute.case import execute
from fuzz.program.decode import Program, Ref, Root, Scenario, Seq, Storage, View
from fuzz.targets.aot_autograd_refusals import AOT_AUTOGRAD, aot_autograd_refusal
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target
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


class _NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        raise RuntimeError(AOT_AUTOGRAD[0].message)


def _loses_writes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler of functions in pieces: writes are lost, and there is no backward."""

    def compiled(*args: torch.Tensor) -> torch.Tensor:
        return _NoBackward.apply(function(*(arg * 1 for arg in args)))  # type: ignore[no-any-return, no-untyped-call]

    return compiled


@pytest.mark.parametrize(("writes", "outcome"), [(True, "finding"), (False, "refused")])
def test_a_call_whose_backward_is_refused_is_judged_all_the_same(writes: bool, outcome: str) -> None:
    """The refusal of a call in pieces says nothing of the call; that of its backward comes after it."""
    storages = (VECTOR, Storage("float32", (4,), 2))
    statements = (call("sin", "a0", to="v0"), *([call("mul_number_", "a1", value=2.0)] if writes else []))
    given = Program(storages, (Root(0), Root(1)), (Ref("a0"), Ref("a1")), statements, Ref("v0"))
    target = Target("pieces", "", _loses_writes, aot_autograd_refusal, in_pieces=True)
    result = execute(given, target)
    assert result.outcome == outcome
    assert {finding.clause for finding in result.findings} == (
        {"input-data", "versions"} if writes else set()
    )
