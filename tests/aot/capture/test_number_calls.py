"""`float(tensor)` and `int(tensor)` as symbols where Python would make numbers of them, as in eager."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import aot
from tests.support.agreement import assert_same_call, leaf, values

Function = Callable[[Tensor, Tensor], Any]


def averaged(x: Tensor, n: Tensor) -> Tensor:
    return x * (1.0 / float(n))


def nested(x: Tensor, n: Tensor) -> list[Tensor]:
    def scaled(y: Tensor) -> Tensor:
        return y.sin() * float(n)

    return [scaled(x), *(x * float(one) for one in n.reshape(1).expand(2))]


def beside_the_type(x: Tensor, n: Tensor) -> Tensor:
    number = float(n)
    assert isinstance(number, float)
    assert isinstance(float("0.5"), float)
    assert type(float(2)) is float
    return x.float() * number + float("0.5")


class Scale:
    def __init__(self, n: Tensor) -> None:
        self.n = n

    @property
    def factor(self) -> float:
        return float(self.n)

    @staticmethod
    def rounded(n: Tensor) -> int:
        return int(n * 1.5)


FUNCTIONS: list[Function] = [
    averaged,
    nested,
    beside_the_type,
    lambda x, n: x * Scale(n).factor + Scale.rounded(n),
    lambda x, n: x * int(n.float() / 2),
    lambda x, n: x * float(n.item()),
    lambda x, n: x * (1 / n.item()),
    lambda x, n: x + int(n.item() / 4),
    lambda x, n: (x * float(n), float(n), int(n)),
    lambda x, n: x.expand(int(n) + 2, 3) * 2,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_numbers_of_tensors(function: Function, dynamic: bool, dtype: torch.dtype) -> None:
    compiled = aot.aot_function(function, aot.nop, dynamic=dynamic)
    for n in (3, 5, 8, 9):
        make = lambda n=n: [leaf(3), torch.tensor(n, dtype=dtype)]  # noqa: E731
        assert not assert_same_call(function, compiled, make)
    assert len(compiled.specializations) == 1


def test_the_functions_keep_their_own_code() -> None:
    before = averaged.__code__
    aot.aot_function(averaged, aot.nop)(values(3), torch.tensor(2))
    assert averaged.__code__ is before
    assert builtins.float is float
    assert averaged(values(3), torch.tensor(4)).equal(values(3) / 4)


def test_what_the_function_has_done_before_is_undone_when_it_is_traced_again() -> None:
    log: list[str] = []

    def f(x: Tensor, n: Tensor) -> Tensor:
        log.append("called")
        x.add_(1)
        return x * float(n) * torch.rand(())

    compiled = aot.aot_function(f, aot.nop)
    for calls, n in enumerate((2, 3, 4), 1):
        assert not assert_same_call(f, compiled, lambda n=n: [values(3), torch.tensor(n)])
        assert len(log) >= calls
    del log[:]
    compiled(values(3), torch.tensor(5))
    assert log == ["called"]


def test_a_condition_and_a_name_of_the_functions_own_are_refused() -> None:
    def with_float_of_its_own(x: Tensor, n: Tensor) -> Tensor:
        float = builtins.float
        return x * float(n)

    for function in (
        with_float_of_its_own,
        lambda x, n: x * 2 if float(n) > 2 else x,
        lambda x, n: x * sum(range(int(n))),
        lambda x, n: x * float(n > 2),
        lambda x, n: x * math.sqrt(n),
        lambda x, n: x * sum(map(float, [n])),
    ):
        with pytest.raises(aot.errors.DataDependentValue):
            aot.aot_function(function, aot.nop)(values(3), torch.tensor(3))


NORMS: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (lambda: nn.BatchNorm1d(3, momentum=None), (4, 3)),
    (lambda: nn.BatchNorm2d(3, momentum=None), (2, 3, 2, 2)),
    (lambda: nn.BatchNorm2d(3, momentum=None, affine=False), (2, 3, 2, 2)),
    (lambda: nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 3), nn.BatchNorm1d(3)), (4, 3)),
]


@pytest.mark.parametrize(("make", "size"), NORMS)
@pytest.mark.parametrize("below", ["aot_module", "torch.compile", "scalars"])
def test_a_batch_norm_that_averages_all_it_has_seen(
    make: Callable[[], nn.Module], size: tuple[int, ...], below: str
) -> None:
    torch.manual_seed(0)
    reference = make()
    torch.manual_seed(0)
    module = make()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=below == "scalars"):
        if below == "aot_module":
            compiled: Any = aot.aot_module(module, aot.nop)
        else:
            raising = {"on_unsupported": "raise"}
            compiled = torch.compile(module, backend="aotfuzz", options=raising)
        for step in range(20):  # more than compiles for one value each
            x, y = (values(*size, start=step).requires_grad_() for _ in range(2))
            results = reference(x), compiled(y)
            for result in results:
                result.square().sum().backward()
            torch.testing.assert_close(results[1], results[0])
            torch.testing.assert_close(y.grad, x.grad)
            versions = [[one._version for one in of.buffers()] for of in (module, reference)]
            assert versions[0] == versions[1]
    for one, other in zip(module.state_dict().values(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)
    if below == "aot_module":
        assert len(compiled.compiled.specializations) <= 2


@pytest.mark.parametrize("training", [False, True])
def test_a_momentum_from_data(training: bool) -> None:
    def f(x: Tensor, mean: Tensor, var: Tensor, m: Tensor) -> Tensor:
        return functional.batch_norm(x, mean, var, training=training, momentum=m.item())

    compiled = aot.aot_function(f, aot.nop)
    for m in (0.5, 0.25, 0.125):
        make = lambda m=m: [leaf(4, 3), values(3), values(3).abs(), torch.tensor(m)]  # noqa: E731
        assert not assert_same_call(f, compiled, make)
    assert len(compiled.specializations) == 1
