"""How values lie for what draws: as the tensors do, and on a GPU from the same place on, told without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

from aot.graph.builder import GraphBuilder
from aot.graph.layout import with_rng_layout
from aot.graph.value_meta import ValueMeta, intern
from aot.tensors.geometry import Geometry
from aot.torch_internals import torch_fakes

pytestmark = pytest.mark.clause("strides", "randomness")

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
VALUE = torch.arange(24.0).reshape(6, 4)


class OnTheCPU(fx.Interpreter):
    """Runs a graph for a GPU where there is none."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        moved = {k: CPU if isinstance(v, torch.device) else v for k, v in kwargs.items()}
        return target(*args, **moved)


def _lies(
    device: torch.device, where: Geometry, view: Any = lambda builder, node: node
) -> tuple[int, Tensor]:
    """How many operations lay out a view of `VALUE` as `where`, and the result of them."""
    builder = GraphBuilder(torch_fakes.FakeTensorMode())
    meta = ValueMeta(tuple(VALUE.shape), VALUE.stride(), VALUE.dtype, device)
    node = view(builder, builder.placeholder("p", intern(meta)))
    before = len(builder.graph.nodes)
    builder.graph.output(with_rng_layout(builder, node, where))
    operations = len(builder.graph.nodes) - before - 1
    return operations, OnTheCPU(fx.GraphModule(builder.root, builder.graph)).run(VALUE)


def _rows(builder: GraphBuilder, node: fx.Node) -> fx.Node:
    """Rows from the second on, by a view of a view."""
    parts = builder.emit(aten.split.Tensor, builder.emit(aten.slice.Tensor, node, 0, 1, 6), 3)
    return builder.item(parts, 0)


@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
@pytest.mark.parametrize("strides", [(1, 6), (10, 2)], ids=str)
def test_a_value_lies_as_its_tensor(device: torch.device, strides: tuple[int, int]) -> None:
    operations, result = _lies(device, Geometry((6, 4), strides, 0, torch.float32))
    assert operations and result.stride() == strides and torch.equal(result, VALUE)


@pytest.mark.parametrize("offset", [1, 7, 18, 35])
def test_on_a_gpu_it_begins_where_its_tensor_does(offset: int) -> None:
    where = Geometry((6, 4), (5, 1), offset, torch.float32)
    operations, result = _lies(CUDA, where)
    assert operations and result.stride() == where.stride and torch.equal(result, VALUE)
    assert result.storage_offset() % 16 == offset % 16
    assert _lies(CPU, where)[1].storage_offset() == 0  # which no kernel of a CPU looks at


def test_what_lies_as_it_should_is_left_alone() -> None:
    dense = Geometry((6, 4), (4, 1), 0, torch.float32)
    for device, offset in ((CPU, 0), (CPU, 3), (CUDA, 0), (CUDA, 16), (CUDA, 48)):
        assert _lies(device, dense._replace(offset=offset))[0] == 0
    for device, offset in ((CPU, 4), (CPU, 0), (CUDA, 4), (CUDA, 20)):
        rows = Geometry((3, 4), (4, 1), offset, torch.float32)
        operations, result = _lies(device, rows, _rows)
        assert operations == 0 and torch.equal(result, VALUE[1:4])
    operations, result = _lies(CUDA, Geometry((3, 4), (4, 1), 0, torch.float32), _rows)
    assert operations and torch.equal(result, VALUE[1:4]) and result.storage_offset() == 0


def test_what_shows_an_element_several_times_or_none_is_left_alone() -> None:
    assert _lies(CUDA, Geometry((6, 4), (0, 1), 1, torch.float32))[0] == 0
    assert _lies(CUDA, Geometry((0, 4), (9, 2), 1, torch.float32))[0] == 0
