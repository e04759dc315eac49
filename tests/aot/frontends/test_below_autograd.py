"""Functions that are called where autograd has been passed: in the code of a subclass or of an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import aot
from tests.support.agreement import leaf, values

pytestmark = [pytest.mark.clause("autograd-metadata"), pytest.mark.usefixtures("fresh_dynamo")]

Function = Callable[..., Any]


def _inner(x: Tensor) -> tuple[Tensor, Tensor]:
    view = x.view(-1)
    view.mul_(2)
    return view, x[0] + 1


def _module(function: Function) -> Function:
    class Called(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return function(x)

    return aot.aot_module(Called(), aot.nop)


COMPILERS: dict[str, Callable[[Function], Function]] = {
    "aot_function": lambda f: aot.aot_function(f, aot.nop),
    "aot_module": _module,
    "torch.compile": lambda f: torch.compile(f, backend="aotfuzz"),
}


def _seen(tensors: tuple[Tensor, ...]) -> list[Any]:
    return [(t.tolist(), t._is_view(), t.requires_grad, t._version, t.stride()) for t in tensors]


@pytest.mark.parametrize("first", ["above", "below"])
@pytest.mark.parametrize("name", COMPILERS)
def test_in_the_code_of_a_subclass(name: str, first: str) -> None:
    """There views are none, and writes are not counted; what was compiled above does not answer below."""

    def told(function: Function) -> list[Any]:
        found: list[Any] = []

        class Calling(TwoTensor):
            @classmethod
            def __torch_dispatch__(
                cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
            ) -> Any:
                if func is torch.ops.aten.sin.default:
                    found.append(_seen((args[0].a, *function(args[0].a))))
                return super().__torch_dispatch__(func, types, args, kwargs)

        if first == "above":
            found.append(_seen(function(values(2, 3))))
        for _ in range(2):
            made: Any = Calling(values(2, 3), values(2, 3))
            made.sin()
        found.append(_seen(function(values(2, 3))))
        return found

    assert told(COMPILERS[name](_inner)) == told(_inner)


@torch.library.custom_op("aot_below::call", mutates_args=())
def _call(x: Tensor) -> Tensor:
    return _CALLED[0](x)  # type: ignore[no-any-return]


_CALLED: list[Function] = []


@pytest.mark.parametrize("name", COMPILERS)
def test_in_the_code_of_an_operator(name: str) -> None:
    """Its arguments require grad, and nothing that it computes from them does."""

    def inner(x: Tensor) -> Tensor:
        y = x.sin()
        assert not y.requires_grad
        return y * 2

    _CALLED[:] = [COMPILERS[name](inner)]
    x = leaf(3)
    assert torch.equal(_call(x), inner(x.detach()))
    with torch.inference_mode():
        assert torch.equal(_call(x), inner(x.detach()))
