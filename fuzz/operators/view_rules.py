"""What a view's metadata is: the views that metadata operators and slices share with the views proper."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import integer, lengths
from fuzz.operators.layout import dimension, extent
from fuzz.operators.row import MAX_RANK, Attributes, Meta, Mismatch


def permute(meta: Meta, dims: Sequence[int]) -> Meta:
    """The dimensions in another order."""
    stride = None if meta.stride is None else tuple(meta.stride[dim] for dim in dims)
    return meta._replace(size=tuple(meta.size[dim] for dim in dims), stride=stride)


def transpose_rule(meta: Meta, attributes: Attributes) -> Meta:
    """Two dimensions exchanged: attributes dim0 and dim1."""
    rank = len(meta.size)
    a, b = dimension(attributes["dim0"], rank), dimension(attributes["dim1"], rank)
    if rank == 0:
        return meta
    dims = list(range(rank))
    dims[a], dims[b] = b, a
    return permute(meta, dims)


def squeeze(meta: Meta, dims: Sequence[int]) -> Meta:
    """Without those of the dimensions that have size 1."""
    keep = [dim for dim, n in enumerate(meta.size) if n != 1 or dim not in dims]
    return permute(meta, keep)


def unsqueeze_rule(meta: Meta, attributes: Attributes) -> Meta:
    """With a dimension of size 1 more, before attribute dim."""
    dim = dimension(attributes["dim"], len(meta.size) + 1)
    if len(meta.size) == MAX_RANK:
        raise Mismatch(f"more than {MAX_RANK} dimensions")
    stride = None
    if meta.stride is not None:
        step = meta.size[dim] * meta.stride[dim] if dim < len(meta.size) else 1
        stride = (*meta.stride[:dim], step, *meta.stride[dim:])
    return meta._replace(size=(*meta.size[:dim], 1, *meta.size[dim:]), stride=stride)


def restride_rule(meta: Meta, attributes: Attributes) -> Meta:
    """Attributes size, stride and offset, within the elements that the tensor spans already."""
    placed = restride_anywhere_rule(meta, attributes)
    assert meta.stride is not None
    end = meta.offset + extent(meta.size, meta.stride)
    if (
        placed.offset < meta.offset
        or placed.offset + extent(placed.size, lengths(attributes, "stride")) > end
    ):
        raise Mismatch("as_strided beyond the tensor's own extent")
    return placed


def restride_anywhere_rule(meta: Meta, attributes: Attributes) -> Meta:
    """Attributes size, stride and offset, wherever that is in the storage."""
    size, stride, offset = lengths(attributes), lengths(attributes, "stride"), integer(attributes, "offset")
    if meta.stride is None:
        raise Mismatch("as_strided of a tensor whose strides are not modelled")
    if len(size) != len(stride):
        raise Mismatch("size and stride are of different lengths")
    if offset < 0:
        raise Mismatch("as_strided from before the storage")
    return meta._replace(size=size, stride=stride, offset=offset)


def transpose_matrix(meta: Meta) -> Meta:
    """What `t` gives: matrices transposed, vectors and numbers as they are."""
    if len(meta.size) > 2:
        raise Mismatch("t of a tensor of more than two dimensions")
    return permute(meta, range(len(meta.size) - 1, -1, -1))


def slice_rule(meta: Meta, attributes: Attributes) -> Meta:
    """Attributes start, end and step along dim, as Python slices read them."""
    if not meta.size:
        raise Mismatch("a slice of a 0-d tensor")
    dim, step = dimension(attributes["dim"], len(meta.size)), integer(attributes, "step")
    start, end = integer(attributes, "start"), integer(attributes, "end")
    n = meta.size[dim]
    if step < 1 or not 0 <= start <= end <= n:
        raise Mismatch(f"slice {start}:{end}:{step} of a dimension of size {n}")
    size = (*meta.size[:dim], -(-(end - start) // step), *meta.size[dim + 1 :])
    if meta.stride is None:
        return meta._replace(size=size)
    stride = (*meta.stride[:dim], meta.stride[dim] * step, *meta.stride[dim + 1 :])
    return meta._replace(size=size, stride=stride, offset=meta.offset + start * meta.stride[dim])
