"""Compiled autograd: Dynamo captures backwards. It captures none of a trace, and its graphs compile here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd

import aot

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Backwards = Callable[[], contextlib.AbstractContextManager[Any]]


def captured(backend: str) -> Backwards:
    return lambda: compiled_autograd._enable(torch.compile(backend=backend))


def train(compile: Callable[..., Any], backwards: Backwards) -> list[Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    function = compile(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for rows in (4, 5):
        loss = function(torch.randn(rows, 3)).square().sum()
        with backwards():
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=rows == 4)
    return list(module.state_dict().values())


def hook_on_an_argument(compile: Callable[..., Any], backwards: Backwards) -> list[Tensor | None]:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        x.register_hook(lambda g: g + y)
        return y.sin()

    x = torch.ones(3, requires_grad=True)
    with backwards():
        compile(f)(x).sum().backward()
    return [x.grad]


def gradient_inside(compile: Callable[..., Any], backwards: Backwards) -> list[Tensor | None]:
    def f(x: Tensor) -> Tensor:
        return torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0] * x

    x = torch.ones(3, requires_grad=True)
    with backwards():
        compile(f)(x).sum().backward()
    return [x.grad]


COMPILERS: dict[str, Callable[..., Any]] = {
    "eager": lambda f: f,
    "aotfuzz": lambda f: torch.compile(f, backend="aotfuzz"),
    "aot": lambda f: aot.aot_function(f, aot.nop),
}


@pytest.mark.parametrize(
    "use, compiler, backend",
    [
        pytest.param(train, "eager", "aotfuzz", marks=pytest.mark.nightly),
        (train, "aotfuzz", "aotfuzz"),
        (hook_on_an_argument, "aotfuzz", "eager"),
        (gradient_inside, "aot", "eager"),
    ],
)
def test_backwards_that_are_captured(use: Callable[..., list[Tensor]], compiler: str, backend: str) -> None:
    """Training with both compiled runs always; with the backward alone compiled, nightly."""
    expected = use(COMPILERS["eager"], contextlib.nullcontext)
    found = use(COMPILERS[compiler], captured(backend))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_what_was_on_is_on_after_a_trace() -> None:
    """A trace has torch's own engine run its backwards; the caller's are captured again afterwards."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    x = torch.ones(3, requires_grad=True)
    with compiled_autograd._enable(torch.compile(backend=backend)):
        y = aot.aot_function(torch.sin, aot.nop)(x)
        assert not graphs
        (y * 2).sum().backward()
    assert graphs
