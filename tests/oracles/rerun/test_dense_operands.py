"""Eager on dense operands: another loop of the kernels, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from oracles import Arguments, Observation, Outcome, judge, observe
from oracles.rerun.dense_operands import DenseOperands

pytestmark = pytest.mark.clause("strides")


@pytest.fixture(scope="module")
def loops() -> Iterator[None]:
    """An operation that computes of dense tensors otherwise than of others, forward and backward."""
    library = torch.library.Library("aot_layouts", "FRAGMENT")
    library.define("loops(Tensor x) -> Tensor")
    library.define("loops_(Tensor(a!) x) -> Tensor(a!)")
    library.impl("loops", lambda x: x * (3 if x.is_contiguous() else 2), "CPU")
    library.impl("loops_", lambda x: x.mul_(3 if x.is_contiguous() else 2), "CPU")
    yield
    library._destroy()


class Loops(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return torch.ops.aot_layouts.loops(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return torch.ops.aot_layouts.loops(gradient)  # type: ignore[no-any-return]


def with_gaps() -> Tensor:
    return torch.arange(1.0, 9)[::2]


def test_operands_are_dense_and_all_else_is_as_without(loops: None) -> None:
    x = torch.arange(1.0, 7).reshape(2, 3).t()
    with DenseOperands():
        y = torch.ops.aot_layouts.loops(x)
        torch.ops.aot_layouts.loops_(x)
        x.add_(0)  # (Operations of this library have no kernels for version counters.)
        assert x[1:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        t = x.as_strided((2,), (3,), 1)
    assert y.tolist() == x.tolist() == [[3, 12], [6, 15], [9, 18]]
    assert y.stride() == x.stride() == (1, 3)
    assert (x._version, y._version) == (1, 0)
    assert t.tolist() == [6, 15]
    assert torch.ops.aot_layouts.loops(with_gaps()).tolist() == [2, 6, 10, 14]


def test_draws_metadata_and_repeated_elements_are_left_as_they_are() -> None:
    def draw() -> Tensor:
        torch.manual_seed(0)
        return torch.bernoulli(with_gaps() / 10)

    expected = draw()
    x = torch.arange(6.0).reshape(2, 3)
    with DenseOperands():
        assert draw().tolist() == expected.tolist()
        x.t_().as_strided_((2,), (2,), 1)
        lying = torch.arange(6.0).reshape(2, 3).t()
        assert torch.as_strided_copy(lying, (2,), (1,)).tolist() == [0, 1]
        assert lying.as_strided_scatter(torch.ones(2), (2,), (1,)).tolist() == [[1, 3], [1, 4], [2, 5]]
        repeated = torch.zeros(1).expand(3)
        assert (repeated + 1).tolist() == [1, 1, 1]
    assert x.tolist() == [1, 3]


def arguments() -> Arguments:
    leaf = torch.arange(1.0, 9).requires_grad_()
    return Arguments((leaf,), {"leaf": leaf})


def eager(x: Tensor) -> tuple[Tensor, Tensor]:
    return Loops.apply(x[::2]), Loops.apply(x.reshape(2, 4)).t()  # type: ignore[no-untyped-call]


def densely() -> Observation:
    return observe(eager, arguments, under=DenseOperands())


def verdict(target: Callable[..., object], further: Callable[[], Observation] | None) -> Outcome:
    def control() -> Observation:
        return observe(eager, arguments, terms=True)

    return judge(observe(eager, arguments), observe(target, arguments), None, control, further).outcome


def test_a_target_whose_tensors_are_dense_is_right(loops: None) -> None:
    class Dense(Loops):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient * 3

    def target(x: Tensor) -> tuple[Tensor, Tensor]:
        return Dense.apply(x[::2]), Dense.apply(x.reshape(2, 4)).t()  # type: ignore[no-untyped-call]

    assert verdict(target, densely) is Outcome.AGREE
    assert verdict(target, None) is Outcome.FINDING


def test_what_no_loop_computes_is_found(loops: None) -> None:
    def target(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[::2] * 4, Loops.apply(x.reshape(2, 4)).t()  # type: ignore[no-untyped-call]

    assert verdict(target, densely) is Outcome.FINDING


def test_dense_operands_explain_nothing_but_elements(loops: None) -> None:
    def never() -> Observation:
        raise AssertionError("nobody needed this run")

    def target(x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = eager(x)
        return first, second.contiguous()

    assert verdict(target, never) is Outcome.FINDING
