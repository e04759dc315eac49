"""How tensors lie in memory: strides, extents, overlaps, as eager computes them.

Sizes, strides and offsets are in elements. Everything is exact and small: a program's tensors have at most
a few dozen elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from fuzz.operators.dtypes import ITEM_SIZE
from fuzz.operators.row import Meta, Mismatch, Size


@lru_cache(maxsize=4096)
def contiguous_strides(size: Size) -> Size:
    """The strides of a new contiguous tensor.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    stride = []
    step = 1
    for n in reversed(size):
        stride.append(step)
        step *= max(n, 1)
    return tuple(reversed(stride))


def is_contiguous(size: Size, stride: Size) -> bool:
    """Whether eager calls it contiguous: strides of dimensions of size 1 do not matter."""
    if 0 in size:
        return True
    expected = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if n != 1:
            if s != expected:
                return False
            expected *= n
    return True


def is_dense(size: Size, stride: Size) -> bool:
    """Whether the elements fill their extent without holes or overlaps, in any order of dimensions."""
    if 0 in size:
        return True
    expected = 1
    for s, n in sorted((s, n) for n, s in zip(size, stride, strict=True) if n != 1):
        if s != expected:
            return False
        expected *= n
    return True


def extent(size: Size, stride: Size) -> int:
    """The number of elements from the first to the last one, both included; 0 if there are none."""
    return 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


@lru_cache(maxsize=4096)
def positions(size: Size, stride: Size, offset: int) -> frozenset[int]:
    """The storage elements that a tensor covers."""
    found = {offset} if 0 not in size else set()
    for n, s in zip(size, stride, strict=True):
        if n > 1 and s:
            found = {p + i * s for p in found for i in range(n)}
    return frozenset(found)


def covered_bytes(meta: Meta) -> frozenset[int]:
    """The bytes of its storage that a tensor of known strides covers."""
    assert meta.stride is not None
    unit = ITEM_SIZE[meta.dtype]
    return positions((*meta.size, unit), (*(s * unit for s in meta.stride), 1), meta.offset * unit)


def shares_elements(one: Meta, other: Meta) -> bool:
    """Whether two tensors of known strides on one storage have memory in common."""
    if one.dtype != other.dtype:
        return not covered_bytes(one).isdisjoint(covered_bytes(other))
    assert one.stride is not None and other.stride is not None
    here = positions(one.size, one.stride, one.offset)
    return not here.isdisjoint(positions(other.size, other.stride, other.offset))


def end_byte(meta: Meta) -> int:
    """The byte after the last one that a tensor of known strides covers; 0 if it covers none."""
    assert meta.stride is not None
    return (meta.offset + extent(meta.size, meta.stride)) * ITEM_SIZE[meta.dtype] if 0 not in meta.size else 0


def overlaps_itself(meta: Meta) -> bool:
    """Whether two indices of a tensor of known strides name one element."""
    assert meta.stride is not None
    return len(positions(meta.size, meta.stride, meta.offset)) < prod(meta.size)


def view_stride(size: Size, stride: Size, target: Size) -> Size | None:
    """The strides of `x.view(target)`, or None where eager would have to copy.

    >>> view_stride((2, 3), (1, 2), (6,)) is None
    True
    """
    if 0 in size:
        return stride if size == target else contiguous_strides(target)
    result = [0] * len(target)
    at = len(target) - 1
    base = stride[-1] if stride else 1
    elements = covered = 1
    for dim in range(len(size) - 1, -1, -1):
        elements *= size[dim]
        if dim == 0 or (size[dim - 1] != 1 and stride[dim - 1] != elements * base):
            while at >= 0 and (covered < elements or target[at] == 1):
                result[at] = covered * base
                covered *= target[at]
                at -= 1
            if covered != elements:
                return None
            if dim > 0:
                base = stride[dim - 1]
                elements = covered = 1
    if not size:
        result = [1] * len(target)
    return tuple(result)


def broadcast_sizes(*sizes: Size) -> Size:
    """The common size of operands; Mismatch if there is none.

    >>> broadcast_sizes((2, 1), (3,))
    (2, 3)
    """
    result = sizes[0]
    for size in sizes[1:]:
        if size == result:
            continue
        if len(size) > len(result):
            size, result = result, size
        lead = len(result) - len(size)
        merged = list(result)
        for i, n in enumerate(size):
            have = result[lead + i]
            if have != n and n != 1:
                if have != 1:
                    raise Mismatch(f"sizes {size} and {result} do not broadcast")
                merged[lead + i] = n
        result = tuple(merged)
    return result


def expandable(size: Size, target: Size) -> bool:
    """Whether a tensor of this size can be broadcast to `target` without `target` growing."""
    lead = len(target) - len(size)
    return lead >= 0 and all(n in (1, target[lead + i]) for i, n in enumerate(size))


def _swap_dimension_order(operands: Sequence[tuple[Size, Size]], shape: Size, a: int, b: int) -> int:
    for _, stride in operands:
        if stride[a] == 0 or stride[b] == 0:
            continue
        if stride[a] != stride[b]:
            return -1 if stride[a] < stride[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0


def elementwise_stride(size: Size, operands: Sequence[Meta]) -> Size | None:
    """The strides that eager gives a pointwise result: its operands' order of dimensions.

    None where an operand's strides are not known.
    """
    tensors = [operand for operand in operands if not operand.number]
    plain = contiguous_strides(size)
    if all(operand.size == size and operand.stride == plain for operand in tensors):
        return plain
    spread = []
    for operand in tensors:
        if operand.stride is None:
            return None
        lead = len(size) - len(operand.size)
        strides = tuple(
            0 if n == 1 and size[lead + i] != 1 else s
            for i, (n, s) in enumerate(zip(operand.size, operand.stride, strict=True))
        )
        spread.append((operand.size, (0,) * lead + strides))
    if all(n == size for n, _ in spread):
        if all(is_contiguous(size, s) for _, s in spread):
            return plain
        first = spread[0][1]
        if is_dense(size, first) and all(s == first for _, s in spread):
            return first
    order = list(range(len(size) - 1, -1, -1))  # innermost first, as eager sorts them
    for i in range(1, len(order)):
        moving = i
        for j in range(i - 1, -1, -1):
            sign = _swap_dimension_order(spread, size, order[j], order[moving])
            if sign > 0:
                order[j], order[moving] = order[moving], order[j]
                moving = j
            elif sign < 0:
                break
    stride = [0] * len(size)
    step = 1
    for dim in order:
        stride[dim] = step
        step *= size[dim]
    return tuple(stride) if order != list(range(len(size) - 1, -1, -1)) else plain


def dimension(dim: object, rank: int) -> int:
    """A dimension number as eager reads it: negative ones count from the end, a 0-d tensor has one."""
    assert isinstance(dim, int)
    room = max(rank, 1)
    if not -room <= dim < room:
        raise Mismatch(f"dimension {dim} of a tensor of rank {rank}")
    return dim % room


def is_channels_last(meta: Meta) -> bool:
    """Whether of four dimensions the second one is innermost, as images may lie."""
    return (
        len(meta.size) == 4
        and meta.stride != contiguous_strides(meta.size)
        and (meta.stride or ())[1:2] == (1,)
    )
