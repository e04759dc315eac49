"""Wrapper subclasses differentiated: tangents, saved values, second derivatives, modules that train."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import aot
from tests.support.agreement import checking_nop, leaf, values
from tests.support.aot.subclasses import Coercing, Scaled, ToTwo, assert_like_eager, seen
from tests.support.aot.wrapped_arguments import masked, nested_two, scaled, two, write_between

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("gradients")]

Make = Callable[[], list[Any]]


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
    "written": (lambda x: write_between(x)[1], lambda: [two(3, grad=True)]),
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
