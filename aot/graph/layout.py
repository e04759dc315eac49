"""Values laid out in memory as the tensors that they stand for, where a kernel looks at that.

Values of a graph hold the elements of the function's tensors, and need not lie as these do: what was
written to an argument with gaps has none. Most kernels compute the same all the same; those that draw do
not. On a CPU `normal_` draws in another order where 16 elements or more lie without gaps (ATen's
`normal_fill`), and on a GPU `native_dropout` where several lie together from a multiple of as many on
(`get_vector_size`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from aot.graph.builder import GraphBuilder
from aot.tensors.geometry import Geometry, known_equal
from aot.tensors.views import alias_root

aten = torch.ops.aten

# As many elements as kernels take at once, at most: memory of its own begins at a multiple of that.
_TOGETHER = 16


def with_strides(builder: GraphBuilder, node: fx.Node, stride: tuple[int, ...]) -> fx.Node:
    """A value, or a copy of it with these strides."""
    meta = builder.meta(node)
    if known_equal(meta.stride, stride):
        return node
    size = list(meta.size)
    blank = builder.emit(aten.empty_strided.default, size, list(stride), dtype=meta.dtype, device=meta.device)
    return builder.emit(aten.copy.default, blank, node)


def with_rng_layout(builder: GraphBuilder, node: fx.Node, where: Geometry) -> fx.Node:
    """The value of a tensor with the geometry `where`, or a copy that lies as the tensor does: the same
    numbers are drawn for it."""
    if 0 in where.size or where.overlaps_itself_somehow:  # (The latter is a view in the graph as well.)
        return node
    if builder.meta(node).device.type == "cpu":
        return with_strides(builder, node, where.stride)
    begin: Any = where.offset
    if not isinstance(begin, torch.SymInt):
        begin %= _TOGETHER
    if _is_aligned_at(builder, node, begin):
        return with_strides(builder, node, where.stride)
    meta, size, stride = builder.meta(node), list(where.size), list(where.stride)
    blank = builder.emit(
        aten.empty.memory_format,
        [where.stop - where.offset + begin],
        dtype=meta.dtype,
        device=meta.device,
    )
    memory = builder.emit(aten.as_strided_scatter.default, blank, node, size, stride, begin)
    return builder.emit(aten.as_strided.default, memory, size, stride, begin)


def _is_aligned_at(builder: GraphBuilder, node: fx.Node, begin: Any) -> bool:
    """Whether it is known that a value begins as many elements after a multiple of those taken at once."""
    views, root = [], alias_root(node)
    while node is not root:
        views.append(node)
        node = node.args[0]  # type: ignore[assignment]
    offset: Any = builder.offsets.get(root, 0)
    if views:
        if builder.symbolic:  # (Arguments of views may be nodes.)
            return False
        with builder.on_fakes(symbolic=False):
            shown: Any = builder.fake(root)
            for view in reversed(views):
                target: Any = view.target
                shown = target(shown, *view.args[1:], **view.kwargs)
            offset = shown.storage_offset()
    if isinstance(offset, torch.SymInt) or isinstance(begin, torch.SymInt):
        return known_equal((offset,), (begin,))
    return bool(offset % _TOGETHER == begin)
