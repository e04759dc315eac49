"""View operations as steps that can be repeated on values, and undone when a view is overwritten."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from aot.graph.builder import GraphBuilder
from aot.graph.graph_text import call_text, labels
from aot.graph.value_meta import ValueMeta, is_contiguous
from aot.tensors.geometry import Geometry, known_equal
from aot.torch_internals import op_queries

aten = torch.ops.aten


class CreationMode(enum.Enum):
    """In which mode an operation runs: autograd remembers it of a view that is made."""

    GRAD = "grad"
    NO_GRAD = "no_grad"
    INFERENCE = "inference"
    BELOW_SUBCLASS = "inside"  # of a wrapper subclass: neither autograd nor what counts versions is told

    @property
    def labels(self) -> tuple[str, ...]:
        """What a text says of it, where it is not the usual one."""
        return () if self is CreationMode.GRAD else (self.name.replace("_", " ").lower(),)

    @classmethod
    def now(cls) -> CreationMode:
        """The mode of this moment."""
        if torch.is_inference_mode_enabled():
            return cls.INFERENCE
        return cls.GRAD if torch.is_grad_enabled() else cls.NO_GRAD


@dataclass(frozen=True, slots=True)
class ViewOp:
    """One view operation: ``op(parent, *args, **kwargs)``, or its `index`-th result. `call` is one object for
    all results of one call: autograd has one node for them, whose hooks are called together."""

    op: op_queries.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int | None
    mode: CreationMode
    in_place: bool = False  # it changed the metadata of the parent itself
    leaf: bool = False  # `requires_grad_` was called on what it made
    call: object = field(default=None, compare=False)
    by_custom_function: bool = (
        False  # a custom `autograd.Function` called it, which autograd remembers of the view
    )

    def __str__(self) -> str:
        return self.text("_")

    def text(self, parent: str) -> str:
        """The operation, of a parent with a name."""
        result = "" if self.index is None else f"[{self.index}]"
        words = [call_text(self.op, self.args, self.kwargs, parent) + result, *self.mode.labels]
        return ", ".join([*words, *labels(self, "in_place", "leaf", "by_custom_function")])


def same_layout(meta: ValueMeta, where: Geometry) -> bool:
    """Whether a value lies in memory as a tensor of geometry `where` does (dimensions of size 1 aside)."""
    if 0 in where.size or known_equal(meta.stride, where.stride):
        return True
    strides = zip(where.size, meta.stride, where.stride, strict=True)
    return all(known_equal((a,), (b,)) or n == 1 for n, a, b in strides)


def replay_view(builder: GraphBuilder, parent: fx.Node, step: ViewOp) -> fx.Node:
    """The value of a view of `parent`."""
    node = builder.emit(step.op, parent, *step.args, **step.kwargs)
    return node if step.index is None else builder.item(node, step.index)


_SQUEEZES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)


def invert_view(
    builder: GraphBuilder, where: Geometry, parent: fx.Node, value: fx.Node, step: ViewOp
) -> fx.Node | None:
    """The parent's value after its view was overwritten by `value`; None where `as_strided_scatter` must do.

    A result that would not lie in memory as the parent does is not used: the layout of a storage never
    changes under a write.
    """
    op, args = step.op, step.args
    whole: fx.Node
    if step.kwargs:
        return None
    if op is aten.select.int:
        whole = builder.emit(aten.select_scatter.default, parent, value, *args)
    elif op is aten.slice.Tensor:
        whole = builder.emit(aten.slice_scatter.default, parent, value, *args)
    elif op is aten.t.default:
        whole = builder.emit(aten.t.default, value)
    elif op is aten.transpose.int:
        whole = builder.emit(aten.transpose.int, value, *args)
    elif op is aten.permute.default:
        inverse = sorted(range(len(args[0])), key=lambda i: args[0][i] % len(args[0]))
        whole = builder.emit(aten.permute.default, value, inverse)
    elif op in _SQUEEZES:
        if not is_contiguous(builder.meta(value)):
            return None
        whole = builder.emit(aten.view.default, value, list(where.size))
    elif op is aten.view.dtype:
        whole = builder.emit(aten.view.dtype, value, where.dtype)
    elif op is aten.view_as_real.default:
        whole = builder.emit(aten.view_as_complex.default, value)
    elif op is aten.view_as_complex.default:
        whole = builder.emit(aten.view_as_real.default, value)
    else:
        return None
    return whole if same_layout(builder.meta(whole), where) else None
