"""Calls of modules that are known again find parameters and buffers where they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from aot.specialize.module_state import module_state_leaves
from tests.support.agreement import values

pytestmark = pytest.mark.clause("repeat")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(torch.relu(self.second(self.first(x))))
        return result


def another_weight(net: Net) -> None:
    net.first.weight = nn.Parameter(net.first.weight.detach() + 1)


def no_bias(net: Net) -> None:
    net.first.bias = None  # type: ignore[assignment]


def a_bias(net: Net) -> None:
    net.last.bias = nn.Parameter(torch.ones(2))


def another_buffer(net: Net) -> None:
    net.second.running_mean = torch.full((3,), 2.0)


def one_more_buffer(net: Net) -> None:
    net.register_buffer("more", torch.ones(1))


def another_module(net: Net) -> None:
    net.last = nn.Linear(3, 4)


def one_more_module(net: Net) -> None:
    net.more = nn.Linear(1, 1)


def another_dict(net: Net) -> None:
    net.first._parameters = {
        name: nn.Parameter(p * 2) for name, p in net.first._parameters.items() if p is not None
    }


def tied(net: Net) -> None:
    net.first.bias = net.second.bias


CHANGES: list[Callable[[Net], None]] = [
    another_weight,
    no_bias,
    a_bias,
    another_buffer,
    one_more_buffer,
    another_module,
    one_more_module,
    another_dict,
    tied,
]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change.__name__))
def test_what_a_module_has_now_is_taken(change: Callable[[Net], None], train: bool) -> None:
    torch.manual_seed(0)
    theirs, ours = Net().train(train), Net().train(train)
    ours.load_state_dict(theirs.state_dict())
    compiled = aot.aot_module(ours, aot.nop)
    simplified = aot.aot_module_simplified(ours, [values(4, 3)], aot.nop)
    for step in range(8):
        if step == 4:
            for net in (theirs, ours):
                torch.manual_seed(1)
                change(net)
        for call in (compiled, simplified):
            expected, result = theirs(values(4, 3)), call(values(4, 3))
            assert torch.equal(result, expected)
            expected.sum().backward()
            result.sum().backward()
        for name, one in theirs.state_dict(keep_vars=True).items():
            other = ours.state_dict(keep_vars=True)[name]
            assert torch.equal(one, other) and (one.grad is None) == (other.grad is None)
            assert one.grad is None or torch.equal(one.grad, other.grad)


def test_a_known_call_makes_no_list_of_what_a_module_has(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = aot.aot_module_simplified(Net(), [values(4, 3)], aot.nop)
    for _ in range(3):
        compiled(values(4, 3))
    monkeypatch.setattr(sys.modules["aot.frontends.module"], "state_slots", None)
    compiled(values(4, 3))


def test_arguments_by_name_and_in_containers() -> None:
    class Scaled(nn.Module):
        def forward(self, pair: list[Tensor], *, by: float) -> Tensor:
            return pair[0] * pair[1] * by

    compiled = aot.aot_module(Scaled(), aot.nop)
    for by in (1.0, 1.0, 1.0, 2.0, 1.0):
        assert torch.equal(compiled([values(3), values(3)], by=by), values(3) ** 2 * by)
    assert len(compiled.compiled.specializations) == 2


def test_a_module_that_tells_its_submodules_itself_is_looked_through_at_each_call() -> None:
    class Hiding(nn.Module):
        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            yield "", self

    assert module_state_leaves(Hiding()) is None
    assert module_state_leaves(nn.Linear(1, 1)) is not None
