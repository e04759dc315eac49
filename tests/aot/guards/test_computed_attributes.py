"""Attributes under names that are computed, of whichever object: a later call sees what is there."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import aot
from aot.guards.collect import collect_guards
from tests.support.agreement import checking_nop, values

pytestmark = pytest.mark.clause("repeat")

RATE = "ra" + "te"
SETTINGS = types.SimpleNamespace(inner=types.SimpleNamespace(rate=2.0))
Case = tuple[Callable[[Tensor], Any], Callable[[], Any]]


class Config:
    shared = 2.0

    def __init__(self) -> None:
        self.rate = 2.0
        self.inner: Any = None

    @staticmethod
    def look(config: Any, name: str) -> Any:
        return getattr(config, name)

    @classmethod
    def common(cls, name: str) -> Any:
        return getattr(cls, name)


class Slotted:
    __slots__ = ("rate",)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return x * getattr(self.config, "".join(["ra", "te"]))


def look(config: Any, name: str) -> Any:
    return getattr(config, name)


def look_deep(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def scaled(config: Any) -> Case:
    return config, lambda: setattr(config, "rate", 3.0)


def of_an_argument() -> Case:
    config = Config()
    return lambda x: x * look(config, RATE), lambda: setattr(config, "rate", 3.0)


def of_an_argument_of_an_argument() -> Case:
    config = Config()
    config.inner = Config()
    return lambda x: x * look_deep(config, "inner.rate"), lambda: setattr(config.inner, "rate", 3.0)


def of_a_slot() -> Case:
    config = Slotted()
    config.rate = 2.0  # type: ignore[attr-defined]
    return lambda x: x * look(config, RATE), lambda: setattr(config, "rate", 3.0)


def with_a_default() -> Case:
    config = types.SimpleNamespace()

    def rate_of(config: Any) -> Any:
        return getattr(config, RATE, 2.0)

    return lambda x: x * rate_of(config), lambda: setattr(config, "rate", 3.0)


def by_vars() -> Case:
    config = Config()

    def total(config: Any) -> float:
        return sum(value for value in vars(config).values() if isinstance(value, float))

    return lambda x: x * total(config), lambda: setattr(config, "further", 3.0)


def by_a_library() -> Case:
    @dataclasses.dataclass
    class Inner:
        rate: float = 2.0

    @dataclasses.dataclass
    class Outer:
        inner: Inner

    config = Outer(Inner())
    return (
        lambda x: x * dataclasses.asdict(config)["inner"][RATE],
        lambda: setattr(config.inner, "rate", 3.0),
    )


def by_the_namespace() -> Case:
    config = Config()

    def rate_of(config: Any) -> Any:
        return config.__dict__[RATE]

    return lambda x: x * rate_of(config), lambda: setattr(config, "rate", 3.0)


def by_a_getter() -> Case:
    config = Config()
    config.inner = Config()
    get = operator.attrgetter("inner.rate")
    return lambda x: x * get(config), lambda: setattr(config.inner, "rate", 3.0)


def by_a_getter_of_its_own() -> Case:
    config = Config()
    return lambda x: x * operator.attrgetter(RATE)(config), lambda: setattr(config, "rate", 3.0)


def by_a_function_that_calls_it() -> Case:
    config = Config()
    config.inner = Config()
    return (
        lambda x: x * functools.reduce(getattr, ["inner", RATE], config),
        lambda: setattr(config.inner, "rate", 3.0),
    )


def by_a_static_method() -> Case:
    config = Config()
    return lambda x: x * Config.look(config, RATE), lambda: setattr(config, "rate", 3.0)


def of_a_class() -> Case:
    class Local(Config):
        pass

    return lambda x: x * Local.common("sha" + "red"), lambda: setattr(Local, "shared", 3.0)


def of_a_global_by_a_path() -> Case:
    SETTINGS.inner.rate = 2.0
    return lambda x: x * getattr(SETTINGS.inner, RATE), lambda: setattr(SETTINGS.inner, "rate", 3.0)


def of_a_part_of_a_module() -> Case:
    layer = Layer()
    return layer, lambda: setattr(layer.config, "rate", 3.0)


def of_a_variable() -> Case:
    config = Config()

    def f(x: Tensor) -> Any:
        found = [config][0]
        return x * getattr(found, RATE)

    return f, lambda: setattr(config, "rate", 3.0)


def of_a_variable_of_an_outer_function() -> Case:
    config = Config()

    def f(x: Tensor, config: Any = config) -> Any:
        return x * sum(getattr(config, name) for name in [RATE])

    return f, lambda: setattr(config, "rate", 3.0)


CASES = [
    *(of_an_argument, of_an_argument_of_an_argument, of_a_slot, with_a_default, by_vars, by_the_namespace),
    *(by_a_library,),
    *(by_a_getter, by_a_getter_of_its_own, by_a_function_that_calls_it, by_a_static_method, of_a_class),
    *(of_a_global_by_a_path, of_a_part_of_a_module, of_a_variable, of_a_variable_of_an_outer_function),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_later_calls_see_what_is_there(case: Callable[[], Case]) -> None:
    function, change = case()
    compiled = aot.aot_function(function, checking_nop)
    for _ in range(2):
        torch.testing.assert_close(compiled(values(2)), function(values(2)))
    assert len(compiled.specializations) == 1
    before = function(values(2))
    change()
    assert not torch.equal(function(values(2)), before), "the case shows nothing"
    for _ in range(2):
        torch.testing.assert_close(compiled(values(2)), function(values(2)))
    assert len(compiled.specializations) == 2


def test_what_is_asked_of_a_path_opens_nothing_else() -> None:
    other = Config()
    layer = Layer()

    def f(x: Tensor) -> Any:
        act = getattr(functional, "re" + "lu")
        options = layer.config
        return act(layer(x)) * getattr(options, RATE) * (other is not None) * getattr(torch, "p" + "i", 3)

    paths = {guard.path for guard in collect_guards(f)[0].guards}
    assert {"layer.config.rate", "layer.config.inner", "other"} <= paths
    assert "other.rate" not in paths
    compiled = aot.aot_function(f, checking_nop)
    for _ in range(3):
        compiled(values(2))
        other.rate += 1
    assert len(compiled.specializations) == 1
