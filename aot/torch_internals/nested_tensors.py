"""Nested tensors of the layout ``torch.jagged``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["jagged_view"]


def jagged_view(inner: Mapping[str, Tensor], ragged_idx: int) -> Tensor:
    """A nested tensor that is a view of its values; `inner` has what it is made of by name."""
    from torch.nested._internal.nested_tensor import _nt_view_dummy

    make: Any = torch._nested_view_from_jagged
    view: Tensor = make(
        inner["_values"],
        inner["_offsets"],
        _nt_view_dummy(),
        inner.get("_lengths"),
        ragged_idx,
        inner.get("_min_seqlen_tensor"),
        inner.get("_max_seqlen_tensor"),
    )
    return view
