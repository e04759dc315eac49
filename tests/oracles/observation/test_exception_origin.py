"""The function that raised: of the compiler, not of this project nor of torch's dispatcher."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest
import torch

from oracles import Arguments, observe
from oracles.observation.exception_origin import exception_origin


def _in_module(function: Any, module: str) -> Any:
    """The function, as if it stood in that module."""
    names = {**function.__globals__, "__name__": module}
    return FunctionType(function.__code__, names, function.__name__, None, function.__closure__)


def _lowered(x: Any) -> Any:
    return torch.ones(2).view(x)


def test_the_innermost_function_is_named() -> None:
    lower = _in_module(_lowered, "compiler.lowering")

    def call(x: Any) -> Any:
        return lower(x)

    with pytest.raises(RuntimeError) as raised:
        _in_module(call, "compiler.driver")(3)
    assert exception_origin(raised.value.__traceback__) == "compiler.lowering._lowered"


@pytest.mark.parametrize("module", ["oracles.verdict", "torch._ops", "fuzz"])
def test_who_only_passes_calls_on_is_not_to_blame(module: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        _in_module(_lowered, module)(3)
    test = "test_who_only_passes_calls_on_is_not_to_blame"
    assert exception_origin(raised.value.__traceback__) == f"{__name__}.{test}"


@pytest.mark.parametrize("module", [None, 3, "x" * 1000, "\ud800"])
def test_a_module_may_have_any_name(module: Any) -> None:
    with pytest.raises(RuntimeError) as raised:
        _in_module(_lowered, module)(3)
    origin = exception_origin(raised.value.__traceback__)
    assert len(origin) <= 200
    assert origin.encode()


def test_observations_have_it_and_do_not_compare_it() -> None:
    seen = []
    for module in ("compiler.first", "compiler.second"):
        lowered = _in_module(_lowered, module)
        seen.append(observe(lambda x, call=lowered: call(3), lambda: Arguments((torch.ones(2),))))
    origins = [one.raised.origin for one in seen if one.raised is not None]
    assert origins == ["compiler.first._lowered", "compiler.second._lowered"]
    assert seen[0] == seen[1]
