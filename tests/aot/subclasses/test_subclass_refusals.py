"""What is done to wrapper subclasses and is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import aot
from tests.support.agreement import leaf, values
from tests.support.aot.programs import ViewAs
from tests.support.aot.subclasses import Scaled, seen
from tests.support.aot.wrapped_arguments import jagged, scaled, two

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("refusals")]

Make = Callable[[], list[Any]]


class _Opaque:
    """Something of which two are equal if they are one."""


def _in_inference_mode() -> Any:
    with torch.inference_mode():
        return two(3)


def _write_to_what_is_detached(x: Tensor, w: Tensor) -> Tensor:
    y = x.detach()
    y.mul_(w)
    return y


def _another_scale(x: Any) -> None:
    x.scale = 5.0


REFUSED: dict[str, tuple[type[Exception], str, Callable[..., Any], Make]] = {
    "context": (
        aot.errors.UnsupportedArgument,
        "__hash__",
        torch.sin,
        lambda: [Scaled(values(3), _Opaque())],  # type: ignore[arg-type]
    ),
    "inference": (aot.errors.UnsupportedArgument, "no_grad", torch.sin, lambda: [_in_inference_mode()]),
    "leaf transposed in place": (
        aot.errors.SubclassMutation,
        "make a new tensor",
        torch.no_grad()(lambda x: x.t_()),
        lambda: [two(2, 3, grad=True)],
    ),
    "a part of a nested one transposed in place": (
        aot.errors.SubclassMutation,
        "make a new tensor",
        lambda x: x.a.t_(),
        lambda: [TwoTensor(two(2, 3), two(2, 3))],
    ),
    "view, and what it is made of": (
        aot.errors.UnsupportedOutput,
        "take it apart outside",
        lambda x: [(y, y.a) for y in [x.view(-1)]],
        lambda: [two(2, 3)],
    ),
    "view between two changes": (
        aot.errors.UnsupportedOutput,
        "afterwards",
        lambda x: (x.t_().view(-1), x.unsqueeze_(0)),
        lambda: [two(1, 3)],
    ),
    "view of what the function made, then transposed in place": (
        aot.errors.UnsupportedOutput,
        "afterwards",
        lambda x: [(y.view(-1), y.t_()) for y in [x * 2]],
        lambda: [two(2, 3)],
    ),
    "one of several views between a write and a change": (
        aot.errors.UnsupportedOutput,
        "by itself",
        lambda x: (x.mul_(2).split(1)[0], x.t_()),
        lambda: [two(2, 3, grad=True) * 1],
    ),
    "one of several views, then written, of what the function made": (
        aot.errors.UnsupportedOutput,
        "by itself",
        lambda x: [(y.split(1)[0], y.mul_(2)) for y in [x * 2]],
        lambda: [two(2, 3, grad=True)],
    ),
    "view transposed in place": (
        aot.errors.UnsupportedOutput,
        "afterwards",
        lambda x: x.t().t_(),
        lambda: [two(2, 3)],
    ),
    "put onto nothing": (
        aot.errors.SubclassMutation,
        "another tensor of that type",
        lambda x: x.set_(),
        lambda: [two(2, 3)],
    ),
    "put onto a plain tensor": (
        aot.errors.SubclassMutation,
        "another tensor of that type",
        lambda x, y: x.set_(y),
        lambda: [two(2, 3), values(3)],
    ),
    "view put onto another": (
        aot.errors.SubclassMutation,
        "is a view",
        lambda x, y: x.set_(y),
        lambda: [two(2, 3)[0], two(3)],
    ),
    "put onto what requires grad": (
        aot.errors.SubclassMutation,
        "requires grad",
        torch.no_grad()(lambda x, y: x.set_(y)),
        lambda: [two(2, 3), two(3, grad=True)],
    ),
    "other context": (aot.errors.SubclassMutation, "new one", _another_scale, lambda: [scaled()]),
    "other type of part": (
        aot.errors.SubclassMutation,
        "new one",
        lambda x: setattr(x, "a", two(3)),
        lambda: [two(3)],
    ),
    "another nested part": (
        aot.errors.SubclassMutation,
        "new one",
        lambda x: setattr(x, "a", x.a * 2),
        lambda: [TwoTensor(two(3), two(3))],
    ),
    "requires_grad_": (
        aot.errors.AutogradStateMutation,
        "outside",
        lambda x: x.requires_grad_(),
        lambda: [two(3)],
    ),
    "detach_": (
        aot.errors.AutogradStateMutation,
        "outside",
        lambda x: x.detach_(),
        lambda: [two(3, grad=True) * 1],
    ),
    "write with a history to what is detached": (
        aot.errors.UnsupportedOutput,
        "clone it",
        _write_to_what_is_detached,
        lambda: [two(3), leaf(3)],
    ),
    "view by a custom function": (
        aot.errors.UnsupportedOutput,
        "new tensor",
        lambda x: ViewAs.apply(x * 2),
        lambda: [two(3, grad=True)],
    ),
    "leaf made inside": (
        aot.errors.LeafCreatedInside,
        "outside",
        lambda x: (x * 2).detach().requires_grad_(),
        lambda: [two(3)],
    ),
    "closure": (aot.errors.ClosureTensor, "pass it", lambda x: x * CLOSED_OVER, lambda: [two(3)]),
    "backward inside": (
        aot.errors.AutogradStateMutation,
        "autograd.grad",
        lambda x: (x * x).sum().backward(),
        lambda: [two(3, grad=True)],
    ),
    "values of a nested tensor": (
        aot.errors.UnsupportedOperation,
        "a clone of its values",
        lambda x: x.unbind(),
        lambda: [jagged(False)],
    ),
}
CLOSED_OVER: Any = TwoTensor(torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_with_advice(name: str) -> None:
    error, advice, function, make = REFUSED[name]
    args = make()
    before = seen(args) if name != "context" else None
    with pytest.raises(error, match=advice):
        aot.aot_function(function, aot.nop)(*args)
    assert before is None or seen(args) == before


def test_a_subclass_is_not_exported() -> None:
    with pytest.raises(aot.errors.UnsupportedArgument, match="plain tensors"):
        aot.aot_export_module(nn.Linear(3, 2), (two(4, 3),), trace_joint=False)
