"""Products of tensors other than the plain matrix product, linear algebra, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import CROSS, FILLED_DIM, NOTHING, SELF, new_tensor, sized_dim
from fuzz.operators.dtypes import COMPLEX, COMPLEX_OF, INEXACT, REAL_OF
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import (
    Attribute,
    Attributes,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
    Rule,
    Saves,
)

_PRECISE = frozenset({"float32", "float64", "complex64", "complex128"})


def _linear_algebra_row(
    name: str,
    source: str,
    operands: tuple[Operand, ...],
    rule: Rule,
    saves: Saves,
    attributes: tuple[Attribute, ...] = (),
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.ALGEBRA,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        saves=saves,
    )


def _left_open(dtype: str, size: tuple[int, ...]) -> tuple[Result, ...]:
    """A new tensor whose strides depend on how eager folds the operands."""
    return (Result(Meta(dtype, size, None)),)


def _paired(metas: Sequence[Meta], *ranks: int) -> None:
    if tuple(len(meta.size) for meta in metas) != ranks or len({meta.dtype for meta in metas}) > 1:
        raise Mismatch(f"tensors of ranks {ranks} and of one dtype are needed")


def _rows_by_rows(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _paired(metas, 2, 2)
    (m, k), (n, other) = metas[0].size, metas[1].size
    if k != other:
        raise Mismatch("the rows differ in length")
    return _left_open(metas[0].dtype, (m, n))


def _plain(metas: Sequence[Meta]) -> None:
    """Eager folds dimensions: of contiguous factors a backward keeps views, of others perhaps copies."""
    if any(meta.stride != contiguous_strides(meta.size) for meta in metas):
        raise Mismatch("a factor is not contiguous")


def _weighted(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Each row of each matrix times a vector."""
    _paired(metas, 3, 1)
    _plain(metas)
    if metas[0].size[2:] != metas[1].size:
        raise Mismatch("the lengths differ")
    return _left_open(metas[0].dtype, metas[0].size[:2])


def _contracted(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    first, second = metas
    if not first.size or not second.size or first.size[-1] != second.size[0] or first.dtype != second.dtype:
        raise Mismatch("the dimensions between them differ")
    _plain(metas)
    return _left_open(first.dtype, first.size[:-1] + second.size[1:])


def _crossed(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    first, second = metas
    if first.size != second.size or first.dtype != second.dtype or first.size[-1:] != (3,):
        raise Mismatch("vectors of three, of one size and dtype, are needed")
    return _left_open(first.dtype, first.size)


def _traced(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if len(metas[0].size) != 2:
        raise Mismatch("a matrix is needed")
    return new_tensor(metas[0].dtype if metas[0].dtype in INEXACT else "int64", ())


def _square(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if len(size) != 2 or size[0] != size[1]:
        raise Mismatch("a square matrix is needed")
    return _left_open(metas[0].dtype, size)


def _on_diagonal(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if not size:
        raise Mismatch("diag_embed of a 0-d tensor")
    return new_tensor(metas[0].dtype, (*size, size[-1]))


def _transformed(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if not metas[0].size or 0 in metas[0].size:
        raise Mismatch("nothing to transform")
    sized_dim(metas, attributes)
    dtype = metas[0].dtype
    return _left_open(dtype if dtype in COMPLEX else COMPLEX_OF[dtype], metas[0].size)


def _half_transformed(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    [result] = _transformed(metas, attributes)
    dim = sized_dim(metas, attributes)
    size = tuple(n // 2 + 1 if i == dim else n for i, n in enumerate(result.meta.size))
    return (Result(result.meta._replace(size=size)),)


def _back_transformed(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    [result] = _transformed(metas, attributes)
    dim = sized_dim(metas, attributes)
    size = tuple(2 * (n - 1) if i == dim else n for i, n in enumerate(result.meta.size))
    if 0 in size:
        raise Mismatch("nothing is left")
    return _left_open(REAL_OF[result.meta.dtype], size)


def _transformed_twice(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if len(metas[0].size) < 2 or 0 in metas[0].size:
        raise Mismatch("nothing to transform")
    dtype = metas[0].dtype
    return _left_open(dtype if dtype in COMPLEX else COMPLEX_OF[dtype], metas[0].size)


def _distances(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _paired(metas, 2, 2)
    (m, k), (n, other) = metas[0].size, metas[1].size
    if k != other or 0 in (m, n, k):
        raise Mismatch("the points have other dimensions, or there are none")
    return new_tensor(metas[0].dtype, (m, n))


# Matrices whose inverse is well conditioned: rounding stays rounding.
_POSITIVE = "{0} @ {0}.mT + torch.eye({0}.shape[0], dtype={0}.dtype, device={0}.device)"


def _positive(metas: Sequence[Meta]) -> int:
    """The number of rows of the matrix that is made of operand 0."""
    size = metas[0].size
    if len(size) != 2 or 0 in size:
        raise Mismatch("a matrix with elements is needed")
    return size[0]


def _inverted(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    n = _positive(metas)
    return _left_open(metas[0].dtype, (n, n))


def _taken_apart(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return _inverted(metas, attributes) * 2


def _solved(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    n = _positive(metas)
    size = metas[1].size
    if size[:1] != (n,) or len(size) > 2 or 0 in size or metas[0].dtype != metas[1].dtype:
        raise Mismatch("as many right sides as rows are needed")
    return _left_open(metas[0].dtype, size)


def _rank(*ranks: int, dtypes: frozenset[str] = INEXACT) -> Operand:
    return Operand(dtypes, lambda meta, earlier: len(meta.size) in ranks)


def _second_factor(rank: int, here: int, there: int) -> Operand:
    """A second factor: its dimension `there` is as long as the first one's dimension `here`."""

    def fits(meta: Meta, earlier: Sequence[Meta]) -> bool:
        return (
            len(meta.size) == rank
            and meta.dtype == earlier[0].dtype
            and meta.size[there] == earlier[0].size[here]
        )

    return Operand(INEXACT, fits)


_MATRIX = _rank(2)
_TRACED = _rank(2, dtypes=_PRECISE)  # (torch 2.11 knows none of the others.)
_COMPLEX = _rank(1, 2, 3, dtypes=COMPLEX)
_REAL = _rank(1, 2, 3, dtypes=_PRECISE - COMPLEX)
_POINTS = _rank(2, dtypes=_PRECISE - COMPLEX)
_SIDES = Operand(
    _PRECISE - COMPLEX,
    lambda meta, earlier: meta.size[:1] == earlier[0].size[:1] and meta.dtype == earlier[0].dtype,
)
_SPECTRUM = _rank(2, 3, dtypes=_PRECISE)
_BOTH: Saves = ((0, (0,)), ("result", (0,)))
_THREES = Operand(INEXACT, lambda meta, earlier: meta.size[-1:] == (3,))
_TWIN = Operand(INEXACT, lambda meta, earlier: meta[:2] == earlier[0][:2])

ROWS = (
    _linear_algebra_row(
        "einsum_rows",
        'torch.einsum("ij,kj->ik", {0}, {1})',
        (_MATRIX, _second_factor(2, 1, 1)),
        _rows_by_rows,
        CROSS,
    ),
    _linear_algebra_row(
        "einsum_batch",
        'torch.einsum("bij,j->bi", {0}, {1})',
        (_rank(3), _second_factor(1, 2, 0)),
        _weighted,
        CROSS,
    ),
    _linear_algebra_row(
        "tensordot",
        "torch.tensordot({0}, {1}, dims=1)",
        (
            _rank(1, 2, 3),
            Operand(INEXACT, lambda m, e: m.size[:1] == e[0].size[-1:] and m.dtype == e[0].dtype),
        ),
        _contracted,
        CROSS,
    ),
    _linear_algebra_row("cross", "torch.linalg.cross({0}, {1})", (_THREES, _TWIN), _crossed, CROSS),
    _linear_algebra_row("trace", "{0}.trace()", (_TRACED,), _traced, NOTHING),
    _linear_algebra_row("matrix_square", "torch.linalg.matrix_power({0}, 2)", (_MATRIX,), _square, SELF),
    _linear_algebra_row("diag_embed", "torch.diag_embed({0})", (_rank(1, 2, 3),), _on_diagonal, NOTHING),
    _linear_algebra_row(
        "fft", "torch.fft.fft({0}, dim={dim})", (_COMPLEX,), _transformed, NOTHING, (FILLED_DIM,)
    ),
    _linear_algebra_row(
        "ifft", "torch.fft.ifft({0}, dim={dim})", (_COMPLEX,), _transformed, NOTHING, (FILLED_DIM,)
    ),
    _linear_algebra_row(
        "rfft", "torch.fft.rfft({0}, dim={dim})", (_REAL,), _half_transformed, SELF, (FILLED_DIM,)
    ),
    _linear_algebra_row(
        "irfft", "torch.fft.irfft({0}, dim={dim})", (_COMPLEX,), _back_transformed, NOTHING, (FILLED_DIM,)
    ),
    _linear_algebra_row("fft2", "torch.fft.fft2({0})", (_SPECTRUM,), _transformed_twice, NOTHING),
    _linear_algebra_row(
        "cdist",
        "torch.cdist({0}, {1})",
        (_POINTS, _second_factor(2, 1, 1)),
        _distances,
        ((0, (0, 1)), (1, (0, 1)), ("result", (0, 1))),
    ),
    _linear_algebra_row("linalg_inv", f"torch.linalg.inv({_POSITIVE})", (_POINTS,), _inverted, _BOTH),
    _linear_algebra_row(
        "linalg_qr",
        f"torch.linalg.qr({_POSITIVE})",
        (_POINTS,),
        _taken_apart,
        ((0, (0,)), ("result", (0,)), ("second", (0,))),
    ),
    _linear_algebra_row(
        "linalg_solve",
        f"torch.linalg.solve({_POSITIVE}, {{1}})",
        (_POINTS, _SIDES),
        _solved,
        ((0, (0,)), ("result", (0, 1))),
    ),
)
