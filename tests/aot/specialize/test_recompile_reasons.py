"""Why a call was compiled once more: told by `Specialization.why` and `aot.explain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot

Call = Callable[[Any], Any]


def _double(x: Any, *rest: Any) -> Any:
    return x * 2


def _in_grad_mode_off(call: Call) -> None:
    with torch.no_grad():
        call(torch.ones(2))


def _viewed(_: Call) -> Tensor:
    return torch.ones(4)[:2]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (lambda f: f(torch.ones(3)), "argument 0: shape is (3,) and not (2,)"),
        (lambda f: f(torch.ones(2, dtype=torch.float64)), "dtype is torch.float64 and not torch.float32"),
        (lambda f: f(torch.ones(4)[::2]), "argument 0: strides is (2,) and not (1,)"),
        (lambda f: f(torch.ones(2, requires_grad=True)), "requires_grad is True and not False"),
        (lambda f: f([torch.ones(2)][0], 1), "the arguments have another structure"),
        (_in_grad_mode_off, "grad mode is another"),
        (lambda f: f(torch.ones(4)[:2]), "how the tensors lie in memory"),
    ],
)
def test_what_is_another(second: Callable[[Call], Any], expected: str) -> None:
    compiled = aot.aot_function(_double, aot.nop)
    compiled(torch.ones(2))
    second(compiled)
    first, other = compiled.specializations
    assert first.why == ""
    assert expected in other.why
    assert other.why in aot.explain(compiled)


def test_numbers() -> None:
    compiled = aot.aot_function(lambda x, n: x * n, aot.nop)
    compiled(torch.ones(2), 2)
    compiled(torch.ones(2), 3)
    assert compiled.specializations[1].why == "argument 1 is 3 and not 2"


def test_what_the_function_reads() -> None:
    state = {"factor": 2}
    compiled = aot.aot_function(lambda x: x * state["factor"], aot.nop)
    compiled(torch.ones(2))
    state["factor"] = 3
    compiled(torch.ones(2))
    assert "has changed" in compiled.specializations[1].why
    assert "state" in compiled.specializations[1].why


def test_the_one_that_is_most_alike_is_named() -> None:
    compiled = aot.aot_function(_double, aot.nop)
    compiled(torch.ones(2))
    compiled(torch.ones(3, dtype=torch.float64))
    compiled(torch.ones(4, dtype=torch.float64))
    assert compiled.specializations[2].why == "argument 0: shape is (4,) and not (3,)"


def test_what_was_assumed_of_sizes() -> None:
    compiled = aot.aot_function(lambda x: x.sum(0) if x.shape[0] > 5 else x * 2, aot.nop, dynamic=True)
    compiled(torch.ones(3, 4))
    compiled(torch.ones(7, 4))
    why = compiled.specializations[1].why
    assert why.startswith("not so: ") and "<= 5" in why
    text = aot.explain(compiled)
    assert "answers sizes of which" in text and "> 5" in text
    compiled(torch.ones(3, 4, 5))
    assert "shape is (3, 4, 5)" in compiled.specializations[2].why
