"""Nested tensors that are views of their values, as `torch.nested.nested_tensor_from_jagged` makes them.

Autograd takes such a tensor for a view of a plain one. So it is made again as one, of what has the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from aot.tensors.geometry import geometry
from aot.tensors.subclasses import PlainTensorMeta, SubclassCreationMeta, is_wrapper
from aot.torch_internals import autograd_state, nested_tensors, tensor_impl

VALUES = "_values"


class JaggedView:
    """Makes a nested tensor as a view of its values; in the place of its type in how it is made."""

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], context: Any, size: Sequence[Any], stride: Sequence[Any]
    ) -> Tensor:
        return nested_tensors.jagged_view(inner, context["ragged_idx"])


def as_jagged_view(
    tensor: Tensor, meta: SubclassCreationMeta, plain: list[Tensor]
) -> tuple[SubclassCreationMeta, list[Tensor]]:
    """How a nested tensor is made, of `plain` tensors, as a view of the one that has its history; the same
    as given where it is no such view.

    Args:
        meta: how it is made by its type.
    """
    values = dict(meta.parts).get(VALUES)
    base = tensor._base if tensor._is_view() else None
    if base is None or is_wrapper(base) or not isinstance(values, PlainTensorMeta):
        return meta, plain
    shown = plain[values.position]
    same = tensor_impl.storage_key(base) == tensor_impl.storage_key(shown) and geometry(base) == geometry(
        shown
    )
    if not same or autograd_state.creation_meta(tensor) != "DEFAULT":
        return meta, plain
    plain = [base if i == values.position else one for i, one in enumerate(plain)]
    return replace(meta, kind=JaggedView), plain
