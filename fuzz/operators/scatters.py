"""More writes to operand 0: scattered with indices that name elements twice, diagonals, products, draws."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fuzz.operators.builders import (
    FILLED_DIM,
    INDEX,
    NOTHING,
    REAL,
    RESULT,
    SELF,
    SMOOTH,
    VALUE,
    draw_bool,
    fits_anywhere,
    same_dtype,
    sized_dim,
    store_result_rule,
)
from fuzz.operators.dtypes import BOOL, COMPLEX, FLOATS, INEXACT, INTEGERS, NUMERIC
from fuzz.operators.inplace import in_place_row, writes_all
from fuzz.operators.layout import expandable
from fuzz.operators.row import (
    Attribute,
    Attributes,
    Expanded,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
    Saves,
)

_write = partial(in_place_row, kind=Kind.SCATTER)


def _nothing_more(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return ()


def _one_dtype(metas: Sequence[Meta]) -> None:
    if metas[0].dtype != metas[-1].dtype:
        raise Mismatch("the dtypes differ")


def _scatter_accumulate_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    target, index, values = metas
    _one_dtype(metas)
    sized_dim(metas, {"dim": 0})
    if not target.size or not index.size or 0 in index.size or 0 in target.size:
        raise Mismatch("an index into a 0-d tensor, a 0-d index, or nothing at all")
    if values.size != index.size + target.size[1:]:
        raise Mismatch("the values do not fit the index")
    return ()


def _put(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _one_dtype(metas)
    target, index, values = metas
    if 0 in target.size or index.size != values.size:
        raise Mismatch("the values do not fit the index")
    return ()


def _scatter_product_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _one_dtype(metas)
    target, index, source = metas
    dim = sized_dim(metas, attributes)
    within = all(i <= n or d == dim for d, (i, n) in enumerate(zip(index.size, target.size, strict=False)))
    if not target.size or len(index.size) != len(target.size) or not within or source.size != index.size:
        raise Mismatch("the index does not fit the target, or the source the index")
    return ()


def _mask_filled(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _one_dtype(metas)
    target, mask, source = metas
    if not expandable(mask.size, target.size) or source.size != target.size:
        raise Mismatch("the mask or the source does not fit")
    return ()


def _matrix(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size, value = metas[0].size, attributes.get("value")
    if len(size) != 2 or 0 in size:
        raise Mismatch("a matrix with elements is needed")
    if isinstance(value, float) and metas[0].dtype not in INEXACT:
        raise Mismatch("a fraction in a tensor of integers")
    return ()


def _matrices(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if len(metas[0].size) < 2:
        raise Mismatch("matrices are needed")
    return ()


def _times_vector(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    target, matrix, vector = (meta.size for meta in metas)
    if len({meta.dtype for meta in metas}) > 1 or len(vector) != 1 or matrix != target + vector:
        raise Mismatch("the matrix and the vector do not fit")
    return ()


def _scatter_batches_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """A product for each batch: into one of operand 0's matrices each, or summed up into its only one."""
    target, left, right = (meta.size for meta in metas)
    if len({meta.dtype for meta in metas}) > 1 or len(left) != 3 or len(right) != 3:
        raise Mismatch("batches of matrices, of one dtype, are needed")
    product = (left[0], left[1], right[2])
    if left[0] != right[0] or left[2] != right[1] or target not in (product, product[1:]):
        raise Mismatch("the matrices do not fit")
    return ()


def _normed(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    sized_dim(metas, attributes)
    if len(metas[0].size) < 2:
        raise Mismatch("slices of a matrix or more are needed")
    return ()


def _outer_product(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    target, left, right = (meta.size for meta in metas)
    if len({meta.dtype for meta in metas}) > 1 or len(left) != 1 or target != left + right:
        raise Mismatch("the vectors do not fit")
    return ()


def _same_dtypes(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if len({meta.dtype for meta in metas}) > 1:
        raise Mismatch("the dtypes differ")
    return store_result_rule(metas, metas[0].dtype)


# ---------------------------------------------------------------------------------------------------------


def _slots(meta: Meta, earlier: Sequence[Meta]) -> bool:
    size = earlier[0].size
    return len(meta.size) == len(size) > 0 and all(a <= b for a, b in zip(meta.size, size, strict=True))


def _like_index(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[1].size and same_dtype(meta, earlier)


def _values(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[1].size + earlier[0].size[1:] and same_dtype(meta, earlier)


def _twin(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[0].size and same_dtype(meta, earlier)


def _matrix_of(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return len(meta.size) == 2 and meta.size[:1] == earlier[0].size and same_dtype(meta, earlier)


def _vector_of(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[1].size[1:] and same_dtype(meta, earlier)


def _left_of_batches(meta: Meta, earlier: Sequence[Meta]) -> bool:
    size = earlier[0].size
    return len(meta.size) == 3 and meta.size[-len(size) : 2] == size[:-1] and same_dtype(meta, earlier)


def _right_of_batches(meta: Meta, earlier: Sequence[Meta]) -> bool:
    target, left = earlier[0].size, earlier[1].size
    return meta.size == (left[0], left[2], target[-1]) and same_dtype(meta, earlier)


def _outer(side: int) -> Operand:
    return Operand(
        INEXACT,
        lambda meta, earlier: meta.size == earlier[0].size[side : side + 1] and same_dtype(meta, earlier),
    )


def _of_rank(*ranks: int) -> Operand:
    return Operand(INEXACT, lambda meta, earlier: len(meta.size) in ranks)


_ADDED = NUMERIC | COMPLEX
_RANKED = Operand(_ADDED, lambda meta, earlier: len(meta.size) > 0)
_MATRIX = Operand(NUMERIC, lambda meta, earlier: len(meta.size) == 2)
_STACK = Operand(NUMERIC, lambda meta, earlier: len(meta.size) > 1)
_SLOTS = Operand(INDEX.dtypes, _slots)
_SOME = Operand(INDEX.dtypes, lambda meta, earlier: len(meta.size) > 0)
_MASK = Operand(BOOL, lambda meta, earlier: expandable(meta.size, earlier[0].size))
_SINGLE = Operand(frozenset({"float32", "float64"}), fits_anywhere)
_WHOLE = Operand(INTEGERS | SMOOTH.dtypes - COMPLEX, fits_anywhere)
_INTO = Operand(
    INEXACT, lambda meta, earlier: same_dtype(meta, earlier) and expandable(meta.size, earlier[0].size)
)
_DIAGONAL = Attribute("diagonal", "int", lambda choices, metas, chosen: choices.pick((0, 1, -1)))
_FILL = Attribute(
    "value",
    "number",
    lambda choices, metas, chosen: (
        choices.pick((0.75, -2.5)) if metas[0].dtype in INEXACT else choices.pick((1, 3))
    ),
)
_INCLUDED = Attribute("include", "bool", draw_bool)
_LEFT, _RIGHT = Operand(INEXACT, _left_of_batches), Operand(INEXACT, _right_of_batches)
_FACTORS: Saves = ((1, (2,)), (2, (1,)))


def _unary(name: str, saves: Saves, source: str | None = None) -> Operator:
    return _write(name, source or f"{{0}}.{name}()", (REAL,), _nothing_more, saves)


def _drawn(name: str, source: str, operand: Operand = _SINGLE) -> Operator:
    return _write(name, source, (operand,), _nothing_more, fills=writes_all, random=True)


def _scatter_reduce_rule(how: str) -> Operator:
    return _write(
        f"scatter_reduce_{how}_",
        f'{{0}}.scatter_reduce_({{dim}}, {{1}} % {{n}}, {{2}}, "{how}", include_self={{include}})',
        (Operand(FLOATS, _RANKED.fits), _SLOTS, Operand(FLOATS, _like_index)),
        _scatter_product_rule,
        ((2, (0, 2)), ("result", (0, 2))),
        (FILLED_DIM, _INCLUDED),
        overlap=False,
    )


ROWS = (
    _write(
        "index_put_",
        "{0}.index_put_(({1} % {n},), {2}, accumulate=True)",
        (_RANKED, _SOME, Operand(_ADDED, _values)),
        _scatter_accumulate_rule,
        expanded=Expanded.UNDEFINED,
        overlap=False,
    ),
    _write(
        "put_",
        "{0}.put_({1} % {elements}, {2}, accumulate=True)",
        (Operand(_ADDED, fits_anywhere), INDEX, Operand(_ADDED, _like_index)),
        _put,
        ((2, (2,)),),
        overlap=False,
    ),
    _write(
        "scatter_add_",
        "{0}.scatter_add_({dim}, {1} % {n}, {2})",
        (_RANKED, _SLOTS, Operand(_ADDED, _like_index)),
        _scatter_product_rule,
        NOTHING,
        (FILLED_DIM,),
        overlap=False,
    ),
    _scatter_reduce_rule("sum"),
    _scatter_reduce_rule("mean"),
    _scatter_reduce_rule("prod"),
    _scatter_reduce_rule("amax"),
    _write(
        "masked_scatter_",
        "{0}.masked_scatter_({1}, {2})",
        (Operand(_ADDED, fits_anywhere), _MASK, Operand(_ADDED, _twin)),
        _mask_filled,
        ((1, (0, 2)),),
        overlap=False,
    ),
    _write("fill_diagonal_", "{0}.fill_diagonal_({value})", (_MATRIX,), _matrix, NOTHING, (_FILL,)),
    _write(
        "tril_",
        "{0}.tril_({diagonal})",
        (_STACK,),
        _matrices,
        NOTHING,
        (_DIAGONAL,),
        expanded=Expanded.UNDEFINED,
    ),
    _write(
        "triu_",
        "{0}.triu_({diagonal})",
        (_STACK,),
        _matrices,
        NOTHING,
        (_DIAGONAL,),
        expanded=Expanded.UNDEFINED,
    ),
    _write(
        "addmv_",
        "{0}.addmv_({1}, {2})",
        (_of_rank(1), Operand(INEXACT, _matrix_of), Operand(INEXACT, _vector_of)),
        _times_vector,
        _FACTORS,
        overlap=False,
    ),
    _write(
        "addr_",
        "{0}.addr_({1}, {2})",
        (_of_rank(2), _outer(0), _outer(1)),
        _outer_product,
        _FACTORS,
        overlap=False,
    ),
    _write(
        "baddbmm_",
        "{0}.baddbmm_({1}, {2})",
        (_of_rank(3), _LEFT, _RIGHT),
        _scatter_batches_rule,
        _FACTORS,
        overlap=False,
    ),
    _write(
        "addbmm_",
        "{0}.addbmm_({1}, {2})",
        (_of_rank(2), _LEFT, _RIGHT),
        _scatter_batches_rule,
        _FACTORS,
        overlap=False,
    ),
    _write("renorm_", "{0}.renorm_(2, {dim}, 1.5)", (_SINGLE,), _normed, SELF, (FILLED_DIM,)),
    _write(
        "addcdiv_",
        "{0}.addcdiv_({1}, {2}, value={value})",
        (SMOOTH, _INTO, _INTO),
        _same_dtypes,
        ((1, (2,)), (2, (0, 1, 2))),
        (VALUE,),
    ),
    _write(
        "foreach_mul_number_",
        "torch._foreach_mul_([{0}], {value})",
        (REAL,),
        _nothing_more,
        NOTHING,
        (VALUE,),
    ),
    _write(
        "foreach_add_", "torch._foreach_add_([{0}], [{1}])", (REAL, Operand(INEXACT, _twin)), _same_dtypes
    ),
    _unary("expm1_", RESULT),
    _unary("erf_", SELF),
    _unary("atan_", SELF),
    _unary("reciprocal_", RESULT),
    _unary("sign_", NOTHING),
    _unary("elu_", RESULT, "torch.nn.functional.elu({0}, inplace=True)"),
    _unary("leaky_relu_", RESULT, "torch.nn.functional.leaky_relu({0}, inplace=True)"),
    _drawn("random_", "{0}.random_(0, 5)", _WHOLE),
    _drawn("exponential_", "{0}.exponential_()"),
    _drawn("geometric_", "{0}.geometric_(0.5)"),
    _drawn("cauchy_", "{0}.cauchy_()"),
    _drawn("log_normal_", "{0}.log_normal_()"),
)
