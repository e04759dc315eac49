"""What is known of custom operators, whatever the version of torch calls it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aot.torch_internals import op_queries


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_custom_operator_tells_what_autocast_casts_to(dtype: torch.dtype | None) -> None:
    name = f"aotqueries::cast_{dtype}".replace("torch.", "")
    op: Any = torch.library.custom_op(
        name, lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    if dtype is not None:
        op.register_autocast("cpu", dtype)
    found = op_queries.custom_definition(op._opoverload)
    assert found is not None and found[0] is op
    assert found[1]["_autocast_dtype"] == (() if dtype is None else (("cpu", dtype),))


@pytest.mark.parametrize(
    "definition",
    [
        SimpleNamespace(_autocast_cpu_dtype=torch.bfloat16, _autocast_cuda_dtype=None),  # torch 2.11
        SimpleNamespace(_autocast_dtype={"cpu": torch.bfloat16}),
        SimpleNamespace(_autocast_dtype={"cuda": None, "cpu": torch.bfloat16}),
    ],
)
def test_each_version_of_torch_gives_the_same(definition: Any) -> None:
    assert op_queries._autocast_dtypes(definition) == (("cpu", torch.bfloat16),)
