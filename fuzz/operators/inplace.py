"""Operators that write to the data of their first operand."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.choices import Choices
from fuzz.operators.builders import (
    ANY,
    ARITHMETIC,
    COMPLEX_VALUE,
    CROSS,
    DIM,
    FILLED_DIM,
    INDEX,
    NOTHING,
    NUMBERS,
    PYTHON,
    REAL,
    RESULT,
    SELF,
    SMOOTH,
    VALUE,
    as_number,
    expands,
    ints_attribute,
    same_dtype,
    sized_dim,
    store_result_rule,
)
from fuzz.operators.dtypes import BOOL, CATEGORY, COMPLEX, DTYPES, INEXACT, NUMERIC, promote_dtypes
from fuzz.operators.layout import dimension, expandable
from fuzz.operators.row import (
    Attribute,
    Attributes,
    Constant,
    Expanded,
    Fills,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
    Rule,
    Saves,
)
from fuzz.operators.view_rules import slice_rule
from fuzz.operators.views import END, START, STEP


def in_place_row(
    name: str,
    source: str,
    operands: tuple[Operand, ...],
    rule: Rule,
    saves: Saves = NOTHING,
    attributes: tuple[Attribute, ...] = (),
    *,
    fills: Fills | None = None,
    expanded: Expanded = Expanded.REFUSED,
    overlap: bool = True,
    random: bool = False,
    kind: Kind = Kind.IN_PLACE,
) -> Operator:
    """A row that writes to operand 0."""
    return Operator(
        name=name,
        kind=Kind.RANDOM if random else kind,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        writes=(0,),
        fills=fills,
        expanded=expanded,
        overlap=overlap,
        random=random,
        saves=saves,
    )


def writes_all(metas: Sequence[Meta], attributes: Attributes) -> Meta:
    """All elements of operand 0 are written, and none is read."""
    return metas[0]


def _part(metas: Sequence[Meta], attributes: Attributes) -> Meta:
    return slice_rule(metas[0], attributes)


# ---------------------------------------------------------------------------------------------------------
# rules


def _keeps(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return store_result_rule(metas, promote_dtypes(metas))


def _divides(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dtype = promote_dtypes(metas)
    return store_result_rule(metas, dtype if dtype in INEXACT else "float32")


def _with_number(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return store_result_rule(metas, promote_dtypes([metas[0], as_number(attributes["value"])]))


def _divides_by_number(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if attributes["value"] == 0:
        raise Mismatch("division by zero")
    return _with_number(metas, attributes)


def _filled(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if isinstance(attributes["value"], float) and metas[0].dtype not in INEXACT:
        raise Mismatch("a fraction in a tensor of integers")
    return ()


def _copied(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    target, source = metas
    if not expandable(source.size, target.size) or CATEGORY[source.dtype] > CATEGORY[target.dtype]:
        raise Mismatch("the source does not fit into the target")
    if {source.dtype, target.dtype} == {"float16", "float32"} and (source.neg or target.neg):
        raise Mismatch("a lazily negated tensor, of which eager's conversion overlooks the bit (torch 2.13)")
    return ()


def _same_dtypes(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if len({meta.dtype for meta in metas}) > 1:
        raise Mismatch("the dtypes differ")
    return store_result_rule(metas, metas[0].dtype)


def _clamped(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return store_result_rule(
        metas, promote_dtypes([metas[0], as_number(attributes["min"]), as_number(attributes["max"])])
    )


def _masked(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if not expandable(metas[1].size, metas[0].size):
        raise Mismatch("the mask does not fit")
    return _filled(metas, attributes)


def _mask_chosen(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """`x[mask] = value`: the mask covers the leading dimensions exactly."""
    if not metas[1].size or metas[0].size[: len(metas[1].size)] != metas[1].size:
        raise Mismatch("the mask does not cover the leading dimensions")
    if 0 in metas[0].size:
        raise Mismatch("nothing to write to: eager counts no write")
    return _filled(metas, attributes)


def _sliced_copy(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return _copied([slice_rule(metas[0], attributes), metas[1]], attributes)


def _sliced_fill(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return _filled([slice_rule(metas[0], attributes)], attributes)


def _index_filled(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    sized_dim(metas, attributes)
    if len(metas[1].size) > 1:
        raise Mismatch("the index is no vector")
    return _filled(metas, attributes)


def _index_add_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """index_add_: one slice of the source for each index."""
    target, index, source = metas
    dim = sized_dim(metas, attributes)
    if not target.size or len(index.size) != 1 or source.dtype != target.dtype:
        raise Mismatch("index_add_ takes a vector of indices and a source of the target's dtype")
    if source.size != (*target.size[:dim], *index.size, *target.size[dim + 1 :]):
        raise Mismatch("the source does not fit the target and the index")
    return ()


MAX_POSITIONS = 256
"""So many indices stand in a program's text at most."""


def _index_copy_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    target, source = metas
    dim = sized_dim(metas, attributes)
    index = ints_attribute(attributes, "index")
    if not target.size or source.dtype != target.dtype:
        raise Mismatch("a source of the target's dtype is needed")
    if len(index) > MAX_POSITIONS:
        raise Mismatch(f"{len(index)} indices, at most {MAX_POSITIONS} are allowed")
    if len(set(index)) < len(index) or any(not 0 <= i < target.size[dim] for i in index):
        raise Mismatch("indices that are out of range, or one of them twice")
    if source.size != (*target.size[:dim], len(index), *target.size[dim + 1 :]):
        raise Mismatch("the source does not fit the target and the index")
    return ()


def _scattered(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    target, index = metas
    dim = sized_dim(metas, attributes)
    within = all(i <= n or d == dim for d, (i, n) in enumerate(zip(index.size, target.size, strict=False)))
    if not target.size or len(index.size) != len(target.size) or not within:
        raise Mismatch("the index does not fit the target")
    return _filled(metas, attributes)


def _first_dim_filled(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    sized_dim(metas, {"dim": 0})
    if not metas[0].size or not metas[1].size:
        raise Mismatch("an index into a 0-d tensor, or a 0-d index: eager reads its value")
    return _filled(metas, attributes)


def _scanned(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dimension(attributes["dim"], len(metas[0].size))
    return ()


def _multiplied(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    target, a, b = metas
    if len({meta.dtype for meta in metas}) > 1 or len(a.size) != 2 or len(b.size) != 2:
        raise Mismatch("matrices of one dtype are needed")
    if a.size[1] != b.size[0] or target.size != (a.size[0], b.size[1]):
        raise Mismatch("the matrices do not fit")
    return ()


# ---------------------------------------------------------------------------------------------------------
# operands and attributes


def _index_add_source(meta: Meta, earlier: Sequence[Meta]) -> bool:
    target, index = earlier
    return (
        meta.dtype == target.dtype
        and len(meta.size) == len(target.size)
        and sum(a != b for a, b in zip(meta.size, target.size, strict=True)) <= 1
        and any(n == index.size[0] for n in meta.size)
    )


def _like_but_one(meta: Meta, earlier: Sequence[Meta]) -> bool:
    target = earlier[0]
    return (
        meta.dtype == target.dtype
        and len(meta.size) == len(target.size) > 0
        and all(a <= b for a, b in zip(meta.size, target.size, strict=True))
    )


def _leading_mask(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return len(meta.size) > 0 and earlier[0].size[: len(meta.size)] == meta.size


def _slots(meta: Meta, earlier: Sequence[Meta]) -> bool:
    target = earlier[0]
    return len(meta.size) == len(target.size) > 0 and all(
        a <= b for a, b in zip(meta.size, target.size, strict=True)
    )


def _rows(meta: Meta, earlier: Sequence[Meta]) -> bool:
    target = earlier[0]
    return (
        len(meta.size) == 2 == len(target.size)
        and meta.size[0] == target.size[0]
        and same_dtype(meta, earlier)
    )


def _columns(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == (earlier[1].size[1], earlier[0].size[1]) and same_dtype(meta, earlier)


def _draw_differing_dim(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    """The dimension in which the source may differ from the target."""
    target, source = metas[0].size, metas[-1].size
    for dim, (a, b) in enumerate(zip(target, source, strict=False)):
        if a != b:
            return dim
    return choices.integer(0, max(len(target) - 1, 0))


def _draw_index(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    dim = dimension(chosen["dim"], len(metas[0].size))
    rest = list(range(metas[0].size[dim]))
    count = metas[1].size[dim]
    return tuple(rest.pop(choices.integer(0, len(rest) - 1)) for _ in range(min(count, len(rest))))


def _draw_fill(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    return choices.pick((0.75, -2.5, 4.0)) if metas[0].dtype in INEXACT else choices.pick((1, 0, 3))


_MIN = Attribute("min", "number", lambda choices, metas, chosen: choices.pick((-1, 0)))
_MAX = Attribute("max", "number", lambda choices, metas, chosen: choices.pick((1, 2)))
_FILL = Attribute("value", "number", _draw_fill)
_DIFFERING = Attribute("dim", "int", _draw_differing_dim)
_POSITIONS = Attribute("index", "ints", _draw_index)
_SLICED = (DIM, START, END, STEP)
_ARITHMETIC = NUMERIC | COMPLEX
_INTO = Operand(DTYPES, expands)
_COMPLEX = Operand(COMPLEX, ANY.fits)
_NUMBERS_INTO = Operand(_ARITHMETIC, expands)
_FLOATS_INTO = Operand(INEXACT, lambda meta, earlier: same_dtype(meta, earlier) and expands(meta, earlier))
_VECTOR = Operand(INDEX.dtypes, lambda meta, earlier: len(meta.size) == 1)
_MATRIX = Operand(INEXACT, lambda meta, earlier: len(meta.size) == 2)
_RANKED = Operand(DTYPES, lambda meta, earlier: len(meta.size) > 0)
_MASK_INTO = Operand(BOOL, lambda meta, earlier: expandable(meta.size, earlier[0].size))


def _unary(name: str, saves: Saves, operand: Operand = REAL, source: str | None = None) -> Operator:
    return in_place_row(name, source or f"{{0}}.{name}()", (operand,), _keeps, saves)


def _number(name: str, rule: Rule = _with_number, operand: Operand = ARITHMETIC) -> Operator:
    method = name.removesuffix("number_")
    return in_place_row(name, f"{{0}}.{method}({{value}})", (operand,), rule, NOTHING, (VALUE,))


ROWS = (
    in_place_row("add_", "{0}.add_({1})", (ANY, _INTO), _keeps),
    in_place_row("sub_", "{0}.sub_({1})", (ARITHMETIC, _NUMBERS_INTO), _keeps),
    in_place_row("mul_", "{0}.mul_({1})", (ANY, _INTO), _keeps, CROSS),
    in_place_row("div_", "{0}.div_({1})", (SMOOTH, _NUMBERS_INTO), _divides, ((0, (1,)), (1, (0, 1)))),
    in_place_row("copy_", "{0}.copy_({1})", (ANY, _INTO), _copied, fills=writes_all),
    in_place_row("lerp_", "{0}.lerp_({1}, {value})", (SMOOTH, _FLOATS_INTO), _same_dtypes, NOTHING, (VALUE,)),
    in_place_row(
        "addcmul_",
        "{0}.addcmul_({1}, {2}, value={value})",
        (SMOOTH, _FLOATS_INTO, _FLOATS_INTO),
        _same_dtypes,
        ((1, (2,)), (2, (1,))),
        (VALUE,),
    ),
    in_place_row(
        "addmm_",
        "{0}.addmm_({1}, {2})",
        (_MATRIX, Operand(INEXACT, _rows), Operand(INEXACT, _columns)),
        _multiplied,
        ((1, (2,)), (2, (1,))),
        overlap=False,
    ),
    _number("add_number_"),
    _number("sub_number_"),
    _number("mul_number_"),
    _number("div_number_", _divides_by_number, SMOOTH),
    in_place_row("mul_complex_number_", "{0}.mul_({value})", (_COMPLEX,), _keeps, NOTHING, (COMPLEX_VALUE,)),
    in_place_row("mul_argument_", "{0}.mul_({1})", (ARITHMETIC, PYTHON), _keeps),
    _unary("neg_", NOTHING, ARITHMETIC),
    _unary("abs_", SELF, NUMBERS),
    _unary("square_", SELF, ARITHMETIC),
    _unary("sin_", SELF, SMOOTH),
    _unary("cos_", SELF, SMOOTH),
    _unary("exp_", RESULT, SMOOTH),
    _unary("tanh_", RESULT, SMOOTH),
    _unary("sigmoid_", RESULT, SMOOTH),
    _unary("relu_", RESULT, NUMBERS),
    _unary("silu_", SELF, source="torch.nn.functional.silu({0}, inplace=True)"),
    in_place_row("clamp_", "{0}.clamp_({min}, {max})", (NUMBERS,), _clamped, SELF, (_MIN, _MAX)),
    in_place_row("zero_", "{0}.zero_()", (ANY,), _keeps, fills=writes_all, expanded=Expanded.ALLOWED),
    in_place_row(
        "fill_",
        "{0}.fill_({value})",
        (ARITHMETIC,),
        _filled,
        NOTHING,
        (_FILL,),
        fills=writes_all,
        expanded=Expanded.ALLOWED,
    ),
    in_place_row("logical_not_", "{0}.logical_not_()", (Operand(BOOL, ANY.fits),), _keeps),
    in_place_row(
        "cumsum_",
        "{0}.cumsum_({dim})",
        (NUMBERS,),
        _scanned,
        NOTHING,
        (DIM,),
    ),
    in_place_row(
        "masked_fill_",
        "{0}.masked_fill_({1}, {value})",
        (ARITHMETIC, _MASK_INTO),
        _masked,
        ((1, (0,)),),
        (_FILL,),
        expanded=Expanded.UNDEFINED,
        overlap=False,
    ),
    in_place_row(
        "index_fill_",
        "{0}.index_fill_({dim}, {1} % {n}, {value})",
        (NUMBERS, _VECTOR),
        _index_filled,
        NOTHING,
        (FILLED_DIM, _FILL),
        expanded=Expanded.UNDEFINED,
        overlap=False,
    ),
    in_place_row(
        "index_add_",
        "{0}.index_add_({dim}, {1} % {n}, {2})",
        (ARITHMETIC, _VECTOR, Operand(_ARITHMETIC, _index_add_source)),
        _index_add_rule,
        ((2, (2,)),),
        (_DIFFERING,),
        overlap=False,
    ),
    in_place_row(
        "index_copy_",
        "{0}.index_copy_({dim}, torch.tensor({index}, dtype=torch.int64{device}), {1})",
        (ANY, Operand(DTYPES, _like_but_one)),
        _index_copy_rule,
        ((1, (1,)),),
        (_DIFFERING, _POSITIONS),
        overlap=False,
    ),
    in_place_row(
        "scatter_",
        "{0}.scatter_({dim}, {1} % {n}, {value})",
        (NUMBERS, Operand(INDEX.dtypes, _slots)),
        _scattered,
        NOTHING,
        (FILLED_DIM, _FILL),
        overlap=False,
    ),
    in_place_row(
        "setitem_slice",
        "{0}[{slice}] = {1}",
        (_RANKED, _INTO),
        _sliced_copy,
        NOTHING,
        _SLICED,
        fills=_part,
        overlap=False,
    ),
    in_place_row(
        "setitem_slice_number",
        "{0}[{slice}] = {value}",
        (Operand(_ARITHMETIC, _RANKED.fits),),
        _sliced_fill,
        NOTHING,
        (*_SLICED, _FILL),
        fills=_part,
    ),
    in_place_row(
        "setitem_mask",
        "{0}[{1}] = {value}",
        (NUMBERS, Operand(BOOL, _leading_mask)),
        _mask_chosen,
        ((1, (0,)),),
        (_FILL,),
        expanded=Expanded.UNDEFINED,
        overlap=False,
    ),
    in_place_row(
        "setitem_index",
        "{0}[{1} % {n}] = {value}",
        (Operand(NUMERIC, _RANKED.fits), Operand(INDEX.dtypes, _RANKED.fits)),
        _first_dim_filled,
        NOTHING,
        (_FILL,),
        expanded=Expanded.UNDEFINED,
        overlap=False,
    ),
)
