"""Aliasing by probing: exactly the elements that share memory, for every dtype, and nothing disturbed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from oracles.observation.alias_probe import probe_aliases
from oracles.observation.tensor_state import Register, capture_tensors

pytestmark = pytest.mark.clause("aliasing")

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.bfloat16,
    torch.float32,
    torch.int64,
    torch.complex64,
    torch.complex128,
]


def reaches(**tensors: Tensor) -> dict[tuple[str, str], list[int]]:
    """(writer, reader) -> which elements of the reader were reached, by probing."""
    register = Register()
    for name, tensor in tensors.items():
        register.add(name, tensor)
    states, known = capture_tensors(register, {})
    found = {}
    for reach in probe_aliases(states, known):
        count = tensors[reach.reader].numel()
        size = len(reach.tags) // count
        pieces = [reach.tags[i * size : (i + 1) * size] for i in range(count)]
        found[reach.writer, reach.reader] = [i for i, piece in enumerate(pieces) if piece.strip(b"\0")]
    return found


def tags(**tensors: Tensor) -> dict[tuple[str, str], bytes]:
    register = Register()
    for name, tensor in tensors.items():
        register.add(name, tensor)
    return {
        (reach.writer, reach.reader): reach.tags for reach in probe_aliases(*capture_tensors(register, {}))
    }


def overlap(writer: Tensor, reader: Tensor) -> list[int]:
    """The same by arithmetic on addresses."""

    def addresses(tensor: Tensor) -> list[set[int]]:
        offsets = torch.zeros(tensor.shape, dtype=torch.int64)
        for dimension, (length, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            shape = [1] * tensor.dim()
            shape[dimension] = length
            offsets = offsets + (torch.arange(length) * stride).reshape(shape)
        size = tensor.element_size()
        starts = ((offsets + tensor.storage_offset()) * size).reshape(-1).tolist()
        return [set(range(start, start + size)) for start in starts]

    written = set().union(*addresses(writer))
    return [i for i, element in enumerate(addresses(reader)) if element & written]


@pytest.mark.parametrize("dtype", DTYPES)
def test_probing_agrees_with_arithmetic_on_addresses(dtype: torch.dtype) -> None:
    root = torch.arange(24).to(dtype)
    views = {
        "root": root,
        "rows": root.view(4, 6)[1:3],
        "columns": root.view(4, 6)[:, ::2].t(),
        "last": root[23],
        "expanded": root[4:6].expand(3, 2),
        "diagonal": root.view(4, 6).diagonal(),
        "windows": root.as_strided((3, 4), (2, 1), 1),
        "empty": root[3:3],
        "alone": root.clone(),
    }
    found = reaches(**views)
    names = list(views)
    for position, writer in enumerate(names):
        for reader in names[position + 1 :]:
            shared = root.untyped_storage().data_ptr() == views[reader].untyped_storage().data_ptr()
            expected = overlap(views[writer], views[reader]) if shared else []
            assert found.get((writer, reader), []) == expected, (writer, reader)


def test_elements_are_told_apart() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    straight, turned = tags(x=x, y=x.view(6)), tags(x=x, y=x.t())
    assert straight != turned
    assert len({straight["x", "y"][i : i + 4] for i in range(0, 24, 4)}) == 6


@pytest.mark.parametrize(("dtype", "count"), [(torch.int16, 5000), (torch.float64, 5000), (torch.int8, 255)])
def test_many_elements_are_told_apart(dtype: torch.dtype, count: int) -> None:
    x = torch.zeros(count, dtype=dtype)
    found = tags(x=x, y=x.view(-1))["x", "y"]
    size = x.element_size()
    assert len({found[i : i + size] for i in range(0, len(found), size)}) == count


def test_views_of_another_dtype_are_reached_in_part() -> None:
    x = torch.zeros(4)
    assert reaches(x=x[1:3], y=x.view(torch.uint8), z=x.view(torch.float64)) == {
        ("x", "y"): list(range(4, 12)),
        ("x", "z"): [0, 1],
        ("y", "z"): [0, 1],
    }


def test_values_play_no_part_and_are_put_back() -> None:
    for fill in (0.0, 1.5, float("nan")):
        x = torch.full((5,), fill)
        x[1] = 7
        before = x.clone()
        assert tags(x=x, y=x[2:]) == tags(x=torch.zeros(5), y=x.new_zeros(5)) | tags(x=x, y=x[2:])
        assert x.view(torch.int32).equal(before.view(torch.int32))
    y = torch.ones(5)
    assert tags(x=x, y=x[2:]) == tags(x=y, y=y[2:])


def test_conj_and_neg_views_are_probed_as_memory() -> None:
    z = torch.complex(torch.ones(3), torch.ones(3))
    found = reaches(z=z, conj=z.conj(), imag=z.conj().imag)
    assert found == {("z", "conj"): [0, 1, 2], ("z", "imag"): [0, 1, 2], ("conj", "imag"): [0, 1, 2]}


def test_autograd_takes_no_notice() -> None:
    w = torch.ones(4, requires_grad=True)
    y = w * 2
    version = y._version
    reaches(y=y, part=y[1:], w=w, view=w.detach())
    assert (y._version, w._version) == (version, 0)
    y.sin().sum().backward()
    assert w.grad is not None


def test_lone_tensors_are_left_out() -> None:
    assert reaches(x=torch.ones(3), y=torch.ones(3), z=torch.ones(1).expand(4)) == {}
