"""`aot_module` and `aot_module_simplified`: a compiled module beside the same one in eager."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table
from torch.utils.checkpoint import checkpoint

import aot
from aot import errors
from tests.support.agreement import checking_nop

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("structure")]

Inputs = Callable[[], Tensor]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4, bias=False)
        self.other = nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x).relu())


class PutsBuffers(nn.Module):
    """Puts a new tensor, an argument, and another buffer into the places of its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("last", None)
        self.register_buffer("seen", torch.zeros(4))
        self.last = torch.zeros(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.mean, self.seen = self.mean * 0.9 + x.detach().mean(0), self.mean
        self.last = x
        return self.linear(x) + self.mean


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return result


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.register_forward_pre_hook(lambda module, args: (args[0] * module.weight.mean(),))
        self.linear.register_forward_hook(lambda module, args, result: result + module.bias)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x)
        return result


MODULES: list[Callable[[], nn.Module]] = [
    lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4)),
    lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()),
    lambda: nn.TransformerEncoderLayer(4, 2, 8),
    Tied,
    PutsBuffers,
    Checkpointed,
    Hooked,
    lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
]
modules = pytest.mark.parametrize("make", MODULES)


def twins(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(3)
    module = make()
    return module, copy.deepcopy(module)


def assert_alike(one: nn.Module, other: nn.Module) -> None:
    state, others = one.state_dict(), other.state_dict()
    assert state.keys() == others.keys()
    for name, value in state.items():
        assert torch.equal(value, others[name]), name
    for (name, p), (_, q) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert (p.grad is None) is (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad), name


@modules
@pytest.mark.parametrize("partition", [aot.default_partition, aot.min_cut_rematerialization_partition])
def test_it_trains_as_in_eager(make: Callable[[], nn.Module], partition: Any) -> None:
    eager, original = twins(make)
    compiled = aot.aot_module(original, checking_nop, partition_fn=partition)
    objects = list(original.parameters())
    optimizers = [torch.optim.Adam(module.parameters(), 0.1) for module in (eager, original)]
    for step in range(4):
        for module in (eager, original):
            module.train(step != 2)
        for module, optimizer in zip((eager, compiled), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            module(torch.rand(3, 4)).square().sum().backward()
            optimizer.step()
        assert_alike(eager, original)
    assert all(p is q for p, q in zip(original.parameters(), objects, strict=True))
    assert len(compiled.compiled.specializations) <= 2  # with and without training


@modules
def test_second_derivatives(make: Callable[[], nn.Module]) -> None:
    """Those of a gradient penalty, as in eager but for the order in which they are added up."""
    eager, module = (twin.double() for twin in twins(make))
    compiled = aot.aot_module(module, checking_nop)
    for function in (eager, compiled):
        torch.manual_seed(1)
        x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
    for p, q in zip(eager.parameters(), module.parameters(), strict=True):
        assert (p.grad is None) is (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-9, atol=1e-12)


@modules
def test_parameters_come_first_and_once(make: Callable[[], nn.Module]) -> None:
    _, module = twins(make)
    compiled = aot.aot_module(module, aot.nop)
    compiled(torch.rand(3, 4))
    (one,) = compiled.compiled.specializations
    count = sum(node.op == "placeholder" for node in one.forward.graph.nodes)
    # (Not all buffers are read.)
    assert count <= len(list(module.parameters())) + len(list(module.buffers())) + 1


def test_what_is_put_into_a_buffers_place_is_there() -> None:
    eager, module = twins(PutsBuffers)
    compiled = aot.aot_module(module, checking_nop)
    for _ in range(2):
        x, seen = torch.rand(3, 4), module.mean
        eager(x)
        compiled(x)
        assert module.last is x
        assert module.seen is seen
        assert_alike(eager, module)


def test_a_parameter_that_is_replaced_is_another_argument() -> None:
    _, module = twins(lambda: nn.Linear(4, 4))
    compiled = aot.aot_module(module, checking_nop)
    compiled(torch.rand(3, 4))
    module.weight = nn.Parameter(torch.eye(4))
    module.bias = nn.Parameter(torch.zeros(4))
    x = torch.rand(3, 4)
    assert torch.equal(compiled(x), x)
    assert len(compiled.compiled.specializations) == 1


def test_nothing_is_left_in_the_module_when_it_is_refused() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            return x * 2 if self.weight.sum().item() > 2 else x

    module = Reads()
    before = dict(module.state_dict(keep_vars=True))
    with pytest.raises(errors.DataDependentValue):
        aot.aot_module(module, aot.nop)(torch.ones(3))
    assert all(value is before[name] for name, value in module.state_dict(keep_vars=True).items())


def test_modules_that_make_their_state_when_called_are_refused() -> None:
    class Registers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.register_buffer("kept", x * 1)
            return x * 2

    module = Registers()
    with pytest.raises(errors.ClosureMutation, match="call it once"):
        aot.aot_module(module, aot.nop)(torch.ones(3))
    assert not dict(module.named_buffers())


def test_other_threads_find_the_callers_state_while_it_is_traced() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            assert go_on.wait(20)
            return x * self.weight

    module = Waits()
    compiled = aot.aot_module(module, checking_nop)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(compiled, torch.ones(3))
        assert inside.wait(20)
        second = pool.submit(compiled, torch.ones(3) * 2)
        go_on.set()
        assert first.result(20).tolist() == [2, 2, 2]
        assert second.result(20).tolist() == [4, 4, 4]
    assert len(compiled.compiled.specializations) == 1


def test_simplified_is_compiled_at_once_for_real_examples() -> None:
    eager, module = twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    graph = torch.fx.symbolic_trace(module)
    forward: Any = aot.aot_module_simplified(graph, [torch.rand(3, 4)], checking_nop)
    assert len(forward.compiled.specializations) == 1
    assert_alike(eager, module)
    for function in (eager, forward):
        torch.manual_seed(1)
        function(torch.rand(3, 4)).sum().backward()
    assert_alike(eager, module)
    assert [name for name, _ in forward.named_parameters()] == [name for name, _ in graph.named_parameters()]
    assert "placeholder" in str(forward.compiled.specializations[0].forward.graph) or aot.explain(
        forward.compiled
    )
    assert len(forward.compiled.specializations) == 1


def test_simplified_is_compiled_later_for_fake_examples() -> None:
    graph = torch.fx.symbolic_trace(nn.Linear(4, 2))
    with torch._subclasses.FakeTensorMode():
        example = torch.rand(3, 4)
    forward: Any = aot.aot_module_simplified(graph, [example], checking_nop)
    assert forward.compiled.specializations == ()
    x = torch.rand(3, 4)
    assert torch.equal(forward(x), graph(x))


DECOMPOSITIONS: dict[str, Callable[[], dict[Any, Any]]] = {
    "inductor": lambda: dict(select_decomp_table()),
    "core": lambda: dict(torch._decomp.core_aten_decompositions()),
}
NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(3),
    "batch, evaluated": lambda: nn.BatchNorm2d(3).eval(),
    "instance": lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    "group": lambda: nn.GroupNorm(3, 3),
    "after a convolution": lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)),
}


@pytest.mark.parametrize("table", DECOMPOSITIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_norms_that_are_decomposed_count_their_writes_as_in_eager(norm: str, table: str) -> None:
    original = NORMS[norm]()
    module = copy.deepcopy(original)
    compiled = aot.aot_module(module, aot.nop, decompositions=DECOMPOSITIONS[table]())
    x = torch.arange(96.0).reshape(2, 3, 4, 4).sin()
    for _ in range(2):
        expected, found = original(x), compiled(x)
        expected.square().sum().backward()
        found.square().sum().backward()
        torch.testing.assert_close(found, expected)
    for mine, theirs in zip(module.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(module.buffers(), original.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
    versions = [[buffer._version for buffer in one.buffers()] for one in (module, original)]
    assert versions[0] == versions[1]
