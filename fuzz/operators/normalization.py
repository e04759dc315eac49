"""Normalization over batches, instances and groups, with running statistics that are written or read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from fuzz.operators.builders import SELF
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.neural import FUNCTION, SINGLE, check_one_dtype, neural_row, new_output
from fuzz.operators.row import (
    Attribute,
    Attributes,
    Expanded,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Result,
)

_row = partial(neural_row, kind=Kind.NORMALIZATION)


def _channels(metas: Sequence[Meta]) -> None:
    """All other operands have one element for each channel."""
    check_one_dtype(metas)
    if any(meta.size != metas[0].size[1:2] for meta in metas[1:]):
        raise Mismatch("one element for each channel is needed")


def _batch_normalized(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if len(size) < 2 or 0 in size or prod(size) // size[1] < 2:
        raise Mismatch("more than one value for each channel is needed")
    _channels(metas)
    return new_output(metas, size)


def _normalized(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """With statistics that are given: one value for each channel is enough."""
    if len(metas[0].size) < 2:
        raise Mismatch("channels are needed")
    _channels(metas)
    return new_output(metas, metas[0].size)


def _instances_normalized(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if len(size) < 3 or prod(size[2:]) < 2 or metas[0].stride != contiguous_strides(size):
        raise Mismatch("contiguous instances of several values are needed: of any other a copy is kept")
    _channels(metas)
    return new_output(metas, size)


def _grouped(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    check_one_dtype(metas)
    size = metas[0].size
    if len(size) < 2 or prod(size[1:]) < 2 or metas[0].stride != contiguous_strides(size):
        raise Mismatch("a contiguous tensor of rank 2 or more is needed: of any other a copy is kept")
    return new_output(metas, size)


def _each(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """One element for each channel."""
    return meta.size == earlier[0].size[1:2] and meta.dtype == earlier[0].dtype


_CHANNELS = Operand(SINGLE, lambda meta, earlier: len(meta.size) > 1 and 0 not in meta.size)
_INSTANCES = Operand(SINGLE, lambda meta, earlier: len(meta.size) > 2 and 0 not in meta.size)
_EACH = Operand(SINGLE, _each)
_MOMENTUM = Attribute("momentum", "number", lambda choices, metas, chosen: choices.pick((0.1, 0.5, 1.0)))

ROWS = (
    _row(
        "batch_norm",
        FUNCTION + "batch_norm({0}, None, None, training=True)",
        (_CHANNELS,),
        _batch_normalized,
        SELF,
    ),
    _row(
        "batch_norm_running",
        FUNCTION + "batch_norm({0}, {1}, {2}, training=True, momentum={momentum})",
        (_CHANNELS, _EACH, _EACH),
        _batch_normalized,
        ((0, (0,)), (1, (0,)), (2, (0,))),
        (_MOMENTUM,),
        writes=(1, 2),
        statistics=(1, 2),
        counted=False,
        expanded=Expanded.UNDEFINED,
    ),
    _row(
        "batch_norm_affine",
        FUNCTION + "batch_norm({0}, {1}, {2}, {3}, {4}, training=True, momentum={momentum})",
        (_CHANNELS, _EACH, _EACH, _EACH, _EACH),
        _batch_normalized,
        tuple((kept, (0, 3, 4)) for kept in (0, 1, 2, 3)),
        (_MOMENTUM,),
        writes=(1, 2),
        statistics=(1, 2),
        counted=False,
        expanded=Expanded.UNDEFINED,
    ),
    _row(
        "batch_norm_evaluated",
        FUNCTION + "batch_norm({0}, {1}, {2}.abs() + 0.5, training=False)",
        (_CHANNELS, _EACH, _EACH),
        _normalized,
        ((0, (0,)), (1, (0,))),
        statistics=(1, 2),
    ),
    _row(
        "instance_norm",
        FUNCTION + "instance_norm({0}).clone()",
        (_INSTANCES,),
        _instances_normalized,
        SELF,
    ),
    _row(
        "instance_norm_running",
        FUNCTION + "instance_norm({0}, {1}, {2}, momentum={momentum}).clone()",
        (_INSTANCES, _EACH, _EACH),
        _instances_normalized,
        SELF,
        (_MOMENTUM,),
        writes=(1, 2),
        statistics=(1, 2),
    ),
    _row("group_norm", FUNCTION + "group_norm({0}, 1)", (_CHANNELS,), _grouped, SELF),
)
