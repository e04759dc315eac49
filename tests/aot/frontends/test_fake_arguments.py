"""Torch's fake tensors as arguments: a call with some runs as it is, below the tracer that made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import aot
from tests.support.agreement import leaf, values

FUNCTIONS: list[Callable[[Tensor], Any]] = [
    lambda x: x.sin().sum(0) * x.shape[0],
    lambda x: (x.mul_(2), x[1:])[1],
    lambda x: torch.nn.functional.dropout(x, 0.5),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("compiler", ["aot", "aotfuzz"])
def test_a_call_with_fake_tensors(
    function: Callable[[Tensor], Any], symbolic: bool, dynamic: bool | None, within: bool, compiler: str
) -> None:
    torch._dynamo.reset()
    if compiler == "aot":
        compiled = aot.aot_function(function, aot.nop, dynamic=bool(dynamic))
    else:
        raising = {"on_unsupported": "raise"}
        compiled = torch.compile(function, backend="aotfuzz", dynamic=dynamic, options=raising)
    mode = FakeTensorMode(shape_env=ShapeEnv() if symbolic else None)
    for _ in range(2):
        shapes = []
        for called in (function, compiled):
            x = mode.from_tensor(values(3, 4))
            if within:
                with mode:
                    result = called(x)
            else:
                result = called(x)
            assert type(result) is FakeTensor
            shapes.append((str(result.shape), result.stride(), result.dtype, x._version))
        assert shapes[0] == shapes[1]
    if function is not FUNCTIONS[2]:  # and with real ones
        torch.testing.assert_close(compiled(values(3, 4)), function(values(3, 4)))


def test_a_backward_of_fake_tensors() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(FUNCTIONS[0], backend="aotfuzz", options={"on_unsupported": "raise"})
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(leaf(3, 4))
        compiled(x).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
