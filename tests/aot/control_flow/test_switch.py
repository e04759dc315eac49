"""`torch.switch`, which is of torch 2.15: a branch by an index that nobody knows, or that somebody does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot import errors
from tests.support.agreement import assert_agrees, checking_nop, leaf, values
from tests.support.versions import needs_torch

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("fresh_dynamo"),
    needs_torch(">=2.14", "torch has switch from 2.14 on"),
]


def switch(*args: Any) -> Any:
    from torch._higher_order_ops.switch import switch  # not in every torch

    return switch(*args)


def three_branches(index: Any, x: Tensor, y: Tensor) -> Any:
    branches = [lambda x, y: x.sin() * y, lambda x, y: x.cos(), lambda x, y: (x * y).exp()]
    return switch(index, branches, (x, y))


def two_results(index: Any, x: Tensor, y: Tensor) -> Any:
    branches = [lambda x, y: (x * y, y.sin()), lambda x, y: (x + y, y.cos())]
    first, second = switch(index, branches, (x, y))
    return first * second, second


def reads_outside(index: Any, x: Tensor, y: Tensor) -> Any:
    z = x * 2
    return switch(index, [lambda y: y * z, lambda y: y - z, lambda y: z.exp(), lambda y: y * y], (y,)) + z


def within_a_cond(index: Any, x: Tensor, y: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x, y: three_branches(index, x, y), lambda x, y: x * y, (x, y))


def one_branch(index: Any, x: Tensor, y: Tensor) -> Any:
    return switch(index, [lambda x, y: x * y], (x, y))


FUNCTIONS = [three_branches, two_results, reads_outside, within_a_cond, one_branch]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("index", [-3, 0, 1, 2, 7])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_agrees_with_eager(function: Callable[..., Any], index: int) -> None:
    for given in (torch.tensor(index), torch.tensor([index])):
        assert_agrees(function, lambda given=given: (given.clone(), leaf(3), leaf(3)))


def test_one_compile_answers_every_branch() -> None:
    compiled = aot.aot_function(three_branches, checking_nop)
    for index in (0, 2, 1, 5, -1):
        args = torch.tensor(index), values(3), values(3)
        assert torch.equal(compiled(*args), three_branches(*args))
    assert len(compiled.specializations) == 1


def test_an_index_that_is_known_needs_no_condition() -> None:
    compiled = aot.aot_function(three_branches, checking_nop)
    assert torch.equal(compiled(1, values(3), values(3)), values(3).cos())
    (one,) = compiled.specializations
    targets = [str(node.target) for node in one.forward.graph.nodes]
    assert not any("cond" in target or "switch" in target for target in targets)


@pytest.mark.parametrize("backend", ["aotfuzz", "aotfuzz_inductor"])
def test_below_torch_compile(backend: str) -> None:
    compiled = torch.compile(three_branches, backend=backend)
    for index in (0, 1, 2):
        args = torch.tensor(index), values(3), values(3)
        torch.testing.assert_close(compiled(*args), three_branches(*args))


def test_branches_that_return_other_things_are_refused() -> None:
    def unlike(index: Tensor, x: Tensor) -> Any:
        return switch(index, [lambda x: x + 1, lambda x: x.sum()], (x,))

    with pytest.raises(errors.UnsupportedOperation, match="branches return other structures"):
        aot.aot_function(unlike, checking_nop)(torch.tensor(0), values(3))
