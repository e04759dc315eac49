"""Arguments whose storage was resized to nothing, as FSDP2 leaves parameters between their uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from aot import errors

pytestmark = pytest.mark.clause("input-data")

resize = torch.ops.inductor.resize_storage_bytes_
COMPILERS: dict[str, Callable[..., Any]] = {
    "aot": lambda f: aot.aot_function(f, aot.nop),
    "aotfuzz": lambda f: torch.compile(f, backend="aotfuzz"),
}


def freed(tensor: Tensor) -> Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def gather(p: Tensor, source: Tensor) -> Tensor:
    resize(p, 16)
    with torch.no_grad():
        p.copy_(source)
    return (p * p).sum()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_parameter_is_given_memory(compiler: str) -> None:
    torch._dynamo.reset()
    compiled = COMPILERS[compiler](gather)
    p = nn.Parameter(torch.ones(4))
    for step in (2.0, 3.0):
        p.grad = None
        compiled(freed(p), torch.full((4,), step)).backward()
        assert p.tolist() == [step] * 4
        assert p.untyped_storage().nbytes() == 16
        assert p.grad is not None and p.grad.tolist() == [2 * step] * 4


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_parameter_is_let_go_of(compiler: str) -> None:
    def f(p: Tensor, x: Tensor) -> Tensor:
        y = p * x
        resize(p, 0)
        return y

    torch._dynamo.reset()
    p = nn.Parameter(torch.ones(4))
    assert COMPILERS[compiler](f)(p, torch.full((4,), 3.0)).tolist() == [3] * 4
    assert p.untyped_storage().nbytes() == 0


def test_what_is_not_read_needs_no_memory() -> None:
    whole = torch.ones(4)
    part = whole[:1]
    freed(whole)
    for dynamic in (False, True):  # with symbols it is compiled for each size
        compiled = aot.aot_function(lambda p, x: (x * 2, p.shape[0]), aot.nop, dynamic=dynamic)
        result, size = compiled(part, torch.ones(2))
        assert (result.tolist(), size) == ([2, 2], 1)


def test_what_is_read_too_early_is_refused() -> None:
    p = freed(torch.ones(4))
    with pytest.raises(errors.UnsupportedArgument, match="more than its storage holds"):
        COMPILERS["aot"](lambda p: p * 2)(p)


def test_what_was_written_to_is_not_resized() -> None:
    """The graph keeps the value elsewhere, and the wrapper would write to a tensor without memory."""

    def f(p: Tensor, source: Tensor) -> Tensor:
        result = gather(p, source)
        resize(p, 0)
        return result

    p = freed(nn.Parameter(torch.ones(4)))
    with pytest.raises(errors.StorageMutation, match="has written to"):
        COMPILERS["aot"](f)(p, torch.ones(4))
    assert p.untyped_storage().nbytes() == 0
