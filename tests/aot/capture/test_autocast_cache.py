"""Casts that autocast keeps until its outermost region ends, as eager does."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.support.agreement import leaf, values
from tests.support.aot.autocast_regions import FRONT_ENDS, assert_story, autocast, linear, seen, train

pytestmark = pytest.mark.clause("ambient")

Function = Callable[..., Any]


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


@pytest.mark.sampled(3)
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
