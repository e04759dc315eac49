"""What a CUDA device has that a CPU has not: generators with offsets, CUDA graphs, other devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import aot
from tests.support.agreement import assert_agrees, compile_with_inductor, leaf, values
from tests.support.aot.cuda_tensors import gpu_leaf, gpu_values

pytestmark = pytest.mark.cuda

Function = Callable[..., Any]


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def writes(x: Tensor, w: Tensor) -> Tensor:
    x.mul_(2)
    return (x * w).sin()


def writes_to_a_view(x: Tensor, w: Tensor) -> Tensor:
    x[0].copy_(w[1].detach())
    return x * w


def gives_aliases(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * w
    return x.view(-1), y, y.t(), w.t()


def turns(x: Tensor, w: Tensor) -> Tensor:
    x.t_()
    return x.t() * w


def drops_out(x: Tensor, w: Tensor) -> Tensor:
    return functional.dropout(x * w, 0.5).sin()


def makes_constants(x: Tensor, w: Tensor) -> Tensor:
    return x * w + torch.arange(3, device=x.device) + torch.full((3,), 2.0, device="cuda")


PROGRAMS = [writes, writes_to_a_view, gives_aliases, turns, drops_out, makes_constants]


def first(result: Any) -> Tensor:
    return result[1] if isinstance(result, tuple) else result


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("train", [False, True])
def test_a_known_call_waits_for_nothing(f: Function, train: bool) -> None:
    compiled = aot.aot_function(f, aot.nop)
    w = gpu_leaf(3, 3, start=9) if train else gpu_values(3, 3, start=9)
    for known in (False, True):
        x = gpu_values(3, 3)
        tangent = torch.ones(3, 3, device="cuda")

        def step(x: Tensor = x, tangent: Tensor = tangent) -> None:
            result = first(compiled(x, w))
            if train:
                torch.autograd.grad(result, w, tangent)

        if known:
            with no_waiting():
                step()
        else:
            step()
    assert len(compiled.specializations) == 1


class Counted:
    """A graph compiler that counts what the allocator gives out within graphs."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self, module: fx.GraphModule, _: Sequence[Any]) -> Any:
        def run(*arguments: Any) -> Any:
            before = given_out()
            results = module(*arguments)
            self.given += given_out() - before
            return results

        return run


def given_out() -> int:
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("train", [False, True])
def test_the_wrapper_allocates_nothing(f: Function, train: bool) -> None:
    inside = Counted()
    compiled = aot.aot_function(f, inside)
    x, w = gpu_values(3, 3), gpu_leaf(3, 3, start=9) if train else gpu_values(3, 3, start=9)
    tangent = torch.ones(3, 3, device="cuda")
    for known in (False, True):
        x, inside.given, before = gpu_values(3, 3), 0, 0
        before = given_out()
        result = first(compiled(x, w))
        if train:
            torch.autograd.grad(result, w, tangent)
        if known:
            assert given_out() - before == inside.given > 0


def test_one_kernel_writes_to_all_of_a_dtype() -> None:
    """But for half precision, of which it computes in single: a NaN is then another one."""

    def f(floats: list[Tensor], whole: list[Tensor], half: list[Tensor], y: Tensor) -> None:
        for x in (*floats, *whole):
            x.mul_(2)
        for x in half:
            x.copy_(y)

    def make() -> tuple[Any, ...]:
        half = gpu_values(2).half()
        y = torch.tensor([0x7C01, 0x7E05], dtype=torch.int16, device="cuda").view(torch.float16)
        whole = torch.arange(4, device="cuda")
        return [gpu_values(2), gpu_values(3, 2).t()], [whole, whole + 1], [half, half + 1], y

    compiled = aot.aot_function(f, aot.nop)
    for known in (False, True):
        theirs, ours = make(), make()
        f(*theirs)
        with no_waiting() if known else nullcontext():
            compiled(*ours)
        for one, other in zip(pytree.tree_leaves(theirs), pytree.tree_leaves(ours), strict=True):
            as_bits = torch.int16 if one.dtype is torch.float16 else one.dtype
            assert torch.equal(one.view(as_bits), other.view(as_bits))
            assert (one._version > 0) == (other._version > 0)
    (specialization,) = compiled.specializations
    assert "copy_each([t0, t1], [" in specialization.wrapper
    assert "copy_each([t2, t3], [" in specialization.wrapper
    assert "t4.copy_(" in specialization.wrapper


@pytest.mark.parametrize("f", [writes, gives_aliases, drops_out, makes_constants])
@pytest.mark.parametrize("train", [False, True])
def test_a_call_is_captured_in_a_cuda_graph(f: Function, train: bool) -> None:
    tangent = torch.ones(3, 3, device="cuda")

    def step(function: Function, x: Tensor, w: Tensor) -> list[Tensor]:
        result = first(function(x, w))
        gradients = torch.autograd.grad(result, w, tangent) if train else ()
        return [result.detach(), *gradients]

    compiled = aot.aot_function(f, aot.nop)
    told = []
    for function in (f, compiled):
        x, w = gpu_values(3, 3), gpu_leaf(3, 3, start=9) if train else gpu_values(3, 3, start=9)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                step(function, x, w)
        torch.cuda.current_stream().wait_stream(aside)
        torch.manual_seed(3)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step(function, x, w)
        x.copy_(gpu_values(3, 3, start=4))
        graph.replay()
        told.append([x.tolist(), *(r.tolist() for r in results)])
    assert told[0] == told[1]


@pytest.mark.parametrize("f", PROGRAMS)
def test_a_call_runs_on_the_current_stream_and_its_backward_too(f: Function) -> None:
    streams: list[torch.cuda.Stream] = []

    def noting(module: fx.GraphModule, _: Sequence[Any]) -> Any:
        def run(*arguments: Any) -> Any:
            streams.append(torch.cuda.current_stream())
            return module(*arguments)

        return run

    compiled = aot.aot_function(f, noting)
    told = []
    for function in (f, compiled):
        torch.manual_seed(0)
        x, w = gpu_values(3, 3), gpu_leaf(3, 3, start=9)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        streams.clear()
        with torch.cuda.stream(aside):
            torch.cuda._sleep(10_000_000)
            result = first(function(x, w))
        torch.cuda.current_stream().wait_stream(aside)
        (gradient,) = torch.autograd.grad(result.square().sum(), w)
        told.append((x.tolist(), result.tolist(), gradient.tolist()))
    assert told[0] == told[1]
    assert streams == [aside, aside]


@pytest.mark.parametrize("budget", [None, 0.0])
@pytest.mark.parametrize("functionalize", [False, True])
def test_the_generator_moves_as_in_eager_and_nothing_is_drawn_twice(
    budget: float | None, functionalize: bool
) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return functional.dropout(functional.dropout(x * w, 0.5).sin() * w, 0.25).cos() + torch.rand_like(x)

    partition = None
    if budget is not None:
        partition = partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
    compiled = aot.aot_function(f, aot.nop, partition_fn=partition, functionalize_rng_ops=functionalize)
    told = []
    for function in (f, compiled, compiled):
        torch.manual_seed(0)
        x, w = gpu_values(40, 40), gpu_leaf(40, 40, start=9)
        result = function(x, w)
        offset = torch.cuda.get_rng_state()
        (gradient,) = torch.autograd.grad(result.sum(), w)
        assert torch.equal(torch.cuda.get_rng_state(), offset)
        told.append((result.tolist(), gradient, offset.tolist(), torch.rand(3, device="cuda").tolist()))
    for one in told[1:]:
        torch.testing.assert_close(one, told[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("functionalize", [False, True])
@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_attention_trains_as_in_eager(
    dtype: torch.dtype, dropout: float, functionalize: bool, budget: float
) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)

    partition = partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
    compiled = aot.aot_function(f, aot.nop, partition_fn=partition, functionalize_rng_ops=functionalize)
    told = []
    for function in (f, compiled, compiled):
        torch.manual_seed(0)
        given = [torch.randn(2, 4, 16, 32, device="cuda", dtype=dtype, requires_grad=True) for _ in "qkv"]
        result = function(*given)
        gradients = torch.autograd.grad(result.square().sum(), given)
        told.append([result, *gradients, torch.rand(3, device="cuda")])
    for one in told[1:]:
        torch.testing.assert_close(one, told[0])


@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_ctc_loss_chooses_its_kernel_as_in_eager(where: str) -> None:
    """On a GPU it asks cuDNN, which takes whole numbers of 32 bits on the CPU."""
    lengths = ((4, 4), (2, 2))

    def f(x: Tensor, labels: Tensor) -> Tensor:
        return functional.ctc_loss(x.log_softmax(2), labels, *lengths, reduction="sum", zero_infinity=True)

    labels = torch.tensor([1, 2, 2, 1], dtype=torch.int32 if where == "cpu" else torch.int64, device=where)
    assert_agrees(f, lambda: [gpu_leaf(4, 2, 3), labels.clone()])


def test_the_generator_of_another_device_is_left_alone() -> None:
    before = torch.get_rng_state()
    compiled = aot.aot_function(lambda x: x + torch.rand_like(x), aot.nop)
    compiled(gpu_values(3))
    assert torch.equal(torch.get_rng_state(), before)


def scaled(x: Tensor, s: Tensor) -> Tensor:
    return x * s + s


def writes_a_scalar(x: Tensor, s: Tensor) -> Tensor:
    s.add_(1)
    x.mul_(s)
    return x + s


def fills(x: Tensor, s: Tensor) -> Tensor:
    y = x.clone()
    y[0] = s
    y.fill_diagonal_(0.5)
    return y * s


@pytest.mark.parametrize("f", [scaled, writes_a_scalar, fills])
@pytest.mark.parametrize("train", [False, True])
def test_numbers_on_the_cpu_beside_tensors_on_the_gpu(f: Function, train: bool) -> None:
    def make() -> list[Tensor]:
        x = gpu_leaf(3, 3) if train else gpu_values(3, 3)
        s = torch.tensor(1.5, requires_grad=train and f is not writes_a_scalar)
        return [x * 1 if train and f is writes_a_scalar else x, s]

    assert_agrees(f, make)


def there_and_back(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x.cuda() * y
    return z.cpu() + x, z


def writes_across(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(y)
    y.add_(x.to("cuda", non_blocking=False))
    return y * 2


def keeps_both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(-1) * 2, y.t()


@pytest.mark.parametrize("f", [there_and_back, writes_across, keeps_both])
@pytest.mark.parametrize("train", [False, True])
def test_tensors_of_two_devices_in_one_graph(f: Function, train: bool) -> None:
    def make() -> list[Tensor]:
        if not train:
            return [values(3, 3), gpu_values(3, 3, start=9)]
        x, y = leaf(3, 3), gpu_leaf(3, 3, start=9)
        return [x * 1, y * 1] if f is writes_across else [x, y]

    assert_agrees(f, make)


def test_pinned_arguments_and_results() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = x.to("cuda", non_blocking=True) * y
        return z, x.view(-1), z.detach().cpu().pin_memory()

    compiled = aot.aot_function(f, aot.nop)
    for _ in range(2):
        told = []
        for function in (f, compiled):
            results = function(values(3, 3).pin_memory(), gpu_leaf(3, 3))
            told.append([(r.tolist(), r.is_pinned(), r.device.type) for r in results])
        assert told[0] == told[1]
    # One that is not pinned is another call.
    assert not compiled(values(3, 3), gpu_leaf(3, 3))[1].is_pinned()


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("train", [False, True])
def test_inductors_kernels(f: Function, train: bool) -> None:
    compiled = compile_with_inductor(f)
    told = []
    for function in (f, compiled, compiled):
        torch.manual_seed(0)
        x, w = gpu_values(3, 3), gpu_leaf(3, 3, start=9) if train else gpu_values(3, 3, start=9)
        result = first(function(x, w))
        gradients = torch.autograd.grad(result.square().sum(), w) if train else ()
        told.append([x, result, *gradients, torch.rand(3, device="cuda")])
    for one in told[1:]:
        torch.testing.assert_close(one, told[0])


def test_a_network_below_torch_compile_with_inductor() -> None:
    def trained(compiled: Callable[[nn.Module], Any]) -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 10)
        ).cuda()
        run = compiled(net)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        images = torch.randn(4, 3, 8, 8, device="cuda")
        for _ in range(3):
            optimizer.zero_grad()
            functional.cross_entropy(run(images), torch.arange(4, device="cuda")).backward()
            optimizer.step()
        return [*net.parameters(), *net.buffers()]

    torch._dynamo.reset()
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        expected = trained(lambda net: net)
        for backend in ("aotfuzz", "aotfuzz_inductor"):
            got = trained(lambda net, backend=backend: torch.compile(net, backend=backend))
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    torch._dynamo.reset()


class Tagger(nn.Module):
    """Dropout between the layers of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.lstm(x)[0]
        return result


def test_an_lstm_runs_without_cudnn() -> None:
    torch.manual_seed(0)
    net = Tagger().cuda()
    told = []
    with torch.backends.cudnn.flags(enabled=False):
        compiled = aot.aot_module(net, aot.nop)
        for run in (net, compiled, compiled):
            torch.manual_seed(1)
            result = run(x := gpu_leaf(5, 2, 3))
            told.append([result, *torch.autograd.grad(result.sum(), [x, *net.parameters()])])
    for one in told[1:]:
        torch.testing.assert_close(one, told[0])


def test_weights_that_cudnn_would_lay_out_anew_are_refused() -> None:
    net = Tagger().cuda()

    def f(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        result: Tensor = torch.func.functional_call(net, weights, (x,))
        return result

    weights = {name: one.detach().clone() for name, one in net.named_parameters()}
    with pytest.raises(aot.errors.DataDependentValue, match="data_ptr"):
        aot.aot_function(f, aot.nop)(gpu_values(5, 2, 3), weights)
