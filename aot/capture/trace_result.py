"""What a traced function has left, as data that later stages read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from aot.graph.graph_text import layout_text
from aot.tensors.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Primal:
    """A graph input: what is in the memory of the tensor `tensor`, or, with `span`, a flat, detached view
    of the storage that it lies in.

    Attributes:
        dtype: of the tensor; the dtype of a stretch is the same, or uint8, where several dtypes meet.
        lazy: whether the tensor shows its memory lazily conjugated or negated.
    """

    node: fx.Node
    tensor: int
    dtype: torch.dtype
    lazy: bool
    span: Geometry | None = None

    def __str__(self) -> str:
        span = "" if self.span is None else f", its storage as {layout_text(self.span)}"
        return f"{self.node.name}: t{self.tensor}{span}{', lazy' * self.lazy}"
