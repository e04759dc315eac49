"""Methods that make tensors like their own, and type checks, which ask a tensor for its dispatch key."""

from __future__ import annotations

import builtins
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import DoubleTensor, FloatTensor, Tensor
from torch.overrides import TorchFunctionMode

import aot
from aot.errors import DataDependentValue
from aot.guards.legacy_types import checking_legacy_types
from tests.support.agreement import assert_agrees, leaf, values

Function = Callable[..., Any]
FAMILY = (DoubleTensor, FloatTensor)

CONSTRUCTORS: dict[str, Function] = {
    "new_tensor of a number": lambda x: x * x.new_tensor(2.0),
    "new_tensor of a list": lambda x: x + x.new_tensor([1, 2, 3]),
    "new_tensor of another dtype": lambda x: x + x.new_tensor([1, 2, 3], dtype=torch.float64),
    "new_tensor of a tensor": lambda x: x + x.new_tensor(x),
    "new of a size": lambda x: x.new(3).fill_(1.0) + x,
    "new of a shape": lambda x: x.new(x.shape).fill_(1.0) + x,
    "new of a list": lambda x: x.new([1.0, 2.0, 3.0]) + x,
    "new of nothing": lambda x: x.new().sum() + x,
    "new of a tensor": lambda x: x.new(x.detach()) + x,
    "new of an intermediate": lambda x: (x * 2).new(3).zero_() + x,
    "resize_as": lambda x: x.detach().resize_as(torch.ones(3)) + x,
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
@pytest.mark.filterwarnings("ignore:To copy construct", "ignore:non-inplace")
def test_a_tensor_is_made_like_another(name: str) -> None:
    assert_agrees(CONSTRUCTORS[name], lambda: [leaf(3)])


def test_a_parameter_makes_a_tensor() -> None:
    assert_agrees(lambda w: w * w.new_tensor([2.0]), lambda: [torch.nn.Parameter(values(3))])


FRONT_ENDS: dict[str, Callable[[torch.nn.Module], Function]] = {
    "dynamic": lambda module: aot.aot_function(module.forward, aot.nop, dynamic=True),
    "aot_module": lambda module: aot.aot_module(module, aot.nop),
    "torch_compile": lambda module: torch.compile(module, backend="aotfuzz"),
}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_front_ends_make_them_too(front_end: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = x.new(3).fill_(1.0) + x.new([1.0, 2.0, 3.0]) + x.new().sum()
            return x * x.new_tensor(2.0) + made

    expected = values(3) * 2 + torch.tensor([2.0, 3.0, 4.0])
    torch.testing.assert_close(FRONT_ENDS[front_end](Module())(values(3)), expected)


def test_an_export_makes_it_too() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Sequence[Tensor]:
            return (x * x.new_tensor(2.0) + x.new(3).fill_(1.0),)

    module, _ = aot.aot_export_module(Module(), [values(3)], trace_joint=False)
    torch.testing.assert_close(module(values(3))[0], values(3) * 2 + 1)


def test_a_mode_of_the_users_sees_the_tensor_itself() -> None:
    seen: list[tuple[str, bool]] = []

    class Notes(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is Tensor.new_tensor:
                seen.append((function.__name__, args[0].shape == (3,)))
            return function(*args, **(kwargs or {}))

    def f(x: Tensor) -> Tensor:
        with Notes():
            return x * x.new_tensor(2.0)

    torch.testing.assert_close(aot.aot_function(f, aot.nop)(values(3)), values(3) * 2)
    assert seen == [("new_tensor", True)]


@pytest.mark.parametrize(
    "kind",
    ["Laplace", "Cauchy", "Exponential", "Weibull", "Pareto", "Geometric", "Gumbel", "HalfCauchy"],
)
@pytest.mark.parametrize("method", ["sample", "log_prob"])
def test_distributions_sample_and_score(kind: str, method: str) -> None:
    arguments = {"Geometric": (0.5,), "Exponential": (2.0,), "HalfCauchy": (2.0,)}.get(kind, (1.0, 2.0))

    def f(x: Tensor) -> Any:
        distribution = getattr(torch.distributions, kind)(*arguments, validate_args=False)
        return distribution.sample(x.shape) if method == "sample" else distribution.log_prob(x)

    assert_agrees(f, lambda: [values(3).abs().ceil() + 2])


TYPE_CHECKS: dict[str, Function] = {
    "attribute": lambda x: x * 2 if isinstance(x, torch.FloatTensor) else x,
    "global": lambda x: x * 2 if isinstance(x, FloatTensor) else x,
    "tuple": lambda x: x * 2 if isinstance(x + 1, FAMILY) else x,
    "another dtype": lambda x: x * 2 if isinstance(x.double(), torch.FloatTensor) else x,
    "both": lambda x: x * 2 if isinstance(x.double(), (torch.FloatTensor, torch.DoubleTensor)) else x,
    "type()": lambda x: x * 2 if x.type() == "torch.FloatTensor" else x,
}


@pytest.mark.parametrize("name", TYPE_CHECKS)
def test_legacy_types_know_tensors(name: str) -> None:
    original = builtins.isinstance
    assert_agrees(TYPE_CHECKS[name], lambda: [leaf(3)])
    assert builtins.isinstance is original


def test_code_that_is_imported_as_it_runs_checks_types(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("checks_types")
    exec(
        "import torch\ndef double(x):\n    return x * 2 if isinstance(x, torch.FloatTensor) else x",
        vars(module),
    )
    monkeypatch.setitem(__import__("sys").modules, "checks_types", module)

    def f(x: Tensor, name: str) -> Any:
        return __import__("importlib").import_module(name).double(x)

    compiled = aot.aot_function(f, aot.nop)
    torch.testing.assert_close(compiled(values(3), "checks_types"), values(3) * 2)


def test_type_checks_nest_and_end() -> None:
    original = builtins.isinstance
    with checking_legacy_types(), checking_legacy_types():
        assert builtins.isinstance is not original
        assert isinstance(values(1), FloatTensor) and not isinstance(1, FloatTensor)
        assert not isinstance(threading, (int, str))
    assert builtins.isinstance is original


@pytest.mark.skipif(not hasattr(Tensor, "const_data_ptr"), reason="torch 2.11 has none")
def test_an_address_that_is_only_read_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.const_data_ptr() == x.clone().const_data_ptr() else x

    with pytest.raises(DataDependentValue, match="const_data_ptr"):
        aot.aot_function(f, aot.nop)(values(3))
