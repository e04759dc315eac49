"""The matrix product family."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import CROSS, new_tensor
from fuzz.operators.dtypes import INEXACT
from fuzz.operators.layout import broadcast_sizes, expandable
from fuzz.operators.row import (
    Attributes,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
    Rule,
    Saves,
    Size,
)


def _matmul_row(name: str, source: str, operands: tuple[Operand, ...], rule: Rule, saves: Saves) -> Operator:
    return Operator(
        name=name,
        kind=Kind.MATMUL,
        operands=operands,
        rule=rule,
        source=source,
        saves=saves,
    )


def matmul_size(a: Size, b: Size) -> Size:
    """The size of `torch.matmul` of two tensors.

    >>> matmul_size((5, 2, 3), (3, 4))
    (5, 2, 4)
    """
    if not a or not b or a[-1] != (b[-2] if len(b) > 1 else b[0]):
        raise Mismatch(f"no matrix product of {a} and {b}")
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    return broadcast_sizes(a[:-2], b[:-2]) + rows + columns


def _of_ranks(metas: Sequence[Meta], *ranks: int) -> None:
    if tuple(len(meta.size) for meta in metas) != ranks:
        raise Mismatch(f"tensors of ranks {ranks} are needed")
    if len({meta.dtype for meta in metas}) > 1:
        raise Mismatch("the dtypes differ")


def _matmul_rule(a: int, b: int) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        _of_ranks(metas, a, b)
        if metas[0].size[:-2] != metas[1].size[:-2]:
            raise Mismatch("the batches differ")
        return new_tensor(metas[0].dtype, matmul_size(metas[0].size, metas[1].size))

    return rule


def _general_matmul_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    a, b = metas
    if a.dtype != b.dtype:
        raise Mismatch("the dtypes differ")
    size = matmul_size(a.size, b.size)
    if len(a.size) <= 2 and len(b.size) <= 2:
        return new_tensor(a.dtype, size)
    # How eager folds batches decides the strides; they are left open.
    return (Result(Meta(a.dtype, size, None)),)


def _outer(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _of_ranks(metas, 1, 1)
    return new_tensor(metas[0].dtype, metas[0].size + metas[1].size)


def _addmm_rule(ranks: int) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        [result] = _matmul_rule(ranks, ranks)(metas[1:], attributes)
        if metas[0].dtype != metas[1].dtype or not expandable(metas[0].size, result.meta.size):
            raise Mismatch("the added tensor does not fit the product")
        return (result,)

    return rule


def _linear_layer_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    x, weight, bias = metas
    if len(x.size) != 2:  # others end in a view of a tensor that nobody sees
        raise Mismatch("a matrix is needed")
    if len(weight.size) != 2 or bias.size != weight.size[:1] or x.size[-1] != weight.size[1]:
        raise Mismatch("input, weight and bias do not fit")
    if len({meta.dtype for meta in metas}) > 1:
        raise Mismatch("the dtypes differ")
    size = x.size[:-1] + bias.size
    return new_tensor(x.dtype, size)


def _rank(*ranks: int) -> Operand:
    return Operand(INEXACT, lambda meta, earlier: len(meta.size) in ranks)


def _right_matmul_factor(rank: int, left: int = 0) -> Operand:
    """A right factor of operand number `left`."""

    def fits(meta: Meta, earlier: Sequence[Meta]) -> bool:
        other = earlier[left]
        return (
            len(meta.size) == rank
            and meta.dtype == other.dtype
            and other.size[-1] == (meta.size[-2] if rank > 1 else meta.size[0])
            and (rank < 3 or meta.size[:-2] == other.size[:-2])
        )

    return Operand(INEXACT, fits)


def _matmul_fits(meta: Meta, earlier: Sequence[Meta]) -> bool:
    try:
        matmul_size(earlier[0].size, meta.size)
    except Mismatch:
        return False
    return meta.dtype == earlier[0].dtype


def _left_of_added(meta: Meta, earlier: Sequence[Meta]) -> bool:
    size = earlier[0].size
    return (
        len(meta.size) == 2
        and meta.dtype == earlier[0].dtype
        and (len(size) < 2 or size[0] in (1, meta.size[0]))
    )


def _weight(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return len(meta.size) == 2 and meta.size[1] == earlier[0].size[-1] and meta.dtype == earlier[0].dtype


def _bias(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[1].size[:1] and meta.dtype == earlier[0].dtype


_VECTOR, _MATRIX, _BATCH, _ANY = _rank(1), _rank(2), _rank(3), _rank(1, 2, 3, 4)
_FACTORS: Saves = ((1, (2,)), (2, (1,)))
_VECTOR_TOO = Operand(INEXACT, lambda meta, earlier: len(meta.size) == 1 and meta.dtype == earlier[0].dtype)

ROWS = (
    _matmul_row("mm", "{0} @ {1}", (_MATRIX, _right_matmul_factor(2)), _matmul_rule(2, 2), CROSS),
    _matmul_row("mv", "{0} @ {1}", (_MATRIX, _right_matmul_factor(1)), _matmul_rule(2, 1), CROSS),
    _matmul_row("dot", "torch.dot({0}, {1})", (_VECTOR, _right_matmul_factor(1)), _matmul_rule(1, 1), CROSS),
    _matmul_row("bmm", "torch.bmm({0}, {1})", (_BATCH, _right_matmul_factor(3)), _matmul_rule(3, 3), CROSS),
    _matmul_row(
        "matmul",
        "torch.matmul({0}, {1})",
        (_ANY, Operand(INEXACT, _matmul_fits)),
        _general_matmul_rule,
        CROSS,
    ),
    _matmul_row("outer", "torch.outer({0}, {1})", (_VECTOR, _VECTOR_TOO), _outer, CROSS),
    _matmul_row(
        "addmm",
        "torch.addmm({0}, {1}, {2})",
        (_rank(0, 1, 2), Operand(INEXACT, _left_of_added), _right_matmul_factor(2, left=1)),
        _addmm_rule(2),
        _FACTORS,
    ),
    _matmul_row(
        "linear",
        "torch.nn.functional.linear({0}, {1}, {2})",
        (_ANY, Operand(INEXACT, _weight), Operand(INEXACT, _bias)),
        _linear_layer_rule,
        CROSS,
    ),
)
