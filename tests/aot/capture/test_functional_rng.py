"""Functionalized random draws: graphs without hidden state, and draws that a backward repeats."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import functorch.compile
import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional

import aot
from aot.capture.recorder.functional_rng import functional_op
from aot.partition.joint_graph import extract_forward_and_backward, parse_joint_graph
from aot.partition.tensor_bytes import span_bytes
from tests.support.agreement import (
    assert_agrees,
    assert_functional,
    checking_nop,
    leaf,
    listed,
    non_leaf,
    values,
)

pytestmark = pytest.mark.clause("randomness")

aten = torch.ops.aten

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


def recompute_all(module: fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int) -> Any:
    """Save nothing but inputs: all else is done again, draws as well."""
    parts = parse_joint_graph(module, num_fwd_outputs)
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    forward = [n for n in nodes if n not in parts.recorded_backward]
    return extract_forward_and_backward(parts, forward, parts.primals, nodes)


PARTITIONERS: dict[str, Partition] = {
    "default": aot.default_partition,
    "min-cut": aot.min_cut_rematerialization_partition,
    "frugal": functools.partial(aot.min_cut_rematerialization_partition, memory_budget=0),
    "all again": recompute_all,
    "stock default": functorch.compile.default_partition,
    "stock min-cut": functorch.compile.min_cut_rematerialization_partition,
}

compile_rng = functools.partial(aot.aot_function, functionalize_rng_ops=True)


def _network(x: Tensor, w: Tensor) -> Tensor:
    hidden = functional.dropout((x @ w).relu(), 0.5)
    return functional.dropout((hidden @ w.t()).tanh(), 0.3) @ w


def _attention(x: Tensor, w: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x[None], (x @ w)[None], w[None], dropout_p=0.4)


def _noisy(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    noise = torch.randn_like(x)
    return (x + noise).exp() * w, noise


def _into_an_argument(x: Tensor, w: Tensor) -> Tensor:
    x.normal_().mul_(w)
    return x.sin()


def _into_a_part(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y[:, ::2].uniform_()
    return functional.rrelu(y, training=True).exp()


def _in_a_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    y: Tensor = torch.utils.checkpoint.checkpoint(_network, x, w, use_reentrant=False)
    return functional.dropout(y, 0.5) * torch.rand(3)


def _of_a_draw_in_a_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    def block(t: Tensor) -> Tensor:
        chances = functional.dropout(torch.rand(3, 3), 0.4) * 0.3
        return functional.dropout(torch.bernoulli(chances) * t.sin(), 0.2).exp()

    y: Tensor = torch.utils.checkpoint.checkpoint(block, x @ w, use_reentrant=False)
    return torch.utils.checkpoint.checkpoint(block, y, use_reentrant=False)  # type: ignore[no-any-return]


def _forked(x: Tensor, w: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        y = functional.dropout(x * w, 0.5)
    return y + functional.dropout(x * w, 0.5).exp() + torch.rand(3)


PROGRAMS = [
    _network,
    _attention,
    _noisy,
    _into_an_argument,
    _into_a_part,
    _in_a_checkpoint,
    _of_a_draw_in_a_checkpoint,
    _forked,
]


def make() -> list[Tensor]:
    return [non_leaf(3, 3), leaf(3, 3, start=9)]


@pytest.mark.parametrize("partitioner", [name for name in PARTITIONERS if not name.startswith("stock")])
@pytest.mark.parametrize("f", PROGRAMS)
def test_agrees_with_eager(f: Callable[..., Any], partitioner: str) -> None:
    assert_agrees(f, make, partition=PARTITIONERS[partitioner], functionalize_rng_ops=True)


@pytest.mark.parametrize("f", [_network, _of_a_draw_in_a_checkpoint])
@pytest.mark.parametrize(
    ("partitioner", "create_graph"),
    # (What stock's min-cut saves is not enough for a second derivative, draws or not.)
    [
        (name, again)
        for name in PARTITIONERS
        for again in (False, True)
        if (name, again) != ("stock min-cut", True)
    ],
)
def test_several_backwards(f: Callable[..., Any], partitioner: str, create_graph: bool) -> None:
    results = []
    for function in (f, compile_rng(f, checking_nop, partition_fn=PARTITIONERS[partitioner])):
        torch.manual_seed(0)
        x, w = leaf(3, 3), leaf(3, 3, start=9)
        first, second = function(x, w), function(x, w)
        after = torch.get_rng_state()
        told: list[Any] = [first, second, after]
        for y in (second, first, second):
            torch.rand(3)
            told += torch.autograd.grad(y.pow(2).sum(), (x, w), retain_graph=True, create_graph=create_graph)
        if create_graph:
            told += torch.autograd.grad(sum(g.pow(2).sum() for g in told[3:]), (x, w))
        results.append(told)
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("functionalized", [False, True])
def test_a_draw_that_a_partitioner_puts_into_the_backward(functionalized: bool) -> None:
    def f(x: Tensor) -> Tensor:
        return (x * torch.rand(5)).exp() * torch.rand(5)

    compiled = aot.aot_function(
        f, checking_nop, partition_fn=recompute_all, functionalize_rng_ops=functionalized
    )
    x = leaf(5)
    if not functionalized:
        with pytest.raises(aot.BackendError, match="random draw"):
            compiled(x)
        return
    told = []
    for function in (f, compiled):
        torch.manual_seed(0)
        y = function(x)
        torch.rand(7)
        state = torch.get_rng_state()
        told.append(listed((y, *torch.autograd.grad(y.sum(), x))))
        assert torch.equal(torch.get_rng_state(), state), "the backward moves the generator"
    assert told[0] == told[1]
    (backward,) = compiled.specializations[0].backwards
    assert [n.name for n in backward.graph.nodes if n.op == "placeholder"][:2] == [
        "primals_1",
        "rng_state_cpu",
    ]
    assert sum("aot_rng.rand" in str(n.target) for n in backward.graph.nodes) == 2


def test_a_graph_has_no_hidden_state() -> None:
    compiled = compile_rng(_network, checking_nop)
    compiled(*make())
    graph = compiled.specializations[0].forward
    assert_functional(graph)
    state = torch.get_rng_state()
    first = fx.Interpreter(graph).run(*make(), state)
    assert torch.equal(torch.get_rng_state(), state), "the graph moves the generator"
    torch.rand(9)
    second = fx.Interpreter(graph).run(*make(), state)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    torch.set_rng_state(state)
    assert torch.equal(_network(*make()), first[0])
    assert torch.equal(torch.get_rng_state(), first[1])
    other = fx.Interpreter(graph).run(*make(), first[1])
    assert not torch.equal(other[0], first[0])


def test_the_state_comes_after_the_primals_and_the_next_one_after_the_values() -> None:
    given: list[Any] = []

    def compiler(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        given.append([(tuple(i.shape), i.dtype) for i in inputs])
        return module.forward

    compiled = compile_rng(_noisy, compiler)
    compiled(*make())
    state = ((5056,), torch.uint8)
    assert given == [[((3, 3), torch.float32), ((3, 3), torch.float32), state]]
    names = [n.name for n in compiled.specializations[0].forward.graph.nodes if n.op == "placeholder"]
    assert names == ["primals_1", "primals_2", "rng_state_cpu"]
    results = list(compiled.specializations[0].forward.graph.nodes)[-1].args[0]
    assert (tuple(results[2].meta["val"].shape), results[2].meta["val"].dtype) == state


def test_a_function_that_draws_nothing_has_no_state() -> None:
    compiled = compile_rng(lambda x: x.sin() * torch.ones(3), checking_nop)
    compiled(leaf(3))
    (one,) = compiled.specializations
    assert one.metadata.num_outputs_rng_offset == 0
    assert "rng" not in str(one.metadata)
    assert "rng" not in one.wrapper
    assert "rng" not in one.forward.code


def test_explain_shows_states() -> None:
    compiled = compile_rng(lambda x: x + torch.rand(3), checking_nop)
    compiled(values(3))
    text = aot.explain(compiled)
    assert "states of random generators, in and out: 1\n" in text
    assert compiled.specializations[0].metadata.num_outputs_rng_offset == 1
    assert "def forward(self, primals_1, rng_state_cpu):" in text
    assert "torch.ops.aot_rng.rand.default(rng_state_cpu, [3]" in text
    assert "rng0 = get_rng_state(" in text
    assert "results = run_forward([t0, rng0])" in text
    assert "set_rng_state(device0, rng0)" in text


def _saved(partition: Partition, functionalized: bool) -> dict[str, int]:
    def f(x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5).exp() * torch.rand(100, 100)

    compiled = aot.aot_function(f, checking_nop, partition_fn=partition, functionalize_rng_ops=functionalized)
    x = leaf(100, 100)
    torch.manual_seed(0)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
    torch.manual_seed(0)
    assert torch.equal(gradient, torch.autograd.grad(f(x).sum(), x)[0])
    (backward,) = compiled.specializations[0].backwards
    inputs = [n for n in backward.graph.nodes if n.op == "placeholder" and "tangents" not in n.name]
    return {n.name: span_bytes(n) for n in inputs if n.name != "primals_1"}


def test_min_cut_saves_a_state_instead_of_what_was_drawn() -> None:
    frugal = PARTITIONERS["min-cut"]
    assert sum(_saved(frugal, False).values()) >= 2 * 40_000
    assert _saved(frugal, True) == {"rng_state_cpu": 5056}
    assert "rng_state_cpu" not in _saved(PARTITIONERS["default"], True)


@pytest.mark.parametrize("partitioner", ["default", "min-cut", "frugal"])
def test_a_checkpoint_repeats_its_draws_from_one_state(partitioner: str) -> None:
    compiled = compile_rng(_of_a_draw_in_a_checkpoint, aot.nop, partition_fn=PARTITIONERS[partitioner])
    compiled(*make())
    (backward,) = compiled.specializations[0].backwards
    inputs = [n for n in backward.graph.nodes if n.op == "placeholder"]
    states = [n for n in inputs if n.meta["val"].dtype is torch.uint8]
    assert len(states) == 2, "the one before each region"
    drawn = [str(n.target) for n in backward.graph.nodes if "aot_rng" in str(n.target)]
    assert len(drawn) == 8
    saved = {n.name for n in inputs[:-1]} - {n.name for n in states}
    assert saved == {"primals_1", "primals_2", "mm_default", "exp_default"}


def test_a_backend_that_raises_leaves_the_generator() -> None:
    def compiler(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def run(*args: Any) -> Any:
            module(*args)
            raise ValueError("not today")

        return run

    compiled = compile_rng(lambda x: x.mul_(torch.rand(3)), compiler)
    x, state = values(3), torch.get_rng_state()
    with pytest.raises(ValueError, match="not today"):
        compiled(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, values(3))


def test_threads_do_not_draw_the_same() -> None:
    compiled = compile_rng(lambda x: x + torch.rand(4, 1000), checking_nop)
    x = torch.zeros(4, 1000)
    torch.manual_seed(0)
    expected = {tuple((x + torch.rand(4, 1000))[0, :3].tolist()) for _ in range(40)}
    compiled(x)
    torch.manual_seed(0)
    drawn: list[tuple[float, ...]] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        drawn.extend(tuple(compiled(x)[0, :3].tolist()) for _ in range(10))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == 40
    assert set(drawn) == expected


DRAWS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "rand": (aten.rand.default, ([3, 4],), {"dtype": torch.float64}),
    "normal with a leftover": (aten.randn.default, ([3],), {}),
    "permutation": (aten.randperm.default, (7,), {}),
    "like": (aten.randint_like.default, (torch.ones(3, 4).t(), 9), {}),
    "two results": (aten.native_dropout.default, (torch.ones(9), 0.5, True), {}),
    "in place": (aten.uniform_.default, (torch.zeros(6)[::2], 2.0, 3.0), {}),
    "called like a keyword": (getattr(aten.random_, "from"), (torch.zeros(6)[::2], 2, 9), {}),
    "what it writes to besides": (
        aten.rrelu_with_noise.default,
        (-torch.ones(5), torch.zeros(5), 0.1, 0.3, True),
        {},
    ),
    "out": (aten.bernoulli.out, (torch.full((9,), 0.5),), {"out": torch.zeros(9)}),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_a_pure_form_draws_as_the_operation_does(draw: str) -> None:
    op, args, kwargs = DRAWS[draw]
    torch.manual_seed(3)
    torch.randn(1)  # which leaves a second number for the next one
    state = torch.get_rng_state()
    form = functional_op(op)
    results = form(state, *args, **kwargs)
    assert torch.equal(torch.get_rng_state(), state)
    again = form(state, *args, **kwargs)
    assert all(torch.equal(a, b) for a, b in zip(results, again, strict=True))
    assert not torch.equal(results[-1], state)
    expected = op(*args, **kwargs)  # which writes to what it is given
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert torch.equal(results[0], expected[0])
    assert torch.equal(results[-1], torch.get_rng_state())


@pytest.mark.parametrize("draw", DRAWS)
def test_a_pure_form_is_an_operation_as_torch_wants_it(draw: str) -> None:
    op, args, kwargs = DRAWS[draw]
    form = functional_op(op)
    assert not form._schema.is_mutable
    named = {argument.name for argument in form._schema.arguments}
    # (torch's test of schemas cannot call an operation with an argument of that name, ATen's own included.)
    tests = ("test_faketensor",) if "from" in named else ("test_faketensor", "test_schema")
    torch.library.opcheck(form, (torch.get_rng_state(), *args), kwargs, test_utils=tests)


@pytest.mark.cuda
# (Stock's min-cut fails on what is dropout on a CUDA device, where a checkpoint runs it again.)
@pytest.mark.parametrize("partitioner", [name for name in PARTITIONERS if name != "stock min-cut"])
@pytest.mark.parametrize("f", PROGRAMS)
def test_on_a_cuda_device(f: Callable[..., Any], partitioner: str) -> None:
    """The state of a CUDA device's generator is its seed and offset."""
    device = torch.device("cuda", 0)
    told = []
    compiled = compile_rng(f, aot.nop, partition_fn=PARTITIONERS[partitioner])
    for function in (f, compiled):
        torch.manual_seed(0)
        with torch.device(device):
            x, w = values(3, 3).to(device).requires_grad_() * 1, values(3, 3, start=9).to(device)
            w.requires_grad_()
            result = function(x, w)
        result = result[0] if isinstance(result, tuple) else result
        after = torch.cuda.get_rng_state(device)
        told.append([result, after, *torch.autograd.grad(result.sum(), w)])
        assert torch.equal(torch.cuda.get_rng_state(device), after)
    for eager, ours in zip(*told, strict=True):
        torch.testing.assert_close(ours, eager)
    inputs = [n for n in compiled.specializations[0].forward.graph.nodes if n.op == "placeholder"]
    (state,) = (n.meta["val"] for n in inputs if n.name == "rng_state_cuda_0")
    assert (tuple(state.shape), state.dtype, state.device.type) == ((2,), torch.int64, "cpu")
