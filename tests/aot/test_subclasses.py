"""Wrapper subclasses: as arguments and results, written to, differentiated, nested, sharing memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agree import assert_agrees, checking_nop, leaf, values
from subclasses import (
    Coercing,
    FromTwo,
    Masked,
    Replacing,
    Scaled,
    ToTwo,
    assert_like_eager,
    seen,
    story,
)
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import aot

Make = Callable[[], list[Any]]


def two(*size: int, grad: bool = False, start: int = 0) -> Any:
    return TwoTensor(values(*size, start=start), values(*size, start=start + 3) * 2).requires_grad_(grad)


def nested_two() -> Any:
    return TwoTensor(two(3), two(3, start=4)).requires_grad_()


def scaled(grad: bool = True) -> Any:
    return Scaled(values(2, 3), 2.0).requires_grad_(grad)


def masked(grad: bool = True, start: int = 0) -> Any:
    mask = torch.tensor([[True, False, True], [False, True, True]])
    return Masked(values(2, 3, start=start), mask).requires_grad_(grad)


def _two_onto_one(x: Any, y: Any) -> Any:
    made = x[0].sin()
    x.set_(made)
    y.set_(made)
    y.mul_(2)
    return x + 1, made


def nested_pair(*size: int) -> Any:
    return TwoTensor(two(*size), two(*size, start=2)).requires_grad_()


def _write_between(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1
    y.mul_(x)
    return y, y * x


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


def _chunks(grad: bool = False) -> list[Any]:
    whole = two(6, 2, grad=grad) * 1
    return [whole[:2], whole[2:4], whole[4:]]


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
    "gradient of what is written between": (_write_between, lambda: [two(3, grad=True)]),
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
    "views of one that is no argument": (lambda x, y, z: (x @ y.t()).sin() @ z, _chunks),
    "gradients of views of one": (lambda x, y, z: (x @ y.t()).sin() @ z, lambda: _chunks(True)),
    "views of one, the first written": (_write_to_a_chunk, _chunks),
    "views of one, the first written without grad": (_write_to_a_chunk, lambda: _chunks(True)),
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


TANGENTS: dict[str, tuple[Callable[..., Any], Make, Callable[[Tensor], Tensor]]] = {
    "plain for a subclass": (lambda x: x * x, lambda: [two(3, grad=True)], lambda o: values(3)),
    "subclass for plain": (lambda x: x * x, lambda: [leaf(3)], lambda o: two(3)),
    "masked for plain": (lambda x: x.sin(), lambda: [leaf(2, 3)], lambda o: masked(False)),
    "plain for masked": (lambda x: x.sin() * x, lambda: [masked()], lambda o: values(2, 3)),
    "scaled otherwise": (lambda x: x * 2, lambda: [scaled()], lambda o: Scaled(values(2, 3), 7.0)),
    "strided otherwise": (
        lambda x: x * x,
        lambda: [two(2, 3, grad=True)],
        lambda o: TwoTensor(values(3, 2).t(), values(3, 2).t()),
    ),
}


@pytest.mark.parametrize("name", TANGENTS)
def test_a_tangent_of_another_kind(name: str) -> None:
    assert_like_eager(*TANGENTS[name])


def test_a_tangent_that_coerces_itself() -> None:
    """The subclass's own protocol goes first, as in AOTAutograd: the backward runs as it was recorded."""
    x = leaf(3)
    compiled = aot.aot_function(lambda x: x * x, checking_nop)
    compiled(x).backward(Coercing(values(3), values(3, start=2)))
    assert type(x.grad) is Tensor
    assert torch.equal(x.grad, 2 * x.detach() * (values(3) + values(3, start=2)))


DOUBLE: dict[str, tuple[Callable[..., Any], Make]] = {
    "two": (lambda x: x * x * x, lambda: [two(2, 3, grad=True)]),
    "and plain": (lambda x, w: (x * w).sin(), lambda: [two(2, 3, grad=True), leaf(2, 3)]),
    "saved result": (lambda x: x.exp(), lambda: [two(3, grad=True)]),
    "scaled": (lambda x: x * x * x, lambda: [scaled()]),
    "masked": (lambda x: x * x * x, lambda: [masked()]),
    "written": (lambda x: _write_between(x)[1], lambda: [two(3, grad=True)]),
}


@pytest.mark.parametrize("name", DOUBLE)
def test_second_derivatives(name: str) -> None:
    function, make = DOUBLE[name]

    def told(function: Callable[..., Any]) -> Any:
        args = make()
        first = torch.autograd.grad(function(*args).sum(), args, create_graph=True)
        second = torch.autograd.grad(sum((one * one).sum() for one in first), args)
        return [seen(first, True), seen(second, True)]

    assert told(aot.aot_function(function, checking_nop)) == told(function)


def test_a_second_derivative_of_a_sum_of_a_plain_gradient_and_a_wrapper() -> None:
    """The tangent of the sum is a wrapper, and goes to the plain term as well."""

    def told(function: Callable[..., Any]) -> Any:
        args = [two(2, 3, grad=True), leaf(2, 3)]
        results = [one.sum() for one in function(*args)]
        first = torch.autograd.grad(results, args[1], create_graph=True)
        second = torch.autograd.grad((first[0] * first[0]).sum(), args)
        return [seen(first, True), seen(second, True)]

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return (x * w).sin(), w.exp()

    assert told(aot.aot_function(function, checking_nop)) == told(function)


def _three(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (x * y).sin(), (x + y).sum(), x.exp()


def _partial(number: int) -> Callable[..., Any]:
    def use(results: Any, args: Any) -> Any:
        return torch.autograd.grad(results[number].sum(), args, allow_unused=True)

    return use


def _saved_input_written(results: Any, args: Any) -> Any:
    with torch.no_grad():
        args[0].mul_(2)
    results[0].sum().backward()


def _saved_part_written(results: Any, args: Any) -> Any:
    with torch.no_grad():
        args[0].a.mul_(2)
    results[0].sum().backward()
    return args[0].grad


def _saved_result_written(results: Any, args: Any) -> Any:
    results[2].mul_(3)
    results[2].sum().backward()


def _one_after_the_other(results: Any, args: Any) -> Any:
    results[1].backward()
    results[0].sum().backward()
    return args[0].grad, args[1].grad


def _twice(results: Any, args: Any) -> Any:
    results[0].sum().backward()
    results[0].sum().backward()


def _hooks_outside(results: Any, args: Any) -> Any:
    found: list[Any] = []
    args[0].register_hook(lambda gradient: found.append(seen(gradient, True)))
    results[0].register_hook(lambda gradient: gradient * 2)
    results[0].retain_grad()
    (results[0] * 2).sum().backward()
    return args[0].grad, results[0].grad, found


@pytest.mark.parametrize(
    "use",
    [
        *map(_partial, range(3)),
        _saved_input_written,
        _saved_part_written,
        _saved_result_written,
        _one_after_the_other,
        _twice,
        _hooks_outside,
    ],
)
def test_what_callers_do_between_forward_and_backward(use: Callable[..., Any]) -> None:
    def told(function: Callable[..., Any]) -> Any:
        args = [two(3, grad=True), two(3, grad=True, start=4)]
        results = function(*args)
        try:
            return seen(use(results, args), True)
        except RuntimeError as error:
            return type(error)

    compiled = aot.aot_function(_three, aot.nop)
    expected = told(_three)
    assert told(compiled) == expected
    assert told(compiled) == expected


def _view_keeps_itself(x: Tensor) -> Any:
    x[...].relu_()
    return x


def _list_of_views_keeps_itself(x: Tensor) -> Any:
    torch._foreach_sigmoid_([x[0:2]])
    return x


def _view_keeps_a_view(x: Tensor) -> Any:
    y, z = x * 3, x * 2
    y[0:2].addcmul_(z[1:], z[0:2])
    return y, z


def _list_of_views_keeps_views(x: Tensor) -> Any:
    y, z = x * 3, x * 2
    torch._foreach_lerp_([y[0:2]], [z[1:]], [z[0:2]])
    return y, z


def _view_keeps_what_was_detached(x: Tensor) -> Any:
    y, z = x * 2, x * 3
    z[0:2].mul_(y.detach()[0:2])
    return z, y


@pytest.mark.parametrize("written", [None, 0, 1], ids=["nothing", "argument", "second"])
@pytest.mark.parametrize("make", [lambda: two(3, grad=True), nested_two], ids=["two", "nested"])
@pytest.mark.parametrize(
    "function",
    [
        _view_keeps_itself,
        _list_of_views_keeps_itself,
        _view_keeps_a_view,
        _list_of_views_keeps_views,
        _view_keeps_what_was_detached,
    ],
)
def test_what_a_write_to_a_view_keeps(
    function: Callable[..., Any], make: Callable[[], Any], written: int | None
) -> None:
    """What was computed in place for a view, the formula keeps under the counter of the whole: a later write
    to that is noticed by the backward, and one to anything else is not."""

    def told(function: Callable[..., Any]) -> Any:
        leaf = make()
        x = leaf * 2
        results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        if written is not None:
            with torch.no_grad():
                (x, results[-1])[written].mul_(2)
        found: list[Any] = []
        for result in results:
            try:
                (gradient,) = torch.autograd.grad(result, leaf, torch.ones_like(result), retain_graph=True)
                found.append(seen(gradient, True))
            except RuntimeError as error:
                assert "modified by an inplace operation" in str(error)
                found.append("modified")
        return found

    expected = told(function)
    if written == 1:
        assert "modified" in expected
    assert told(aot.aot_function(function, aot.nop)) == expected


def test_a_gradient_of_one_result_with_respect_to_another() -> None:
    def told(function: Callable[..., Any]) -> Any:
        base, view, product = function(two(2, 3, grad=True))
        pairs = ((product, view), (product, base), (view, base))
        return [seen(torch.autograd.grad(a.sum(), b, retain_graph=True), True) for a, b in pairs]

    def f(x: Tensor) -> Any:
        y = x * 2
        return y, y.t(), y.t() * 2

    with pytest.raises(RuntimeError, match="not have been used"):
        told(f)  # eager derives the view's history when it is asked
    with pytest.raises(RuntimeError, match="not have been used"):
        told(aot.aot_function(f, aot.nop))


@pytest.mark.parametrize("make", [lambda: two(2, 3, grad=True), masked, scaled])
def test_a_write_to_what_was_computed(make: Callable[[], Any]) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(w)
        return x * w

    def told(function: Callable[..., Any]) -> Any:
        x, w = make(), leaf(2, 3, start=7)
        y = x.view(x.shape) * 1 if isinstance(x, TwoTensor) else x.clone()
        version = y._version
        result = function(y, w)
        (result * result + y).sum().backward()
        return seen([y, result]), seen([x.grad, w.grad], True), y._version > version

    assert told(aot.aot_function(f, aot.nop)) == told(f)


def _writes(x: Tensor, w: Tensor) -> None:
    x.mul_(w)


def _writes_and_reads(x: Tensor, w: Tensor) -> Tensor:
    before = x * 3
    x.add_(w)
    return before + x * w


def _writes_to_a_part(x: Tensor, w: Tensor) -> Tensor:
    x[1:].mul_(w[1:])
    return x.sin()


def _takes_views_around_a_write(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    before = x[1:]
    x.mul_(w)
    return x, before, x[:2]


def _writes_twice(x: Tensor, w: Tensor) -> Tensor:
    x.mul_(w)
    result = x * 2
    x.add_(result)
    return result


@pytest.mark.parametrize(
    "f", [_writes, _writes_and_reads, _writes_to_a_part, _takes_views_around_a_write, _writes_twice]
)
@pytest.mark.parametrize(
    "view", [lambda x: x[0], lambda x: x.t()[1], lambda x: x.view(-1)[1:4], lambda x: x[1:][0]]
)
@pytest.mark.parametrize("grad", [False, True], ids=["of no leaf", "of what requires grad"])
@pytest.mark.parametrize("kind", [TwoTensor, lambda a, b: TwoTensor(TwoTensor(a, b), TwoTensor(b * 2, a))])
def test_a_write_to_a_view_of_what_was_computed(
    kind: Callable[..., Any], grad: bool, view: Callable[[Tensor], Tensor], f: Callable[..., Any]
) -> None:
    """The gradient of what the view leaves out of its base goes on to what the base was computed from."""

    def told(function: Callable[..., Any]) -> Any:
        x = kind(values(3, 3), values(3, 3, start=5)).requires_grad_(grad)
        base = x * 1
        part = view(base)
        w = values(*part.shape, start=7).requires_grad_()
        results = [r for r in pytree.tree_leaves(function(part, w)) if r is not None]
        total = (base * base).sum() + sum((r * r).sum() * w.sum() for r in results)
        leaves = [x, w] if grad else [w]
        gradients = torch.autograd.grad(total, leaves)
        return seen([base, part, *results]), seen(gradients, True), base._version > 0

    compiled = aot.aot_function(f, checking_nop)
    assert told(f) == told(compiled) == told(compiled)


def test_a_second_derivative_through_a_write_to_a_view() -> None:
    def told(function: Callable[..., Any]) -> Any:
        x = two(2, 3, grad=True)
        base = x * x
        function(base[0])
        (first,) = torch.autograd.grad((base * base).sum(), x, create_graph=True)
        return seen(torch.autograd.grad((first * first).sum(), x), True)

    def f(x: Tensor) -> None:
        x.mul_(2)

    assert told(aot.aot_function(f, aot.nop)) == told(f)


def test_a_write_to_a_view_moves_the_counter_of_both() -> None:
    x = two(2, 3)
    y = x.view(-1)
    aot.aot_function(lambda v: v.mul_(2), checking_nop)(y)
    assert (x._version, y._version) == (1, 1)
    assert torch.equal(x.a, values(2, 3) * 2)


def test_a_write_is_not_left_to_a_graph_that_has_a_backward() -> None:
    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        y.mul_(2)
        z.mul_(3)
        return x * 2

    compiled = aot.aot_function(f, aot.nop, keep_inference_input_mutations=True)
    x, y, z = two(3, grad=True), two(3), values(3)
    compiled(x, y, z).sum().backward()
    assert torch.equal(y.a, 2 * values(3)) and torch.equal(z, 3 * values(3))
    assert torch.equal(x.grad.b, torch.full((3,), 2.0))


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


# ---- modules


class _ToScaled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return Scaled(weight, 2.0)


class _ToTwo(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return ToTwo.apply(weight)


def _linear(kind: str) -> nn.Module:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(values(2, 3))
        assert module.bias is not None
        module.bias.copy_(values(2))
    weight = module.weight.detach()
    if kind == "parameter":
        module.weight = nn.Parameter(TwoTensor(weight, weight * 2))
    elif kind == "scaled parameter":
        module.weight = nn.Parameter(Scaled(weight, 2.0))
    elif kind == "parametrization":
        parametrize.register_parametrization(module, "weight", _ToTwo())
    else:
        module.requires_grad_(False)
        parametrize.register_parametrization(module, "weight", _ToScaled(), unsafe=True)
    return module


@pytest.mark.parametrize(
    "kind", ["parameter", "scaled parameter", "parametrization", "frozen parametrization"]
)
def test_modules_train(kind: str) -> None:
    def told(compile: bool) -> Any:
        module = _linear(kind)
        called = aot.aot_module(module, checking_nop) if compile else module
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        found = []
        for _ in range(2):
            optimizer.zero_grad()
            result = called(values(4, 3))
            found.append(seen(result))
            if result.requires_grad:
                result.sum().backward()
                optimizer.step()
            found.append(seen([(p, p.grad) for p in module.parameters()], True))
        return found

    assert told(True) == told(False)


# ---- nested tensors


def jagged(grad: bool = True, offsets: Tensor | None = None) -> Any:
    offsets = torch.tensor([0, 2, 6]) if offsets is None else offsets
    return torch.nested.nested_tensor_from_jagged(values(6, 3), offsets).detach().requires_grad_(grad)


def _two_jagged() -> list[Any]:
    offsets = torch.tensor([0, 2, 6])
    return [jagged(offsets=offsets), jagged(offsets=offsets)]


JAGGED: dict[str, tuple[Callable[..., Any], Make]] = {
    "number": (lambda x: x * 2, lambda: [jagged()]),
    "itself": (lambda x: x.sin() * x, lambda: [jagged()]),
    "without grad": (lambda x: x.sin() * x, lambda: [jagged(False)]),
    "linear": (nn.functional.linear, lambda: [jagged(), leaf(2, 3)]),
    "two of one structure": (lambda x, y: x * y, _two_jagged),
    "two of other structures": (lambda x, y: x * y, lambda: [jagged(), jagged()]),
    "values": (lambda x: x.values() * 2, lambda: [jagged()]),
    "made inside": (
        lambda v, o: torch.nested.nested_tensor_from_jagged(v, o) * 2,
        lambda: [leaf(6, 3), torch.tensor([0, 2, 6])],
    ),
    "write": (lambda x: x.mul_(2), lambda: [jagged(False)]),
}


@pytest.mark.parametrize("name", JAGGED)
def test_nested_tensors(name: str) -> None:
    assert_like_eager(*JAGGED[name])


def test_the_structure_of_nested_tensors_stays_one() -> None:
    """A result has the argument's shape, for the caller as well: its offsets are the same tensor."""
    x = jagged()
    y = aot.aot_function(lambda x: x * 2, checking_nop)(x)
    assert y.shape == x.shape
    (y * x).sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("alias", [lambda x: x.data, lambda x: x.detach(), lambda x: x.data.view(-1)])
def test_what_is_saved_and_returned_is_found_changed(alias: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        other = alias(x)
        return x * other, other

    for function in (f, aot.aot_function(f, checking_nop)):
        product, other = function(two(3, grad=True) * 1)
        other.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


@pytest.mark.parametrize("written", [0, 1, 2])
def test_what_is_saved_is_found_changed_where_another_view_of_it_is_written(written: int) -> None:
    """Views of one share a version counter."""

    def f(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        product, rest = x * w, w.sum()
        with torch.no_grad():
            (x, y, z)[written].view(-1).add_(1)
        return product, rest

    compiled = aot.aot_function(f, checking_nop)
    for function in (f, compiled):
        arguments, w = _chunks(), two(2, 2, grad=True)
        versions = [one._version for one in arguments]
        product, rest = function(*arguments, w)
        assert all(one._version > before for one, before in zip(arguments, versions, strict=True))
        rest.backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
    assert len(compiled.specializations) == 1


def test_views_of_one_and_others_are_told_apart() -> None:
    compiled = aot.aot_function(lambda x, y: x + y, checking_nop)
    whole = two(4, 2)
    for arguments in ([whole[:2], whole[2:]], [two(2, 2), whole[:2]], [whole[:2], two(2, 2)[:]]):
        compiled(*arguments)
    assert len(compiled.specializations) == 3


def _ragged(grad: bool = True, columns: int = 3, lengths: tuple[int, ...] = (2, 4)) -> Any:
    offsets = torch.tensor([0, *(sum(lengths[: i + 1]) for i in range(len(lengths)))])
    inner = values(sum(lengths), columns)
    return torch.nested.nested_tensor_from_jagged(inner, offsets).detach().requires_grad_(grad)


OF_ANY_LENGTH: dict[str, tuple[Callable[..., Any], Callable[..., list[Any]]]] = {
    "number": (lambda x: x * 2, lambda *lengths: [_ragged(lengths=lengths)]),
    "itself": (lambda x: x.sin() * x, lambda *lengths: [_ragged(lengths=lengths)]),
    "without grad": (lambda x: x.sin() * x, lambda *lengths: [_ragged(False, lengths=lengths)]),
    "linear": (nn.functional.linear, lambda *lengths: [_ragged(lengths=lengths), leaf(2, 3)]),
    "two of one structure": (
        lambda x, y: x * y,
        lambda *lengths: [(x := _ragged(lengths=lengths)), x.detach()],
    ),
    "values": (lambda x: x.values() * 2, lambda *lengths: [_ragged(lengths=lengths)]),
    "transposed": (lambda x: x.transpose(1, 2) * 2, lambda *lengths: [_ragged(lengths=lengths)]),
    "normalized": (
        lambda x: nn.functional.layer_norm(x, (3,)) + x.shape[0],
        lambda *lengths: [_ragged(lengths=lengths)],
    ),
    "write": (lambda x: x.mul_(2), lambda *lengths: [_ragged(False, lengths=lengths)]),
}


@pytest.mark.parametrize("name", OF_ANY_LENGTH)
def test_nested_tensors_of_any_length(name: str) -> None:
    function, make = OF_ANY_LENGTH[name]
    compiled = aot.aot_function(function, checking_nop, dynamic=True)
    for lengths in ((2, 4), (3, 4, 5), (1, 7, 2, 6), (3, 3)):
        expected = story(function, make(*lengths), None)
        assert not isinstance(expected, type)
        assert story(compiled, make(*lengths), None) == expected
    assert len(compiled.specializations) == 1


def test_a_size_that_a_nested_tensors_strides_are_multiples_of_is_no_symbol() -> None:
    compiled = aot.aot_function(lambda x: x * 2, checking_nop, dynamic=True)
    for columns in (3, 5, 3, 5):
        make = [_ragged(columns=columns, lengths=(2, 4))]
        assert story(compiled, make, None) == story(lambda x: x * 2, [_ragged(columns=columns)], None)
    assert len(compiled.specializations) == 2


# ---- refusals


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


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


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
        lambda x: _Through.apply(x * 2),
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
        aot.errors.DataDependentValue,
        "compute with the tensor",
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


class _Picky(torch.autograd.Function):
    """One that reads for a plain gradient what it does not read for a subclass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x.cos(), x.sin())
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        first, second = ctx.saved_tensors
        return gradient * (second if type(gradient) is Tensor else first)


def test_a_tangent_for_which_something_is_not_saved() -> None:
    x = two(3, grad=True)
    y = aot.aot_function(_Picky.apply, aot.nop)(x)
    with pytest.raises(aot.errors.UnsupportedTangent, match="not saved"):
        y.backward(values(3))
    assert x.grad is None
    y.backward(two(3))
    assert torch.equal(x.grad.a, values(3).cos() * values(3))


class Least(TwoTensor):
    """One of which a sum has the least of the second parts."""

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = TwoTensor.__torch_dispatch__.__func__(cls, op, types, args, kwargs)
        if op is torch.ops.aten.add.Tensor:
            return Least(made.a, torch.minimum(args[0].b, args[1].b))
        return made

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Least:
        return Least(inner["a"], inner["b"])


def _from_a_node_with_several_results(x: Any) -> tuple[Tensor, ...]:
    first, second = torch._foreach_sin([x, x])
    third, fourth = torch._foreach_exp([x, second])
    return third, fourth, first * 2


def _added_up_behind_one(x: Any) -> tuple[Tensor, ...]:
    first, second = torch._foreach_mul([x, x], 2.0)
    return first, second


@pytest.mark.parametrize("partition", [aot.default_partition, aot.min_cut_rematerialization_partition])
@pytest.mark.parametrize("kind", [TwoTensor, Least])
@pytest.mark.parametrize("f", [_from_a_node_with_several_results, _added_up_behind_one])
def test_gradients_from_some_of_the_results(f: Callable[..., Any], kind: Any, partition: Any) -> None:
    compiled = aot.aot_function(f, aot.nop, partition_fn=partition)
    count = len(f(kind(values(3), values(3))))
    for chosen in (c for n in range(1, count + 1) for c in itertools.combinations(range(count), n)):
        told = []
        for function in (f, compiled):
            x = kind(values(3), values(3, start=3)).requires_grad_()
            results = [function(x)[i] for i in chosen]
            tangents = [kind(values(3), values(3, start=i) + 1) for i in chosen]
            told.append(seen(torch.autograd.grad(results, [x], tangents), True))
        assert told[0] == told[1]


def test_nested_tensors_have_no_second_derivative() -> None:
    x = jagged()
    y = aot.aot_function(lambda x: x * x, aot.nop)(x)
    with pytest.raises(aot.DoubleBackwardUnsupported, match="nested tensor"):
        torch.autograd.grad(y.values().sum(), x, create_graph=True)


def test_stories_see_what_differs() -> None:
    """(The tests above rest on it.)"""

    def wrong(x: Any) -> Any:
        return TwoTensor(x.a * 2, x.b * 3)

    assert story(wrong, [two(3)], None) != story(lambda x: x * 2, [two(3)], None)
