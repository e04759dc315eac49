"""Programs as people write them, forward and backward, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agree import assert_agrees, leaf, non_leaf, values
from torch import Tensor
from torch.nn import functional

Program = tuple[Callable[..., Any], Callable[..., list[Any]]]
PROGRAMS: dict[str, Program] = {}


def program(*make: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note a program and how its arguments are made; each maker takes the floating dtype."""

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = (function, lambda dtype: [one(dtype) for one in make])
        return function

    return note


def w(*size: int, start: int = 0) -> Callable[[torch.dtype], Tensor]:
    """A parameter."""
    return lambda dtype: leaf(*size, dtype=dtype, start=start)


def h(*size: int, start: int = 0) -> Callable[[torch.dtype], Tensor]:
    """An activation: something computed."""
    return lambda dtype: non_leaf(*size, dtype=dtype, start=start)


def d(*size: int, start: int = 0) -> Callable[[torch.dtype], Tensor]:
    """Data, or a buffer."""
    return lambda dtype: values(*size, dtype=dtype, start=start)


def i(*numbers: int) -> Callable[[torch.dtype], Tensor]:
    """Indices."""
    return lambda dtype: torch.tensor(numbers)


def run_mean(x: Tensor, buffer: Tensor) -> None:
    with torch.no_grad():
        buffer.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)


@program(d(4, 3), w(5, 3), w(5), w(2, 5), w(2))
def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return functional.linear(functional.linear(x, w1, b1).relu(), w2, b2)


@program(d(4, 3), w(5, 3), w(2, 5), i(0, 1, 1, 0))
def classifier(x: Tensor, w1: Tensor, w2: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(torch.tanh(x @ w1.t()) @ w2.t(), target)


@program(d(4, 3), w(5, 3), w(3, 5))
def autoencoder(x: Tensor, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    code = functional.gelu(x @ down.t())
    return functional.mse_loss(code @ up.t(), x), code


@program(d(2, 2, 4, 4), w(3, 2, 3, 3), w(3), w(3), w(3), d(3), lambda dtype: torch.ones(3, dtype=dtype))
def conv_and_batch_norm(
    x: Tensor, kernel: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    y = functional.conv2d(x, kernel, bias, padding=1)
    return functional.batch_norm(y, mean, var, gain, shift, training=True, momentum=0.1).relu()


@program(d(4, 3), w(3), d(3), lambda dtype: torch.ones(3, dtype=dtype), lambda dtype: torch.tensor(0))
def batch_norm_with_a_counter(x: Tensor, gain: Tensor, mean: Tensor, var: Tensor, count: Tensor) -> Tensor:
    count.add_(1)
    return functional.batch_norm(x, mean, var, gain, training=True)


@program(h(4, 3), w(3), d(3), lambda dtype: torch.ones(3, dtype=dtype))
def batch_norm_in_evaluation(x: Tensor, gain: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, var, gain, training=False)


@program(h(2, 4, 3, 3), w(4), w(4))
def group_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return functional.group_norm(x, 2, gain, shift)


@program(h(2, 3, 4))
def instance_norm(x: Tensor) -> Tensor:
    return functional.instance_norm(x)


@program(h(4, 3), w(3), w(3))
def layer_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return functional.layer_norm(x, (3,), gain, shift)


@program(h(4, 3), w(3))
def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gain


@program(w(2, 3, 4), w(2, 3, 4, start=5), w(2, 3, 4, start=9))
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@program(h(2, 3, 4), w(12, 4), w(4, 4))
def attention_by_hand(x: Tensor, w_in: Tensor, w_out: Tensor) -> Tensor:
    q, k, v = (x @ w_in.t()).chunk(3, -1)
    q, k, v = (t.view(2, 3, 2, 2).transpose(1, 2) for t in (q, k, v))
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(torch.ones(3, 3).tril() == 0, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 3, 4) @ w_out.t()


@program(w(5, 3), i(0, 4, 4, 2))
def embedding(table: Tensor, tokens: Tensor) -> Tensor:
    return functional.embedding(tokens, table).sum(0)


@program(w(5, 3), i(0, 4, 4, 2))
def embedding_with_padding(table: Tensor, tokens: Tensor) -> Tensor:
    return functional.embedding(tokens, table, padding_idx=4)


@program(w(5, 3), i(0, 4, 4, 2), i(0, 2))
def embedding_bag(table: Tensor, tokens: Tensor, offsets: Tensor) -> Tensor:
    return functional.embedding_bag(tokens, table, offsets, mode="mean")


@program(h(2, 3), h(2, 3), w(12, 3), w(12, 3), w(12))
def lstm_cell(x: Tensor, state: Tensor, w_in: Tensor, w_state: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    a, b, c, e = (x @ w_in.t() + state @ w_state.t() + bias).chunk(4, 1)
    cell = a.sigmoid() * state + b.sigmoid() * c.tanh()
    return e.sigmoid() * cell.tanh(), cell


@program(h(2, 3), h(2, 4), w(12, 3), w(12, 4), w(12), w(12))
def gru_cell(x: Tensor, state: Tensor, w1: Tensor, w2: Tensor, b1: Tensor, b2: Tensor) -> Tensor:
    return torch.gru_cell(x, state, w1, w2, b1, b2)


@program(h(3, 1, 2), w(1, 1, 2), w(1, 1, 2), w(8, 2), w(8, 2))
def lstm(x: Tensor, state: Tensor, cell: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, ...]:
    return torch.lstm(x, (state, cell), (w1, w2), False, 1, 0.0, True, False, False)


@program(d(3, 2), w(4, 2), w(4, 4), w(4))
def recurrent_loop(xs: Tensor, w_in: Tensor, w_state: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    state = torch.zeros(4, dtype=xs.dtype)
    states = []
    for x in xs:
        state = torch.tanh(w_in @ x + w_state @ state + bias)
        states.append(state)
    return torch.stack(states), state


@program(h(1, 2, 4, 4))
def pooling(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    best, where = functional.max_pool2d(x, 2, return_indices=True)
    return best, functional.avg_pool2d(x, 2), functional.max_unpool2d(best, where, 2)


@program(h(1, 2, 3, 3))
def resizing(x: Tensor) -> tuple[Tensor, Tensor]:
    return (
        functional.interpolate(x, scale_factor=2, mode="nearest"),
        functional.interpolate(x, size=5, mode="bilinear", align_corners=False),
    )


@program(h(2, 3))
def padding(x: Tensor) -> tuple[Tensor, Tensor]:
    return functional.pad(x, (1, 2)), functional.pad(x[None], (1, 1), mode="reflect")


@program(h(3, 4))
def cumulative_products(x: Tensor) -> tuple[Tensor, ...]:
    return x.cumprod(0), x.prod(), x.prod(1), x.cumsum(1), x.logcumsumexp(0)


@program(h(4))
def a_product_with_a_zero(x: Tensor) -> Tensor:
    return (x * torch.tensor([1.0, 0.0, 2.0, 1.0])).prod()


@program(h(3, 4))
def cumulative_extrema(x: Tensor) -> tuple[Tensor, ...]:
    return *x.cummax(0), *x.cummin(1)


@program(h(5), h(2), i(3, 1))
def index_put(x: Tensor, new: Tensor, where: Tensor) -> Tensor:
    x[where] = new
    return x * 2


@program(h(5), h(4), i(3, 1, 1, 3))
def index_put_accumulating(x: Tensor, new: Tensor, where: Tensor) -> Tensor:
    x.index_put_((where,), new, accumulate=True)
    return x * 2


@program(h(3, 4), h(2, 4), i(2, 0))
def index_operations(x: Tensor, new: Tensor, where: Tensor) -> tuple[Tensor, ...]:
    return (
        x.index_select(0, where),
        x.index_add(0, where, new, alpha=2),
        x.index_copy(0, where, new),
        x.index_fill(0, where, 7.0),
        x.take(where),
    )


@program(h(3, 4), h(2, 4))
def scatter(x: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    where = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 1]])
    y = x.scatter(0, where, new)
    x.scatter_add_(0, where, new)
    return y, x * 2


@program(h(3, 4))
def gather(x: Tensor) -> Tensor:
    return x.gather(1, torch.tensor([[0, 0], [3, 1], [2, 2]]))


@program(h(3, 4), h(3, 4, start=5))
def where_and_masks(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.where(x > y, x, y * 2), x.masked_fill(y < 0, 3.0), torch.where(x > 0, x, 0.0)


@program(h(3, 4))
def sorting(x: Tensor) -> tuple[Tensor, ...]:
    return *x.sort(1, descending=True), *x.topk(2, 0), *x.kthvalue(2, 1), *x.median(0)


@program(h(3, 4))
def reductions(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.mean(0),
        x.var(1),
        x.std(),
        x.norm(),
        x.logsumexp(0),
        x.amax(1),
        x.amin(0),
        x.max(),
        x.sum((0, 1)),
    )


@program(h(3, 4))
def soft_functions(x: Tensor) -> tuple[Tensor, ...]:
    return x.softmax(0), x.log_softmax(1), functional.softplus(x), functional.silu(x), functional.elu(x)


@program(h(3, 4))
def hard_functions(x: Tensor) -> tuple[Tensor, ...]:
    return (
        functional.leaky_relu(x, 0.1),
        functional.hardtanh(x),
        x.clamp(-1, 1),
        x.clamp_min(0.5),
        functional.hardswish(x),
        x.abs(),
        x.sign(),
        x.relu(),
    )


@program(h(4), h(4, start=5))
def losses(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        functional.l1_loss(x, y),
        functional.smooth_l1_loss(x, y),
        functional.huber_loss(x, y),
        functional.kl_div(x.log_softmax(0), y.softmax(0), reduction="sum"),
        functional.binary_cross_entropy_with_logits(x, y.sigmoid()),
        functional.cosine_similarity(x, y, dim=0),
    )


@program(h(2, 3), h(3, 4), h(2, 4), h(4))
def products(a: Tensor, b: Tensor, c: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return torch.addmm(c, a, b), a @ b @ v, torch.einsum("ij,jk->ki", a, b), torch.outer(v, v), v.dot(v)


@program(h(2, 2, 3), h(2, 3, 2))
def batched_products(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return a.bmm(b), torch.baddbmm(a[:, :, :2], a, b), torch.tensordot(a, b, dims=([2], [1]))


@program(h(2, 2))
def linear_algebra(x: Tensor) -> tuple[Tensor, ...]:
    a = x @ x.t() + 3 * torch.eye(2, dtype=x.dtype)
    return torch.linalg.inv(a), torch.linalg.det(a), torch.linalg.cholesky(a), torch.linalg.solve(a, x)


@program(h(2, 3), h(2, 3, start=7))
def joining(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return torch.cat([x, y]), torch.stack([x, y], 1), torch.cat([x, y[:, :1]], 1), torch.hstack((x, y))


@program(h(4, 6))
def splitting(x: Tensor) -> tuple[Any, ...]:
    a, b = x.chunk(2)
    c, e, f = x.split([1, 2, 3], 1)
    return a * b, c.sum() * f, x.tensor_split(3), e.unbind(1)


@program(h(2, 3, 4))
def rearranging(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.permute(2, 0, 1).flatten(1),
        x.transpose(0, 2).reshape(4, 6),
        x.flip(0),
        x.roll(1, 2),
        x.repeat(1, 2, 1),
    )


@program(h(3, 3))
def diagonals(x: Tensor) -> tuple[Tensor, ...]:
    y = x.triu() + x.tril(-1)
    y.diagonal().mul_(2)
    return y, torch.diag_embed(x[0]), x.trace(), x.diagonal(1)


@program(h(3), h(3, start=3), h(2, 2))
def foreach(a: Tensor, b: Tensor, c: Tensor) -> tuple[Any, ...]:
    sums = torch._foreach_add([a, b], 1.0)
    products = torch._foreach_mul([a, c], [2.0, 3.0])
    return sums, products, torch._foreach_norm([a, b, c])


@program(d(3), d(3, start=3), d(2, 2), d(2, 2, start=9))
def foreach_in_place(a: Tensor, b: Tensor, c: Tensor, e: Tensor) -> Tensor:
    torch._foreach_mul_([a, c], 0.9)
    torch._foreach_add_([a, c], [b, e], alpha=0.1)
    torch._foreach_sqrt_([b.abs_(), e.abs_()])
    return a + b


@program(d(3), d(3), d(3))
def out_variants(x: Tensor, y: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    torch.add(x, y, out=out)
    other = torch.empty(3, dtype=x.dtype)
    torch.mul(out, 2, out=other)
    return other, torch.cat([x, y], out=torch.empty(6, dtype=x.dtype))


@program(h(3, 2))
def out_with_several_results(x: Tensor) -> tuple[Tensor, Tensor]:
    best, where = torch.empty(2, dtype=x.dtype), torch.empty(2, dtype=torch.int64)
    torch.max(x.detach(), 0, out=(best, where))
    return best * x, where


@program(h(3))
def literals(x: Tensor) -> Tensor:
    weights = torch.tensor([0.5, 1.5, 2.5])
    weights[0] = 3.0
    return x * weights + torch.tensor(2) + torch.as_tensor([1.0, 2.0, 3.0])


@program(h(3))
def literals_that_are_returned(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = torch.tensor([1.0, 2.0])
    return a, a[1:], torch.zeros(2)


@program(h(3))
def creation(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.arange(3) * x,
        torch.ones_like(x) + torch.full((3,), 2.0),
        torch.linspace(0, 1, 3) * x,
        x.new_zeros(2),
        torch.eye(3) @ x.float(),
        torch.zeros_like(x).add_(x),
    )


@program(h(3))
def conversions(x: Tensor) -> tuple[Tensor, ...]:
    return x.double() * 2, x.to(torch.float16), x.to(x.dtype), x.type_as(x), x.int(), x.bool(), x.to("cpu")


@program(h(2, 3))
def copies(x: Tensor) -> tuple[Tensor, ...]:
    return x.clone(), x.contiguous(), x.t().contiguous(), torch.empty_like(x).copy_(x), x + 0


@program(h(2, 3, 2, 2))
def memory_formats(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.contiguous(memory_format=torch.channels_last)
    return y, y * 2


@program(h(4), h(4, start=4))
def arithmetic(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x / y,
        x.detach() // 2,
        x % 2,
        -x,
        x**2,
        2**x,
        x - y * 2,
        1 / y,
        torch.lerp(x, y, 0.3),
        torch.addcmul(x, x, y),
    )


@program(h(4), h(4, start=4))
def in_place_arithmetic(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 1
    z += y
    z *= 2
    z /= 3
    z -= 1
    z **= 2
    x.addcmul_(z, y, value=0.5).lerp_(y, 0.25)
    return z, x + 1


@program(h(4), h(4, start=4))
def comparisons(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x > y, x.eq(y), torch.maximum(x, y), torch.isclose(x, y), (x > 0) & ~(y > 0), x.isnan().any()


@program(d(4), d(4, start=4), d(4, start=8))
def sgd_step(parameter: Tensor, gradient: Tensor, momentum: Tensor) -> None:
    momentum.mul_(0.9).add_(gradient)
    parameter.add_(momentum, alpha=-0.1)


@program(
    w(4),
    d(4, start=4),
    d(4, start=8),
    lambda dtype: torch.ones(4, dtype=dtype),
    lambda dtype: torch.tensor(1.0),
)
def adam_step(parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: Tensor) -> None:
    with torch.no_grad():
        step += 1
        first.lerp_(gradient, 0.1)
        second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        parameter.addcdiv_(first, second.sqrt().add_(1e-8), value=-0.01)


@program(w(3, 2), d(3))
def training_step(weight: Tensor, x: Tensor) -> Tensor:
    loss = (x @ weight).pow(2).sum()
    (gradient,) = torch.autograd.grad(loss, weight) if loss.requires_grad else (torch.zeros_like(weight),)
    with torch.no_grad():
        weight.sub_(gradient, alpha=0.1)
    return loss.detach()


@program(d(3, 4), d(4))
def exponential_moving_average(x: Tensor, mean: Tensor) -> Tensor:
    run_mean(x, mean)
    return x - mean


@program(w(3), w(4, 3), w(4))
def weight_normalization(g: Tensor, v: Tensor, x: Tensor) -> Tensor:
    return x @ (v * (g / v.norm(dim=0)))


@program(w(2, 4, 4), h(1, 1, 4))
def key_value_cache(cache: Tensor, new: Tensor) -> Tensor:
    with torch.no_grad():
        cache[0, 2:3].copy_(new[0])
        cache[1:, :1] = new
    return (cache * new).sum(-1)


@program(h(4, 6))
def rotary_embedding(x: Tensor) -> Tensor:
    first, second = x[..., ::2], x[..., 1::2]
    angle = torch.arange(4).unsqueeze(1) * torch.tensor([1.0, 0.1, 0.01])
    return torch.stack(
        (first * angle.cos() - second * angle.sin(), first * angle.sin() + second), -1
    ).flatten(-2)


@program(h(2, 3), h(2, 3, start=7))
def complex_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.complex(x.detach(), y.detach())
    return z.abs(), z + 1


@program(h(8))
def fourier(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.fft.rfft(x.detach()), torch.fft.fftshift(x)


@program(h(2, 4))
def einops_by_views(x: Tensor) -> Tensor:
    y = x.view(2, 2, 2).transpose(1, 2)
    y.add_(1)
    return y.reshape(2, 4)


@program(h(3), lambda dtype: 2.5, lambda dtype: {"scale": 3, "name": "x"})
def constants_in_and_out(x: Tensor, factor: float, options: dict[str, Any]) -> dict[str, Any]:
    return {"y": x * factor * options["scale"], "name": options["name"], "none": None, "list": [1, 2.0, True]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, make = PROGRAMS[name]
    assert_agrees(function, lambda: make(torch.float32), double=lambda: make(torch.float64))
