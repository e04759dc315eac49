"""What is replaced between calls: objects, namespaces, builtins, the forward of a module."""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from aot.guards.collect import collect_guards

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("repeat")]


class _Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("shift", torch.ones(2))
        self.space = types.SimpleNamespace(other=torch.ones(2))
        self.held = [torch.ones(2)]

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) + self.shift, self.space.other.dim(), self.held[0].dim()


@pytest.mark.parametrize(
    ("owner", "key"),
    [
        (lambda module: module.inner._parameters, "weight"),
        (lambda module: module._buffers, "shift"),
        (lambda module: vars(module.space), "other"),
        (lambda module: module.held, 0),
    ],
)
def test_what_is_replaced_is_given_up(owner: Callable[[Any], Any], key: Any) -> None:
    """The compiled function knows a tensor without keeping it, and takes another one that is like it."""
    module = _Reading()
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return aot.nop(graph, inputs)

    compiled = aot.aot_module(module, backend)
    compiled(torch.ones(2))
    place, count = owner(module), len(graphs)
    before = weakref.ref(place[key])
    place[key] = copy.deepcopy(place[key])
    assert before() is None
    assert torch.equal(compiled(torch.ones(2))[0], module(torch.ones(2))[0])
    assert len(graphs) == count


@pytest.mark.parametrize("many", [1, 1000], ids=["together", "alone"])
@pytest.mark.parametrize(
    ("owner", "key"),
    [
        (lambda module: module.inner._parameters, "bias"),
        (lambda module: module._buffers, "shift"),
        (lambda module: vars(module.space), "other"),
        (lambda module: module.held, 0),
    ],
)
def test_none_is_not_a_tensor_that_is_gone(
    owner: Callable[[Any], Any], key: Any, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot.guards.guard._MANY", many)
    module = _Reading()
    guards, _ = collect_guards(module)
    assert guards.hold()
    place = owner(module)
    before = weakref.ref(place[key])
    place[key] = None
    assert before() is None
    assert not guards.hold()


def test_many_namespaces_are_told_apart() -> None:
    """Each change of one of many alike objects is seen, whichever of them it is."""
    many = [types.SimpleNamespace(rate=float(i), steps=[], table={}, named={"a": i}) for i in range(20)]

    def function(x: Tensor) -> Any:
        return [x * one.rate * len(one.steps) * len(one.table) * one.named["a"] for one in many]

    guards, _ = collect_guards(function)
    for one in many:
        changes: list[tuple[Any, Any, Any]] = [
            *((vars(one), "rate", -1.0), (one.table, 0, 1), (one.named, "a", -1), (one.named, "b", 0)),
            *((vars(one), "steps", [1]), (vars(one), "table", {1: 2}), (vars(one), "sum", 0)),
        ]
        for space, name, value in changes:
            before = dict(space)
            space[name] = value
            assert guards.hold() == (name == "sum")
            space.clear()
            space.update(before)
        one.steps.append(1)
        assert not guards.hold()
        one.steps.clear()
        one.rate = float(str(one.rate))
        assert guards.hold()


def test_builtins_of_several_functions_of_a_module_may_be_hidden() -> None:
    """Each function of a module reads builtins of its own, which a global of the same name would hide."""
    space: dict[str, Any] = {}
    exec("def f(x):\n    return x * len('ab') + g(x)\n\ndef g(x):\n    return x * max(1, 2)", space)
    guards, _ = collect_guards(space["f"])
    for name in ("len", "max"):
        assert guards.hold()
        space[name] = print
        assert not guards.hold()
        del space[name]
    space["mul"] = None  # an attribute's name is none of a global's
    assert guards.hold()


class _Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class _Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _Inner()

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) * 2


@pytest.mark.parametrize("name", ["", "inner"])
def test_a_module_is_given_a_forward_of_its_own(name: str) -> None:
    module = _Outer()
    for compiled in (aot.aot_module(module, aot.nop), aot.aot_function(module, aot.nop)):
        x = torch.ones(2)
        assert torch.equal(compiled(x), module(x))
        one = module.get_submodule(name)
        one.forward = lambda x: x + 100
        assert torch.equal(compiled(x), module(x))
        del one.forward
        assert torch.equal(compiled(x), module(x))
