"""Modules that a function gets under names that it computes."""

from __future__ import annotations

import builtins
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot import errors
from tests.support.agreement import checking_nop, values

pytestmark = pytest.mark.clause("repeat")

NAME = "aot_computed"
WAYS: dict[str, Callable[[str], Any]] = {
    "importlib.import_module": importlib.import_module,
    "import_module": import_module,
    "__import__": lambda name: __import__(name),  # noqa: PLW0108
    "builtins.__import__": lambda name: builtins.__import__(name),  # noqa: PLW0108
    "resolve_name": pkgutil.resolve_name,
}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = types.ModuleType(NAME + "_1")
    module.rate = 2.0
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_of_it_is_guarded(way: str, module: Any) -> None:
    get = WAYS[way]
    compiled = aot.aot_function(lambda x: x * get(f"{NAME}_{len(x) - 1}").rate, checking_nop)
    for rate in (2.0, 3.0, 2.0):
        module.rate = rate
        assert torch.equal(compiled(values(2)), values(2) * rate)
    assert len(compiled.specializations) == 2


def test_import_under_another_name_is_refused() -> None:
    get = builtins.__import__
    with pytest.raises(errors.UnsupportedOperation, match="__import__ under another name"):
        aot.aot_function(lambda x: x * get(f"{NAME}_{len(x)}").rate, checking_nop)(values(2))


def test_another_module_under_the_name(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = aot.aot_function(lambda x: x * import_module(f"{NAME}_{len(x) - 1}").rate, checking_nop)
    assert torch.equal(compiled(values(2)), values(2) * 2)
    other: Any = types.ModuleType(module.__name__)
    other.rate = 5.0
    monkeypatch.setitem(sys.modules, module.__name__, other)
    assert torch.equal(compiled(values(2)), values(2) * 5)


def test_what_the_function_changes_of_it_it_changes_at_each_call(module: Any) -> None:
    def f(x: Tensor) -> Any:
        got: Any = import_module(f"{NAME}_{len(x) - 1}")
        got.rate += 1
        return x * got.rate

    compiled = aot.aot_function(f, checking_nop)
    for rate in (3.0, 4.0, 5.0):
        assert torch.equal(compiled(values(2)), values(2) * rate)
        assert module.rate == rate


class Counter:
    def __init__(self) -> None:
        self.step = 0


def test_what_was_written_before_and_its_code_reads_is_refused(module: Any) -> None:
    counter = Counter()
    exec("def times(x, counter):\n    return x * counter.step", module.__dict__)

    def f(x: Tensor) -> Any:
        counter.step += 1
        return import_module(f"{NAME}_{len(x) - 1}").times(x, counter)

    with pytest.raises(errors.UnsupportedOperation, match="step, which the function writes to"):
        aot.aot_function(f, checking_nop)(values(2))


class Rated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * import_module(f"{NAME}_{len(gradient) - 1}").rate  # type: ignore[no-any-return]


@pytest.mark.parametrize("create_graph", [False, True])
def test_in_a_backward(module: Any, create_graph: bool) -> None:
    compiled = aot.aot_function(lambda x: Rated.apply(x) + 1, checking_nop)  # type: ignore[no-untyped-call]
    x = values(2).requires_grad_()
    y = compiled(x)
    for rate in (2.0, 3.0, 2.0):
        module.rate = rate
        (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True, create_graph=create_graph)
        assert torch.equal(gradient, torch.full((2,), rate))


def test_imports_are_what_they_were_afterwards(module: Any) -> None:
    before = builtins.__import__
    compiled = aot.aot_function(lambda x: x * import_module(f"{NAME}_{len(x) - 1}").rate, checking_nop)
    compiled(values(2))
    assert builtins.__import__ is before
    assert not hasattr(vars(importlib)["_bootstrap"]._gcd_import, "__wrapped__")
