"""Layers, losses and training steps as people write them, forward and backward, against eager."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.agreement import assert_agrees
from tests.support.aot.programs import Programs, d, h, i, w

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("values")]

program = Programs()


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


@pytest.mark.parametrize("name", program)
def test_programs(name: str) -> None:
    function, make = program[name]
    assert_agrees(function, lambda: make(torch.float32), double=lambda: make(torch.float64))
