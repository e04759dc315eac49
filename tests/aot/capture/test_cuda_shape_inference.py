"""What a GPU's kernels are asked, told without a GPU: metadata of tensors there, and nothing that is run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from aot.graph import shape_inference
from aot.graph.builder import GraphBuilder
from aot.graph.value_meta import ResultMeta, ValueMeta, intern, lookup
from aot.torch_internals import torch_fakes

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


class Asked:
    """Stands for a GPU: what it is asked, and that it answers as the CPU does."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.operations: list[Any] = []
        self._builder = builder
        self._run = builder._infer_by_kernel

    def __call__(
        self, op: Any, args: Any, kwargs: Any, call: Any = None, at: torch.device | None = None
    ) -> ResultMeta | None:
        if at is not None:
            return self._run(op, args, kwargs, call, at)
        self.operations.append(op)
        recipe = self._run(op, args, kwargs, call, torch.device("cpu"))
        assert recipe is not None
        metas = tuple(intern(lookup(meta)._replace(device=CUDA)) for meta in recipe.metas)
        return ResultMeta(recipe.many, metas)


def _infer(monkeypatch: pytest.MonkeyPatch, op: Any, *given: Any) -> tuple[list[Any], ValueMeta]:
    """What the GPU is asked, and what is known of the result; tensors stand for others there."""
    builder = GraphBuilder(torch_fakes.FakeTensorMode())
    asked = Asked(builder)
    monkeypatch.setattr(builder, "_infer_by_kernel", asked)
    monkeypatch.setattr(shape_inference, "_RECIPES", {})
    arguments = tuple(
        builder.placeholder(f"p{i}", intern(ValueMeta(tuple(one.shape), one.stride(), one.dtype, CUDA)))
        if isinstance(one, Tensor)
        else one
        for i, one in enumerate(given)
    )
    recipe = builder.infer(op, arguments, {})
    return asked.operations, lookup(recipe.metas[0])


def test_what_all_kernels_say_alike_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for op, *given in (
        (aten.sin.default, torch.ones(2, 3)),
        (aten.mm.default, torch.ones(2, 3), torch.ones(3, 2)),
        (aten.add.Tensor, torch.ones(2, 3).t(), torch.ones(3, 1)),
        (aten.sum.dim_IntList, torch.ones(2, 3), [0]),
    ):
        asked, meta = _infer(monkeypatch, op, *given)
        expected = op(*given)
        assert (asked, meta.size, meta.stride) == ([], tuple(expected.shape), expected.stride())
        assert meta.device == CUDA


def test_the_layout_is_that_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A meta kernel says that this keeps its strides; it does not."""
    turned = torch.ones(1, 4).t()
    asked, meta = _infer(monkeypatch, aten.triu.default, turned, -1)
    assert aten.triu.default(turned, -1).stride() == (1, 1) == meta.stride
    assert asked == [aten.triu.default]


def test_what_a_kernel_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    half = torch.ones(2, 1).half()
    with pytest.raises(RuntimeError, match="same dtype"):
        _infer(monkeypatch, aten.addmm.default, torch.ones(2, 1), half, half[:1])


def test_what_takes_a_seed_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel reads the seed where the kernel that drew it has left it, on the CPU or on the GPU."""
    q = torch.ones(2, 4, 16, 8).transpose(1, 2)
    sums, seed = torch.ones(2, 16, 32), torch.zeros((), dtype=torch.int64)
    given = (q, q, q, q, None, q, sums, seed, seed, 0.5, [True, True, True, False], False)
    monkeypatch.setattr(GraphBuilder, "run", lambda *_: pytest.fail("it was run"))
    asked, _ = _infer(monkeypatch, aten._scaled_dot_product_efficient_attention_backward.default, *given)
    assert asked == []


def test_what_could_break_the_device_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, index = torch.ones(0, 3), torch.zeros(2, dtype=torch.int64)
    asked, meta = _infer(monkeypatch, aten.index_select.default, empty, 0, index)
    assert (asked, meta.size) == ([], (2, 3))
