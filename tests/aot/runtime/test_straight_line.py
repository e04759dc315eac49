"""Graphs as functions of ours: the same results as of fx's code, and nothing kept longer."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx

import aot
from aot.backends.straight_line import compile_straight_line
from aot.torch_internals import fx_graphs

pytestmark = pytest.mark.clause("lifetime")

aten = torch.ops.aten
Build = Callable[[fx.Graph, fx.Node, fx.Node], Any]


def _call(op: Any, args: Any, options: Any, nothing: dict[str, Any], named: dict[str, Any]) -> Any:
    assert not nothing and named["other"] is args[1]
    return op(*args, **options)


def _several(graph: fx.Graph, x: fx.Node, y: fx.Node) -> Any:
    parts = graph.call_function(aten.split.Tensor, (x, 1))
    first = graph.call_function(operator.getitem, (parts, 0))
    last = graph.call_function(operator.getitem, (parts, -1))
    graph.call_function(aten.sin.default, (y,))  # which nobody reads
    called = graph.call_function(_call, (aten.add.Tensor, (x, y), {"alpha": 2}, {}, {"other": y}))
    return (called, graph.call_function(aten.cat.default, ([first, last],)), None, [x, 2.5], x)


def _constants(graph: fx.Graph, x: fx.Node, y: fx.Node) -> Any:
    low = graph.call_function(aten.clamp.default, (x, float("-inf")), {"max": float("inf")})
    cast = graph.call_function(aten.to.dtype, (low, torch.float64))
    sliced = graph.call_function(operator.getitem, (y, (slice(None, 1), 0)))
    filled = graph.call_function(
        aten.full.default, ([2, 1], -0.0), {"dtype": torch.float32, "device": torch.device("cpu")}
    )
    return (cast, sliced, filled, graph.call_function(aten.add.Tensor, (x, y), {"alpha": 2}), True)


def _held(graph: fx.Graph, x: fx.Node, y: fx.Node) -> Any:
    constant = graph.get_attr("inner.weight")
    return (graph.call_function(aten.mul.Tensor, (x, constant)), constant)


def _module(build: Build) -> fx.GraphModule:
    root = torch.nn.Module()
    root.inner = torch.nn.Linear(2, 2)
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output(build(graph, x, y))
    return fx_graphs.LazyGraphModule(root, graph)


@pytest.mark.parametrize("build", [_several, _constants, _held])
def test_it_computes_what_fx_s_code_does(build: Build) -> None:
    module = _module(build)
    inputs = torch.randn(2, 2), torch.randn(2, 2)
    function = compile_straight_line(module)
    assert function is not None
    torch.manual_seed(1)
    found = function(*inputs)
    torch.manual_seed(1)
    expected = module(*inputs)
    assert type(found) is type(expected)
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Tensor):
            assert torch.equal(one, other)
            assert (one.dtype, one.signbit().tolist()) == (other.dtype, other.signbit().tolist())


def test_what_the_module_holds_is_looked_up_at_each_call() -> None:
    module = _module(_held)
    function = compile_straight_line(module)
    assert function is not None
    module.inner.weight = torch.nn.Parameter(torch.full((2, 2), 3.0))
    assert function(torch.ones(2, 2), torch.ones(2, 2))[0].tolist() == [[3, 3], [3, 3]]


def test_values_die_after_their_last_use() -> None:
    alive: list[Any] = []

    def make(x: Tensor) -> Tensor:
        made = x + 1
        alive.append(weakref.ref(made))
        return made

    def count(x: Tensor) -> int:
        return sum(one() is not None for one in alive)

    graph = fx.Graph()
    value = graph.placeholder("x")
    counts = []
    for _ in range(3):
        value = graph.call_function(make, (value,))
        counts.append(graph.call_function(count, (value,)))
    graph.output(tuple(counts))
    module = fx_graphs.LazyGraphModule(torch.nn.Module(), graph)
    function = compile_straight_line(module)
    assert function is not None
    assert function(torch.ones(2)) == (1, 1, 1)


class _Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize(
    "build",
    [
        lambda graph, x, y: (graph.call_method("sin", (x,)),),
        lambda graph, x, y: (graph.call_module("inner", (x,)),),
        lambda graph, x, y: (graph.call_function(operator.getitem, (_Pair(x, y), 0)),),
    ],
)
def test_the_rest_is_left_to_fx(build: Build) -> None:
    module = _module(build)
    assert compile_straight_line(module) is None
    x = torch.randn(2, 2)
    assert torch.equal(aot.nop(module, ())(x, x)[0], module(x, x)[0])


def test_nop_makes_no_code_and_other_compilers_get_it() -> None:
    graphs: list[fx.GraphModule] = []

    def compiler(module: fx.GraphModule, inputs: Any) -> Any:
        assert not fx_graphs.has_lazy_code(module)
        graphs.append(module)
        return module.forward

    def function(x: Tensor) -> Tensor:
        return x.sin().exp()

    for one in (compiler, aot.nop):
        x = torch.ones(2, requires_grad=True)
        compiled = aot.aot_function(function, one)
        compiled(x).sum().backward()
        (specialization,) = compiled.specializations
        made = (specialization.forward, *specialization.backwards)
        assert [fx_graphs.has_lazy_code(module) for module in made] == [one is aot.nop] * 2
        assert "def forward(self, " in made[0].code
    assert len(graphs) == 2
