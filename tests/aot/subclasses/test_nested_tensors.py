"""Nested tensors, whose sizes another tensor says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aot
from tests.support.agreement import checking_nop, leaf, values
from tests.support.aot.subclasses import assert_like_eager, story
from tests.support.aot.wrapped_arguments import chunks, jagged, two

pytestmark = [pytest.mark.both_devices, pytest.mark.clause("repeat")]

Make = Callable[[], list[Any]]


def _two_jagged() -> list[Any]:
    offsets = torch.tensor([0, 2, 6])
    return [jagged(offsets=offsets), jagged(offsets=offsets)]


JAGGED: dict[str, tuple[Callable[..., Any], Make]] = {
    "number": (lambda x: x * 2, lambda: [jagged()]),
    "itself": (lambda x: x.sin() * x, lambda: [jagged()]),
    "without grad": (lambda x: x.sin() * x, lambda: [jagged(False)]),
    "linear": (nn.functional.linear, lambda: [jagged(), leaf(2, 3)]),
    "two of one structure": (lambda x, y: x * y, _two_jagged),
    "two of other structures": (lambda x, y: x * y, lambda: [jagged(), jagged()]),
    "values": (lambda x: x.values() * 2, lambda: [jagged()]),
    "made inside": (
        lambda v, o: torch.nested.nested_tensor_from_jagged(v, o) * 2,
        lambda: [leaf(6, 3), torch.tensor([0, 2, 6])],
    ),
    "write": (lambda x: x.mul_(2), lambda: [jagged(False)]),
}


@pytest.mark.parametrize("name", JAGGED)
def test_nested_tensors(name: str) -> None:
    assert_like_eager(*JAGGED[name])


def test_the_structure_of_nested_tensors_stays_one() -> None:
    """A result has the argument's shape, for the caller as well: its offsets are the same tensor."""
    x = jagged()
    y = aot.aot_function(lambda x: x * 2, checking_nop)(x)
    assert y.shape == x.shape
    (y * x).sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("alias", [lambda x: x.data, lambda x: x.detach(), lambda x: x.data.view(-1)])
def test_what_is_saved_and_returned_is_found_changed(alias: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        other = alias(x)
        return x * other, other

    for function in (f, aot.aot_function(f, checking_nop)):
        product, other = function(two(3, grad=True) * 1)
        other.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


@pytest.mark.parametrize("written", [0, 1, 2])
def test_what_is_saved_is_found_changed_where_another_view_of_it_is_written(written: int) -> None:
    """Views of one share a version counter."""

    def f(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        product, rest = x * w, w.sum()
        with torch.no_grad():
            (x, y, z)[written].view(-1).add_(1)
        return product, rest

    compiled = aot.aot_function(f, checking_nop)
    for function in (f, compiled):
        arguments, w = chunks(), two(2, 2, grad=True)
        versions = [one._version for one in arguments]
        product, rest = function(*arguments, w)
        assert all(one._version > before for one, before in zip(arguments, versions, strict=True))
        rest.backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
    assert len(compiled.specializations) == 1


def test_views_of_one_and_others_are_told_apart() -> None:
    compiled = aot.aot_function(lambda x, y: x + y, checking_nop)
    whole = two(4, 2)
    for arguments in ([whole[:2], whole[2:]], [two(2, 2), whole[:2]], [whole[:2], two(2, 2)[:]]):
        compiled(*arguments)
    assert len(compiled.specializations) == 3


def _ragged(grad: bool = True, columns: int = 3, lengths: tuple[int, ...] = (2, 4)) -> Any:
    offsets = torch.tensor([0, *(sum(lengths[: i + 1]) for i in range(len(lengths)))])
    inner = values(sum(lengths), columns)
    return torch.nested.nested_tensor_from_jagged(inner, offsets).detach().requires_grad_(grad)


OF_ANY_LENGTH: dict[str, tuple[Callable[..., Any], Callable[..., list[Any]]]] = {
    "number": (lambda x: x * 2, lambda *lengths: [_ragged(lengths=lengths)]),
    "itself": (lambda x: x.sin() * x, lambda *lengths: [_ragged(lengths=lengths)]),
    "without grad": (lambda x: x.sin() * x, lambda *lengths: [_ragged(False, lengths=lengths)]),
    "linear": (nn.functional.linear, lambda *lengths: [_ragged(lengths=lengths), leaf(2, 3)]),
    "two of one structure": (
        lambda x, y: x * y,
        lambda *lengths: [(x := _ragged(lengths=lengths)), x.detach()],
    ),
    "values": (lambda x: x.values() * 2, lambda *lengths: [_ragged(lengths=lengths)]),
    "transposed": (lambda x: x.transpose(1, 2) * 2, lambda *lengths: [_ragged(lengths=lengths)]),
    "normalized": (
        lambda x: nn.functional.layer_norm(x, (3,)) + x.shape[0],
        lambda *lengths: [_ragged(lengths=lengths)],
    ),
    "write": (lambda x: x.mul_(2), lambda *lengths: [_ragged(False, lengths=lengths)]),
}


@pytest.mark.parametrize("name", OF_ANY_LENGTH)
def test_nested_tensors_of_any_length(name: str) -> None:
    function, make = OF_ANY_LENGTH[name]
    compiled = aot.aot_function(function, checking_nop, dynamic=True)
    for lengths in ((2, 4), (3, 4, 5), (1, 7, 2, 6), (3, 3)):
        expected = story(function, make(*lengths), None)
        assert not isinstance(expected, type)
        assert story(compiled, make(*lengths), None) == expected
    assert len(compiled.specializations) == 1


def test_a_size_that_a_nested_tensors_strides_are_multiples_of_is_no_symbol() -> None:
    compiled = aot.aot_function(lambda x: x * 2, checking_nop, dynamic=True)
    for columns in (3, 5, 3, 5):
        make = [_ragged(columns=columns, lengths=(2, 4))]
        assert story(compiled, make, None) == story(lambda x: x * 2, [_ragged(columns=columns)], None)
    assert len(compiled.specializations) == 2


def test_nested_tensors_have_no_second_derivative() -> None:
    x = jagged()
    y = aot.aot_function(lambda x: x * x, aot.nop)(x)
    with pytest.raises(aot.DoubleBackwardUnsupported, match="nested tensor"):
        torch.autograd.grad(y.values().sum(), x, create_graph=True)
