"""Products, matrix functions and what networks are made of, with every number that scales them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.operators.dtypes import COMPLEX, FLOATS, INTEGERS
from fuzz.operators.kernel_rows import (
    SINGLE,
    choice,
    filled,
    kernel_row,
    one_dtype,
    operand,
    real,
    unknown_layout,
)
from fuzz.operators.row import (
    Attributes,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
    Rule,
    Size,
)

_NUMBERS = FLOATS | INTEGERS
_SMOOTH = SINGLE | COMPLEX
_SAME_DTYPE = Operand(FLOATS | INTEGERS | COMPLEX, lambda meta, earlier: meta.dtype == earlier[0].dtype)
_ALPHA = choice("alpha", "number", (0.1, 2, -1.7, 0.5, 1, 0))
_BETA = choice("beta", "number", (0.3, 1, -2, 0, 0.7))
Shape = Callable[[Sequence[Size]], Size]


def _product(shape: Shape, *ranks: int, square: bool = False) -> Rule:
    """Operands of these ranks and one dtype, multiplied to a size."""

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        filled(metas)
        sizes = [meta.size for meta in metas]
        if tuple(map(len, sizes)) != ranks or (square and sizes[0][0] != sizes[0][1]):
            raise Mismatch("matrices of other ranks are needed")
        dtype = one_dtype(metas)
        if dtype in INTEGERS and any(isinstance(value, float) for value in attributes.values()):
            raise Mismatch("integers times a fraction")
        return unknown_layout(dtype, shape(sizes))

    return rule


def _require(condition: bool) -> None:
    if not condition:
        raise Mismatch("the inner dimensions differ")


def _mm(a: Size, b: Size) -> Size:
    _require(a[-1] == b[-2] and a[:-2] == b[:-2])
    return (*a[:-1], b[-1])


def _added(size: Size, bias: Size) -> Size:
    padded = (1,) * (len(size) - len(bias)) + bias
    _require(len(bias) <= len(size) and all(n in (1, m) for n, m in zip(padded, size, strict=True)))
    return size


def _matrix_vector(sizes: Sequence[Size]) -> Size:
    _require(sizes[1][1] == sizes[2][0])
    return _added((sizes[1][0],), sizes[0])


def _layer(sizes: Sequence[Size]) -> Size:
    _require(sizes[0][-1] == sizes[1][-1] and sizes[2][0] == sizes[1][0])
    return (*sizes[0][:-1], sizes[1][0])


def _covariance(sizes: Sequence[Size]) -> Size:
    if min(sizes[0]) < 2:
        raise Mismatch("a covariance of fewer than two")
    return sizes[0][0], sizes[0][0]


def _distances(sizes: Sequence[Size]) -> Size:
    _require(sizes[0][1] == sizes[1][1])
    return sizes[0][0], sizes[1][0]


def _function(
    name: str,
    source: str,
    shape: Shape,
    dtypes: frozenset[str] = _SMOOTH,
    *,
    real_result: bool = False,
    integer_result: bool = False,
    grad: bool = True,
) -> Operator:
    """A function of a square matrix. Large ones are slow, and ill-conditioned."""

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        [result] = _product(shape, 2, square=True)(metas, attributes)
        if metas[0].size[0] > 16:
            raise Mismatch("a large matrix")
        dtype = "int64" if integer_result else real(result.meta.dtype) if real_result else result.meta.dtype
        return unknown_layout(dtype, result.meta.size)

    return kernel_row(name, source, (operand(dtypes),), rule, differentiable=grad)


def _gram(text: str) -> str:
    """A function of a positive definite matrix."""
    return text.format(
        "({0} @ {0}.mT.conj() + {0}.shape[0] * torch.eye({0}.shape[0], dtype={0}.dtype{device}))"
    )


def _one(sizes: Sequence[Size]) -> Size:
    return ()


def _itself(sizes: Sequence[Size]) -> Size:
    return sizes[0]


def _one_less(sizes: Sequence[Size]) -> Size:
    _require(sizes[0] == sizes[1])
    return sizes[0][:-1]


def _row(sizes: Sequence[Size]) -> Size:
    return sizes[0][:1]


def _scaled(name: str, source: str, shape: Shape, *ranks: int) -> Operator:
    operands = (operand(_NUMBERS), *(_SAME_DTYPE,) * (len(ranks) - 1))
    return kernel_row(name, source, operands, _product(shape, *ranks), (_BETA, _ALPHA))


_FACTORS = ", beta={beta}, alpha={alpha})"

ROWS = (
    kernel_row(
        "mm_kernel", "torch.mm({0}, {1})", (operand(_NUMBERS), _SAME_DTYPE), _product(lambda s: _mm(*s), 2, 2)
    ),
    kernel_row(
        "bmm_kernel",
        "torch.bmm({0}, {1})",
        (operand(_NUMBERS), _SAME_DTYPE),
        _product(lambda s: _mm(*s), 3, 3),
    ),
    kernel_row(
        "mm_transposed",
        "{0} @ {1}.mT",
        (operand(_NUMBERS), _SAME_DTYPE),
        _product(lambda s: _mm(s[0], s[1][::-1]), 2, 2),
    ),
    _scaled(
        "addmm_scaled",
        "torch.addmm({0}, {1}, {2}" + _FACTORS,
        lambda s: _added(_mm(s[1], s[2]), s[0]),
        2,
        2,
        2,
    ),
    _scaled(
        "addmm_bias", "torch.addmm({0}, {1}, {2}" + _FACTORS, lambda s: _added(_mm(s[1], s[2]), s[0]), 1, 2, 2
    ),
    _scaled(
        "baddbmm", "torch.baddbmm({0}, {1}, {2}" + _FACTORS, lambda s: _added(_mm(s[1], s[2]), s[0]), 3, 3, 3
    ),
    _scaled(
        "addbmm",
        "torch.addbmm({0}, {1}, {2}" + _FACTORS,
        lambda s: _added(_mm(s[1], s[2])[1:], s[0]),
        2,
        3,
        3,
    ),
    _scaled("addmv", "torch.addmv({0}, {1}, {2}" + _FACTORS, _matrix_vector, 1, 2, 1),
    _scaled(
        "addr", "torch.addr({0}, {1}, {2}" + _FACTORS, lambda s: _added((s[1][0], s[2][0]), s[0]), 2, 1, 1
    ),
    kernel_row(
        "product_added",
        "torch.add({0}, {1} @ {2}, alpha={alpha})",
        (operand(_NUMBERS), _SAME_DTYPE, _SAME_DTYPE),
        _product(lambda s: _added(_mm(s[1], s[2]), s[0]), 2, 2, 2),
        (_ALPHA,),
    ),
    kernel_row(
        "product_subtracted",
        "torch.sub({1} @ {2}, {0}, alpha={alpha})",
        (operand(_NUMBERS), _SAME_DTYPE, _SAME_DTYPE),
        _product(lambda s: _added(_mm(s[1], s[2]), s[0]), 2, 2, 2),
        (_ALPHA,),
    ),
    kernel_row(
        "linear_bias",
        "torch.nn.functional.linear({0}, {1}, {2})",
        (operand(FLOATS), _SAME_DTYPE, _SAME_DTYPE),
        _product(_layer, 2, 2, 1),
    ),
    kernel_row(
        "linear_bias_batch",
        "torch.nn.functional.linear({0}, {1}, {2})",
        (operand(FLOATS), _SAME_DTYPE, _SAME_DTYPE),
        _product(_layer, 3, 2, 1),
    ),
    *(
        kernel_row(
            f"linear_{name}",
            f"torch.nn.functional.{name}(torch.nn.functional.linear({{0}}, {{1}}))",
            (operand(FLOATS), _SAME_DTYPE),
            _product(lambda s: _mm(s[0], s[1][::-1]), 2, 2),
        )
        for name in ("relu", "gelu", "hardswish", "silu", "hardtanh", "leaky_relu", "tanh", "sigmoid")
    ),
    kernel_row(
        "outer_kernel",
        "torch.outer({0}, {1})",
        (operand(_NUMBERS), _SAME_DTYPE),
        _product(lambda s: (s[0][0], s[1][0]), 1, 1),
    ),
    kernel_row(
        "kron",
        "torch.kron({0}.contiguous(), {1}.contiguous())",
        (operand(_NUMBERS), _SAME_DTYPE),
        _product(lambda s: (s[0][0] * s[1][0], s[0][1] * s[1][1]), 2, 2),
    ),
    kernel_row(
        "block_diag",
        "torch.block_diag({0}, {1})",
        (operand(_NUMBERS), _SAME_DTYPE),
        _product(lambda s: (s[0][0] + s[1][0], s[0][1] + s[1][1]), 2, 2),
    ),
    kernel_row(
        "cov",
        "torch.cov({0})",
        (operand(SINGLE),),
        _product(_covariance, 2),
    ),
    kernel_row(
        "cdist_order",
        "torch.cdist({0}, {1}, p={order})",
        (operand(SINGLE), _SAME_DTYPE),
        _product(_distances, 2, 2),
        (choice("order", "number", (1, 2, 0, 3)),),
    ),
    _function("det", "torch.linalg.det({0})", _one),
    _function("slogdet", "torch.linalg.slogdet({0})[1]", _one, real_result=True),
    _function("matrix_power", "torch.linalg.matrix_power({0}, 3)", _itself),
    _function("matrix_exp", "torch.linalg.matrix_exp({0})", _itself),
    _function("cholesky", _gram("torch.linalg.cholesky({})"), _itself),
    _function("cholesky_inverse", _gram("torch.cholesky_inverse(torch.linalg.cholesky({}))"), _itself),
    _function("eigvalsh", _gram("torch.linalg.eigvalsh({})"), _row, real_result=True),
    _function("svdvals", "torch.linalg.svdvals({0})", _row, real_result=True),
    _function("matrix_norm", "torch.linalg.matrix_norm({0}, 1)", _one, real_result=True),
    _function("nuclear_norm", "torch.linalg.matrix_norm({0}, 'nuc')", _one, real_result=True),
    _function("pinv", _gram("torch.linalg.pinv({})"), _itself),
    _function("inv_ex", _gram("torch.linalg.inv_ex({})[0]"), _itself),
    _function("matrix_rank", "torch.linalg.matrix_rank({0})", _one, integer_result=True, grad=False),
    _function(
        "solve_triangular",
        "torch.linalg.solve_triangular("
        "{0}.triu() + 3 * torch.eye({0}.shape[0], dtype={0}.dtype{device}), {0}, upper=True)",
        _itself,
    ),
    _function(
        "lu_solve",
        _gram("torch.linalg.lu_solve(*torch.linalg.lu_factor({}), {{0}})").replace("{{0}}", "{0}"),
        _itself,
    ),
    _function(
        "cholesky_solve",
        _gram("torch.cholesky_solve({{0}}, torch.linalg.cholesky({}))").replace("{{0}}", "{0}"),
        _itself,
    ),
    _function("lu_factors", _gram("torch.linalg.lu({})[2]"), _itself),
    _function("lu_unpack", _gram("torch.lu_unpack(*torch.linalg.lu_factor({}))[2]"), _itself),
    _function(
        "ldl_solve",
        _gram("torch.linalg.ldl_solve(*torch.linalg.ldl_factor({}), {{0}}).detach()").replace("{{0}}", "{0}"),
        _itself,
        SINGLE,
        grad=False,
    ),
    _function(
        "lstsq",
        _gram("torch.linalg.lstsq({}, {{0}}).solution").replace("{{0}}", "{0}"),
        _itself,
    ),
    _function("geqrf", "torch.geqrf({0}.detach())[0]", _itself, SINGLE, grad=False),
    _function("ormqr", "torch.ormqr(*torch.geqrf({0}.detach()), {0})", _itself, SINGLE),
    _function("householder_product", "torch.linalg.householder_product({0}, {0}[0])", _itself),
    *(
        kernel_row(
            name,
            f"torch.{source}({{0}}, {{1}})",
            (operand(_SMOOTH), _SAME_DTYPE),
            _product(_one_less, rank, rank),
        )
        for name, source, rank in (("vdot", "vdot", 1), ("vecdot", "linalg.vecdot", 2))
    ),
)
