"""Wrapper subclasses as arguments and results: written to, nested, sharing memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import aot
from tests.support.agreement import assert_agrees, checking_nop, leaf, values
from tests.support.aot.subclasses import (
    FromTwo,
    Replacing,
    Scaled,
    ToTwo,
    assert_like_eager,
    seen,
    story,
)
from tests.support.aot.wrapped_arguments import chunks, masked, nested_two, scaled, two, write_between

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("structure")]

Make = Callable[[], list[Any]]


def _two_onto_one(x: Any, y: Any) -> Any:
    made = x[0].sin()
    x.set_(made)
    y.set_(made)
    y.mul_(2)
    return x + 1, made


def nested_pair(*size: int) -> Any:
    return TwoTensor(two(*size), two(*size, start=2)).requires_grad_()


def _write_through_a_view(x: Tensor) -> Tensor:
    y = x * 1
    y.view(-1).mul_(2)
    return y * x


def _inner_gradient(x: Tensor) -> Tensor:
    return torch.autograd.grad((x * x).sum(), x)[0]


def _hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    return y * y


def _transpose(x: Tensor) -> None:
    x.t_()


def _transposed_past_autograd(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.t_()
    return x * 2


def _set(x: Any) -> None:
    x.a = x.a * 2


def _viewed_and_written(x: Tensor) -> Any:
    y = x * 1
    z = y.view(-1)
    z.mul_(2)
    return y, z


def _viewed_and_set(x: Any) -> Any:
    view = x.view(-1)
    x.a = x.a * 2
    return view, x.a


def _set_and_viewed(x: Any) -> Any:
    before = x.t()
    x.a = x.a * 2
    return x.view(-1), before, x


def _viewed_without_grad_and_written(x: Tensor) -> Tensor:
    with torch.no_grad():
        view = x.view(-1)
    x.mul_(2)
    return view


def _sharing(part: Callable[[Tensor], Tensor]) -> list[Any]:
    whole = values(4)
    return [TwoTensor(whole, part(whole)), whole]


def _crossed(grad: bool) -> list[Any]:
    a, b = values(3), values(3, start=5)
    return [TwoTensor(a, b).requires_grad_(grad), TwoTensor(b, a).requires_grad_(grad)]


def _views_of_one(grad: bool = False) -> list[Any]:
    whole = two(4, grad=grad) * 1
    return [whole, whole.view(2, 2)]


@torch.no_grad()
def _write_to_a_chunk(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    x.mul_(2)
    return x + y * z


PROGRAMS: dict[str, tuple[Callable[..., Any], Make]] = {
    "result": (lambda x: x * 2, lambda: [two(2, 3)]),
    "the argument": (lambda x: (x, x), lambda: [two(2, 3)]),
    "one object twice": (lambda x, y: x * y, lambda: [two(3, grad=True)] * 2),
    "a list and a number": (lambda xs, k: [x * k for x in xs], lambda: [[two(3), two(3)], 3]),
    "view": (lambda x: x.view(-1), lambda: [two(2, 3)]),
    "views of one call": (lambda x: x.split(1), lambda: [two(2, 3)]),
    "detached": (lambda x: x.detach(), lambda: [two(2, 3, grad=True)]),
    "data": (lambda x: (x.data, x.data.t()), lambda: [two(2, 3, grad=True)]),
    "data that is written to": (lambda x: (x.data.mul_(2), x * 2), lambda: [two(2, 3, grad=True)]),
    "data, then transposed in place": (lambda x: (x.data, x.t_()), lambda: [two(2, 3)]),
    "views of one detached tensor": (
        lambda x: [(*y.unbind(), y.t(), y.t().detach()[0], y.t().detach().unbind()) for y in [x.detach()]],
        lambda: [two(2, 3, grad=True)],
    ),
    "views of two detached tensors": (
        lambda x: (*x.detach().split(1), *x.detach().split(1)),
        lambda: [two(2, 3)],
    ),
    "views of what is detached": (
        lambda x: [(y.t(), y, y.view(-1)[1:], y) for y in [x.detach()]],
        lambda: [two(2, 3, grad=True)],
    ),
    "parts": (lambda x: (x.a, x.b * 2), lambda: [two(3)]),
    "made of arguments": (TwoTensor, lambda: [values(3), values(3)]),
    "made of one argument": (lambda a: TwoTensor(a, a) * 2, lambda: [values(3)]),
    "write": (lambda x: x.mul_(2), lambda: [two(2, 3)]),
    "write and read": (lambda x, y: (x.add_(y), x * y), lambda: [two(2, 3), values(2, 3)]),
    "write to a view": (lambda x: (x.view(-1).mul_(3), x + 1), lambda: [two(2, 3)]),
    "write to a detached one": (lambda x: x.detach().mul_(3), lambda: [two(3, grad=True)]),
    "write without grad": (torch.no_grad()(lambda x: x.mul_(3)), lambda: [two(3, grad=True)]),
    "write to a leaf": (lambda x: x.mul_(2), lambda: [two(3, grad=True)]),
    "write to a split": (lambda x: (x.chunk(2)[0].mul_(2), x), lambda: [two(4)]),
    "write to what is scaled": (lambda x: x.mul_(3), lambda: [scaled(False)]),
    "write to a view of what is scaled": (lambda x: x.view(-1).add_(1), lambda: [scaled(False)]),
    "write to what is masked": (lambda x: (x.add_(1), x * 2), lambda: [masked(False)]),
    "transposed in place": (lambda x: x.t_(), lambda: [two(2, 3)]),
    "transposed in place, and nothing else": (_transpose, lambda: [two(2, 3)]),
    "transposed in place and written": (lambda x: x.t_().mul_(2), lambda: [two(2, 3)]),
    "written and transposed in place": (lambda x: x.mul_(2).t_() * 3, lambda: [two(2, 3)]),
    "transposed in place without grad": (torch.no_grad()(lambda x: x.t_() + 1), lambda: [two(2, 3)]),
    "parts that are wrapper subclasses": (
        lambda x: (x.a, x.a.t(), x.b * 2, x.a.view(-1)[1:], x.b.b),
        lambda: [TwoTensor(two(2, 3), two(2, 3))],
    ),
    "a part that is an argument": (
        lambda x, y: (x.a, y.t(), x * 2, y),
        lambda: [(x := TwoTensor(two(2, 3), two(2, 3))), x.a],
    ),
    "a part that is an argument, and is written": (
        lambda y, x: (y.mul_(2), x + 1, x.a.sin()),
        lambda: [(x := TwoTensor(two(2, 3), two(2, 3))).a, x],
    ),
    "a part that is an argument, transposed in place with the whole": (
        lambda x, y: (x.t_(), y * 2),
        lambda: [(x := TwoTensor(two(2, 3), two(2, 3))), x.a],
    ),
    "nested transposed in place": (
        lambda x: (x.t_(), x * 2, x.a, x.b.t()),
        lambda: [TwoTensor(two(2, 3), two(2, 3))],
    ),
    "nested changed in place and written": (
        lambda x: x.unsqueeze_(0).mul_(2).squeeze_(0).t_(),
        lambda: [TwoTensor(two(2, 3), two(2, 3))],
    ),
    "gradient of what is nested and transposed in place": (
        lambda x, w: (x * 3, x.t_().mul_(w)),
        lambda: [TwoTensor(two(2, 3), two(2, 3)).requires_grad_() * 1, leaf(3, 2)],
    ),
    "transposed in place by its parts": (lambda x: x.t_(), lambda: [masked(False)]),
    "changed in place twice": (lambda x: x.unsqueeze_(0).transpose_(1, 2).sum(0), lambda: [two(2, 3)]),
    "a view of what was transposed in place": (lambda x: x.t_().view(-1), lambda: [two(1, 3)]),
    "parts of what was transposed in place": (lambda x: (x.t_(), x.a, x.b * 2), lambda: [two(2, 3)]),
    "transposed in place, with a part outside": (
        lambda x, part: (x.t_(), part.mul_(2)),
        lambda: [(x := two(2, 3)), x.a],
    ),
    "gradient of what is transposed in place": (
        lambda x, w: (x.t_() * w, x.sin()),
        lambda: [two(2, 3, grad=True) * 1, two(3, 2, grad=True)],
    ),
    "gradient of what is transposed in place, and nothing else": (
        _transpose,
        lambda: [two(2, 3, grad=True) * 1],
    ),
    "gradient of what is used, transposed in place and written": (
        lambda x, w: (x * 3, x.t_().mul_(w), x * 2),
        lambda: [two(2, 3, grad=True) * 1, two(3, 2, grad=True)],
    ),
    "gradient of what is written, changed in place twice and written": (
        lambda x, w: x.mul_(2).unsqueeze_(0).transpose_(0, 2).mul_(w),
        lambda: [two(2, 3, grad=True) * 1, two(3, 2, 1, grad=True)],
    ),
    "gradient of what is transposed in place, and gets a history": (
        lambda x, w: (x.t_().mul_(w), x + w),
        lambda: [two(2, 3), two(3, 2, grad=True)],
    ),
    "transposed in place without grad, of what has a history": (
        torch.no_grad()(lambda x: x.t_() + 1),
        lambda: [two(2, 3, grad=True) * 1],
    ),
    "transposed in place without grad, and used": (
        _transposed_past_autograd,
        lambda: [two(3, 3, grad=True) * 1],
    ),
    "a result transposed in place": (lambda x: (x * 2).t_() * x.t(), lambda: [two(2, 3, grad=True)]),
    "a view, then transposed in place": (lambda x: (x.view(-1)[1:], x.t_(), x[0]), lambda: [two(2, 3)]),
    "a view, then written": (_viewed_and_written, lambda: [two(2, 3, grad=True) * 1]),
    "a view of a leaf, then written": (_viewed_and_written, lambda: [two(2, 3, grad=True)]),
    "a view of a result, then written": (
        lambda x: [(y[0], y.mul_(x), y.t()) for y in [x * 2]],
        lambda: [two(2, 3, grad=True)],
    ),
    "put onto another": (lambda x, y: (x.set_(y), y + 1), lambda: [two(2, 3), two(3)]),
    "put onto another, and written": (lambda x, y: x.set_(y).mul_(2), lambda: [two(2, 3), two(3)]),
    "written, a view, then put onto another": (
        lambda x, y: (x.mul_(2)[1:], x.set_(y), x[0]),
        lambda: [two(2, 3), two(3)],
    ),
    "put onto a view of another": (
        lambda x, y: (x.set_(y.t()[1]).add_(1), x.view(-1)),
        lambda: [two(2, 3), two(3, 4)],
    ),
    "put onto a result": (lambda x: (x.set_(x.sin()[1]).add_(1)[1:], x.sum()), lambda: [two(2, 3)]),
    "two put onto a result": (_two_onto_one, lambda: [two(2, 3), two(3)]),
    "put onto one after the other": (
        lambda x, y: (x.set_(y), x.set_(y * 2), y.set_(x), y.mul_(2)),
        lambda: [two(2, 3), two(3)],
    ),
    "put onto another, and transposed in place": (
        lambda x, y: (x.set_(y), x.t_(), x.mul_(2)),
        lambda: [two(3), two(2, 3)],
    ),
    "results put onto an argument and each other": (
        lambda x: [(y.set_(x), z.set_(y), z.mul_(2)) for y, z in [(x * 2, x * 3)]],
        lambda: [two(2, 3)],
    ),
    "a nested one put onto another": (
        lambda x, y: (x.set_(y).mul_(2), y.a + 1),
        lambda: [nested_two().detach(), TwoTensor(two(2, 3), two(2, 3))],
    ),
    "a view, then part replaced": (_viewed_and_set, lambda: [two(2, 3)]),
    "part replaced, then a view": (_set_and_viewed, lambda: [two(2, 3)]),
    "part replaced": (_set, lambda: [two(3)]),
    "replaced in place": (lambda x: (x.mul_(2), x * 3), lambda: [Replacing(values(3))]),
    "replaced in place twice": (lambda x: x.mul_(2).mul_(3), lambda: [Replacing(values(3))]),
    "gradient": (lambda x: x * x, lambda: [two(2, 3, grad=True)]),
    "gradients": (lambda x: (x * x, x.sin().sum()), lambda: [two(2, 3, grad=True)]),
    "gradient of a view": (lambda x: x.view(-1), lambda: [two(2, 3, grad=True)]),
    "gradients of views": (
        lambda x: [(y, y.t(), y.t() * 3) for y in [x * 2]],
        lambda: [two(2, 3, grad=True)],
    ),
    "gradient with a matrix": (
        lambda x, w: (x @ w).sin(),
        lambda: [two(2, 3, grad=True), leaf(3, 2)],
    ),
    "gradient of a plain tensor": (lambda x, w: x * w, lambda: [two(2, 3), leaf(3)]),
    "gradient of a parameter": (lambda x: x * x, lambda: [nn.Parameter(two(3))]),
    "gradient of what is written between": (write_between, lambda: [two(3, grad=True)]),
    "gradient of what is written by a view": (_write_through_a_view, lambda: [two(2, 3, grad=True)]),
    "gradient of what is replaced": (
        lambda x: [(y.mul_(2), y * x) for y in [x * 1]],
        lambda: [Replacing(values(3)).requires_grad_()],
    ),
    "retained": (lambda x: (x.retain_grad(), x * 2), lambda: [two(2, 3, grad=True) * 1]),
    "written and retained": (
        lambda x: (x.mul_(2).retain_grad(), x * 2),
        lambda: [two(2, 3, grad=True) * 1],
    ),
    "retained and written": (
        lambda x: (x.retain_grad(), x.mul_(2), x * 2),
        lambda: [two(2, 3, grad=True) * 1],
    ),
    "another place in memory": (
        lambda x: (x.as_strided_((2, 2), (1, 1), 1), x * 2),
        lambda: [TwoTensor(values(2, 3)[1], values(2, 3)[1])],
    ),
    "a view as another dtype, then transposed in place": (
        lambda x: (x.view(torch.int32), x.unsqueeze_(0)),
        lambda: [TwoTensor(values(4).long(), values(4).long())],
    ),
    "resized to less": (lambda x: (x * 3, x.resize_(2), x * 2), lambda: [two(2, 3)]),
    "resized to more": (lambda x: (x.resize_(3, 3).fill_(2), x * 2), lambda: [two(2, 3)]),
    "resized to more, and written without grad mode": (
        lambda x, w: (torch.no_grad()(x.resize_)(9).copy_(x.new_ones(9)), x * w),
        lambda: [two(2, 3), leaf(9)],
    ),
    "resized like another": (lambda x, y: (x.resize_as_(y), x + y), lambda: [two(2, 3), two(4)]),
    "resized and turned": (lambda x: (x.resize_(2, 2), x.t_(), x.sum()), lambda: [two(2, 3)]),
    "resized after a view": (lambda x: (x.view(3, 2), x.resize_(4), x[1:]), lambda: [two(2, 3)]),
    "resized to more after a view": (
        lambda x: (x.view(3, 2), x.resize_(9).fill_(1))[0],
        lambda: [two(2, 3)],
    ),
    "a view resized": (lambda x, y: (x.view(-1), y.resize_(3), x * 2), _views_of_one),
    "one whose parts share memory, resized": (
        lambda x: (x.resize_(9).fill_(2), x + 1),
        lambda: [(lambda part: TwoTensor(part, part))(values(6))],
    ),
    "a nested one resized": (lambda x: (x.resize_(2), x * 2), lambda: [TwoTensor(two(3), two(3, start=4))]),
    "a whole and a view": (lambda x, y: (x.view(2, 2) * y, x, y[0]), _views_of_one),
    "gradients of a whole and a view": (lambda x, y: (x * 3, x.sum() * y), lambda: _views_of_one(True)),
    "a whole and a view, written": (lambda x, y: (x.mul_(2), y + 1), _views_of_one),
    "a whole and a view that is written": (lambda x, y: (y.mul_(2), x.sin()), _views_of_one),
    "a whole that is turned, and a view": (lambda x, y: (x.unsqueeze_(0), y * 2), _views_of_one),
    "a whole and a view that is turned": (lambda x, y: (y.t_(), x * 2, y[0]), _views_of_one),
    "a view that is turned": (lambda x: (x.t_(), x * 2), lambda: [two(6).view(2, 3)]),
    "views of one that is no argument": (lambda x, y, z: (x @ y.t()).sin() @ z, chunks),
    "gradients of views of one": (lambda x, y, z: (x @ y.t()).sin() @ z, lambda: chunks(True)),
    "views of one, the first written": (_write_to_a_chunk, chunks),
    "views of one, the first written without grad": (_write_to_a_chunk, lambda: chunks(True)),
    # Of these ATen asks whether they are given tensor subclasses.
    "pooled": (lambda x: nn.functional.max_pool1d(x, 2, 1), lambda: [two(2, 4)]),
    "products": (
        lambda x: (x.prod(), x.prod(1), x.cumprod(1), x.max()),
        lambda: [TwoTensor(values(2, 3), values(2, 3) + 1).requires_grad_()],
    ),
    "write that is not counted": (
        lambda x: (torch._foreach_mul_([x], 3.0), x * 2),
        lambda: [ToTwo.apply(leaf(3))],
    ),
    "gradient inside": (_inner_gradient, lambda: [two(3, grad=True)]),
    "hook": (_hooked, lambda: [two(3, grad=True)]),
    "plain to subclass": (lambda x: ToTwo.apply(x) * 2, lambda: [leaf(3)]),
    "subclass to plain": (lambda x: FromTwo.apply(x * x), lambda: [two(3, grad=True)]),
    "there and back": (lambda x: FromTwo.apply(ToTwo.apply(x).sin()), lambda: [leaf(3)]),
    "scaled": (lambda x: x * 2, lambda: [scaled()]),
    "scaled to plain": (lambda x: (x * x).sum(), lambda: [scaled()]),
    "scaled and plain": (lambda x, w: (x @ w).sin(), lambda: [scaled(), leaf(3, 2)]),
    "masked": (lambda x: x * x, lambda: [masked()]),
    "masked to plain": (lambda x: (x.sin() * x).sum(), lambda: [masked()]),
    "two masked": (lambda x, y: (x * y, x + y), lambda: [masked(), masked(start=4)]),
    "masked and plain": (lambda x, y: (x * y, x + y), lambda: [masked(), leaf(2, 3)]),
    "nested": (lambda x: (x * x, x.t()), lambda: [nested_pair(2, 3)]),
    "write to nested": (lambda x: (x.mul_(2), x.t()), lambda: [TwoTensor(two(2, 3), two(2, 3))]),
    "nested in two ways": (
        lambda x: (x * 2, x * x),
        lambda: [TwoTensor(Scaled(values(3), 2.0), Scaled(values(3), 3.0)).requires_grad_()],
    ),
    "parts are one": (lambda x, a: (x.mul_(2), x + 1, a + 1), lambda: _sharing(lambda whole: whole)),
    "parts overlap": (
        lambda x, a: (x.mul_(2), x + 1, a + 1),
        lambda: (lambda w: [TwoTensor(w[1:], w[1:3].new_ones(4)[1:]), w])(values(4)),
    ),
    "parts are others'": (lambda x, y: (x.mul_(2), y + 1), lambda: _crossed(False)),
    "gradients where parts are others'": (lambda x, y: x * y, lambda: _crossed(True)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(name: str) -> None:
    function, make = PROGRAMS[name]
    assert_like_eager(function, make, compiler=checking_nop)


RAISES = {"write to a leaf": RuntimeError, "two of other structures": RuntimeError}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_oracles_see_no_difference(name: str) -> None:
    function, make = PROGRAMS[name]
    assert_agrees(function, make, raises=RAISES.get(name))


# (Without grad mode, what requires grad gives views that autograd loses: refused.)
AFTERWARDS: dict[str, tuple[Callable[..., Any], Make]] = {
    "a view, then written and transposed in place": (
        lambda x: (x.view(-1), x.mul_(2).t_()),
        lambda: [two(2, 3, grad=True) * 1],
    ),
    "written, viewed and transposed in place": (
        lambda x: [(y.view(-1), y.t_()) for y in [x.mul_(2)]],
        lambda: [two(2, 3, grad=True) * 1],
    ),
    "transposed in place, viewed and written": (
        lambda x: [(y[0], y.mul_(2)) for y in [x.t_()]],
        lambda: [two(2, 3, grad=True) * 1],
    ),
    "a view that is written, and a view of that": (
        lambda x: [(y.square_()[0], y, x) for y in [x.unsqueeze(0)]],
        lambda: [two(2, 3, grad=True) * 1],
    ),
    "a view that is taken without grad, then written": (
        _viewed_without_grad_and_written,
        lambda: [two(2, 3, grad=True) * 1],
    ),
    "one of several views, then written": (
        lambda x: (x.split(1)[0], x.mul_(2)),
        lambda: [two(2, 3, grad=True) * 1],
    ),
}


ONTO_ONE_STORAGE: dict[str, tuple[Callable[..., Any], Make]] = {
    name: PROGRAMS[name]
    for name in PROGRAMS
    if name.startswith(("put onto", "two put onto", "results put onto", "a nested one put onto"))
}


@pytest.mark.parametrize("name", ONTO_ONE_STORAGE)
def test_set_puts_wrappers_onto_one_storage_as_eager_does(name: str) -> None:
    """They have no memory, and whose storage it is can be seen all the same."""

    def storages(f: Callable[..., Any], make: Make) -> list[int]:
        arguments = make()
        results = pytree.tree_leaves(f(*arguments))
        wrappers = [one for one in (*arguments, *results) if isinstance(one, TwoTensor)]
        wrappers += [part for one in wrappers for part in (one.a, one.b) if isinstance(part, TwoTensor)]
        numbers: dict[int, int] = {}
        return [numbers.setdefault(one.untyped_storage()._cdata, len(numbers)) for one in wrappers]

    f, make = ONTO_ONE_STORAGE[name]
    eager = storages(f, make)
    assert storages(aot.aot_function(f, fw_compiler=checking_nop), make) == eager
    assert len(set(eager)) < len(eager)


@pytest.mark.parametrize("name", AFTERWARDS)
def test_views_of_what_is_written_or_changed_since(name: str) -> None:
    function, make = AFTERWARDS[name]
    assert_agrees(function, make, grad=True)


def test_other_metadata_is_another_specialization() -> None:
    compiled = aot.aot_function(lambda x: x + 1, checking_nop)
    for scale in (2.0, 3.0, 2.0):
        assert torch.equal(compiled(Scaled(values(3), scale)), values(3) * scale + 1)
    assert len(compiled.specializations) == 2
    assert compiled(two(3)).a.shape == (3,)
    assert compiled(values(3)).shape == (3,)
    assert len(compiled.specializations) == 4


def test_sharing_that_ends_is_another_specialization() -> None:
    """What is shared inside of subclasses is part of what a call is: pytorch/pytorch#186517."""

    def f(x: Any, y: Any) -> Tensor:
        x.mul_(2)
        return y + 1

    compiled = aot.aot_function(f, checking_nop)
    for shared in (True, False, True):
        expected, given = (
            (lambda a, b: (TwoTensor(a, a), TwoTensor(b, b)))(*pair) for pair in _pairs(shared)
        )
        assert seen(compiled(*given)) == seen(f(*expected))
        assert seen(given) == seen(expected)
    assert len(compiled.specializations) == 2


def _pairs(shared: bool) -> list[tuple[Tensor, Tensor]]:
    wholes = [values(6), values(6)]
    return [(whole[:4], whole[2:] if shared else whole[2:].clone()) for whole in wholes]


def test_every_specialization_says_what_is_wrapped() -> None:
    compiled = aot.aot_function(lambda x, w: (w, x * w), checking_nop)
    compiled(nested_pair(2, 3), values(2, 3))
    metadata = compiled.specializations[0].metadata
    assert metadata.subclasses is not None
    (given,) = metadata.subclasses.inputs
    assert isinstance(given, aot.SubclassCreationMeta)
    assert (given.kind, given.positions, given.size, given.stride) == (
        TwoTensor,
        (0, 1, 2, 3),
        (2, 3),
        (3, 1),
    )
    assert [name for name, _ in given.parts] == ["a", "b"]
    (_, inner), _ = given.parts
    assert isinstance(inner, aot.SubclassCreationMeta)
    assert inner.parts == (("a", aot.PlainTensorMeta(0)), ("b", aot.PlainTensorMeta(1)))
    assert list(metadata.subclasses.outputs) == [1]
    assert metadata.subclasses.outputs[1].positions == (2, 3, 4, 5)
    assert len(metadata.input_info) == 6
    assert metadata.input_info[5].requires_grad and not metadata.input_info[5].mutates_data
    assert "unflatten" in aot.explain(compiled)
    plain = aot.aot_function(torch.sin, checking_nop)
    plain(values(3))
    assert plain.specializations[0].metadata.subclasses is None


def test_stories_see_what_differs() -> None:
    """(The tests above rest on it.)"""

    def wrong(x: Any) -> Any:
        return TwoTensor(x.a * 2, x.b * 3)

    assert story(wrong, [two(3)], None) != story(lambda x: x * 2, [two(3)], None)
