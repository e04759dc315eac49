"""Views that are more than geometry: of other dtypes, of complex parts, lazy bits, unsafe ones, Functions."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.choices import Choices
from fuzz.operators.builders import ANY, DIM, text
from fuzz.operators.dtypes import BOOL, COMPLEX, COMPLEX_OF, DTYPES, ITEM_SIZE, REAL_OF
from fuzz.operators.multi_views import CHUNKS, PIECE, chunk, split
from fuzz.operators.row import (
    Aliasing,
    Attribute,
    Attributes,
    Constant,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Result,
    Rule,
    Size,
)
from fuzz.operators.view_rules import transpose_matrix
from fuzz.operators.views import view_row

_IDENTITY = """\
class View(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
"""
_TRANSPOSE = """\
class Transpose(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.t()

    @staticmethod
    def backward(ctx, grad):
        return -grad.t()
"""


# ---------------------------------------------------------------------------------------------------------
# rules


def _lazy(meta: Meta) -> bool:
    return meta.conj or meta.neg


def _view_dtype_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """`view(dtype)`: the last dimension shrinks or grows where the elements are of another
    length."""
    meta, dtype = metas[0], text(attributes)
    if _lazy(meta) or meta.stride is None:
        raise Mismatch("a view of lazy bits, or of a tensor whose strides are not modelled")
    if dtype == meta.dtype or {dtype, meta.dtype} & BOOL:
        raise Mismatch("the same dtype, or bool, of which not every byte is one")
    old, new = ITEM_SIZE[meta.dtype], ITEM_SIZE[dtype]
    if old == new:
        return (Result(meta._replace(dtype=dtype), Aliasing.DETACHED),)
    if not meta.size or meta.stride[-1] != 1:
        raise Mismatch("elements of another length need a last dimension of stride 1")
    *size, last = meta.size
    *stride, _ = meta.stride
    if new > old:
        ratio = new // old
        if last % ratio or meta.offset % ratio or any(step % ratio for step in stride):
            raise Mismatch("size, strides and offset are no multiples of the longer element")
        longer = ((*size, last // ratio), (*(step // ratio for step in stride), 1), meta.offset // ratio)
        return (Result(Meta(dtype, *longer), Aliasing.DETACHED),)
    ratio = old // new
    shorter = ((*size, last * ratio), (*(step * ratio for step in stride), 1), meta.offset * ratio)
    return (Result(Meta(dtype, *shorter), Aliasing.DETACHED),)


def _pairs(meta: Meta) -> tuple[Size | None, int]:
    stride = None if meta.stride is None else tuple(2 * step for step in meta.stride)
    return stride, 2 * meta.offset


def _check_elements(meta: Meta) -> None:
    if 0 in meta.size:
        raise Mismatch("eager's backward refuses the strides of what has no elements, or not, as they happen")


def _view_as_real_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = metas[0]
    if meta.conj:
        raise Mismatch("view_as_real of a lazily conjugated tensor")
    _check_elements(meta)
    stride, offset = _pairs(meta)
    paired = None if stride is None else (*stride, 1)
    return (Result(Meta(REAL_OF[meta.dtype], (*meta.size, 2), paired, offset, neg=meta.neg), Aliasing.VIEW),)


def _complex_part_rule(second: bool) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        meta = metas[0]
        stride, offset = _pairs(meta)
        neg = meta.neg != (second and meta.conj)
        return (
            Result(Meta(REAL_OF[meta.dtype], meta.size, stride, offset + second, neg=neg), Aliasing.VIEW),
        )

    return rule


def _view_as_complex_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = metas[0]
    if _lazy(meta) or meta.stride is None or meta.size[-1:] != (2,) or meta.stride[-1] != 1:
        raise Mismatch("view_as_complex takes pairs that lie side by side")
    _check_elements(meta)
    *stride, _ = meta.stride
    if meta.offset % 2 or any(step % 2 for step in stride):
        raise Mismatch("pairs at odd places")
    halved = (meta.size[:-1], tuple(step // 2 for step in stride), meta.offset // 2)
    return (Result(Meta(COMPLEX_OF[meta.dtype], *halved), Aliasing.VIEW),)


def _conjugated(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(metas[0]._replace(conj=not metas[0].conj), Aliasing.VIEW),)


def _negated_imag(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return _complex_part_rule(True)([metas[0]._replace(conj=not metas[0].conj)], attributes)


def _resolved_conj(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(metas[0], Aliasing.FRESH if metas[0].conj else Aliasing.SELF),)


def _resolved_neg(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(metas[0], Aliasing.FRESH if metas[0].neg else Aliasing.SELF),)


def _unsafe(rule: Rule) -> Rule:
    def unsafe(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        if _lazy(metas[0]):
            raise Mismatch("pieces of a copy that is conjugated or negated, on memory that nobody sees")
        return tuple(Result(meta, Aliasing.UNSAFE) for meta, _ in rule(metas, attributes))

    return unsafe


# ---------------------------------------------------------------------------------------------------------
# operands and attributes


def _draw_recast(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    """A dtype of the same length, mostly."""
    own = metas[0].dtype
    same = [dtype for dtype in _RECAST if dtype != own and ITEM_SIZE[dtype] == ITEM_SIZE[own]]
    if same and choices.chance(0.6):
        return choices.pick(same)
    return choices.pick([dtype for dtype in _RECAST if dtype != own])


_RECAST = ("int32", "float32", "int64", "float64", "int16", "uint8", "int8", "float16", "complex64")
_BYTES = Operand(DTYPES - BOOL, lambda meta, earlier: meta.stride is not None and not _lazy(meta))
_COMPLEX = Operand(COMPLEX, ANY.fits)
_PLAIN_COMPLEX = Operand(COMPLEX, lambda meta, earlier: not meta.conj)
_PAIRED = Operand(frozenset(REAL_OF.values()), lambda meta, earlier: meta.size[-1:] == (2,))
_RANKED = Operand(DTYPES, lambda meta, earlier: len(meta.size) > 0)
_MATRIX = Operand(DTYPES, lambda meta, earlier: len(meta.size) <= 2)

ROWS = (
    view_row(
        "view_dtype",
        "{0}.view({dtype})",
        _view_dtype_rule,
        (Attribute("dtype", "dtype", _draw_recast),),
        operands=(_BYTES,),
        differentiable=False,
    ),
    view_row("view_as_real", "torch.view_as_real({0})", _view_as_real_rule, operands=(_PLAIN_COMPLEX,)),
    view_row("view_as_complex", "torch.view_as_complex({0})", _view_as_complex_rule, operands=(_PAIRED,)),
    view_row("real", "{0}.real", _complex_part_rule(False), operands=(_COMPLEX,)),
    view_row("imag", "{0}.imag", _complex_part_rule(True), operands=(_COMPLEX,)),
    view_row("conj", "{0}.conj()", _conjugated, operands=(_COMPLEX,)),
    view_row("conj_imag", "{0}.conj().imag", _negated_imag, operands=(_COMPLEX,)),
    view_row("resolve_conj", "{0}.resolve_conj()", _resolved_conj, operands=(_COMPLEX,)),
    view_row("resolve_neg", "{0}.resolve_neg()", _resolved_neg),
    view_row(
        "unsafe_split",
        "{0}.unsafe_split({length}, {dim})",
        _unsafe(split),
        (DIM, PIECE),
        operands=(_RANKED,),
        kind=Kind.MULTI_VIEW,
    ),
    view_row(
        "unsafe_chunk",
        "{0}.unsafe_chunk({chunks}, {dim})",
        _unsafe(chunk),
        (DIM, CHUNKS),
        operands=(_RANKED,),
        kind=Kind.MULTI_VIEW,
    ),
    view_row(
        "function_view", "View.apply({0})", lambda m, a: (Result(m[0], Aliasing.VIEW),), defines=_IDENTITY
    ),
    view_row(
        "function_t",
        "Transpose.apply({0})",
        lambda m, a: (Result(transpose_matrix(m[0]), Aliasing.VIEW),),
        operands=(_MATRIX,),
        defines=_TRANSPOSE,
    ),
)
