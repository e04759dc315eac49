"""Casts that autocast keeps until its outermost region ends, as eager does."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import aot
from aot import torch_internals as internals
from aot.errors import AutocastCacheUnsupported
from tests.agree import checking_nop, leaf, values
from tests.aot.subclasses import TwoTensor

Function = Callable[..., Any]


def autocast(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    return torch.autocast("cpu", dtype=dtype, **options)


def compiled_by_dynamo(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="aotfuzz", fullgraph=True, **options)


FRONT_ENDS: dict[str, Callable[[Any], Any]] = {
    "aot": lambda f: (aot.aot_module if isinstance(f, nn.Module) else aot.aot_function)(f, checking_nop),
    "dynamic": lambda f: (aot.aot_module if isinstance(f, nn.Module) else aot.aot_function)(
        f, checking_nop, dynamic=True
    ),
    "torch.compile": compiled_by_dynamo,
}


def seen(value: Any) -> Any:
    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return str(leaf.dtype), leaf.requires_grad, leaf.tolist()
        return leaf

    return pytree.tree_map(one, value)


def assert_story(story: Callable[[Callable[[Any], Any]], Any], make: Callable[[Any], Any]) -> None:
    """What a story sees is the same to the bit with compiled functions, the second time too, when nothing is
    compiled any more."""
    expected = seen(story(lambda function: function))
    made: dict[int, Any] = {}

    def kept(function: Any) -> Any:
        if isinstance(function, nn.Module):
            return make(function)
        return made.setdefault(id(function), make(function))

    assert seen(story(kept)) == expected
    assert seen(story(kept)) == expected


def linear(w: Tensor, x: Tensor) -> Tensor:
    return functional.linear(x, w)


def train(function: Function, w: Tensor, x: Tensor, steps: int = 3) -> list[Any]:
    """Steps of gradient descent."""
    found = []
    for _ in range(steps):
        w.grad = None
        loss = function(w, x).float().square().mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.5 * w.grad
        found += [loss, w.grad]
    return [*found, w]


def steps_within_one_region(make: Any) -> Any:
    f, w = make(linear), leaf(3, 4)
    with autocast():
        return train(f, w, values(2, 4))


def a_region_for_each_step(make: Any) -> Any:
    f, w = make(linear), leaf(3, 4)
    found = []
    for _ in range(3):
        with autocast():
            found += train(f, w, values(2, 4), 1)
    return found


def several_regions_of_several_steps(make: Any) -> Any:
    f, w = make(linear), leaf(3, 4)
    found = []
    for _ in range(2):
        with autocast():
            found += train(f, w, values(2, 4), 2)
    return found


def eager_first(make: Any) -> Any:
    f, w, x = make(linear), leaf(3, 4), values(2, 4)
    with autocast():
        before = linear(w, x)
        with torch.no_grad():
            w.mul_(2)
        return before, train(f, w, x)


def eager_afterwards(make: Any) -> Any:
    f, w, x = make(linear), leaf(3, 4), values(2, 4)
    with autocast():
        before = f(w, x)
        with torch.no_grad():
            w.mul_(2)
        return before, train(linear, w, x), linear(w, x)


def other(w: Tensor, x: Tensor) -> Tensor:
    return (x @ w.t()).sin()


def two_functions_and_eager(make: Any) -> Any:
    f, g, w, x = make(linear), make(other), leaf(3, 4), values(2, 4)
    found = []
    with autocast():
        for function in (f, other, g, linear, f):
            found += train(function, w, x, 1)
    return found


def one_backward_of_several_calls(make: Any) -> Any:
    """The gradients of a cast are added up in bfloat16, of all calls."""
    f, g, w = make(linear), make(other), leaf(3, 4)
    with autocast():
        results = [function(w, values(2, 4, start=k)) for k, function in enumerate((f, g, linear, f, g))]
    sum(result.float().square().sum() for result in results).backward()
    return results, w.grad


def used_twice(w: Tensor, x: Tensor) -> Tensor:
    return functional.linear(x, w) + functional.linear(x.sin(), w)


def used_in_float32_too(w: Tensor, x: Tensor) -> Tensor:
    return functional.linear(x, w) * w.sum() + functional.softmax(w, 0).sum()


def used_by_a_cast_of_the_users(w: Tensor, x: Tensor) -> Tensor:
    return functional.linear(x, w).sum() + w.to(torch.bfloat16).sum() + w.bfloat16().mean()


def cast_by_an_operation(w: Tensor, x: Tensor) -> Tensor:
    """These casts are not kept."""
    return functional.softmax(w, 0, dtype=torch.bfloat16).sum() + x.sum(dtype=torch.bfloat16)


def within_a_region_of_its_own(w: Tensor, x: Tensor) -> Tensor:
    with autocast():
        return functional.linear(x, w) + functional.linear(x, w)


def within_two_regions_of_its_own(w: Tensor, x: Tensor) -> Tensor:
    with autocast():
        y = functional.linear(x, w)
    with autocast():
        return y + functional.linear(x, w)


def within_another_dtype(w: Tensor, x: Tensor) -> Tensor:
    with autocast(torch.float16):
        y = functional.linear(x, w)
    return y.float() + functional.linear(x, w)


def within_a_region_without_cache(w: Tensor, x: Tensor) -> Tensor:
    with autocast(cache_enabled=False):
        y = functional.linear(x, w)
    return y + functional.linear(x, w)


def within_an_island(w: Tensor, x: Tensor) -> Tensor:
    with autocast(enabled=False):
        y = functional.linear(x, w)
    return functional.linear(x, w) + y


def writing_before(w: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        w.clamp_(-1, 1)
    return functional.linear(x, w)


def writing_after(w: Tensor, x: Tensor) -> Tensor:
    y = functional.linear(x, w)
    with torch.no_grad():
        w.mul_(0.5)
    return y * functional.linear(x, w)


def without_grad_first(w: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = functional.linear(x, w)
    return y + functional.linear(x, w)


def in_inference_mode_first(w: Tensor, x: Tensor) -> Tensor:
    with torch.inference_mode():
        functional.linear(x, w).sum()
    return functional.linear(x, w)


def recomputed(w: Tensor, x: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        return functional.linear(x, w).sin()

    result: Tensor = checkpoint(block, x, use_reentrant=False)
    return result


def of_other_dims(w: Tensor, x: Tensor) -> Tensor:
    return torch.bmm(x[None], w.view_as(w)[None].transpose(1, 2))


FUNCTIONS = (
    linear,
    used_twice,
    used_in_float32_too,
    used_by_a_cast_of_the_users,
    cast_by_an_operation,
    within_a_region_of_its_own,
    within_two_regions_of_its_own,
    within_another_dtype,
    within_a_region_without_cache,
    within_an_island,
    writing_before,
    writing_after,
    without_grad_first,
    in_inference_mode_first,
    recomputed,
    of_other_dims,
)


def around(**options: Any) -> Callable[[], Any]:
    return lambda: autocast(**options)


@contextlib.contextmanager
def nested() -> Iterator[None]:
    with autocast(), autocast():
        yield


@contextlib.contextmanager
def off_within() -> Iterator[None]:
    with autocast(), autocast(enabled=False):
        yield


AROUND: dict[str, Callable[[], Any]] = {
    "nothing": contextlib.nullcontext,
    "a region": around(),
    "a region of float16": around(dtype=torch.float16),
    "a region without cache": around(cache_enabled=False),
    "a region that is off": around(enabled=False),
    "two regions": nested,
    "an island": off_within,
}


def of(region: Callable[[], Any], steps: Callable[[], Any]) -> Any:
    """What some steps give in a region; that they raise, if they do."""
    try:
        with region():
            return steps()
    except RuntimeError as error:
        return type(error)


@pytest.mark.parametrize(
    ("function", "front_end"),
    [
        *itertools.product(FUNCTIONS, ["aot", "torch.compile"]),
        *((function, "dynamic") for function in (linear, within_a_region_of_its_own, writing_before)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_steps_of_a_function(function: Function, front_end: str) -> None:
    """Under each kind of region, with and without a cast that is there before; what is compiled for one is
    called under all others."""
    make = FRONT_ENDS[front_end](function)
    for _ in range(2):
        for (name, region), before in itertools.product(AROUND.items(), (False, True)):

            def steps(f: Function, before: bool = before) -> Any:
                w, x, found = leaf(3, 4), values(2, 4), []
                if before:
                    found.append(linear(w, x))
                    with torch.no_grad():
                        w.add_(1)
                return [*found, train(f, w, x), linear(w, x)]

            expected = of(region, lambda steps=steps: steps(function))
            if front_end != "aot" and expected is RuntimeError:
                continue  # which is refused, as `with` may catch it
            got = of(region, lambda steps=steps: steps(make))
            assert repr(seen(got)) == repr(seen(expected)), (name, before)


STORIES = (
    steps_within_one_region,
    a_region_for_each_step,
    several_regions_of_several_steps,
    eager_first,
    eager_afterwards,
    two_functions_and_eager,
    one_backward_of_several_calls,
)


def story(function: Any) -> Any:
    global STORIES
    STORIES = (*STORIES, function)
    return function


@story
def without_grad_and_then_with(make: Any) -> Any:
    f, w, x = make(linear), leaf(3, 4), values(2, 4)
    with autocast():
        with torch.no_grad():
            first = f(w, x)
            w.mul_(2)
        return first, train(f, w, x)


@story
def inference_mode_and_then_grad(make: Any) -> Any:
    f, w, x = make(linear), leaf(3, 4), values(2, 4)
    found = []
    with autocast():
        for _ in range(2):
            with torch.inference_mode():
                found.append(f(w, x).tolist())
            with torch.no_grad():
                w.mul_(2)
            found += train(f, w, x, 2)
    return found


@story
def grad_and_then_without(make: Any) -> Any:
    f, w, x = make(linear), leaf(3, 4), values(2, 4)
    with autocast():
        found = train(f, w, x)
        with torch.no_grad():
            found.append(f(w, x))
    with torch.no_grad():
        found.append(f(w, x))
    return found


@story
def weights_that_require_no_grad(make: Any) -> Any:
    f, w, x = make(linear), leaf(3, 4).requires_grad_(False), leaf(2, 4)
    found = []
    with autocast():
        for required in (False, True, False, True):
            w.requires_grad_(required)
            found.append(f(w, x))
            with torch.no_grad():
                w.mul_(2)
    return found


@story
def backwards_that_accumulate(make: Any) -> Any:
    f, w = make(used_twice), leaf(3, 4)
    with autocast():
        for k in range(4):
            f(w, values(2, 4, start=k)).float().square().sum().backward()
    return w.grad


@story
def backwards_after_the_region(make: Any) -> Any:
    f, w = make(linear), leaf(3, 4)
    with autocast():
        losses = [f(w, values(2, 4, start=k)).float().square().sum() for k in range(3)]
    for loss in losses:
        loss.backward()
    return w.grad


@story
def gradients_and_retained_graphs(make: Any) -> Any:
    f, w, x = make(linear), leaf(3, 4), leaf(2, 4)
    with autocast():
        loss = f(w, x).float().square().sum()
        found = [*torch.autograd.grad(loss, (w, x), retain_graph=True)]
        loss.backward(retain_graph=True)
        loss.backward()
        found += torch.autograd.grad(f(w, x).float().square().sum(), (w, x))
    return found, w.grad, x.grad


@story
def hooks_on_the_weight(make: Any) -> Any:
    f, w, x = make(used_in_float32_too), leaf(3, 4), values(2, 4)
    found: list[Tensor] = []
    w.register_hook(lambda gradient: found.append(gradient.clone()))
    with autocast():
        return train(f, w, x), found


@story
def data_that_is_assigned(make: Any) -> Any:
    f, w, x = make(linear), leaf(3, 4), values(2, 4)
    found = []
    with autocast():
        for k in range(3):
            found.append(f(w, x))
            w.data = values(3, 4, start=k)
    found.append(f(w, x))
    return found


@story
def other_sizes(make: Any) -> Any:
    f, w = make(linear), leaf(3, 4)
    with autocast():
        return [train(f, w, values(n, 4), 2) for n in (2, 3, 5, 2)]


@story
def another_dtype_within(make: Any) -> Any:
    """The cast is that of the first dtype, and x has the other one."""
    f, w = make(lambda w: functional.linear(w, w)), leaf(3, 4)
    with autocast():
        first = f(w)
        with autocast(torch.float16):
            second = f(w)
    with autocast(torch.float16):
        third = f(w)
        with autocast():
            fourth = f(w)
    return first, second, third, fourth


@story
def a_cache_that_is_cleared(make: Any) -> Any:
    f, w, x = make(linear), leaf(3, 4), values(2, 4)
    found = []
    with autocast():
        for _ in range(3):
            found += train(f, w, x, 2)
            torch.clear_autocast_cache()
    return found


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("number", range(len(STORIES)), ids=[f.__name__ for f in STORIES])
def test_calls_within_regions(number: int, front_end: str) -> None:
    with torch._dynamo.config.patch(recompile_limit=64):
        assert_story(STORIES[number], FRONT_ENDS[front_end])


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
        assert internals.kept_by_autocast(w) is None
        cast = internals.made_by_autocast(w)
        assert cast.dtype is torch.bfloat16 and cast.shape == w.shape and cast.stride() == w.stride()
        assert internals.made_by_autocast(w) is cast is internals.kept_by_autocast(w)
    with autocast():
        assert internals.kept_by_autocast(w) is None


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
