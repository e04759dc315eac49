"""Programs after public reports on torch's own ahead-of-time autograd, each with its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agree import assert_agrees, assert_same_story, checking_nop, leaf, non_leaf, values
from torch import Tensor

import aot

Function = Callable[..., Any]


def test_what_is_not_differentiated_is_not_computed() -> None:
    """pytorch/pytorch#131794, #186355"""
    ran: list[str] = []

    def counting(module: Any, inputs: Any) -> Any:
        names = [n.name for n in module.graph.nodes if n.op == "call_function"]

        def run(*arguments: Any) -> Any:
            ran.extend(names)
            return module(*arguments)

        return run

    compiled = aot.aot_function(lambda xs: [x.sin() for x in xs], aot.nop, counting)
    xs = [leaf(3, start=k) for k in range(3)]
    compiled(xs)[0].sum().backward()
    assert sum(name.startswith("cos") for name in ran) == 1
    assert [x.grad is None for x in xs] == [False, True, True]


def test_an_overflow_in_half_precision_that_only_autocast_in_the_backward_would_cause() -> None:
    """pytorch/pytorch#153044"""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).float().pow(2).sum() * 1e6

    def story(function: Function) -> Any:
        x, w = leaf(4, 4), leaf(4, 4, start=9)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = function(x, w)
        loss.backward()
        return loss, x.grad, w.grad

    assert_same_story(f, story)


@pytest.mark.parametrize("cache", [True, False])
def test_an_island_without_autocast(cache: bool) -> None:
    """pytorch/pytorch#179804"""

    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = x.float() @ w.float().t()
        return y @ w

    def story(function: Function) -> Any:
        x, w = leaf(4, 4, dtype=torch.bfloat16), leaf(4, 4, start=9)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache):
            result = function(x, w)
        result.float().sum().backward()
        return result, x.grad, w.grad

    assert_same_story(f, story)


def test_second_derivatives_of_a_compiled_function() -> None:
    """pytorch/pytorch#91469"""

    def story(function: Function) -> Any:
        x = leaf(3)
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)

    assert_same_story(lambda x: x * x * x * x, story)


def test_a_gradient_that_the_function_takes_can_be_differentiated() -> None:
    """pytorch/pytorch#183603"""

    def f(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad((x**4).sum(), x, create_graph=True)
        return gradient

    def story(function: Function) -> Any:
        x = leaf(4)
        gradient = function(x)
        return gradient, torch.autograd.grad(gradient.sum(), x)

    assert_same_story(f, story)


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Ranked(torch.autograd.Function):
    """Two results, one of which is not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, order = x.sort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return values, order

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        (order,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(0, order, gradient)


class Unmaterialized(torch.autograd.Function):
    """Notices which of its results are differentiated; saves what is not a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.factor = factor
        return x * factor, x + 1

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> tuple[Tensor | None, None]:
        if first is None:
            return second, None
        return (first * ctx.factor if second is None else first * ctx.factor + second), None


class Viewing(torch.autograd.Function):
    """Makes a view inside, and reads it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.view(-1)
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y * 2


class Reading(torch.autograd.Function):
    """Asks for a value in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * gradient.sum().item()


CUSTOM: dict[str, Function] = {
    "mark_dirty": lambda x: Dirty.apply(x * 1).sin(),
    "mark_dirty on an argument": lambda x: (Dirty.apply(x).sin(), x),
    "mark_non_differentiable": lambda x: Ranked.apply(x * 2),
    "set_materialize_grads": lambda x: Unmaterialized.apply(x * 1, 3.0),
    "a view inside": lambda x: Viewing.apply(x).sin(),
}


@pytest.mark.parametrize("name", CUSTOM)
@pytest.mark.parametrize("differentiate", [None, (0,), (1,)])
def test_what_custom_functions_ask_for(name: str, differentiate: tuple[int, ...] | None) -> None:
    """pytorch/pytorch#118396"""
    assert_agrees(CUSTOM[name], lambda: [non_leaf(3)], grad=True, differentiate=differentiate)


def test_a_custom_backward_that_cannot_be_traced_is_refused_by_name() -> None:
    x = leaf(3)
    with pytest.raises(aot.Unsupported, match="value"):
        aot.aot_function(Reading.apply, checking_nop)(x)
    assert x.grad is None


@pytest.mark.parametrize("activation", [torch.nn.ReLU, torch.nn.LeakyReLU, torch.nn.SiLU, torch.nn.Sigmoid])
def test_an_activation_in_place_of_what_a_backward_needs(activation: type[torch.nn.Module]) -> None:
    """pytorch/pytorch#104943: eager raises, and it does so in the backward."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return activation(inplace=True)(y) if activation is not torch.nn.Sigmoid else y.sigmoid_(), x * 2

    assert_agrees(f, lambda: [leaf(3)], grad=True, backward_raises=True)
    assert_agrees(f, lambda: [leaf(3)], grad=False)


def test_a_detached_part_and_a_backward_from_each() -> None:
    """pytorch/pytorch#97745"""

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x @ w
        return y.sum(), (y.detach() * w).sum(), y

    def story(function: Function) -> Any:
        x, w = leaf(3, 3), leaf(3, 3, start=9)
        first, second, third = function(x, w)
        second.backward()
        first.backward(retain_graph=True)
        third.detach().requires_grad_().sum().backward()
        return x.grad, w.grad, third.requires_grad

    assert_same_story(f, story)


class Counting(torch.autograd.Function):
    """Adds what comes in to a tensor of the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, total: Tensor) -> Tensor:
        ctx.save_for_backward(total)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (total,) = ctx.saved_tensors
        total.add_(gradient)
        return gradient.clone(), None


def _returned(x: Tensor) -> tuple[Tensor, Tensor]:
    total = x.detach().clone()
    return Counting.apply(x, total), total


def _given(x: Tensor, total: Tensor) -> Tensor:
    return Counting.apply(x, total)


@pytest.mark.parametrize("f", [_returned, _given])
def test_a_backward_that_writes_to_a_tensor_of_the_forward_is_refused(f: Function) -> None:
    """pytorch/pytorch#172956"""
    arguments = [leaf(3), values(3)][: 1 if f is _returned else 2]
    with pytest.raises(aot.Unsupported, match="backward writes"):
        aot.aot_function(f, checking_nop)(*arguments)
    assert all(a._version == 0 for a in arguments)


def test_imperative_calls_on_tensors_of_the_function() -> None:
    """pytorch/pytorch#91468, #146212"""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x.retain_grad()
        y = x.clone()
        y.retain_grad()
        hidden = y * x
        hidden.register_hook(lambda g: g * 3.5)
        z = (hidden * hidden).clone()
        z.retain_grad()
        return z, y

    def story(function: Function) -> Any:
        x = non_leaf(3)
        z, y = function(x)
        z.clone().sum().backward()
        return x.grad, y.grad, z.grad

    assert_same_story(f, story)


def test_saved_tensor_hooks_around_the_call() -> None:
    """pytorch/pytorch#116221: what is saved is packed and unpacked, and nothing else is."""

    def story(function: Function) -> Any:
        x, w = leaf(3), leaf(3, start=3)
        packed: list[Any] = []

        def pack(t: Tensor) -> Tensor:
            packed.append(t.clone())
            return t * 2

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t * 5):
            result = function(x, w)
        result.sum().backward()
        return sorted(str(p.tolist()) for p in packed), x.grad, w.grad

    assert_same_story(lambda x, w: x * w, story)


def test_a_detached_alias_of_an_argument_that_is_written_afterwards() -> None:
    """pytorch/pytorch#128035"""

    def f(a: Tensor) -> tuple[Tensor, Tensor]:
        alias = a.detach()
        a.mul_(2)
        return a, alias

    assert_agrees(f, lambda: [non_leaf(3)])


def test_grad_mode_that_is_entered_under_no_grad() -> None:
    """pytorch/pytorch#114338"""

    def f(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x + 1

    assert_agrees(f, lambda: [leaf(3)], grad=False)


def _adds_and_takes_a_row(base: Tensor, part: Tensor) -> Tensor:
    base.add_(100)
    return part[0]


def _adds_and_flattens(base: Tensor, part: Tensor) -> Tensor:
    base.add_(100)
    return part.view(-1)


def _returns_the_part(base: Tensor, part: Tensor) -> Tensor:
    part.mul_(2)
    return part


@pytest.mark.parametrize("f", [_adds_and_takes_a_row, _adds_and_flattens, _returns_the_part])
@pytest.mark.parametrize("make", [values, non_leaf])
def test_a_view_of_a_part_of_an_argument_that_is_written(f: Function, make: Function) -> None:
    """pytorch/pytorch#198095, #167764"""

    def arguments() -> list[Tensor]:
        base = make(4, 6)
        return [base, base[1:]]

    assert_agrees(f, arguments)


def _under_no_grad(x: Tensor) -> None:
    with torch.no_grad():
        x.add_(1)


def _through_detach(x: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x + 1


def _through_data(x: Tensor) -> Tensor:
    x.data.mul_(2)
    return x * x


@pytest.mark.parametrize("make", [values, leaf, non_leaf])
@pytest.mark.parametrize("f", [_under_no_grad, _through_detach, _through_data])
def test_writes_that_autograd_does_not_record(f: Function, make: Function) -> None:
    """pytorch/pytorch#90844, #95167"""
    assert_agrees(f, lambda: [make(3)])


@pytest.mark.parametrize("mode", [True, False])
def test_equal_results_of_which_one_requires_grad(mode: bool) -> None:
    """pytorch/pytorch#114344, #100348: they are tensors of their own."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(mode):
            first = x + 1
        with torch.set_grad_enabled(not mode):
            second = x + 1
        return first, second, first.detach()

    assert_agrees(f, lambda: [leaf(3)])


@pytest.mark.parametrize("make", [values, leaf])
def test_memory_that_passes_from_one_argument_to_another(make: Function) -> None:
    """pytorch/pytorch#113030"""

    def f(x: Tensor, y: Tensor) -> Tensor:
        x.data = y
        y.data = torch.zeros(0)
        return x

    assert_agrees(f, lambda: [values(6), make(6, start=6)], grad=False)


def test_set_and_back_again() -> None:
    """pytorch/pytorch#110842"""

    def f(x: Tensor) -> Tensor:
        before = x.detach()
        x.set_(torch.cat([x, x]))
        result = x * 2
        x.set_(before)
        return result

    assert_agrees(f, lambda: [values(4)])


def test_an_intermediate_that_begins_to_require_grad() -> None:
    """pytorch/pytorch#123713"""

    def f(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = x @ w
        hidden.requires_grad_()
        return (hidden @ v).square().mean()

    assert_agrees(f, lambda: [values(2, 3), leaf(3, 3), leaf(3, 2)])


@pytest.mark.parametrize("make", [values, non_leaf])
def test_a_write_to_every_other_element_of_an_argument(make: Function) -> None:
    """pytorch/pytorch#93363"""
    assert_agrees(lambda x: x.add_(1), lambda: [make(4)[::2]])


def test_a_view_of_a_view_that_is_written_in_turn_with_its_base() -> None:
    """pytorch/pytorch#92129"""

    def f(x: Tensor) -> Tensor:
        part = x[:].as_strided([2, 2], [4, 2], 0)
        part.add_(1)
        x.mul_(2)
        part[1:] = 3
        return part[1::2]

    assert_agrees(f, lambda: [values(2, 4)])
    assert_agrees(f, lambda: [non_leaf(2, 4)])


def test_a_detached_result_beside_parts_of_it() -> None:
    """pytorch/pytorch#194479"""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.sin(x)
        return y[:4], y[4:], y.detach(), y * 1

    assert_agrees(f, lambda: [leaf(8)])


@pytest.mark.parametrize("alias", [lambda y: y.view(-1), lambda y: y.view_as(y), lambda y: y.detach()])
def test_a_result_and_another_that_shows_the_same(alias: Function) -> None:
    """pytorch/pytorch#191449: what happens to the one's metadata afterwards is not the other's affair."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, alias(y)

    assert_agrees(f, lambda: [values(3)])
    assert_agrees(f, lambda: [leaf(3)])


def test_a_view_without_history_of_what_has_one() -> None:
    """pytorch/pytorch#173926"""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        with torch.no_grad():
            view = y[1:]
        return y, view

    assert_agrees(f, lambda: [leaf(3)])


@pytest.mark.parametrize("make", [values, non_leaf])
def test_a_column_is_written(make: Function) -> None:
    """pytorch/pytorch#106456"""

    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    assert_agrees(f, lambda: [make(2, 2)[:, 0]])


def test_an_empty_argument_grows() -> None:
    """pytorch/pytorch#93780"""

    def f(x: Tensor) -> None:
        view = x.view(0)
        x.resize_(20)
        x.fill_(2)
        view.fill_(3)

    assert_agrees(f, lambda: [torch.empty(0)])


class AsItIs(torch.autograd.Function):
    """Returns what it is given, and scales the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("make", [values, leaf, non_leaf])
def test_a_write_to_what_a_custom_function_returns_as_it_is(make: Function, grad: bool) -> None:
    """pytorch/pytorch#194534"""

    def f(x: Tensor) -> Tensor:
        y = AsItIs.apply(x)
        with torch.no_grad():
            y.mul_(2)
        return x.sin()

    assert_agrees(f, lambda: [make(3)], grad=grad)


def test_one_of_several_views_is_written_without_grad_mode() -> None:
    """pytorch/pytorch#195359"""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        parts = x.unbind()
        with torch.no_grad():
            parts[0].mul_(2)
        parts[1].data.add_(1)
        return parts

    assert_agrees(f, lambda: [values(2, 3)])
    assert_agrees(f, lambda: [non_leaf(2, 3)])


def test_writes_between_views_of_arguments_that_share_memory() -> None:
    """pytorch/pytorch#113793: blocks of a matrix, each preconditioned in place."""

    def f(*blocks: Tensor) -> None:
        for block in blocks:
            block.view(-1).mul_(2)
            block.add_(block.t() @ block)

    def make() -> list[Tensor]:
        whole = values(8, 2)
        return [whole[i : i + 2] for i in range(0, 8, 2)]

    assert_agrees(f, make)


def test_a_batch_norm_that_a_checkpoint_runs_again_is_refused() -> None:
    """pytorch/pytorch#96136: eager's backward moves the running statistics a second time, in the caller's
    memory."""

    def f(x: Tensor, w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        def block(x: Tensor, w: Tensor) -> Tensor:
            return torch.nn.functional.batch_norm(x @ w, mean, variance, training=True).sin()

        return torch.utils.checkpoint.checkpoint(block, x, w, use_reentrant=False)  # type: ignore[no-any-return]

    mean, variance = torch.zeros(3), torch.ones(3)
    with pytest.raises(aot.Unsupported, match="checkpoint"):
        aot.aot_function(f, checking_nop)(values(4, 3), leaf(3, 3), mean, variance)
    assert torch.equal(mean, torch.zeros(3))
    assert torch.equal(variance, torch.ones(3))
    assert_agrees(f, lambda: [values(4, 3), leaf(3, 3), torch.zeros(3), torch.ones(3)], grad=False)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_argument_that_is_resized_is_refused_as_what_it_is() -> None:
    """pytorch/pytorch#113707"""
    argument = torch.quantize_per_tensor(torch.arange(5.0), 0.1, 10, torch.qint8)
    with pytest.raises(aot.Unsupported, match="is quantized"):
        aot.aot_function(lambda x: x.resize_(10), checking_nop)(argument)
    assert argument.shape == (5,)


def test_a_backward_hook_that_a_module_gets_later() -> None:
    """pytorch/pytorch#115750, #117265"""
    layer = torch.nn.Linear(3, 3, bias=False)

    def f(w: Tensor, x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": w}, (x,))

    compiled = aot.aot_function(f, checking_nop)

    def gradient() -> Tensor:
        x = leaf(3)
        compiled(torch.eye(3), x).sum().backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(gradient(), torch.ones(3))
    handle = layer.register_full_backward_hook(lambda module, inputs, outputs: [g * 2 for g in inputs])
    assert torch.equal(gradient(), torch.full((3,), 2.0))
    handle.remove()
    assert torch.equal(gradient(), torch.ones(3))


class Shifted(torch.autograd.Function):
    """The same tensor twice."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b + a + b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return gradient * (b + 1), gradient * (a + 1)


def test_a_custom_function_that_gets_one_tensor_twice() -> None:
    """pytorch/pytorch#183604"""
    assert_agrees(lambda x: Shifted.apply(x, x), lambda: [leaf(3)])


def test_arguments_that_come_apart_first_and_overlapping_then() -> None:
    """pytorch/pytorch#139789"""

    def scaled(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(3)
        return x - y

    compiled = aot.aot_function(scaled, checking_nop)
    for function in (scaled, compiled):
        function(values(4), values(4, start=4))
    bases = [values(7), values(7)]
    results = [f(base[:4], base[2:6]) for f, base in zip((scaled, compiled), bases, strict=True)]
    assert torch.equal(*results)
    assert torch.equal(*bases)
    assert len(compiled.specializations) == 2


def test_a_transposed_view_of_an_argument_that_is_written_to() -> None:
    """pytorch/pytorch#111417"""

    def turned(x: Tensor) -> Tensor:
        view = x.t()
        view.add_(1)
        return view

    assert_agrees(turned, lambda: [values(2, 3)])
    assert_agrees(turned, lambda: [non_leaf(2, 3)], grad=True)


class Joining(torch.autograd.Function):
    """Puts one gradient where the other was."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, x * 2

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first.add_(second)


def test_a_backward_that_writes_to_its_gradient() -> None:
    """pytorch/pytorch#141111: refused where the caller may hold that gradient, and right elsewhere."""
    with pytest.raises(aot.Unsupported, match="return a new one"):
        aot.aot_function(Joining.apply, aot.nop)(leaf(3))
    assert_agrees(lambda x: sum(part.sin() for part in Joining.apply(x)), lambda: [leaf(3)], grad=True)
