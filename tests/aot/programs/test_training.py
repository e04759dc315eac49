"""Whole models trained for five steps: losses, weights, buffers and random state are those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import functorch.compile
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import aot
from bench.compiler.models import HUB_MODELS, MODELS, Model
from tests.support.agreement import PARTITIONERS, checking_nop

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("values")]

TORCHS: dict[str, Callable[..., Any]] = {
    "torch's default": functorch.compile.default_partition,
    "torch's min-cut": functorch.compile.min_cut_rematerialization_partition,
}


def train(model: Model, step: Callable[..., Tensor]) -> list[Tensor]:
    """Everything that five steps of Adam leave behind."""
    torch.manual_seed(1)
    parameters, buffers = model.state()
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = step(parameters, buffers, *model.batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *parameters.values(), *buffers.values(), torch.get_rng_state()]


def assert_trains_as_eager(make: Callable[[], Model], partitioner: str) -> None:
    """Bit for bit, because the same kernels run."""
    torch.manual_seed(0)
    model = make()
    partition = {**PARTITIONERS, **TORCHS}[partitioner]
    compiled = aot.aot_function(model.step, checking_nop, partition_fn=partition)
    eager, ours = train(model, model.step), train(model, compiled)
    assert len({loss.item() for loss in eager[:5]}) == 5
    for expected, value in zip(eager, ours, strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
    (specialization,) = compiled.specializations
    assert specialization.backwards


@pytest.mark.parametrize("partitioner", [*PARTITIONERS, *TORCHS])
@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_in_eager(name: str, partitioner: str) -> None:
    assert_trains_as_eager(MODELS[name][0], partitioner)


def train_against_a_critic(
    compiled: Callable[[Callable[..., Tensor]], Callable[..., Tensor]],
) -> list[Tensor]:
    """Everything that five steps of a WGAN with gradient penalty leave behind (arXiv:1704.00028): the penalty
    is a gradient that is differentiated again."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    critic = nn.Sequential(nn.Linear(5, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    weights = {n: p.detach().clone().requires_grad_() for n, p in generator.named_parameters()}
    buffers = {n: b.clone() for n, b in generator.named_buffers()}
    scales = {n: p.detach().clone().requires_grad_() for n, p in critic.named_parameters()}
    make = compiled(lambda weights, buffers, noise: functional_call(generator, (weights, buffers), (noise,)))
    judge = compiled(lambda scales, x: functional_call(critic, scales, (x,)))
    of_generator = torch.optim.Adam(weights.values(), lr=1e-2)
    of_critic = torch.optim.Adam(scales.values(), lr=1e-2)
    losses = []
    for _ in range(5):
        real, fake = torch.randn(6, 5), make(weights, buffers, torch.randn(6, 3)).detach()
        between = torch.lerp(real, fake, torch.rand(6, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(scales, between).sum(), between, create_graph=True)
        penalty = (slope.norm(2, 1) - 1).square().mean()
        loss = judge(scales, fake).mean() - judge(scales, real).mean() + 10 * penalty
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        fooled = -judge(scales, make(weights, buffers, torch.randn(6, 3))).mean()
        of_generator.zero_grad()
        fooled.backward()
        of_generator.step()
        losses += [loss.detach(), fooled.detach(), penalty.detach()]
    return [*losses, *weights.values(), *buffers.values(), *scales.values()]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_gradient_penalty_trains_as_in_eager(partitioner: str) -> None:
    def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return aot.aot_function(function, checking_nop, partition_fn=PARTITIONERS[partitioner])

    eager, ours = train_against_a_critic(lambda function: function), train_against_a_critic(compiled)
    assert len({loss.item() for loss in eager[:15]}) == 15
    for expected, value in zip(eager, ours, strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)


@pytest.mark.nightly
@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("name", HUB_MODELS)
def test_models_of_transformers_train_as_in_eager(name: str, partitioner: str) -> None:
    assert_trains_as_eager(HUB_MODELS[name][0], partitioner)
