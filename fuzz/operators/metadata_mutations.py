"""Operators that change their first operand as an object: geometry, size, storage, standing with autograd."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.choices import Choices
from fuzz.operators.builders import ANY, DIM, lengths, same_dtype
from fuzz.operators.dtypes import DTYPES, INEXACT
from fuzz.operators.layout import contiguous_strides, dimension
from fuzz.operators.row import (
    Attribute,
    Attributes,
    Change,
    Constant,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
    Rule,
    Size,
)
from fuzz.operators.view_rules import restride_rule, squeeze, transpose_matrix, transpose_rule, unsqueeze_rule
from fuzz.operators.views import DIM0, DIM1, NEW_DIM, RESTRIDED


def _metadata_row(
    name: str,
    source: str,
    rule: Rule,
    attributes: tuple[Attribute, ...] = (),
    operands: tuple[Operand, ...] = (ANY,),
    *,
    change: Change = Change.GEOMETRY,
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.METADATA,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        change=change,
        differentiable=change in (Change.GEOMETRY, Change.STORAGE, Change.UNTYPED),
    )


# ---------------------------------------------------------------------------------------------------------
# rules


def _resize_rule(metas: Sequence[Meta], size: Size) -> tuple[Result, ...]:
    """A tensor that has the size already is left alone; any other becomes contiguous."""
    meta = metas[0]
    if size == meta.size:
        return (Result(meta),)
    if meta.stride is None:
        raise Mismatch("a new size for a tensor whose offset is not modelled")
    return (Result(meta._replace(size=size, stride=contiguous_strides(size))),)


def _resized_as(metas: Sequence[Meta]) -> tuple[Result, ...]:
    if any(meta.conj or meta.neg for meta in metas):
        # ATen resizes a copy without these bits, and copies what nothing has written.
        raise Mismatch("a lazily conjugated or negated tensor")
    return _resize_rule(metas, metas[1].size)


def _moved(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0].dtype != metas[1].dtype:
        raise Mismatch("the dtypes differ")
    if any(meta.conj or meta.neg for meta in metas):
        raise Mismatch("a lazily conjugated or negated tensor")
    return (Result(metas[1]),)


def _moved_within(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _moved(metas, attributes)
    return (Result(restride_rule(metas[1], attributes)),)


def _emptied(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0].conj or metas[0].neg:
        raise Mismatch("a lazily conjugated or negated tensor")
    return (Result(Meta(metas[0].dtype, (0,), (1,))),)


def _squeezed_along(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0].conj or metas[0].neg:  # of which eager squeezes a copy, torch 2.13, and copies that back
        raise Mismatch("a lazily conjugated or negated tensor")
    return (Result(squeeze(metas[0], [dimension(attributes["dim"], len(metas[0].size))])),)


def _same(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(metas[0]),)


def _requires(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if attributes["value"] and metas[0].dtype not in INEXACT:
        raise Mismatch(f"a {metas[0].dtype} tensor cannot require grad")
    return (Result(metas[0]),)


# ---------------------------------------------------------------------------------------------------------
# operands and attributes


def _draw_resized_size(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    """Fewer elements, about as many, or more."""
    sizes: list[Size] = [(2,), (3, 2), (7,), (2, 5), (1,), (4, 4), (), (0,), (3, 3), (2, 1, 3)]
    if 0 in metas[0].size:
        return choices.pick(((2,), (3, 2), (1,), (4,)))
    if metas[0].size:
        first, *rest = metas[0].size
        sizes += [(first + 1, *rest), (first + 2, *rest), (max(first - 1, 0), *rest)] * 2
    return choices.pick(sizes)


def _of_second(attribute: Attribute) -> Attribute:
    """An attribute that is drawn for operand 1 as if it were operand 0."""
    return Attribute(
        attribute.name,
        attribute.type,
        lambda choices, metas, chosen: attribute.draw(choices, metas[1:], chosen),
    )


_MATRIX = Operand(DTYPES, lambda meta, earlier: len(meta.size) <= 2)
_MODELLED = Operand(DTYPES, lambda meta, earlier: meta.stride is not None)
_PLAIN = Operand(DTYPES, lambda meta, earlier: not (meta.conj or meta.neg))
_SOURCE = Operand(DTYPES, lambda meta, earlier: same_dtype(meta, earlier) and not (meta.conj or meta.neg))
_MODELLED_SOURCE = Operand(
    DTYPES, lambda meta, earlier: meta.stride is not None and _SOURCE.fits(meta, earlier)
)
_NEW_SIZE = Attribute("size", "ints", _draw_resized_size)
_FLAG = Attribute("value", "bool", lambda choices, metas, chosen: not choices.chance(0.25))

ROWS = (
    _metadata_row("t_", "{0}.t_()", lambda m, a: (Result(transpose_matrix(m[0])),), operands=(_MATRIX,)),
    _metadata_row(
        "transpose_",
        "{0}.transpose_({dim0}, {dim1})",
        lambda m, a: (Result(transpose_rule(m[0], a)),),
        (DIM0, DIM1),
    ),
    _metadata_row(
        "swapdims_",
        "{0}.swapdims_({dim0}, {dim1})",
        lambda m, a: (Result(transpose_rule(m[0], a)),),
        (DIM0, DIM1),
    ),
    _metadata_row("squeeze_", "{0}.squeeze_()", lambda m, a: (Result(squeeze(m[0], range(len(m[0].size)))),)),
    _metadata_row(
        "squeeze_dim_",
        "{0}.squeeze_({dim})",
        _squeezed_along,
        (DIM,),
        (_PLAIN,),
    ),
    _metadata_row(
        "unsqueeze_", "{0}.unsqueeze_({dim})", lambda m, a: (Result(unsqueeze_rule(m[0], a)),), (NEW_DIM,)
    ),
    _metadata_row(
        "as_strided_",
        "{0}.as_strided_({size}, {stride}, {offset})",
        lambda m, a: (Result(restride_rule(m[0], a)),),
        RESTRIDED,
        (_MODELLED,),
    ),
    _metadata_row(
        "resize_",
        "{0}.resize_({size})",
        lambda m, a: _resize_rule(m, lengths(a)),
        (_NEW_SIZE,),
        (_MODELLED,),
        change=Change.RESIZE,
    ),
    _metadata_row(
        "resize_as_",
        "{0}.resize_as_({1})",
        lambda m, a: _resized_as(m),
        (),
        (
            Operand(DTYPES, lambda meta, earlier: meta.stride is not None and _PLAIN.fits(meta, earlier)),
            _PLAIN,
        ),
        change=Change.RESIZE,
    ),
    _metadata_row("set_", "{0}.set_({1})", _moved, (), (_PLAIN, _SOURCE), change=Change.STORAGE),
    _metadata_row(
        "set_storage_",
        "{0}.set_({1}.untyped_storage(), {offset}, {size}, {stride})",
        _moved_within,
        tuple(map(_of_second, RESTRIDED)),
        (_PLAIN, _MODELLED_SOURCE),
        change=Change.UNTYPED,
    ),
    _metadata_row("set_empty_", "{0}.set_()", _emptied, operands=(_PLAIN,), change=Change.STORAGE),
    _metadata_row("set_data_", "{0}.data = {1}", _moved, (), (_PLAIN, _SOURCE), change=Change.DATA),
    _metadata_row("detach_", "{0}.detach_()", _same, change=Change.DETACH),
    _metadata_row(
        "requires_grad_", "{0}.requires_grad_({value})", _requires, (_FLAG,), change=Change.REQUIRE
    ),
)
