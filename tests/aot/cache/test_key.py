"""Whatever a compile depends on is a part of its key on disk; what has no key is not kept, for a reason."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import aot
from aot.cache import key as keys
from aot.cache import source_digest
from tests.support.agreement import leaf, values
from tests.support.aot.operator_reads import needs_followed_bytecode
from tests.support.aot.subclasses import TwoTensor

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "folder")


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sin()


def compile_graph(function: Any, *args: Any, **options: Any) -> Callable[..., Any]:
    graph = function if isinstance(function, fx.GraphModule) else fx.symbolic_trace(function)
    return aot.aot_module_simplified(graph, args, aot.nop, **options)


def misses() -> int:
    return aot.cache.stats().misses


def the_same(*args: Any, function: Any = product, **options: Any) -> bool:
    """Whether such a call has the key of the first."""
    compile_graph(product, values(2, 2), leaf(2, 2))
    before = aot.cache.stats()
    compile_graph(function, *(args or (values(2, 2), leaf(2, 2))), **options)
    after = aot.cache.stats()
    assert after.hits + after.misses == before.hits + before.misses + 1, after.uncached
    return after.hits > before.hits


def renamed(one: Tensor, other: Tensor) -> Tensor:
    intermediate = one * other
    return intermediate.sin()


def test_names_and_places_count_for_nothing() -> None:
    assert the_same()
    assert the_same(function=renamed)


FUNCTIONS: list[Callable[..., Any]] = [
    lambda x, w: (w * x).sin(),
    lambda x, w: (x * w).cos(),
    lambda x, w: (x + w).sin(),
    lambda x, w: torch.sin(x * w),
    lambda x, w: ((x * w).sin(),),
    lambda x, w: [(x * w).sin()],
    lambda x, w: {"out": (x * w).sin()},
    lambda x, w: ((x * w).sin(), (x * w).sin()),
    lambda x, w: (x * w).sin() * 1,
    lambda x, w: x.mul_(w).sin(),
]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_the_graph_is_part_of_the_key(number: int) -> None:
    assert not the_same(function=FUNCTIONS[number])


CONSTANTS = [1, 1.0, True, 2, -0.0, 0.0, 1 + 0j, float("inf")]


def test_constants_are_told_apart_as_nothing_else_can() -> None:
    for value in CONSTANTS:
        compile_graph(lambda x, value=value: x * value, values(2))
    assert (misses(), aot.cache.stats().hits) == (len(CONSTANTS), 0)


def shared() -> tuple[Tensor, Tensor]:
    x = values(2, 2)
    return x, x


def aliases() -> tuple[Tensor, Tensor]:
    whole = values(8)
    return whole[:4].view(2, 2), whole[4:].view(2, 2)


def with_gradient() -> tuple[Tensor, Tensor]:
    w = leaf(2, 2)
    w.grad = torch.ones(2, 2)
    return values(2, 2), w


CALLS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "requires grad": lambda: (leaf(2, 2), leaf(2, 2)),
    "not": lambda: (values(2, 2), values(2, 2)),
    "no leaf": lambda: (values(2, 2), leaf(2, 2) * 1),
    "a parameter": lambda: (values(2, 2), nn.Parameter(values(2, 2))),
    "shape": lambda: (values(3, 2), leaf(2)),
    "strides": lambda: (values(2, 2).t(), leaf(2, 2)),
    "offset": lambda: (values(5)[1:].view(2, 2), leaf(2, 2)),
    "storage": lambda: (values(5)[:4].view(2, 2), leaf(2, 2)),
    "dtype": lambda: (values(2, 2, dtype=torch.float64), leaf(2, 2)),
    "device": lambda: (values(2, 2).to("meta"), leaf(2, 2).detach().to("meta")),
    "conj": lambda: (torch.ones(2, 2, dtype=torch.complex64).conj(), leaf(2, 2)),
    "one object": shared,
    "one storage": aliases,
    "a gradient": with_gradient,
    "a number": lambda: (values(2, 2), 3),
    "another number": lambda: (values(2, 2), 3.0),
}


def test_everything_of_the_arguments_is_part_of_the_key() -> None:
    for number, call in enumerate(CALLS.values()):
        compile_graph(product, *call())
        assert misses() == number + 1
    for call in CALLS.values():
        compile_graph(product, *call())
    stats = aot.cache.stats()
    assert (stats.misses, stats.hits, stats.uncached) == (len(CALLS), len(CALLS), {})


def under_autocast(dtype: torch.dtype) -> Any:
    return torch.autocast("cpu", dtype=dtype)


class Deterministic:
    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *error: Any) -> None:
        torch.use_deterministic_algorithms(False)


class DefaultDtype:
    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *error: Any) -> None:
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[], Any]] = {
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "bfloat16": lambda: under_autocast(torch.bfloat16),
    "float16": lambda: under_autocast(torch.float16),
    "deterministic": Deterministic,
    "default dtype": DefaultDtype,
    "default device": lambda: torch.device("meta"),
    "without oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "without flash attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
}


def test_the_ambient_state_is_part_of_the_key() -> None:
    x, w = values(2, 2), leaf(2, 2)
    for number, mode in enumerate(MODES.values()):
        with mode():
            compile_graph(product, x, w)
        assert misses() == number + 1, aot.cache.stats()


def budget(share: float) -> Any:
    return functools.partial(aot.min_cut_rematerialization_partition, memory_budget=share)


OPTIONS: dict[str, dict[str, Any]] = {
    "min-cut": {"partition_fn": aot.min_cut_rematerialization_partition},
    "a budget": {"partition_fn": budget(0.5)},
    "another": {"partition_fn": budget(0.25)},
    "keep": {"keep_inference_input_mutations": True},
    "decompositions": {"decompositions": torch._decomp.get_decompositions([torch.ops.aten.addcmul])},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_part_of_the_key(name: str) -> None:
    assert not the_same(**OPTIONS[name])
    assert the_same(**OPTIONS[name])


def test_the_order_of_sums_of_products_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_graph(product, values(2), values(2))
    monkeypatch.setattr(type(torch.backends.opt_einsum), "enabled", True, raising=False)
    compile_graph(product, values(2), values(2))
    assert misses() == 2


def test_versions_and_this_package_s_source_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = ((keys, "own_source", lambda: "another"), (torch, "__version__", "2.99"))
    for number, change in enumerate((None, *changes)):
        with monkeypatch.context() as patch:
            if change is not None:
                patch.setattr(*change)
            compile_graph(product, values(2), values(2))
        assert misses() == number + 1
    compile_graph(product, values(2), values(2))
    assert (misses(), aot.cache.stats().hits) == (3, 1)
    assert len(source_digest.own_source()) == 64


def test_the_sizes_of_a_front_end_are_not_kept_as_symbols() -> None:
    def f(x: Tensor) -> Tensor:
        return x * x.shape[0]

    compiled = torch.compile(f, backend="aotfuzz", dynamic=True)
    assert compiled(torch.ones(3)).tolist() == [3.0] * 3
    assert compiled(torch.ones(4)).tolist() == [4.0] * 4
    assert aot.cache.stats().uncached == {"sizes that are symbols": 1}


def test_a_graph_and_the_code_that_runs_are_one() -> None:
    graph = fx.symbolic_trace(product)
    for node in graph.graph.find_nodes(op="call_method"):
        node.target = "cos"
    x = values(2)
    assert torch.equal(compile_graph(graph, x, x)(x, x), product(x, x))
    graph.recompile()
    assert torch.equal(compile_graph(graph, x, x)(x, x), (x * x).cos())
    stats = aot.cache.stats()
    assert stats.uncached == {"a graph module that runs something else than its graph": 1}
    assert stats.misses == 1


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3


class Hidden(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return True


def hidden(module: nn.Module) -> fx.GraphModule:
    """A graph that calls the module."""
    root = nn.Sequential(module)
    return fx.GraphModule(root, Hidden().trace(root))


def hooked() -> fx.GraphModule:
    graph = fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    graph.get_submodule("0").register_forward_hook(lambda module, args, out: out * 2)
    return graph


def mine(x: Tensor) -> Tensor:
    return x * 2


def calling(function: Any, *args: Any) -> fx.GraphModule:
    """A graph that calls a function of its argument, if none are given."""
    graph = fx.Graph()
    graph.output(graph.call_function(function, args or (graph.placeholder("x"),)))
    return fx.GraphModule(nn.Module(), graph)


def partition_of_mine(*args: Any, **options: Any) -> Any:
    return aot.default_partition(*args, **options)


REFUSED: dict[str, Callable[[], Any]] = {
    "a module of the user's": lambda: compile_graph(hidden(Scaled()), values(2)),
    "hooks on modules": lambda: compile_graph(hooked(), values(2)),
    "a function or an object of the user's": lambda: compile_graph(calling(mine), values(2)),
    "functionalized random draws": lambda: compile_graph(
        calling(torch.sin), values(2), functionalize_rng_ops=True
    ),
    "a tensor subclass": lambda: compile_graph(calling(torch.sin), TwoTensor(values(2), values(2))),
    "a partitioner of the user's": lambda: compile_graph(
        calling(torch.sin), leaf(2), partition_fn=partition_of_mine
    ),
    "a large constant": lambda: compile_graph(calling(torch.tensor, [1.0] * 20_000)),
    "containers of another type": lambda: compile_graph(
        calling(torch.sin), collections.OrderedDict(x=values(2))
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_has_no_key_is_not_kept(reason: str) -> None:
    with contextlib.suppress(TypeError):  # torch.sin takes no dicts
        REFUSED[reason]()
    stats = aot.cache.stats()
    assert stats.uncached == {reason: 1}
    assert stats.entries == stats.hits == 0


READING: list[tuple[Any, tuple[Any, ...]]] = [
    (torch.get_num_threads, ()),
    (torch.initial_seed, ()),
    (torch.cuda.is_available, ()),
    (torch._C._get_cudnn_enabled, ()),
    (hash, ("2",)),
]


@pytest.mark.parametrize(("function", "args"), READING, ids=lambda value: getattr(value, "__name__", ""))
def test_graphs_that_ask_for_the_state_of_the_process_are_not_kept(function: Any, args: Any) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.mul, (x, graph.call_function(function, args))))
    compiled = compile_graph(fx.GraphModule(nn.Module(), graph), values(2))
    assert torch.equal(compiled(values(2)), values(2) * function(*args))
    assert aot.cache.stats().uncached == {"a function that reads the state of the process": 1}


def test_functions_under_the_name_of_torch_s_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    factor = 2.0

    @functools.wraps(torch.nn.functional.silu)
    def scaled(x: Tensor) -> Tensor:
        return x * factor

    monkeypatch.setattr(torch.nn.functional, "silu", scaled)
    assert torch.equal(compile_graph(calling(scaled), values(2))(values(2)), values(2) * 2)
    assert aot.cache.stats().uncached == {"a function or an object of the user's": 1}


def test_replaced_methods_of_modules_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.ReLU6, "forward", lambda self, x: x * 2)
    assert torch.equal(compile_graph(hidden(nn.ReLU6()), values(2))(values(2)), values(2) * 2)
    assert aot.cache.stats().uncached == {"a module of the user's": 1}


def test_partitioners_that_pass_for_others_are_not_kept() -> None:
    class Partial(functools.partial[Any]):
        def __call__(self, /, *args: Any, **options: Any) -> Any:
            return aot.min_cut_rematerialization_partition(*args, **options)

    compile_graph(product, values(2, 2), leaf(2, 2), partition_fn=Partial(aot.default_partition))
    assert aot.cache.stats().uncached == {"a partitioner of the user's": 1}


def test_replaced_methods_of_tensors_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "sinc", lambda x: x * 2, raising=False)
    monkeypatch.setattr(Tensor, "of_mine", lambda x: x, raising=False)
    compile_graph(product, values(2), values(2))
    assert aot.cache.stats().uncached == {"a method of tensors that is not torch's": 1}
    monkeypatch.undo()
    monkeypatch.setattr(Tensor, "of_mine", lambda x: x, raising=False)
    with aot.config.patch(cache=aot.cache.stats().folder):
        compile_graph(product, values(2), values(2))
        assert aot.cache.stats().misses == 1


def test_stack_traces_are_not_kept() -> None:
    with aot.config.patch(stack_traces=True):
        compile_graph(product, values(2), values(2))
    assert aot.cache.stats().uncached == {"stack traces": 1}


def test_modes_of_the_caller_s_are_not_kept() -> None:
    class Doubled(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    with Doubled():
        compile_graph(product, values(2), values(2))
    assert aot.cache.stats().uncached == {"a mode that is on": 1}


def test_hooks_on_all_modules_are_not_kept() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: None)
    try:
        compile_graph(product, values(2), values(2))
    finally:
        handle.remove()
    assert aot.cache.stats().uncached == {"hooks on modules": 1}


def test_python_of_the_backward_is_not_kept() -> None:
    def checkpointed(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)  # type: ignore[no-any-return]

    torch.compile(checkpointed, backend="aotfuzz")(leaf(2)).sum().backward()
    (reason,) = aot.cache.stats().uncached
    assert reason in ("an operator that takes functions", "Python that runs in the backward")


def test_conditions_are_graphs_in_graphs() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cond(torch.tensor(True), lambda y: y.sin(), lambda y: y.cos(), (x,))

    def g(x: Tensor) -> Tensor:
        return torch.cond(torch.tensor(True), lambda y: y.exp(), lambda y: y.cos(), (x,))

    for function in (f, g, f):
        torch._dynamo.reset()
        got = torch.compile(function, backend="aotfuzz")(values(3))
        torch.testing.assert_close(got, function(values(3)))
    assert (aot.cache.stats().hits, misses()) == (1, 2)


SCALE = 2.0


def define(namespace: str, body: Callable[..., Any], derivative: Callable[..., Any]) -> Any:
    """A custom operator of that name."""
    op = torch.library.custom_op(f"{namespace}::scaled", body, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_fake(torch.empty_like)
    op.register_autograd(derivative)
    return op


@needs_followed_bytecode
def test_the_source_of_custom_operators_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: Tensor) -> Tensor:
        return x * SCALE

    def other_body(x: Tensor) -> Tensor:
        return x * (SCALE + 1)

    def derivative(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * SCALE

    def other_derivative(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (SCALE + 1)

    def run() -> list[Tensor]:
        x = leaf(3)
        compiled = compile_graph(calling(torch.ops.aotcache.scaled.default), x)
        y = compiled(x)
        y.sum().backward()
        assert x.grad is not None
        return [y, x.grad]

    seen = []
    for bodies in (
        (body, derivative),
        (body, derivative),
        (other_body, derivative),
        (body, other_derivative),
    ):
        op = define("aotcache", *bodies)
        seen.append((run(), misses()))
        del op
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    op = define("aotcache", body, derivative)
    (result, gradient), count = run(), misses()
    # (The body runs at each call, and no trace depends on it.)
    assert [count for _, count in seen] + [count] == [1, 1, 1, 2, 3]
    assert torch.equal(result, values(3) * 5) and torch.equal(gradient, torch.full((3,), 5.0))
    assert torch.equal(seen[2][0][0], values(3) * 3) and torch.equal(seen[3][0][1], torch.full((3,), 3.0))
    del op


@needs_followed_bytecode
def test_custom_operators_that_read_objects_are_not_kept() -> None:
    class Settings:
        factor = 2.0

    settings = Settings()

    def body(x: Tensor) -> Tensor:
        return x * 2

    def derivative(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * settings.factor

    op = define("aotcacheobjects", body, derivative)
    compile_graph(calling(torch.ops.aotcacheobjects.scaled.default), values(3))
    assert aot.cache.stats().uncached == {"a custom operator that reads Python objects": 1}
    del op
