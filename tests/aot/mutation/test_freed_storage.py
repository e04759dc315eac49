"""Arguments whose storage was resized to nothing, as FSDP2 leaves parameters between their uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from aot import errors
from tests.support.agreement import PARTITIONERS

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


def cycle(p: Tensor, source: Tensor) -> Tensor:
    """What FSDP2 does to a parameter around its use."""
    resize(p, 16)
    with torch.no_grad():
        p.copy_(source)
    result = (p.sin() * p).sum()
    resize(p, 0)
    return result


def cycle_by_storage(p: Tensor, source: Tensor) -> Tensor:
    p.untyped_storage().resize_(16)
    with torch.no_grad():
        p.copy_(source)
    result = (p.sin() * p).sum()
    p.untyped_storage().resize_(0)
    return result


def two_cycles(p: Tensor, source: Tensor) -> Tensor:
    with torch.no_grad():
        first = cycle(p, source)
    return first * cycle(p, source * 2)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("function", [cycle, cycle_by_storage, two_cycles])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("partition", PARTITIONERS)
def test_a_parameter_is_gathered_used_and_let_go_of(
    compiler: str, function: Callable[..., Tensor], requires_grad: bool, dynamic: bool, partition: str
) -> None:
    torch._dynamo.reset()
    if compiler == "aot" and function is not cycle_by_storage:  # of which Dynamo makes operators
        compiled: Any = aot.aot_function(
            function, aot.nop, dynamic=dynamic, partition_fn=PARTITIONERS[partition]
        )
    else:
        options = {"partitioner": "min-cut" if partition == "min-cut" else "default"}
        options["on_unsupported"] = "raise"
        compiled = torch.compile(function, backend="aotfuzz", dynamic=dynamic, options=options)
    p = freed(nn.Parameter(torch.ones(4), requires_grad=requires_grad))
    versions = [p._version]
    for step in (1.0, 2.0):
        source = torch.full((4,), step)
        q = torch.ones(4, requires_grad=requires_grad)  # the same without letting go, on values
        used = [q * source] if function is not two_cycles else [(q * source).detach(), q * source * 2]
        expected = torch.stack([(one.sin() * one).sum() for one in used]).prod()
        result = compiled(p, source)
        torch.testing.assert_close(result, expected)
        size = p.untyped_storage().nbytes()  # (Nothing that pytest would print of p is there.)
        assert size == 0
        versions.append(p._version)
        if requires_grad:
            p.grad = None
            result.backward()
            last = (source * len(used)).requires_grad_()
            values = [(one.sin() * one).sum() for one in (*used[:-1], last)]
            torch.testing.assert_close(p.grad, torch.autograd.grad(torch.stack(values).prod(), last)[0])
    assert versions[0] < versions[1] < versions[2]


def test_what_autograd_follows_is_not_resized() -> None:
    """The graph keeps the value elsewhere, and the wrapper would write to a tensor without memory."""

    def f(p: Tensor, source: Tensor) -> Tensor:
        p.mul_(source)
        resize(p, 0)
        return source * 2

    p = torch.ones(4)
    with pytest.raises(errors.StorageMutation, match="has written to"):
        COMPILERS["aot"](f)(p, torch.ones(4))
    assert p.tolist() == [1] * 4


def test_what_was_written_to_is_not_resized_to_another_size() -> None:
    def f(p: Tensor, source: Tensor) -> Tensor:
        with torch.no_grad():
            p.mul_(source)
        resize(p, 32)
        return source * 2

    p = torch.ones(4)
    with pytest.raises(errors.StorageMutation, match="has written to"):
        COMPILERS["aot"](f)(p, torch.ones(4))
    assert p.untyped_storage().nbytes() == 16
