"""An operation's kernel is asked what it returns, on zeros, where nobody can tell and nothing is at risk."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot.capture.recorder.mutations import Writing
from aot.graph.value_meta import ValueMeta
from aot.ops.zero_probing import can_probe
from tests.support.agreement import assert_agrees, leaf, values

pytestmark = pytest.mark.clause("values")

aten = torch.ops.aten
CPU = torch.device("cpu")


def meta(*size: int, dtype: torch.dtype = torch.float32, device: torch.device = CPU) -> ValueMeta:
    return ValueMeta(size, torch.empty(size, device="meta").stride(), dtype, device)


LONGS = meta(3, dtype=torch.int64)
INTS = meta(3, dtype=torch.int32)

asked: dict[str, tuple[Any, list[ValueMeta], tuple[Any, ...], dict[str, Any]]] = {
    "pointwise": (aten.mul.Tensor, [meta(2, 3), meta(3)], (), {}),
    "a formula": (aten.elu_backward.default, [meta(3), meta(3)], (1.0, 1.0, 1.0, False), {}),
    "indices": (aten.gather.default, [meta(3), LONGS], (0,), {}),
    "a list": (aten.cat.default, [meta(64, 64)] * 30, ([None] * 30,), {}),
    "a factory": (aten.full.default, [], ([2, 3], 1.0), {"device": CPU}),
    "a shape": (aten.new_zeros.default, [meta(3)], ([40, 50],), {}),
    "targets": (aten.nll_loss_forward.default, [meta(3, 5), LONGS], (None, None, None, 1, -100), {}),
    "whole numbers": (aten.fill.Tensor, [LONGS, LONGS], (), {}),
    "draws": (aten.bernoulli.default, [meta(3)], (), {}),
    "in place": (aten.scatter_.value, [meta(3), LONGS], (0, None, 1.0), {}),
}
not_asked: dict[str, tuple[Any, list[ValueMeta], tuple[Any, ...], dict[str, Any]]] = {
    "a shape that depends on values": (aten.nonzero.default, [meta(3)], (), {}),
    "pivots": (aten.linalg_lu_solve.default, [meta(3, 3), INTS, meta(3, 3)], (), {}),
    "a large argument": (aten.mul.Tensor, [meta(100, 100), meta(1)], (), {}),
    "a large result": (aten.add.Tensor, [meta(4096, 1), meta(1, 4096), meta(3)], (), {}),
    "a large shape": (aten.new_zeros.default, [meta(3)], ([4000, 4000, 4000],), {}),
    "a large number": (aten.arange.default, [], (1 << 40,), {"device": CPU}),
    "another device": (aten.mul.Tensor, [meta(3, device=torch.device("meta")), meta(3)], (), {}),
    "to another device": (aten._to_copy.default, [meta(3)], (), {"device": torch.device("meta")}),
    "no device": (aten.full.default, [], ([2, 3], 1.0), {}),
}


@pytest.mark.parametrize("name", asked)
def test_a_kernel_is_asked(name: str) -> None:
    assert can_probe(*asked[name])


@pytest.mark.parametrize("name", not_asked)
def test_a_kernel_is_not_asked(name: str) -> None:
    assert not can_probe(*not_asked[name])


def test_what_other_people_wrote_is_not_run_while_tracing() -> None:
    runs = 0

    @torch.library.custom_op("aotfuzz_zeros::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return x.clone()

    counted.register_fake(torch.empty_like)
    compiled = aot.aot_function(lambda x: counted(x) + 1, aot.nop)
    assert torch.equal(compiled(values(3)), values(3) + 1)
    assert runs == 1


@pytest.mark.parametrize("rounding", ["floor", "trunc"])
def test_a_kernel_that_does_not_take_zeros(rounding: str) -> None:
    """Whole numbers divided by zeros raise in eager."""
    whole = torch.tensor([7, -8, 9])
    divide = lambda x, y: torch.div(x, y, rounding_mode=rounding)  # noqa: E731
    assert_agrees(divide, lambda: [whole.clone(), torch.tensor(2)], grad=False)


def test_what_is_drawn_for_a_look_is_taken_back() -> None:
    drawn = lambda x: torch.bernoulli(x) + torch.rand_like(x).exponential_()  # noqa: E731
    torch.manual_seed(1)
    expected = drawn(values(3).sigmoid())
    torch.manual_seed(1)
    assert torch.equal(aot.aot_function(drawn, aot.nop)(values(3).sigmoid()), expected)


def test_a_target_that_is_no_class_may_be_ignored() -> None:
    """Where there is no class at all, zero is none either."""
    loss = lambda x, of: torch.nn.functional.nll_loss(x, of, reduction="sum")  # noqa: E731
    assert_agrees(loss, lambda: [torch.empty(2, 0, requires_grad=True), torch.full((2,), -100)])


def test_a_mask_takes_as_many_values_as_it_has_set() -> None:
    """As many as none, or all of its elements, is what the kernel would see of zeros and ones."""

    def put(x: Tensor, mask: Tensor, some: Tensor) -> Tensor:
        x = x.clone()
        x[mask] = some
        return x * 2

    mask = torch.tensor([True, False, True, True, False])
    assert_agrees(put, lambda: [leaf(5), mask, values(3)])


def test_what_is_written_in_place_is_asked_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of fake tensors, whose rules for a batch norm are a hundred times slower."""
    monkeypatch.setattr(Writing, "_clones_for_mutation", None)

    def step(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    assert_agrees(step, lambda: [leaf(4, 3), torch.zeros(3), torch.ones(3)])
    assert_agrees(lambda x: x.t().cauchy_().mul(0), lambda: [values(3, 2)], grad=False)


def test_strides_are_those_of_the_kernel() -> None:
    def laid_out(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x * y, x.softmax(1), torch.cat([x, y]), torch.where(x > 0, x, y), x.cumsum(0)]

    assert_agrees(laid_out, lambda: [leaf(4, 3).t(), values(4, 3).t()])
    assert_agrees(laid_out, lambda: [leaf(3, 8)[:, ::2], values(4, 3).t()])
