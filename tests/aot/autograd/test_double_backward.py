"""Second and higher derivatives: eager's, or a typed error."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

import aot
from tests.support.agreement import assert_same_story, leaf, non_leaf, values

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("double-backward")]

Function = Callable[..., Any]
F64 = torch.float64


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x  # wrong on purpose: what counts is the function's own rule


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


def _network(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh().pow(2).sum() + (w.exp() * x.mean()).sum()


def _several(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = (x @ w).sin()
    return y, y.exp() * 2, (x * x).sum() + y.sum()


def _written(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 3
    x.mul_(w.sin())
    return (y * w).sum() + x.sum(), x


def _views(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x.t(), (x[1:] * w[1:]).cos()


def _detached(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        z = w * 2
    return (x * x.detach() * w.sin() + z * x * w).sum()


def _with_a_rule_of_its_own(x: Tensor, w: Tensor) -> Tensor:
    return Squared.apply(x * w).sin()


def _hooked(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y.register_hook(lambda g: g * g)
    return y.exp()


def _losses(x: Tensor, w: Tensor) -> Tensor:
    return functional.cross_entropy(x @ w, torch.tensor([0, 2, 1])) + functional.layer_norm(w, (3,)).std()


def _linear(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x + w, x - 2 * w


def _dropped(x: Tensor, w: Tensor) -> Tensor:
    return functional.dropout(x * w, 0.5).pow(3)


def _normalized(x: Tensor, w: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, w[0], w[1], training=True).pow(3)


def _convolved(x: Tensor, w: Tensor) -> Tensor:
    return functional.conv2d(x[None, None], w[None, None, :2, :2]).tanh().sum()


def _written_through_a_view(x: Tensor, w: Tensor) -> Tensor:
    x[1].sin_()
    return x * w


def _transposed_by_one_result(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x @ (x @ w), torch.nn.functional.linear(torch.ones(2, 3, dtype=F64), w)


def _differentiated_inside(x: Tensor, w: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad((x * w).sin().sum(), x, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).pow(2).mean()


PROGRAMS: list[Function] = [
    _network,
    _several,
    _written,
    _views,
    _detached,
    _with_a_rule_of_its_own,
    _losses,
    _linear,
    _dropped,
    _normalized,
    _convolved,
    _differentiated_inside,
    _written_through_a_view,
    _transposed_by_one_result,
]


def _made() -> tuple[Tensor, Tensor, Tensor]:
    root = leaf(3, 3, dtype=F64)
    return root, root * 1, leaf(3, 3, dtype=F64, start=9)


def _weighted(results: Any) -> Tensor:
    """A number that depends on every element of the results in a way of its own."""
    total = torch.zeros((), dtype=F64)
    for k, result in enumerate(results if isinstance(results, tuple) else (results,)):
        total = total + (result * values(*result.shape, dtype=F64, start=k)).sum()
    return total


@pytest.mark.parametrize("f", PROGRAMS)
def test_the_second_derivative(f: Function) -> None:
    def story(function: Function) -> Any:
        root, x, w = _made()
        torch.manual_seed(0)
        first = torch.autograd.grad(
            _weighted(function(x, w)), [root, x, w], create_graph=True, allow_unused=True
        )
        told = [None if g is None else (g, g.requires_grad) for g in first]
        penalty = _weighted(tuple(g.pow(2) for g in first if g is not None))
        return told, torch.autograd.grad(penalty, [root, w], allow_unused=True)

    assert_same_story(f, story)


@pytest.mark.parametrize("f", PROGRAMS)
def test_the_third_derivative(f: Function) -> None:
    def story(function: Function) -> Any:
        root, x, w = _made()
        torch.manual_seed(0)
        current = _weighted(function(x, w))
        for _ in range(2):
            gradients = torch.autograd.grad(current, [root, w], create_graph=True, allow_unused=True)
            current = _weighted(tuple(g.sin() for g in gradients if g is not None))
        return torch.autograd.grad(current, [root, w], allow_unused=True)

    assert_same_story(f, story)


@pytest.mark.parametrize("f", PROGRAMS)
def test_a_gradient_penalty_that_is_accumulated(f: Function) -> None:
    def story(function: Function) -> Any:
        root, x, w = _made()
        torch.manual_seed(0)
        loss = _weighted(function(x, w))
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + (gradient.norm() - 1) ** 2).backward()
        return root.grad, w.grad

    assert_same_story(f, story)


@pytest.mark.parametrize("f", [_several, _written, _views, _linear])
@pytest.mark.parametrize("of", range(2))
def test_the_second_derivative_of_one_result(f: Function, of: int) -> None:
    def story(function: Function) -> Any:
        root, x, w = _made()
        result = function(x, w)[of]
        first = torch.autograd.grad(_weighted(result), [x, w], create_graph=True, allow_unused=True)
        given = [g for g in first if g is not None and g.requires_grad]
        second = torch.autograd.grad(_weighted(tuple(given)), [root, w], allow_unused=True) if given else None
        return first, second

    assert_same_story(f, story)


def test_with_respect_to_the_tangent() -> None:
    def story(function: Function) -> Any:
        _, x, w = _made()
        tangent = leaf(3, 3, dtype=F64, start=5)
        (gradient,) = torch.autograd.grad(function(x, w), x, tangent, create_graph=True)
        return torch.autograd.grad(_weighted(gradient), [tangent, w])

    assert_same_story(_with_a_rule_of_its_own, story)


def test_backward_that_makes_a_graph_of_its_gradients() -> None:
    def story(function: Function) -> Any:
        x, w = leaf(3, 3, dtype=F64), leaf(3, 3, dtype=F64, start=9)
        function(x, w).backward(create_graph=True)
        first = x.grad
        x.grad = None
        first.pow(2).sum().backward()
        result = first.detach(), x.grad, w.grad
        x.grad = w.grad = None
        return result

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward.. with create_graph=True")  # once in a process
        assert_same_story(_network, story)


def test_a_first_derivative_after_one_with_create_graph() -> None:
    def story(function: Function) -> Any:
        _, x, w = _made()
        loss = function(x, w)
        first = torch.autograd.grad(loss, [x, w], create_graph=True)
        second = torch.autograd.grad(loss, [x, w])
        return first, second, [g.requires_grad for g in (*first, *second)]

    assert_same_story(_network, story)


def test_what_eager_refuses_to_differentiate_twice() -> None:
    def story(function: Function) -> Any:
        _, x, w = _made()
        result = function(x, w)
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        told: list[Any] = [gradient, gradient.requires_grad]
        try:
            torch.autograd.grad(gradient.sum(), x)
        except RuntimeError as error:
            told.append("once_differentiable" in str(error))
        return told

    assert_same_story(lambda x, w: Once.apply(x) * w, story)


def test_a_part_that_eager_refuses_does_not_keep_another_from_being_differentiated() -> None:
    def story(function: Function) -> Any:
        _, x, w = _made()
        first = torch.autograd.grad(function(x, w).sum(), [x, w], create_graph=True)
        return torch.autograd.grad(first[1].sum(), w)

    assert_same_story(lambda x, w: Once.apply(x) + w.exp(), story)


def test_hessians() -> None:
    def story(function: Function) -> Any:
        x, w = leaf(3, 3, dtype=F64), values(3, 3, dtype=F64, start=9)
        return torch.autograd.functional.hessian(lambda t: function(t, w), x)

    assert_same_story(_network, story)


def test_a_value_written_between_the_derivatives() -> None:
    def story(function: Function) -> Any:
        _, x, w = _made()
        (gradient,) = torch.autograd.grad(function(x, w).sum(), x, create_graph=True)
        with torch.no_grad():
            w.mul_(2)
        return torch.autograd.grad(gradient.sum(), x)

    assert_same_story(lambda x, w: (x * w).exp() * w, story)


def test_min_cut_recomputes_what_it_has_not_saved() -> None:
    compiled = aot.aot_function(_network, aot.nop, partition_fn=aot.min_cut_rematerialization_partition)
    found = []
    for function in (_network, compiled):
        x, w = leaf(3, 3, dtype=F64), leaf(3, 3, dtype=F64, start=9)
        (gradient,) = torch.autograd.grad(function(x, w), x, create_graph=True)
        found.append(torch.autograd.grad(gradient.pow(2).sum(), [x, w]))
    assert all(torch.allclose(a, b) for a, b in zip(*found, strict=True))


def test_hooks_of_the_functions_own_are_refused() -> None:
    _, x, w = _made()
    loss = aot.aot_function(_hooked, aot.nop)(x, w).sum()
    with pytest.raises(aot.DoubleBackwardUnsupported, match="hooks"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_what_was_not_saved_and_cannot_be_recomputed_is_refused() -> None:
    def nothing_is_saved(module: Any, inputs: Any, *, num_fwd_outputs: int) -> Any:
        forward, backward = aot.default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)
        for node in backward.graph.nodes:
            if node.op == "placeholder" and not node.name.startswith("tangents"):
                node.name = f"other_{node.name}"
        return forward, backward

    x = leaf(3)
    y = aot.aot_function(torch.exp, aot.nop, partition_fn=nothing_is_saved)(x)
    with pytest.raises(aot.DoubleBackwardUnsupported, match="original function"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())


AUTOCAST: dict[str, tuple[bool, bool]] = {
    "in the backward alone": (False, True),
    "in the forward alone": (True, False),
    "in both": (True, True),
}


@pytest.mark.parametrize("where", AUTOCAST)
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_backward_under_another_autocast_state(where: str, create_graph: bool) -> None:
    forward, backward = AUTOCAST[where]

    def f(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).softmax(1) @ w.t()).pow(2)

    def story(function: Function) -> Any:
        x, w = leaf(3, 3), leaf(3, 3, start=9)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=forward):
            result = function(x, w)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=backward):
            first = torch.autograd.grad(result.float().sum(), [x, w], create_graph=create_graph)
            if not create_graph:
                return first
            second = torch.autograd.grad(sum(g.float().pow(2).sum() for g in first), [x, w])
        return first, second

    assert_same_story(f, story)


def test_a_deterministic_backward() -> None:
    def f(x: Tensor, index: Tensor) -> Tensor:
        return x[index] * 2

    def story(function: Function) -> Any:
        x = leaf(3)
        result = function(x, torch.tensor([0, 1, 1, 2]))
        torch.use_deterministic_algorithms(True)
        try:
            return torch.autograd.grad(result.sum(), x)
        finally:
            torch.use_deterministic_algorithms(False)

    assert_same_story(f, story)


@pytest.mark.parametrize("inside", ["no_grad", "enable_grad", "inference"])
def test_a_backward_under_another_grad_mode(inside: str) -> None:
    mode = {"no_grad": torch.no_grad, "enable_grad": torch.enable_grad, "inference": torch.inference_mode}

    def story(function: Function) -> Any:
        x = non_leaf(3)
        result = function(x)
        with mode[inside]():
            (gradient,) = torch.autograd.grad(result.sum(), x)
        return gradient, gradient.requires_grad

    assert_same_story(lambda x: x.sin() * x, story)


def test_a_second_derivative_keeps_nothing_alive() -> None:
    compiled = aot.aot_function(lambda x: x.sin() * x, fw_compiler=aot.nop)

    def call() -> StorageWeakRef:
        x = leaf(3)
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        torch.autograd.grad(gradient.sum(), x)
        return StorageWeakRef(x.untyped_storage())

    first, second = call(), call()
    gc.collect()
    assert first.expired() and second.expired()


def test_the_second_derivative_goes_to_a_view_that_was_written() -> None:
    """The first goes to its base."""

    def f(x: Tensor) -> None:
        x.sin_()

    def story(function: Function) -> Any:
        root = leaf(3, dtype=F64)
        base = root * 1
        x = base[1:]
        function(x)
        (first,) = torch.autograd.grad(x.sum(), root, create_graph=True)
        return first, torch.autograd.grad(first.sum(), root)

    assert_same_story(f, story)


@pytest.mark.parametrize(("count", "zeros"), [(2, 0), (2, 1), (4, 0), (4, 1), (4, 2)])
def test_a_product_that_may_hold_zeros(count: int, zeros: int) -> None:
    """ATen looks at the values; the graph is for any. (One of a single element is refused.)"""

    def story(function: Function) -> Any:
        x = values(count, dtype=F64)
        x[:zeros] = 0
        x.requires_grad_()
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        return first, first.requires_grad, torch.autograd.grad(first.sum(), x)

    assert_same_story(lambda x: x.prod(), story)
    assert_same_story(lambda x: torch.prod(x), story)  # noqa: PLW0108


def test_a_product_of_infinities() -> None:
    def story(function: Function) -> Any:
        x = torch.tensor([math.inf, 3.0, -2.0], requires_grad=True)
        return str(torch.autograd.grad(function(x), x))  # (NaN is not equal to itself.)

    assert_same_story(lambda x: x.prod(), story)
