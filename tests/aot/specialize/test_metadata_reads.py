"""Calls of a function that reads the elements of its arguments alone are known again wherever these lie; one
that asks for more is told."""

from __future__ import annotations

import functools
import operator
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot.specialize.inline_cache import PlacementSensitivity
from tests.support.agreement import assert_same_call, values

pytestmark = pytest.mark.clause("repeat")

Make = Callable[[], list[Any]]


def leaf(*size: int) -> Tensor:
    return values(*size).requires_grad_()


def with_gradient(x: Tensor) -> Tensor:
    x.grad = torch.ones_like(x)
    return x


def in_one(*ranges: tuple[int, int]) -> list[Any]:
    whole = values(12)
    return [whole[start:stop] for start, stop in ranges]


def detached_from_one() -> list[Any]:
    x = values(4)
    return [x, x.detach()]


def assert_agrees(function: Callable[..., Any], makes: list[Make]) -> aot.CompiledFunction:
    """Call one compiled function with one set of arguments after the other."""
    compiled = aot.aot_function(function, aot.nop)
    for make in makes:
        assert not assert_same_call(function, compiled, make)
    return compiled


LYING: dict[str, Make] = {
    "alone": lambda: [values(4), values(4)],
    "with room behind": lambda: [values(9)[:4].detach(), values(4)],
    "views": lambda: [values(9)[:4], values(4)],
    "views of one": lambda: in_one((0, 4), (0, 4)),
    "detached from one another": detached_from_one,
    "with a gradient": lambda: [with_gradient(values(4)), values(4)],
}
"""Arguments that lie otherwise, are views or hold a gradient."""


def key_makings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts, from now on, the calls that make their key."""
    made: list[int] = []
    take_apart = aot.frontends.function.analyze_arguments

    def counting(leaves: Any) -> Any:
        made.append(len(leaves))
        return take_apart(leaves)

    monkeypatch.setattr("aot.frontends.function.analyze_arguments", counting)
    return made


@pytest.mark.parametrize("known", LYING)
def test_what_reads_elements_alone_is_known_wherever_they_lie(
    known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = aot.aot_function(lambda x, y: (x * y).sin(), aot.nop)
    compiled(*LYING["alone"]())
    for _ in range(2):  # (one that shares a storage is compiled for that)
        compiled(*LYING["alone"]())
    assert compiled.specializations[0].placement is PlacementSensitivity.NONE
    made = key_makings(monkeypatch)
    x, y = LYING[known]()
    assert torch.equal(compiled(x, y), (x * y).sin())
    assert not made


offset_of = Tensor.storage_offset
getters = [Tensor.grad.__get__, Tensor.untyped_storage]
base_class = torch._C.TensorBase
bound = [functools.partial(base_class._is_view)]
by_name = operator.attrgetter("grad")

ASKING: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "offset": lambda x, y: x * y + x.storage_offset(),
    "offset of a part": lambda x, y: x * y + x[1:].storage_offset(),
    "whether it is a view": lambda x, y: x * y if x._is_view() else x + y,
    "base": lambda x, y: x * y if x._base is None else x + y,
    "base of a part": lambda x, y: x * y if x[:].view(2, 2)._base is x else x + y,
    "gradient": lambda x, y: x * y if x.grad is None else x + y,
    "size of the storage": lambda x, y: x * y + x.untyped_storage().nbytes(),
    "size of the old storage": lambda x, y: x * y + x.storage().nbytes(),
    "the same memory": lambda x, y: x * y if x.is_set_to(y) else x + y,
    "beyond": lambda x, y: y + x.as_strided((2, 2), (1, 1), 0).sum(),
    "by name": lambda x, y: x * y + getattr(x, "storage_" + "offset")(),
    "under a name of its own": lambda x, y: x * y + offset_of(x),
    "among others": lambda x, y: x * y + getters[1](x).nbytes(),
    "a getter": lambda x, y: x * y if getters[0](x) is None else x + y,
    "a computed name": lambda x, y: x * y if getattr(x, "gr" + "ad") is None else x + y,
    "past the class": lambda x, y: x * y if base_class._is_view(x) else x + y,
    "by super": lambda x, y: x * y if super(Tensor, x).grad is None else x + y,
    "whether they share": lambda x, y: x * y if torch._C._is_alias_of(x, y) else x + y,
    "bound elsewhere": lambda x, y: x * y if bound[0](x) else x + y,
    "by a getter of names": lambda x, y: x * y if by_name(x) is None else x + y,
    "as a whole": operator.methodcaller("_is_view"),
}
"""Functions that read where their arguments lie, and so on."""


@pytest.mark.parametrize("name", ASKING)
def test_what_asks_for_more_is_told(name: str) -> None:
    function = ASKING[name]
    if name == "as a whole":  # of the one argument that it takes
        compiled = aot.aot_function(function, aot.nop)
        for make in (LYING["alone"], LYING["alone"], LYING["views"], LYING["alone"]):
            x = make()[0]
            assert compiled(x) == function(x)
        return
    makes = [LYING["alone"], LYING["alone"], LYING["alone"], *LYING.values()]
    makes += [lambda: [values(9)[1:5], values(4)], LYING["alone"]]
    compiled = assert_agrees(function, makes)
    assert compiled.specializations[0].placement is PlacementSensitivity.FULL


def returns_it(x: Tensor, y: Tensor) -> Any:
    return x, x * y


def returns_a_view(x: Tensor, y: Tensor) -> Any:
    return x[1:], x * y


def writes(x: Tensor, y: Tensor) -> Any:
    y.mul_(x)
    return x + 1


def resizes(x: Tensor, y: Tensor) -> Any:
    x.resize_(2)
    return x + 1


def detaches(x: Tensor, y: Tensor) -> Any:
    x.detach_()
    return x * y


def lets_go_of_its_gradient(x: Tensor, y: Tensor) -> Any:
    x.grad = None
    return x * y


DOING = {
    **dict.fromkeys((returns_it, returns_a_view, writes), PlacementSensitivity.ALIASING),
    **dict.fromkeys((resizes, detaches), PlacementSensitivity.FULL),
}


@pytest.mark.parametrize("function", DOING, ids=lambda function: str(function.__name__))
def test_what_does_more_is_told_where_its_arguments_lie(function: Callable[..., Any]) -> None:
    name = function.__name__
    makes = [LYING["alone"], LYING["alone"], LYING["alone"]]
    makes += [make for kind, make in LYING.items() if not (name == "detaches" and "view" in kind)]
    compiled = assert_agrees(function, makes[:3] if name == "resizes" else makes)
    assert compiled.specializations[0].placement is DOING[function]


def test_how_large_storages_are_does_not_matter_to_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = aot.aot_function(writes, aot.nop)
    for _ in range(3):
        compiled(*LYING["alone"]())
    made = key_makings(monkeypatch)
    for name in ("with room behind", "with a gradient"):
        x, y = LYING[name]()
        assert torch.equal(compiled(x, y), x + 1) and torch.equal(y, values(4) * x)
    assert not made
    x, y = LYING["views of one"]()
    compiled(x, y)
    assert made


def test_a_gradient_that_is_set_to_what_it_is() -> None:
    compiled = aot.aot_function(lets_go_of_its_gradient, aot.nop)
    for _ in range(3):
        compiled(*LYING["alone"]())
    x, y = LYING["with a gradient"]()
    try:
        compiled(x, y)
    except aot.Unsupported:
        assert x.grad is not None
    else:
        assert x.grad is None


def test_a_view_that_is_detached_in_place_raises_although_what_is_none_does_not() -> None:
    compiled = aot.aot_function(detaches, aot.nop)
    for _ in range(3):
        compiled(*LYING["alone"]())
    x, y = LYING["views"]()
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        detaches(x, y)
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        compiled(x, y)


def test_what_requires_grad_is_told_whether_it_is_a_view() -> None:
    def in_a_flat_buffer() -> list[Any]:
        return [values(12)[4:8].requires_grad_(), values(4)]

    def under_no_grad() -> list[Any]:
        with torch.no_grad():
            return [leaf(4).view(-1), values(4)]

    makes: list[Make] = [lambda: [leaf(4), values(4)]] * 3
    makes += [
        under_no_grad,
        in_a_flat_buffer,
        lambda: [leaf(8)[:4] * 1, values(4)],
        lambda: [leaf(8)[:4], values(4)],
    ]
    assert_agrees(lambda x, y: (x * y).sin(), makes)


def test_writes_between_forward_and_backward_are_noticed_wherever_arguments_lie() -> None:
    def f(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return (w * x).sum() + y.sum()

    compiled = aot.aot_function(f, aot.nop)
    for _ in range(3):
        compiled(leaf(4), values(4), values(4)).backward()
    x = values(4)
    result = compiled(leaf(4), x.detach(), x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_pythons_backward_is_told() -> None:
    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            _, y = ctx.saved_tensors
            return gradient * y + y.storage_offset(), None

    compiled = aot.aot_function(Asking.apply, aot.nop)
    for offset in (0, 0, 0, 1, 2, 0):
        x, y = leaf(4), values(9)[offset : offset + 4].detach()
        compiled(x, y).sum().backward()
        assert x.grad is not None and torch.equal(x.grad, y + offset)
    assert compiled.specializations[0].placement is PlacementSensitivity.FULL


def test_another_thread_that_asks_its_own_tensors_changes_nothing() -> None:
    asked, go = threading.Event(), threading.Event()
    x = with_gradient(leaf(3))

    def other() -> None:
        go.wait(10)
        assert x.grad is not None and x._base is None and not x._is_view() and x.storage_offset() == 0
        x.grad = None
        asked.set()

    thread = threading.Thread(target=other)
    thread.start()

    def f(x: Tensor) -> Tensor:
        go.set()
        asked.wait(10)
        return x * 2

    compiled = aot.aot_function(f, aot.nop)
    compiled(values(3))
    thread.join()
    assert x.grad is None and compiled.specializations[0].placement is PlacementSensitivity.NONE


_FRESH = """
import torch
import aot

class Plain(torch.Tensor):
    pass

def f(x):
    return (x.as_subclass(Plain) * 2).as_subclass(torch.Tensor)

seen = []
def looking(x):
    seen.append((torch.Tensor.grad.__name__, torch.Tensor.grad.__objclass__))
    return x * 2

assert aot.aot_function(looking, aot.nop)(torch.ones(3)).tolist() == [2.0] * 3
assert seen == [("grad", torch._C.TensorBase)], seen
assert aot.aot_function(f, aot.nop)(torch.ones(3)).tolist() == [2.0] * 3
x = torch.ones(3).as_subclass(Plain).requires_grad_()
x.sum().backward()
assert x.grad is x.grad and type(x.grad) is torch.Tensor
"""


def test_a_first_trace_leaves_torch_as_it_was() -> None:
    """What torch and Dynamo learn of a tensor's attributes when they are first asked is learned for good."""
    ran = subprocess.run([sys.executable, "-c", _FRESH], capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
