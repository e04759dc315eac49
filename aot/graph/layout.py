"""Layout: give a value the strides and the offset of the tensor that it stands for.

In: a node and a geometry. Out: a node with the same elements in this layout. A value of the graph has the
elements of one of the function's tensors, but may have another layout. For example, a value that is written
to an argument with gaps has none.

Most kernels do not depend on the layout, but random kernels do. On a CPU `normal_` draws in another order if
16 or more elements lie without gaps (ATen's `normal_fill`). On a GPU `native_dropout` does so if it can read
several elements at once, which depends on their alignment (`get_vector_size`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from aot.graph.builder import GraphBuilder
from aot.tensors.geometry import Geometry, known_equal
from aot.tensors.views import alias_root

aten = torch.ops.aten

# The most elements that kernels read at once. A tensor's own memory begins at a multiple of it.
_TOGETHER = 16


def with_strides(builder: GraphBuilder, node: fx.Node, stride: tuple[int, ...]) -> fx.Node:
    """The value itself if it has these strides, else a copy with them."""
    meta = builder.meta(node)
    if known_equal(meta.stride, stride):
        return node
    size = list(meta.size)
    blank = builder.emit(aten.empty_strided.default, size, list(stride), dtype=meta.dtype, device=meta.device)
    return builder.emit(aten.copy.default, blank, node)


def with_rng_layout(builder: GraphBuilder, node: fx.Node, where: Geometry) -> fx.Node:
    """The value of a tensor with the geometry `where`, or a copy with its layout, so that draws are equal."""
    if 0 in where.size or where.overlaps_itself_somehow:  # a value of the second kind is a view in the graph
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
    """Whether a value is known to begin `begin` elements after a multiple of `_TOGETHER`."""
    views, root = [], alias_root(node)
    while node is not root:
        views.append(node)
        node = node.args[0]  # type: ignore[assignment]
    offset: Any = builder.offsets.get(root, 0)
    if views:
        if builder.symbolic:  # arguments of views may be nodes then
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
