"""A wrapper that would leave another state than the function did is refused before anything is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import aot
from aot.runtime.dry_run import ObservedState, observe_call_state

pytestmark = pytest.mark.clause("refusals")


def _storage(tensor: Tensor) -> tuple[object, int]:
    return tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes()


def _facts(*tensors: Tensor, outputs: tuple[Any, ...] = (), change: Any = None) -> ObservedState:
    versions, storages = [t._version for t in tensors], [_storage(t)[0] for t in tensors]
    if change is not None:
        change(*tensors)
    return observe_call_state(tensors, versions, storages, outputs, _storage)


def test_what_is_alike_does_not_differ() -> None:
    def made() -> ObservedState:
        x = torch.arange(6.0).reshape(2, 3)
        return _facts(x, x[1], outputs=(x.t(), None, x))

    assert made().first_difference(made()) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda x: x.t_(), "shape"),
        (lambda x: x.as_strided_((2, 3), (1, 2)), "strides"),
        (lambda x: x.requires_grad_(), "requires_grad"),
        (lambda x: x.set_(torch.zeros(6), 0, (2, 3), (3, 1)), "storage"),
        (lambda x: x.add_(1), "version"),
    ],
)
def test_one_change_is_told(change: Any, word: str) -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2, 3)
    difference = _facts(x).first_difference(_facts(y, change=change))
    assert difference is not None
    assert word in difference


def test_a_view_that_leads_nowhere_is_told() -> None:
    def made(look: bool) -> ObservedState:
        def change(base: Tensor, view: Tensor) -> None:
            with torch.no_grad():
                base.mul_(2)
            _ = view.grad_fn if look else None
            base.requires_grad_(False)

        base = torch.ones(3, requires_grad=True)
        return _facts(base, base[1:], change=change)

    assert made(True).first_difference(made(True)) is None
    difference = made(True).first_difference(made(False))
    assert difference is not None
    assert difference.startswith("tensor 1: whether gradients get from it to its base would be False")


def test_strides_that_mean_nothing_do_not_differ() -> None:
    one = _facts(torch.empty_strided((1, 3), (3, 1)), torch.empty_strided((0, 3), (3, 1)))
    other = _facts(torch.empty_strided((1, 3), (7, 1)), torch.empty_strided((0, 3), (1, 1)))
    assert one.first_difference(other) is None


def test_an_order_that_cannot_be_repeated_is_refused_before_anything_is_changed() -> None:
    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        z.set_(x.untyped_storage(), 4, (2, 2), (2, 1))
        view = z[...]
        z.resize_as_(y)
        return view

    storage = torch.arange(2.0)
    x, y, z = torch.arange(8.0).reshape(4, 2), storage, storage[:1]
    with pytest.raises(
        aot.errors.StorageMutation, match=r"in an order .*\(output 0: the tensor whose storage"
    ):
        aot.aot_function(f, aot.nop)(x, y, z)
    assert z.shape == (1,)
    assert z.data_ptr() == storage.data_ptr()
    assert x._version == storage._version == 0
