"""Networks and whole steps of training below autocast, and what is refused there."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import aot
from aot.errors import AutocastCacheUnsupported
from aot.torch_internals import leaf_casts
from tests.support.agreement import checking_nop, leaf, values
from tests.support.aot.autocast_regions import FRONT_ENDS, assert_story, autocast, linear, seen, train
from tests.support.aot.subclasses import TwoTensor

pytestmark = pytest.mark.clause("ambient")

Function = Callable[..., Any]


class Network(nn.Module):
    """Weights of several dimensions, of which some are not cast, one is used twice, and one not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 2)
        self.norm = nn.BatchNorm2d(2)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.unused = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.norm(self.convolution(x))).flatten(1)
        y = self.second(functional.relu(self.first(y))) + self.first(y)
        return functional.layer_norm(y, (8,)) * self.scale


def network() -> Network:
    torch.manual_seed(3)
    return Network()


def train_module(module: Any, parameters: Any, optimizer: Any, scaler: Any, steps: int) -> list[Any]:
    found = []
    for k in range(steps):
        optimizer.zero_grad()
        loss = module(values(3, 1, 3, 3, start=k)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found += [loss, *(p.grad.clone() for p in parameters if p.grad is not None)]
    return found


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_network_trains(front_end: str, scaled: bool) -> None:
    def story(make: Any) -> Any:
        original = network()
        module, parameters = make(original), list(original.parameters())
        optimizer = torch.optim.Adam(parameters, lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        found = []
        for steps in (1, 3, 1):
            with autocast():
                found += train_module(module, parameters, optimizer, scaler, steps)
        with autocast(), torch.no_grad():
            found.append(module(values(3, 1, 3, 3)))
            found.append(original(values(3, 1, 3, 3)))
        return found

    assert_story(story, FRONT_ENDS[front_end])


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_parameter_that_is_replaced(front_end: str) -> None:
    def story(make: Any) -> Any:
        original = nn.Linear(4, 3)
        found, module = [], make(original)
        with autocast():
            for k in range(3):
                original.weight = nn.Parameter(values(3, 4, start=k))
                original.bias.data = values(3, start=k)
                found.append(module(values(2, 4)))
        return found

    assert_story(story, FRONT_ENDS[front_end])


def step_of_training(w: Tensor, x: Tensor) -> Tensor:
    loss = functional.linear(x, w).float().square().mean()
    (gradient,) = torch.autograd.grad(loss, w)
    with torch.no_grad():
        w.sub_(gradient)
    return loss.detach()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_whole_step_of_training(dynamic: bool) -> None:
    def story(make: Any) -> Any:
        f, w, x, found = make(step_of_training), leaf(3, 4), values(2, 4), []
        for steps in (1, 3):
            with autocast():
                found += [f(w, x) for _ in range(steps)]
                found.append(linear(w, x))
        return found, w

    assert_story(story, FRONT_ENDS["dynamic" if dynamic else "aot"])


@pytest.mark.parametrize("dynamic", [False, True])
def test_second_derivatives(dynamic: bool) -> None:
    def story(make: Any) -> Any:
        # (Small integers, as bfloat16 has them: eager adds up in another order.)
        w, x = (values(n, 4).remainder(3).sub(1).requires_grad_() for n in (3, 2))
        f, results, found = make(linear), [], []
        with autocast():
            for _ in range(3):
                results.append(f(w, x))
                with torch.no_grad():
                    w.neg_()
        for result in results:
            gradients = torch.autograd.grad(result.float().square().sum(), (w, x), create_graph=True)
            loss = sum(gradient.square().sum() for gradient in gradients)
            found += [*gradients, *torch.autograd.grad(loss, (w, x), retain_graph=True)]
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_story(story, FRONT_ENDS["dynamic" if dynamic else "aot"])


class WritingTwice(nn.Module):
    """Writes to its weight before and after it is cast."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.inner.weight.clamp_(-1, 1)
        y: Tensor = self.inner(x)
        with torch.no_grad():
            self.inner.weight.mul_(0.5)
        return y


def test_what_cannot_be_kept_is_refused() -> None:
    module = WritingTwice()
    compiled = aot.aot_module(module, checking_nop)
    before = module.inner.weight.tolist()
    with autocast(), pytest.raises(aot.Unsupported, match=r"inner\.weight before and after"):
        compiled(values(2, 4))
    assert module.inner.weight.tolist() == before
    with autocast(cache_enabled=False):
        got = compiled(values(2, 4))
    module.inner.weight.data = torch.tensor(before)
    with autocast(cache_enabled=False):
        assert seen(got) == seen(module(values(2, 4)))


def test_a_subclass_of_which_a_cast_is_kept_is_refused() -> None:
    compiled, w = (
        aot.aot_function(linear, checking_nop),
        TwoTensor(values(3, 4), values(3, 4)).requires_grad_(),
    )
    with autocast():
        got = compiled(w, values(2, 4))
        with pytest.raises(AutocastCacheUnsupported, match="leave the region of autocast after each step"):
            compiled(w, values(2, 4))
    with autocast():
        assert seen(compiled(w, values(2, 4)).a) == seen(got.a)


class Passing(TorchDispatchMode):
    """Lets all operations through."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


MODES: dict[str, Callable[[], Any]] = {
    "a dispatch mode": Passing,
    "hooks on what is saved": lambda: torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone),
    "an assertion": lambda: aot.config.patch(debug_assert=True),
}


@pytest.mark.parametrize("name", MODES)
def test_modes_around(name: str) -> None:
    def story(make: Any) -> Any:
        f, w = make(linear), leaf(3, 4)
        with autocast(), MODES[name]():
            return train(f, w, values(2, 4))

    assert_story(story, FRONT_ENDS["aot"])


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (2, 3, 4), (2, 1, 3, 3)], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_autocasts_own_casts_are_found(shape: tuple[int, ...], grad: bool) -> None:
    """Those that it makes are those that it keeps, whatever their shape is."""
    w = values(*shape).requires_grad_() if shape else leaf(1)[0].detach().clone().requires_grad_()
    with autocast(), torch.set_grad_enabled(grad):
        assert leaf_casts.cached_cast(w) is None
        cast = leaf_casts.cast_leaf(w)
        assert cast.dtype is torch.bfloat16 and cast.shape == w.shape and cast.stride() == w.stride()
        assert leaf_casts.cast_leaf(w) is cast is leaf_casts.cached_cast(w)
    with autocast():
        assert leaf_casts.cached_cast(w) is None


def test_what_is_kept_on_disk_does_the_same(tmp_path: Path) -> None:
    def graph() -> Any:
        return fx.symbolic_trace(linear)

    def story(make: Any) -> Any:
        w, x, found = leaf(3, 4), values(2, 4), []
        for region in (autocast, contextlib.nullcontext, autocast):
            with region():
                found.append(train(make(graph()), w, x))
        return found

    def made(graph: Any) -> Any:
        return aot.aot_module_simplified(graph, [leaf(3, 4), values(2, 4)], aot.nop)

    expected = seen(story(lambda graph: graph))
    with aot.config.patch(cache=tmp_path / "cache"):
        for _ in range(2):
            assert seen(story(made)) == expected
        assert aot.cache.stats().hits >= 3


def test_a_call_for_each_region_compiles_once() -> None:
    compiled = aot.aot_function(linear, checking_nop)
    w, x = leaf(3, 4), values(2, 4)
    for _ in range(3):
        with autocast():
            for _ in range(2):
                compiled(w, x).sum().backward()
            w.grad = None
    assert len(compiled.specializations) <= 2  # with a gradient there, and without
