"""Operators that take functions (`torch.cond` and its like) are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from agree import checking_nop, values
from torch import Tensor
from torch._higher_order_ops import associative_scan, map, scan, while_loop
from torch._higher_order_ops.invoke_subgraph import mark_compile_region
from torch._higher_order_ops.out_dtype import out_dtype
from torch.nn.attention.flex_attention import flex_attention

import aot
from aot import errors


def cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def cond_of_a_known_condition(x: Tensor) -> Tensor:
    return torch.cond(len(x) > 2, lambda x: x.sin(), lambda x: x.cos(), (x,))


def loop(x: Tensor) -> Tensor:
    return while_loop(lambda i, x: i.sum() < 3, lambda i, x: (i + 1, x * 2), (torch.zeros(1), x))[1]


def scanned(x: Tensor) -> Tensor:
    return scan(lambda carry, y: (carry + y, carry * y), x[0].clone(), x)[1]


def scanned_associatively(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


def mapped(x: Tensor) -> Tensor:
    return map(lambda y: y * 2, x)


def attention(x: Tensor) -> Tensor:
    q = x.detach().expand(1, 1, 16, len(x))
    return flex_attention(q, q, q)


def of_another_dtype(x: Tensor) -> Tensor:
    small = torch.ones(3, 3, dtype=torch.int8)
    return x.sum() + out_dtype(torch.ops.aten.mm.default, torch.int32, small, small)


def marked_region(x: Tensor) -> Tensor:
    return mark_compile_region(lambda x: x * 2)(x)


def compiled_region(x: Tensor) -> Tensor:
    return torch.compile(lambda x: x * 2, backend="eager")(x)


@pytest.fixture(autouse=True)
def no_dynamo_left() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (cond, "cond"),
        (loop, "while_loop"),
        (scanned, "scan"),
        (mapped, "map"),
        (attention, "flex_attention"),
        (of_another_dtype, "out_dtype"),
    ],
)
def test_they_are_refused_by_name(function: Callable[[Tensor], Tensor], name: str, grad: bool) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.mul_(2)
        return function(x)

    x = values(3).requires_grad_(grad)
    function(x.clone())
    with pytest.raises(errors.UnsupportedOperation, match=name):
        aot.aot_function(f, checking_nop)(x)
    assert torch.equal(x, values(3))
    assert x._version == 0
    function(x.clone())  # as ever


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "function", [cond_of_a_known_condition, scanned_associatively, marked_region, compiled_region]
)
def test_what_runs_without_an_operator_is_compiled(function: Callable[[Tensor], Tensor]) -> None:
    compiled = aot.aot_function(function, checking_nop)
    results = []
    for one in (function, compiled, compiled):
        x = values(3).requires_grad_()
        y = one(x)
        results.append([y.tolist(), *torch.autograd.grad(y.sum(), x)[0].tolist()])
    assert results[0] == results[1] == results[2]
    assert len(compiled.specializations) == 1
