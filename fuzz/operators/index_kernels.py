"""Indexing, scatters and layouts of numbers on every dtype, without writing to an argument."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuzz.operators.builders import FILLED_DIM
from fuzz.operators.dtypes import BOOL, FLOATS
from fuzz.operators.kernel_rows import (
    ALL_NUMBERS,
    REAL_AND_BOOL,
    REAL_NUMBERS,
    choice,
    filled,
    kernel_row,
    operand,
    unknown_layout,
    within,
)
from fuzz.operators.layout import dimension
from fuzz.operators.row import Attributes, Meta, Mismatch, Operand, Operator, Result, Rule

_INT = frozenset({"int64"})
_LINE = Operand(_INT, lambda meta, earlier: len(meta.size) == 1)
_LIKE = Operand(_INT, lambda meta, earlier: meta.size == earlier[0].size)
_TWIN_OF_INDEX = Operand(
    ALL_NUMBERS, lambda meta, earlier: meta.dtype == earlier[0].dtype and meta.size == earlier[1].size
)
_NUMBER = choice("value", "number", (2, -1, 3, 5))


def _as_first(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if len({meta.dtype for meta in metas if meta.dtype not in ("int64", "bool")}) > 1:
        raise Mismatch("the dtypes differ")
    return unknown_layout(metas[0].dtype, metas[0].size)


def _scattered(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Operand 0 with others put where an index of its size says."""
    filled(metas)
    if not metas[0].size or any(meta.size != metas[0].size for meta in metas[1:]):
        raise Mismatch("an index and a source of operand 0's size are needed")
    if len(metas) > 2 and metas[2].dtype != metas[0].dtype:
        raise Mismatch("the dtypes differ")
    dimension(attributes["dim"], len(metas[0].size))
    return unknown_layout(metas[0].dtype, metas[0].size)


def _at_lines(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Operand 0 with slices along a dimension replaced, one for each item of an index."""
    filled(metas)
    size = metas[0].size
    if not size or len(metas[1].size) != 1:
        raise Mismatch("a dimension and an index are needed")
    dim = dimension(attributes["dim"], len(size))
    if len(metas) > 2:
        wanted = (*size[:dim], metas[1].size[0], *size[dim + 1 :])
        if metas[2].size != wanted or metas[2].dtype != metas[0].dtype:
            raise Mismatch("a source that does not fit the index")
    return unknown_layout(metas[0].dtype, size)


def _along_line(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Slices of operand 0, one for each item of an index."""
    filled(metas)
    size = list(metas[0].size)
    if not size or len(metas[1].size) != 1:
        raise Mismatch("a dimension and an index are needed")
    size[dimension(attributes["dim"], len(size))] = metas[1].size[0]
    return unknown_layout(metas[0].dtype, tuple(size))


def _taken(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    return unknown_layout(metas[0].dtype, metas[1].size)


def _without_dim(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Operand 0 with a slice along the last dimension replaced by operand 1."""
    filled(metas)
    size = metas[0].size
    if not size or metas[1].size != size[:-1] or metas[1].dtype != metas[0].dtype:
        raise Mismatch("a slice of operand 0 is needed")
    return unknown_layout(metas[0].dtype, size)


def _part(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Operand 0 with its first rows replaced by operand 1."""
    filled(metas)
    size, part = metas[0].size, metas[1].size
    if not size or len(part) != len(size) or part[1:] != size[1:] or part[0] > size[0]:
        raise Mismatch("rows of operand 0 are needed")
    if metas[1].dtype != metas[0].dtype:
        raise Mismatch("the dtypes differ")
    return unknown_layout(metas[0].dtype, size)


def _diagonal(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    size = metas[0].size
    if len(size) != 2 or metas[1].size != (min(size),) or metas[1].dtype != metas[0].dtype:
        raise Mismatch("a diagonal of operand 0 is needed")
    return unknown_layout(metas[0].dtype, size)


def _searched(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if len(metas[0].size) != 1 or metas[0].dtype != metas[1].dtype:
        raise Mismatch("a line of the dtype of the numbers is needed")
    return unknown_layout("int64", metas[1].size)


def _layout(change: str) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        size = metas[0].size
        if len(size) < 2:
            raise Mismatch("two dimensions are needed")
        if change == "turned":
            size = (*size[:-2], size[-1], size[-2]) if len(size) == 2 else size
        if change == "doubled":
            size = (*size[:-1], 2 * size[-1])
        return unknown_layout(metas[0].dtype, size)

    return rule


def _padded(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    left, right = int(within(attributes, "left", -2, 5)), int(within(attributes, "right", -2, 5))
    size = metas[0].size
    if not size or prod(size) == 0 or size[-1] + left + right < 1 or size[-1] < 3:
        raise Mismatch("nothing is left")
    return unknown_layout(metas[0].dtype, (*size[:-1], size[-1] + left + right))


def _turned_pad(low: int) -> Rule:
    """Padding by what is within: fewer than there is."""

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        size = metas[0].size
        if len(size) not in (2, 3) or prod(size) == 0 or size[-1] < low:
            raise Mismatch("a longer line of two or three dimensions is needed")
        return unknown_layout(metas[0].dtype, (*size[:-1], size[-1] + 3))

    return rule


def _concatenated(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Slices of two tensors, joined along the last dimension."""
    filled(metas)
    one, other = metas
    if len(one.size) < 2 or one.size[:-1] != other.size[:-1] or one.dtype != other.dtype:
        raise Mismatch("tensors that differ in the last dimension alone are needed")
    return unknown_layout(one.dtype, (*one.size[:-1], max(one.size[-1] - 1, 0) + other.size[-1]))


def _batches(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Bags of rows of a table: each of two indices."""
    filled(metas)
    table, indices = metas
    if len(table.size) != 2 or len(indices.size) != 2:
        raise Mismatch("a table and rows of indices are needed")
    return unknown_layout(table.dtype, (indices.size[0], table.size[1]))


def _codes(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return unknown_layout("int64", (*metas[0].size, 6))


_SAME_DTYPE = Operand(ALL_NUMBERS, lambda meta, earlier: meta.dtype == earlier[0].dtype)
_SCATTER = "{{0}}.{}({{dim}}, {{1}} % {{0}}.shape[{{dim}}], {{2}}{})"


def _scatter(name: str, method: str, more: str = "", dtypes: frozenset[str] = ALL_NUMBERS) -> Operator:
    operands = (operand(dtypes), _LIKE, Operand(dtypes, lambda m, earlier: m[:2] == earlier[0][:2]))
    return kernel_row(name, _SCATTER.format(method, more), operands, _scattered, (FILLED_DIM,))


def _line(name: str, method: str, more: str = "", dtypes: frozenset[str] = ALL_NUMBERS) -> Operator:
    return kernel_row(
        name, _SCATTER.format(method, more), (operand(dtypes), _LINE, _SAME_DTYPE), _at_lines, (FILLED_DIM,)
    )


ROWS = (
    # (Where an index stands twice, which of the numbers is put there is not defined: sums and extremes are.)
    _scatter("scatter_add_kernel", "scatter_add"),
    *(
        _scatter(f"scatter_reduce_{how}", "scatter_reduce", f", reduce='{how}'", REAL_NUMBERS)
        for how in ("sum", "prod", "amax", "amin", "mean")
    ),
    _scatter("scatter_reduce_outside", "scatter_reduce", ", reduce='amax', include_self=False", REAL_NUMBERS),
    kernel_row(
        "scatter_number",
        "{0}.scatter({dim}, {1} % {0}.shape[{dim}], {value})",
        (operand(REAL_NUMBERS), _LIKE),
        _scattered,
        (FILLED_DIM, _NUMBER),
    ),
    _line("index_add_kernel", "index_add"),
    *(
        _line(f"index_reduce_{how}", "index_reduce", f", reduce='{how}'", REAL_NUMBERS)
        for how in ("prod", "amax", "amin", "mean")
    ),
    kernel_row(
        "index_fill",
        "{0}.index_fill({dim}, {1} % {0}.shape[{dim}], {value})",
        (operand(REAL_NUMBERS), _LINE),
        _at_lines,
        (FILLED_DIM, _NUMBER),
    ),
    kernel_row(
        "index_select_kernel",
        "{0}.index_select({dim}, {1} % {0}.shape[{dim}])",
        (operand(ALL_NUMBERS), _LINE),
        _along_line,
        (FILLED_DIM,),
    ),
    kernel_row(
        "gather_kernel",
        "{0}.gather({dim}, {1} % {0}.shape[{dim}])",
        (operand(ALL_NUMBERS), _LIKE),
        _scattered,
        (FILLED_DIM,),
    ),
    kernel_row(
        "take_along_dim",
        "torch.take_along_dim({0}, {1} % {0}.shape[{dim}], {dim})",
        (operand(ALL_NUMBERS), _LIKE),
        _scattered,
        (FILLED_DIM,),
    ),
    kernel_row(
        "take_kernel", "torch.take({0}, {1} % {0}.numel())", (operand(ALL_NUMBERS), operand(_INT)), _taken
    ),
    kernel_row(
        "index_put_sum",
        "{0}.index_put(({1} % {0}.shape[0],), {2}, accumulate=True)",
        (operand(ALL_NUMBERS), _LINE, _SAME_DTYPE),
        lambda m, a: _at_lines(m, {"dim": 0}),
    ),
    kernel_row(
        "put_sum",
        "torch.ops.aten.put({0}, {1} % {0}.numel(), {2}, True)",
        (operand(REAL_NUMBERS), operand(_INT), _TWIN_OF_INDEX),
        lambda m, a: (_taken(m, a), _as_first(m, a))[1],
    ),
    kernel_row(
        "masked_fill_kernel",
        "{0}.masked_fill({1}, {value})",
        (operand(REAL_NUMBERS), Operand(BOOL, lambda m, e: m.size == e[0].size)),
        _as_first,
        (_NUMBER,),
    ),
    kernel_row(
        "masked_scatter_kernel",
        "{0}.masked_scatter({1}, {2})",
        (
            operand(ALL_NUMBERS),
            Operand(BOOL, lambda m, e: m.size == e[0].size),
            Operand(ALL_NUMBERS, lambda m, e: m[:2] == e[0][:2]),
        ),
        _as_first,
    ),
    kernel_row(
        "select_scatter",
        "torch.select_scatter({0}, {1}, -1, 0)",
        (operand(ALL_NUMBERS), _SAME_DTYPE),
        _without_dim,
    ),
    kernel_row(
        "slice_scatter",
        "torch.slice_scatter({0}, {1}, 0, 0, {1}.shape[0])",
        (operand(ALL_NUMBERS), _SAME_DTYPE),
        _part,
    ),
    kernel_row(
        "diagonal_scatter", "torch.diagonal_scatter({0}, {1})", (operand(ALL_NUMBERS), _SAME_DTYPE), _diagonal
    ),
    kernel_row(
        "searchsorted_kernel",
        "torch.searchsorted({0}.sort()[0].contiguous(), {1}.contiguous(), right={right})",
        (operand(REAL_NUMBERS), _SAME_DTYPE),
        _searched,
        (choice("right", "bool", (False, True)),),
        differentiable=False,
    ),
    kernel_row(
        "bucketize",
        "torch.bucketize({1}.contiguous(), {0}.sort()[0].contiguous(), right={right})",
        (operand(REAL_NUMBERS), _SAME_DTYPE),
        _searched,
        (choice("right", "bool", (False, True)),),
        differentiable=False,
    ),
    kernel_row(
        "one_hot", "torch.nn.functional.one_hot({0} % 6, 6)", (operand(_INT),), _codes, differentiable=False
    ),
    kernel_row(
        "embedding_bag_sum",
        "torch.nn.functional.embedding_bag({1} % {0}.shape[0], {0}, mode='sum')",
        (operand(frozenset({"float32", "float64"})), operand(_INT)),
        _batches,
    ),
    kernel_row(
        "embedding_bag_mean",
        "torch.nn.functional.embedding_bag({1} % {0}.shape[0], {0}, mode='mean')",
        (operand(frozenset({"float32", "float64"})), operand(_INT)),
        _batches,
    ),
    kernel_row(
        "embedding_bag_max",
        "torch.nn.functional.embedding_bag({1} % {0}.shape[0], {0}, mode='max')",
        (operand(frozenset({"float32", "float64"})), operand(_INT)),
        _batches,
    ),
    kernel_row("flip_kernel", "torch.flip({0}, (0, 1))", (operand(ALL_NUMBERS),), _layout("same")),
    kernel_row("fliplr", "torch.fliplr({0})", (operand(ALL_NUMBERS),), _layout("same")),
    kernel_row("roll_kernel", "torch.roll({0}, (1, -2), (0, 1))", (operand(ALL_NUMBERS),), _layout("same")),
    kernel_row(
        "tril_kernel",
        "torch.tril({0}, {diagonal})",
        (operand(ALL_NUMBERS),),
        _layout("same"),
        (choice("diagonal", "int", (0, 1, -1)),),
    ),
    kernel_row(
        "triu_kernel",
        "torch.triu({0}, {diagonal})",
        (operand(ALL_NUMBERS),),
        _layout("same"),
        (choice("diagonal", "int", (0, 1, -1)),),
    ),
    kernel_row(
        "repeat_interleave",
        "torch.repeat_interleave({0}, 2, dim=-1)",
        (operand(ALL_NUMBERS),),
        _layout("doubled"),
    ),
    kernel_row("tile", "torch.tile({0}, (2,))", (operand(ALL_NUMBERS),), _layout("doubled")),
    kernel_row(
        "cat_of_slices",
        "torch.cat(({0}[..., 1:], {1}), -1)",
        (operand(ALL_NUMBERS), _SAME_DTYPE),
        _concatenated,
    ),
    kernel_row(
        "pad_constant",
        "torch.nn.functional.pad({0}, ({left}, {right}), value={value})",
        (operand(REAL_AND_BOOL - BOOL),),
        _padded,
        (choice("left", "int", (1, 0, 2, -1)), choice("right", "int", (0, 1, 3, -1)), _NUMBER),
    ),
    kernel_row(
        "pad_reflect_kernel",
        "torch.nn.functional.pad({0}, (1, 2), mode='reflect')",
        (operand(FLOATS),),
        _turned_pad(3),
    ),
    kernel_row(
        "pad_replicate",
        "torch.nn.functional.pad({0}, (1, 2), mode='replicate')",
        (operand(FLOATS),),
        _turned_pad(1),
    ),
    kernel_row(
        "pad_circular",
        "torch.nn.functional.pad({0}, (1, 2), mode='circular')",
        (operand(FLOATS),),
        _turned_pad(2),
    ),
)
