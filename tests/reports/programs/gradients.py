"""Reports about gradients, and about what is around a call and its backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import aot
from oracles import Backward
from tests.reports.report import Program, Report, Stock, Story
from tests.support.agreement import assert_agrees, checking_nop, leaf, non_leaf, values

DOUBLE = (Backward(how="double"),)


def _sines(*xs: Tensor) -> list[Tensor]:
    return [x.sin() for x in xs]


def _with_a_pooler(x: Tensor, w: Tensor, pooler: Tensor) -> tuple[Tensor, Tensor]:
    hidden = (x @ w).relu()
    return hidden, hidden @ pooler


def _computes_only_what_is_differentiated() -> None:
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


def _an_optimizer_leaves_the_pooler_alone(function: Callable[..., Any]) -> Any:
    """With zeros, its weight decay or momentum would move it."""
    w, pooler = leaf(3, 3), leaf(3, 3, start=9)
    optimizer = torch.optim.AdamW([w, pooler], lr=0.1, weight_decay=0.5)
    for step in range(2):
        optimizer.zero_grad()
        function(values(2, 3, start=step), w, pooler)[0].square().sum().backward()
        optimizer.step()
    return w, pooler, pooler.grad


def _part_without_gradient(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, (x > 0).float()


def _fourth_power(x: Tensor) -> Tensor:
    return x * x * x * x


def _slope_of_the_fourth_power(x: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad((x**4).sum(), x, create_graph=True)
    return gradient


def _slope_of(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = activation(torch.addmm(w, x, w))
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return gradient, gradient.square().sum()

    return f


def _square_matrices() -> list[Tensor]:
    return [leaf(3, 3), leaf(3, 3, start=4)]


def _normalizes_twice(x: Tensor, w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    def block(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x @ w, mean, variance, training=True).sin()

    return torch.utils.checkpoint.checkpoint(block, x, w, use_reentrant=False)  # type: ignore[no-any-return]


def _batch() -> list[Tensor]:
    return [values(4, 3), leaf(3, 3), torch.zeros(3), torch.ones(3)]


def _normalizes(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return torch.nn.functional.batch_norm(x, mean, variance, training=True)


def _overflowing_loss(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).float().pow(2).sum() * 1e6


def _forward_alone_under_autocast(function: Callable[..., Any]) -> Any:
    x, w = leaf(4, 4), leaf(4, 4, start=9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = function(x, w)
    loss.backward()
    return loss, x.grad, w.grad


def _island_without_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        y = x.float() @ w.float().t()
    return y @ w


def _under_autocast(cache: bool) -> Story:
    def story(function: Callable[..., Any]) -> Any:
        x, w = leaf(4, 4, dtype=torch.bfloat16), leaf(4, 4, start=9)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache):
            result = function(x, w)
        result.float().sum().backward()
        return result, x.grad, w.grad

    return story


def _with_a_detached_part(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x @ w
    return y.sum(), (y.detach() * w).sum(), y


def _a_backward_from_each(function: Callable[..., Any]) -> Any:
    x, w = leaf(3, 3), leaf(3, 3, start=9)
    first, second, third = function(x, w)
    second.backward()
    first.backward(retain_graph=True)
    third.detach().requires_grad_().sum().backward()
    return x.grad, w.grad, third.requires_grad


def _retains_and_hooks(x: Tensor) -> tuple[Tensor, Tensor]:
    x.retain_grad()
    y = x.clone()
    y.retain_grad()
    hidden = y * x
    hidden.register_hook(lambda g: g * 3.5)
    z = (hidden * hidden).clone()
    z.retain_grad()
    return z, y


def _reads_retained_gradients(function: Callable[..., Any]) -> Any:
    x = non_leaf(3)
    z, y = function(x)
    z.clone().sum().backward()
    return x.grad, y.grad, z.grad


def _under_saved_tensor_hooks(function: Callable[..., Any]) -> Any:
    """What is saved is packed and unpacked, and nothing else is."""
    x, w = leaf(3), leaf(3, start=3)
    packed: list[Any] = []

    def pack(t: Tensor) -> Tensor:
        packed.append(t.clone())
        return t * 2

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t * 5):
        result = function(x, w)
    result.sum().backward()
    return sorted(str(p.tolist()) for p in packed), x.grad, w.grad


_LAYER = torch.nn.Linear(3, 3, bias=False)


def _calls_a_layer(w: Tensor, x: Tensor) -> Tensor:
    return torch.func.functional_call(_LAYER, {"weight": w}, (x,))


def _the_layer_gets_a_backward_hook_for_a_while(function: Callable[..., Any]) -> Any:
    def gradient() -> Tensor:
        x = leaf(3)
        function(torch.eye(3), x).sum().backward()
        assert x.grad is not None
        return x.grad

    before = gradient()
    handle = _LAYER.register_full_backward_hook(lambda module, inputs, outputs: [g * 2 for g in inputs])
    try:
        during = gradient()
    finally:
        handle.remove()
    return before, during, gradient()


def _a_layers_gradients_are_doubled_while_it_has_a_hook() -> None:
    told = _the_layer_gets_a_backward_hook_for_a_while(aot.aot_function(_calls_a_layer, checking_nop))
    assert [gradient.tolist() for gradient in told] == [[1.0] * 3, [2.0] * 3, [1.0] * 3]


def _decodes(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    latent = (x @ w).tanh()
    apart = x.exp()
    return (latent @ v).sin(), latent, apart


def _loss_on_the_sensitivity_to_latents(function: Callable[..., Any]) -> Any:
    x, w, v = leaf(4, 3), leaf(3, 2), leaf(2, 3, start=9)
    result, latent, apart = function(x, w, v)
    some = torch.autograd.grad(result.sum(), [latent, apart, w], retain_graph=True, allow_unused=True)
    (sensitivity,) = torch.autograd.grad(result.sum(), latent, create_graph=True)
    (result.mean() + sensitivity.square().mean()).backward()
    return some, sensitivity, x.grad, w.grad, v.grad


def _drops(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x @ w, 0.5).sin() @ w


def _adds_noise(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return (y * torch.randn_like(y)).sin() * torch.bernoulli(y.sigmoid())


def _matrices(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [leaf(4, 4, dtype=dtype), leaf(4, 4, dtype=dtype, start=5)]


def _a_draw_is_made_once(f: Callable[..., Tensor], budget: float) -> None:
    partition = functools.partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
    for functionalize in (False, True):
        assert_agrees(
            f,
            _matrices,
            grad=True,
            double=lambda: _matrices(torch.float64),
            partition=partition,
            functionalize_rng_ops=functionalize,
        )


REPORTS = (
    Report(
        153044,
        "an overflow that only autocast in the backward would cause",
        Program(_overflowing_loss, story=_forward_alone_under_autocast),
        since=(2, 13),
    ),
    Report(
        179804,
        "a part of the function is without autocast",
        Program(_island_without_autocast, story=_under_autocast(cache=True)),
        since=(2, 13),
        variants=(Program(_island_without_autocast, story=_under_autocast(cache=False)),),
    ),
    Report(
        97745,
        "one result is made of a detached part of another, and a backward starts from each",
        Program(_with_a_detached_part, story=_a_backward_from_each),
        Stock("raises", "raises"),
        since=(2, 13),
        as_reported=False,
    ),
    Report(
        91468,
        "gradients are retained and hooked inside",
        Program(_retains_and_hooks, lambda: [non_leaf(3)]),
        Stock("input-metadata", "right"),
        since=(2, 13),
        as_reported=False,
        variants=(Program(_retains_and_hooks, story=_reads_retained_gradients),),
        also=(146212,),
    ),
    Report(
        116221,
        "hooks for saved tensors around the call",
        Program(torch.mul, story=_under_saved_tensor_hooks),
        since=(2, 13),
    ),
    Report(
        115750,
        "a module gets a backward hook later",
        Program(_calls_a_layer, story=_the_layer_gets_a_backward_hook_for_a_while),
        Stock("values", "values"),
        since=(2, 13),
        as_reported=False,
        checks=(_a_layers_gradients_are_doubled_while_it_has_a_hook,),
        also=(117265,),
    ),
    Report(
        132929,
        "a gradient of one result with respect to another",
        Program(_decodes, story=_loss_on_the_sensitivity_to_latents),
        Stock("raises", "raises"),
        since=(2, 13),
        as_reported=False,
    ),
    Report(
        190758,
        "a draw is made once, whatever the memory budget of the backward",
        Program(_drops, _matrices, grad=True),
        Stock("randomness", "right"),
        since=(2, 13),
        as_reported=False,
        variants=(Program(_adds_noise, _matrices, grad=True),),
        checks=tuple(
            functools.partial(_a_draw_is_made_once, f, budget)
            for f in (_drops, _adds_noise)
            for budget in (0, 0.005, 0.3, 0.5, 0.9, 1)
        ),
        also=(190717,),
    ),
    Report(
        131794,
        "an argument whose result is not differentiated gets zeros for a gradient",
        Program(_sines, lambda: [leaf(3, start=k) for k in range(3)], differentiate=(0,)),
        Stock("gradients", "gradients"),
        checks=(_computes_only_what_is_differentiated,),
        also=(186355,),
    ),
    Report(
        1102,
        "a layer whose result goes nowhere gets zeros for a gradient",
        Program(_with_a_pooler, lambda: [values(2, 3), leaf(3, 3), leaf(3, 3, start=9)], differentiate=(0,)),
        Stock("gradients", "gradients"),
        variants=(Program(_with_a_pooler, story=_an_optimizer_leaves_the_pooler_alone),),
        repository="pytorch/torchdynamo",
    ),
    Report(
        373,
        "not all results require grad",
        Program(_part_without_gradient, lambda: [leaf(4)]),
        repository="pytorch/functorch",
    ),
    Report(
        91469,
        "second derivatives of a compiled function",
        Program(_fourth_power, lambda: [leaf(3)], grad=True, steps=DOUBLE),
        Stock("double-backward", "double-backward"),
    ),
    Report(
        183603,
        "a gradient that the function takes is differentiated",
        Program(_slope_of_the_fourth_power, lambda: [leaf(4)], grad=True),
        Stock("right", "raises"),
        needs=None,
    ),
    Report(
        181581,
        "a gradient that the function takes has a history",
        Program(_slope_of(torch.relu), _square_matrices, grad=True),
        Stock("autograd-metadata", "gradients"),
        older=Stock("autograd-metadata", "autograd-metadata"),
        needs=None,
        variants=(
            Program(_slope_of(torch.nn.functional.leaky_relu), _square_matrices, grad=True),
            Program(_slope_of(torch.sin), _square_matrices, grad=True),
        ),
    ),
    Report(
        96136,
        "a checkpoint runs a batch norm again, which moves its statistics twice",
        Program(_normalizes_twice, _batch, grad=True),
        Stock("aliasing", "aliasing"),
        as_reported=False,
        variants=(Program(_normalizes_twice, _batch, grad=False),),
    ),
    Report(
        128198,
        "running statistics count their versions as in eager",
        Program(_normalizes, lambda: [leaf(4, 3), torch.zeros(3), torch.ones(3)]),
        Stock("versions", "versions"),
        needs=None,
    ),
)
