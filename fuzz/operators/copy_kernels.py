"""Copies of views, what is counted out by a size, and other functions without arithmetic of their own."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.dtypes import COMPLEX, INTEGERS
from fuzz.operators.kernel_rows import (
    REAL_NUMBERS,
    SINGLE,
    index,
    kernel_row,
    operand,
    shaped_row,
    unknown_layout,
)
from fuzz.operators.row import Attributes, Meta, Mismatch, Result, Size

_LARGEST = 4096  # elements of a result that grows with the square of its operand


def _single(dtype: str) -> str:
    return "float32"


def _windows(size: Size) -> Size:
    if size[0] < 2:
        raise Mismatch("a window of two is too large")
    return (size[0] - 1, *size[1:], 2)


def _quarter_turn(size: Size) -> Size:
    return (size[1], size[0], *size[2:])


def _diagonal_matrix(size: Size) -> Size:
    if size[0] ** 2 > _LARGEST:
        raise Mismatch("a large matrix")
    return (size[0], size[0])


def _pairs(size: Size) -> Size:
    if not 2 <= size[0] ** 2 <= _LARGEST:
        raise Mismatch("no pairs, or too many")
    return (size[0] * (size[0] - 1) // 2, 2)


def _upper(size: Size) -> Size:
    rows, columns = size
    return (2, sum(max(columns - row, 0) for row in range(rows)))


def _lower(size: Size) -> Size:
    rows, columns = size
    return (2, sum(min(row + 1, columns) for row in range(rows)))


def _is_in(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return unknown_layout("bool", metas[0].size)


_SOME = range(1, 6)

ROWS = (
    shaped_row("expand_copy", "torch.expand_copy({0}, (2, *{0}.shape))", lambda size: (2, *size)),
    shaped_row("alias_copy", "torch.alias_copy({0})", lambda size: size),
    shaped_row("view_copy", "torch.view_copy({0}, {0}.shape)", lambda size: size),
    shaped_row("narrow_copy", "torch.narrow_copy({0}, 0, 0, 1)", lambda size: (1, *size[1:]), _SOME),
    shaped_row(
        "permute_copy", "torch.permute_copy({0}, tuple(range({0}.dim()))[::-1])", lambda size: size[::-1]
    ),
    shaped_row("t_copy", "torch.t_copy({0})", lambda size: size[::-1], (2,)),
    shaped_row("squeeze_copy", "torch.squeeze_copy({0})", lambda size: tuple(n for n in size if n != 1)),
    shaped_row("unsqueeze_copy", "torch.unsqueeze_copy({0}, 0)", lambda size: (1, *size)),
    shaped_row("transpose_copy", "torch.transpose_copy({0}, 0, 1)", _quarter_turn, (2, 3, 4)),
    shaped_row("unbind_copy", "torch.unbind_copy({0})[0]", lambda size: size[1:], _SOME),
    shaped_row("unfold_copy", "torch.unfold_copy({0}, 0, 2, 1)", _windows, _SOME),
    shaped_row("diagonal_copy", "torch.diagonal_copy({0})", lambda size: (min(size),), (2,)),
    shaped_row("diag_of_vector", "torch.diag({0})", _diagonal_matrix, (1,)),
    shaped_row(
        "split_with_sizes_copy",
        "torch.split_with_sizes_copy({0}, [1, {0}.shape[0] - 1])[0]",
        lambda size: (1, *size[1:]),
        _SOME,
    ),
    shaped_row(
        "split_with_sizes",
        "torch.split_with_sizes({0}, [1, {0}.shape[0] - 1])[0].clone()",
        lambda size: (1, *size[1:]),
        _SOME,
    ),
    shaped_row("atleast_1d", "torch.atleast_1d({0}).clone()", lambda size: size or (1,)),
    shaped_row("atleast_2d", "torch.atleast_2d({0}).clone()", lambda size: (1,) * (2 - len(size)) + size),
    shaped_row("rot90", "torch.rot90({0}, 1, (0, 1))", _quarter_turn, (2, 3)),
    shaped_row("combinations", "torch.combinations({0})", _pairs, (1,)),
    shaped_row("conj_physical", "torch.conj_physical({0})", lambda size: size, dtypes=COMPLEX),
    shaped_row(
        "triu_indices",
        "torch.triu_indices({0}.shape[0], {0}.shape[1]{device})",
        _upper,
        (2,),
        dtype=index,
        grad=False,
    ),
    shaped_row(
        "tril_indices",
        "torch.tril_indices({0}.shape[0], {0}.shape[1]{device})",
        _lower,
        (2,),
        dtype=index,
        grad=False,
    ),
    *(
        shaped_row(
            name,
            f"torch.{name}(-1.0, 1.7, {{0}}.shape[0]{{device}})",
            lambda size: size[:1],
            _SOME,
            dtype=_single,
            grad=False,
        )
        for name in ("linspace", "logspace")
    ),
    shaped_row(
        "histogram",
        "torch.histogram({0}.detach(), 4, range=(-2.0, 2.0))[0]",
        lambda size: (4,),
        dtypes=SINGLE,
        grad=False,
    ),
    shaped_row(
        "randint_like",
        "torch.randint_like({0}, 5)",
        lambda size: size,
        dtypes=REAL_NUMBERS,
        grad=False,
        random=True,
    ),
    kernel_row(
        "isin",
        "torch.isin({0}, {1})",
        (operand(SINGLE | INTEGERS), operand(SINGLE | INTEGERS)),
        _is_in,
        differentiable=False,
    ),
)
