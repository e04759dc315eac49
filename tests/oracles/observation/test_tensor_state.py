"""Reading one tensor: its elements whatever its dtype and layout, and everything else about it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from oracles.observation.records import TensorState
from oracles.observation.tensor_state import BeforeCall, Register, capture_tensors, element_reader, value_of
from tests.support.oracles.oracle_cases import grid


def states(**tensors: Tensor) -> dict[str, TensorState]:
    register = Register()
    for name, tensor in tensors.items():
        register.add(name, tensor)
    return {state.path: state for state in capture_tensors(register, {})[0]}


@pytest.mark.parametrize(
    "tensor",
    [
        grid(3, 4),
        grid(3, 4).t(),
        grid(1, 4).expand(3, 4),
        grid(8)[1::3],
        grid(3, dtype=torch.bfloat16),
        grid(3, dtype=torch.float8_e4m3fn),
        torch.complex(grid(3), grid(3)).conj(),
        torch.complex(grid(3), grid(3)).conj().imag,
        torch.tensor(True),
        torch.tensor([2**63], dtype=torch.uint64),
        torch.empty(0, 3),
        grid(2, 2).to_sparse(),
        torch.nn.Parameter(grid(2)),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}{tensor.layout}",
)
def test_elements_come_back_equal(tensor: Tensor) -> None:
    value = value_of(tensor)
    assert value is not None
    assert (value.dtype, value.shape) == (tensor.dtype, tuple(tensor.shape))
    expected = tensor.detach().to_dense().resolve_conj().resolve_neg()
    raw = expected.contiguous().reshape(-1)
    assert value.data == bytes(raw.view(torch.uint8).tolist() if raw.numel() else [])
    assert value.tensor().shape == tensor.shape


def test_a_reader_sees_later_writes_and_a_value_does_not() -> None:
    x = grid(4)
    read, value = element_reader(x), value_of(x)
    x.mul_(2)
    assert value is not None
    assert read() == x.numpy().tobytes() != value.data


def test_nothing_is_read_where_there_is_nothing() -> None:
    freed = grid(4)
    freed.untyped_storage().resize_(4)
    assert value_of(freed) is None
    assert value_of(freed[:1]) is not None
    assert value_of(torch.empty(3, device="meta")) is None


def test_strides_without_meaning_are_left_out() -> None:
    found = states(a=torch.empty(2, 1, 3), b=torch.empty(0, 3), c=torch.empty(()), d=torch.empty(2, 3))
    assert [found[name].stride for name in "abcd"] == [(3, None, 1), (None, None), (), (3, 1)]


def test_bases_are_named_or_counted() -> None:
    x, hidden = torch.ones(4), torch.ones(6)
    found = states(x=x, view=x[1:], one=hidden[0], two=hidden[1:], other=torch.ones(3)[1:])
    assert [found[name].base for name in found] == ["", "x", "hidden 0", "hidden 0", "hidden 1"]
    assert [state.is_view for state in found.values()] == [False, True, True, True, True]


def test_storages_are_counted_and_empty_ones_are_none() -> None:
    x = grid(4)
    found = states(x=x, part=x.detach()[2:], other=grid(1), empty=torch.empty(0), also=torch.empty(0))
    assert [found[name].storage for name in found] == [0, 0, 1, None, None]
    assert (found["part"].offset, found["part"].storage_bytes) == (8, 16)


def test_gradients_of_leaves_are_copied() -> None:
    w = grid(3).requires_grad_()
    (w * 2).sum().backward()
    state = states(w=w, y=w * 1)
    assert state["w"].grad == value_of(torch.full((3,), 2.0))
    assert state["y"].grad is None


def test_a_forbidden_view_is_recorded_without_an_exception() -> None:
    y = grid(4).requires_grad_() * 1
    first, _ = y.split(2)
    y.mul_(2)
    state = states(first=first)["first"]
    assert (state.is_leaf, state.has_grad_fn, state.requires_grad) == (None, None, True)


def test_witness_tells_writes_resizes_and_new_storages_apart() -> None:
    written, resized, assigned, set_to, silent = (grid(4) for _ in range(5))
    tensors = [written, resized, assigned, set_to, silent]
    witnesses = [BeforeCall.of(tensor) for tensor in tensors]
    written.add_(1)
    resized.resize_(400)
    assigned.data = grid(4)
    set_to.set_(grid(4))
    silent.data.add_(1)
    seen = [
        (witness.kept_storage(tensor), witness.bumped_version(tensor))
        for witness, tensor in zip(witnesses, tensors, strict=True)
    ]
    assert seen == [(True, True), (True, True), (False, False), (False, True), (True, False)]
