"""What a function changes of the Python program around it is undone by a refusal."""

from __future__ import annotations

import functools
import gc
import random
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import aot
from aot import errors
from tests.support.agreement import checking_nop, values
from tests.support.aot.programs import Holder

pytestmark = pytest.mark.clause("refusals")

Program = tuple[Callable[[Tensor], Any], Callable[[], Any]]
"""A function, and what shows the state that it changes."""


@functools.lru_cache
def remembered(n: int) -> Tensor:
    return torch.full((3,), float(n))


@functools.cache
def remembered_without_end(n: int) -> Tensor:
    return torch.full((3,), float(n))


def _stores_in_a_memo(memo: Any) -> Program:
    return lambda x: x * memo(2), lambda: memo.cache_info().currsize


def stores_in_a_bounded_memo() -> Program:
    return _stores_in_a_memo(remembered)


def stores_in_a_memo_without_end() -> Program:
    return _stores_in_a_memo(remembered_without_end)


def stores_in_a_dict() -> Program:
    known: dict[str, Tensor] = {}

    def f(x: Tensor) -> Tensor:
        if "k" not in known:
            known["k"] = x * 2
        return x + known["k"]

    return f, lambda: len(known)


def stores_in_an_object_that_is_new() -> Program:
    holder = types.SimpleNamespace(last=None)

    def f(x: Tensor) -> Tensor:
        holder.last = Holder([(x * 2,)])  # type: ignore[attr-defined]
        return x + 1

    return f, lambda: holder.last is None  # type: ignore[attr-defined]


def stores_in_a_function_that_is_new() -> Program:
    holder = types.SimpleNamespace(last=None)

    def f(x: Tensor) -> Tensor:
        y = x * 2
        holder.last = functools.partial(lambda: y)  # type: ignore[attr-defined]
        return x + 1

    return f, lambda: holder.last is None  # type: ignore[attr-defined]


def makes_a_layer() -> Program:
    module = nn.Module()

    def f(x: Tensor) -> Tensor:
        if not hasattr(module, "linear"):
            module.linear = nn.Linear(3, 3)
        return module.linear(x).detach()  # type: ignore[no-any-return]

    return f, lambda: [name for name, _ in module.named_modules()]


def steps_an_optimizer() -> Program:
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    optimizer = torch.optim.Adam([weight])

    def f(x: Tensor) -> Tensor:
        optimizer.step()
        return x * 2

    return f, lambda: ([list(state) for state in optimizer.state.values()], weight.tolist())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        *(stores_in_a_bounded_memo, stores_in_a_memo_without_end, stores_in_a_dict),
        *(stores_in_an_object_that_is_new, stores_in_a_function_that_is_new, makes_a_layer),
        steps_an_optimizer,
    ],
    ids=lambda make: make.__name__,
)
def test_a_tensor_of_a_refused_trace_is_nowhere(make: Callable[[], Program], dynamic: bool) -> None:
    remembered.cache_clear()
    remembered_without_end.cache_clear()
    f, shown = make()
    before = shown()
    compiled = aot.aot_function(f, checking_nop, dynamic=dynamic)
    for _ in range(2):
        with pytest.raises(aot.Unsupported):
            compiled(values(3))
        assert shown() == before
    for _ in range(2):
        assert isinstance(f(values(3)).tolist(), list)  # which eager can still do


class _Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Calling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


LEFT_BEHIND: dict[str, Callable[[], Any]] = {
    "dispatch modes": lambda: _Dispatching().__enter__(),
    "modes of torch functions": lambda: _Calling().__enter__(),
    "default device": lambda: torch.set_default_device("meta"),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic mode": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "anomaly mode": lambda: torch.set_anomaly_enabled(True),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "precision of matrix": lambda: torch.set_float32_matmul_precision("medium"),
    "hooks on saved": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__(),
    "fill_uninitialized_memory": lambda: setattr(
        torch.utils.deterministic, "fill_uninitialized_memory", False
    ),
    "state of autocast": lambda: torch.set_autocast_enabled("cpu", True),
}


def _settings() -> Any:
    return (
        torch.overrides._get_current_function_mode_stack(),  # type: ignore[no-untyped-call]
        torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.is_autocast_enabled("cpu"),
    )


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_a_setting_that_is_left_behind_is_refused_and_put_back(name: str) -> None:
    def f(x: Tensor) -> Tensor:
        LEFT_BEHIND[name]()
        return x * 2

    before = _settings()
    with pytest.raises(errors.UnsupportedOperation, match=name):
        aot.aot_function(f, checking_nop)(values(3))
    assert _settings() == before
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_another_refusal_puts_settings_and_generators_back(name: str) -> None:
    def f(x: Tensor) -> Tensor:
        LEFT_BEHIND[name]()
        random.random(), numpy.random.rand(), torch.rand(2)
        return x * x.to_sparse().sum()

    states = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    before = _settings()
    with pytest.raises(aot.Unsupported):
        aot.aot_function(f, checking_nop)(values(3))
    assert _settings() == before
    now = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert now == states


@pytest.mark.parametrize("draw", [random.random, numpy.random.rand], ids=["python", "numpy"])
def test_a_refused_draw_draws_nothing(draw: Callable[[], float]) -> None:
    states = random.getstate(), numpy.random.get_state()[1].tolist()
    with pytest.raises(errors.RandomStateMutation):
        aot.aot_function(lambda x: x * draw(), checking_nop)(values(3))
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == states


@pytest.mark.parametrize("seed", [random.seed, numpy.random.seed], ids=["python", "numpy"])
def test_seeding_is_refused_if_the_seed_is_there_already(seed: Callable[[int], None]) -> None:
    def f(x: Tensor) -> Tensor:
        seed(0)
        return x * 2

    seed(0)
    states = random.getstate(), numpy.random.get_state()[1].tolist()
    with pytest.raises(errors.RandomStateMutation):
        aot.aot_function(f, checking_nop)(values(3))
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == states


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("f", "kind"),
    [
        (lambda x: x if x.equal(x + 1) else x * 2, errors.DataDependentValue),
        (
            lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
            errors.UnsupportedOperation,
        ),
        (lambda x: torch.utils.swap_tensors(x, x * 1), errors.StorageMutation),
    ],
)
def test_what_a_trace_cannot_do_is_refused_by_name(
    f: Callable[[Tensor], Any], kind: type[Exception], dynamic: bool
) -> None:
    with pytest.raises(kind):
        aot.aot_function(f, checking_nop, dynamic=dynamic)(values(3))


def _upper_or_doubled(x: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        return x.tril() * 2


FOR_GOOD: dict[str, Callable[[nn.Module], Any]] = {
    "a hook": lambda module: module.register_forward_hook(lambda module, given, result: None),
    "a hook before": lambda module: module.register_forward_pre_hook(lambda module, given: None),
    "a module": lambda module: module.add_module("made", nn.Identity()),
    "an object": lambda module: setattr(module, "made", Holder()),
}


@pytest.mark.parametrize("name", FOR_GOOD)
def test_what_a_run_changes_for_good_is_taken_back_when_its_values_are_refused(name: str) -> None:
    """The graph raises what the function catches after the trace is over."""
    module = nn.Identity()

    def f(x: Tensor) -> Tensor:
        FOR_GOOD[name](module)
        return _upper_or_doubled(x)

    def state() -> tuple[int, int, set[str], set[str]]:
        hooks = len(module._forward_hooks), len(module._forward_pre_hooks)
        return *hooks, set(module._modules), set(vars(module))

    before = state()
    compiled = aot.aot_function(f, checking_nop)
    for _ in range(2):
        with pytest.raises(errors.DataDependentValue, match="which the function catches"):
            compiled(-torch.eye(2))
        assert state() == before
    torch.testing.assert_close(compiled(torch.eye(2)), torch.eye(2))
    assert state() != before


def test_what_was_there_before_a_change_for_good_is_let_go_of() -> None:
    """It is kept for a refusal until the call is over, though the compiled call lives on."""
    module = nn.Identity()
    module.made = Holder()
    before = weakref.ref(module.made)

    def f(x: Tensor) -> Tensor:
        module.made = Holder()
        return x * 2

    compiled = aot.aot_function(f, checking_nop)
    torch.testing.assert_close(compiled(values(3)), values(3) * 2)
    gc.collect()
    assert before() is None
    assert compiled.specializations
