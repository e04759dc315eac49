"""Jagged views: nested tensors that are views of their values.

In: a nested tensor and how it is made. Out: how to make it as a view.
`torch.nested.nested_tensor_from_jagged` gives such tensors. For autograd the nested tensor is a view of the
plain tensor of values, which has the history. So its fake is made as a view, too.
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
    """Makes a nested tensor as a view of its values. It replaces the type in a `SubclassCreationMeta`."""

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], context: Any, size: Sequence[Any], stride: Sequence[Any]
    ) -> Tensor:
        return nested_tensors.jagged_view(inner, context["ragged_idx"])


def as_jagged_view(
    tensor: Tensor, meta: SubclassCreationMeta, plain: list[Tensor]
) -> tuple[SubclassCreationMeta, list[Tensor]]:
    """Change how a nested tensor is made, so that it is a view of the tensor that has its history.

    Args:
        tensor: the nested tensor. If it is no such view, `meta` and `plain` are returned unchanged.
        meta: how its type makes it.
        plain: the plain tensors that it is made of.
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
