"""Operators whose result goes to a tensor that is there: operand 0, given as `out=`.

What a call computes, and how large that is, says the row without `out=`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuzz.choices import Choices
from fuzz.operators import indexing, matmul, pointwise, reductions
from fuzz.operators.builders import ANY, ARITHMETIC, INDEX, SMOOTH, expands, same_dtype
from fuzz.operators.dtypes import CATEGORY, COMPLEX, DTYPES, INEXACT, NUMERIC
from fuzz.operators.inplace import writes_all
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import (
    Attribute,
    Attributes,
    Change,
    Constant,
    Expanded,
    Fills,
    Fit,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
    Rule,
    Size,
)

_PLAIN: Mapping[str, Operator] = {
    row.name: row for family in (indexing, matmul, pointwise, reductions) for row in family.ROWS
}


def _out_row(
    name: str,
    source: str,
    operands: tuple[Operand, ...],
    rule: Rule,
    attributes: tuple[Attribute, ...] = (),
    *,
    overlap: bool = False,
    fills: Fills = writes_all,
    change: Change | None = None,
    expanded: Expanded = Expanded.REFUSED,
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.IN_PLACE if change is None else Kind.METADATA,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        writes=(0,),
        fills=fills,
        change=change,
        expanded=expanded,
        overlap=overlap,
    )


def _made(plain: str, metas: Sequence[Meta], attributes: Attributes) -> Meta:
    """What the call makes of all operands but the one that is given."""
    [result] = _PLAIN[plain].rule(metas[1:], {"keepdim": False, **attributes})
    if CATEGORY[result.meta.dtype] > CATEGORY[metas[0].dtype]:
        raise Mismatch(f"a {result.meta.dtype} result cannot be stored in {metas[0].dtype}")
    return result.meta


def _out_given_rule(plain: str, *, cast: bool = False) -> Rule:
    """The result goes into operand 0, which has its size and, unless it may be cast, its dtype."""

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        made = _made(plain, metas, attributes)
        if made.size != metas[0].size or not (cast or made.dtype == metas[0].dtype):
            raise Mismatch("the result has another size or dtype")
        return ()

    return rule


def _out_grown_rule(plain: str) -> Rule:
    """An empty operand 0 takes the size of the result."""

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        made = _made(plain, metas, attributes)
        if 0 not in metas[0].size or 0 in made.size or made.stride != contiguous_strides(made.size):
            raise Mismatch("a tensor with elements, or a result without, or one that is not contiguous")
        return (Result(metas[0]._replace(size=made.size, stride=made.stride)),)

    return rule


def _out_filled_elements(plain: str) -> Fills:
    """All elements that the result has."""

    def fills(metas: Sequence[Meta], attributes: Attributes) -> Meta:
        made = _made(plain, metas, attributes)
        return made._replace(dtype=metas[0].dtype, offset=metas[0].offset)

    return fills


# ---------------------------------------------------------------------------------------------------------


def _out_dim(plain: str) -> Attribute:
    """The attribute `dim`: one along which the result has the size of operand 0."""

    def draw(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
        fitting = [dim for dim in range(len(metas[1].size) + 1) if _size(plain, metas, dim) == metas[0].size]
        if not fitting:
            raise Mismatch("there is no such dimension")
        return choices.pick(fitting)

    return Attribute("dim", "int", draw)


def _size(plain: str, metas: Sequence[Meta], dim: int) -> Size | None:
    try:
        return _made(plain, metas, {"dim": dim}).size
    except Mismatch:
        return None


def _part(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """Shorter than operand 0 in one dimension."""
    size = earlier[0].size
    return len(meta.size) == len(size) and [
        n < m for n, m in zip(meta.size, size, strict=True) if n != m
    ] == [True]


def _rest(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """What operand 1 lacks of operand 0."""
    whole_size, part = earlier[0].size, earlier[1].size
    return meta.dtype == earlier[1].dtype and meta.size == tuple(
        n if n == m else n - m for n, m in zip(whole_size, part, strict=True)
    )


def _without(size: Size, dim: int) -> Size:
    return size[:dim] + size[dim + 1 :]


def _layer(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """One of the two that operand 0 has in some dimension."""
    size = earlier[0].size
    return any(n == 2 and _without(size, dim) == meta.size for dim, n in enumerate(size))


def _longer(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """Has one dimension more than operand 0."""
    return any(_without(meta.size, dim) == earlier[0].size for dim in range(len(meta.size)))


def _source(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """As long as operand 0 in all dimensions but one."""
    size = earlier[0].size
    return len(meta.size) == len(size) and sum(n != m for n, m in zip(meta.size, size, strict=True)) <= 1


def _chosen(meta: Meta, earlier: Sequence[Meta]) -> bool:
    """One index for each slice of operand 0, out of operand 1."""
    target, source = earlier[0].size, earlier[1].size
    return len(meta.size) == 1 and any(
        n == meta.size[0] and _without(target, dim) == _without(source, dim) for dim, n in enumerate(target)
    )


def _rows(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return len(meta.size) == len(earlier[0].size) and meta.size[:-1] == earlier[0].size[:-1]


def _columns(meta: Meta, earlier: Sequence[Meta]) -> bool:
    target, left = earlier[0].size, earlier[1].size
    return meta.size == (*target[:-2], left[-1], target[-1])


def _like_first(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta[:2] == earlier[1][:2]


def _alike(fits: Fit) -> Operand:
    """An operand of operand 0's dtype."""
    return Operand(DTYPES, lambda meta, earlier: same_dtype(meta, earlier) and fits(meta, earlier))


def _of_rank(rank: int) -> Operand:
    return Operand(INEXACT, lambda meta, earlier: len(meta.size) == rank)


_NUMBERS = NUMERIC | COMPLEX
_INTO = Operand(_NUMBERS, expands)
_RANKED = Operand(DTYPES, lambda meta, earlier: len(meta.size) > 0)
_EMPTY = Operand(_NUMBERS, lambda meta, earlier: 0 in meta.size and meta.stride is not None)
_CHOSEN = Operand(INDEX.dtypes, _chosen)
_PAIR = (ARITHMETIC, _INTO, _INTO)

ROWS = (
    _out_row(
        "add_out", "torch.add({1}, {2}, out={0})", _PAIR, _out_given_rule("add", cast=True), overlap=True
    ),
    _out_row(
        "sub_out", "torch.sub({1}, {2}, out={0})", _PAIR, _out_given_rule("sub", cast=True), overlap=True
    ),
    _out_row(
        "mul_out", "torch.mul({1}, {2}, out={0})", _PAIR, _out_given_rule("mul", cast=True), overlap=True
    ),
    _out_row(
        "div_out",
        "torch.div({1}, {2}, out={0})",
        (SMOOTH, _INTO, _INTO),
        _out_given_rule("div", cast=True),
        overlap=True,
    ),
    _out_row(
        "sin_out", "torch.sin({1}, out={0})", (SMOOTH, _alike(expands)), _out_given_rule("sin"), overlap=True
    ),
    _out_row(
        "exp_out", "torch.exp({1}, out={0})", (SMOOTH, _alike(expands)), _out_given_rule("exp"), overlap=True
    ),
    _out_row(
        "mm_out",
        "torch.mm({1}, {2}, out={0})",
        (_of_rank(2), _alike(_rows), _alike(_columns)),
        _out_given_rule("mm"),
    ),
    _out_row(
        "bmm_out",
        "torch.bmm({1}, {2}, out={0})",
        (_of_rank(3), _alike(_rows), _alike(_columns)),
        _out_given_rule("bmm"),
    ),
    _out_row(
        "sum_out",
        "torch.sum({1}, {dim}, out={0})",
        (Operand(_NUMBERS, ANY.fits), Operand(_NUMBERS, _longer)),
        _out_given_rule("sum_dim"),
        (_out_dim("sum_dim"),),
    ),
    _out_row(
        "cat_out",
        "torch.cat(({1}, {2}), {dim}, out={0})",
        (_RANKED, _alike(_part), _alike(_rest)),
        _out_given_rule("cat"),
        (_out_dim("cat"),),
    ),
    _out_row(
        "stack_out",
        "torch.stack(({1}, {2}), {dim}, out={0})",
        (_RANKED, _alike(_layer), _alike(_like_first)),
        _out_given_rule("stack"),
        (_out_dim("stack"),),
    ),
    _out_row(
        "index_select_out",
        "torch.index_select({1}, {dim}, {2} % {1}.shape[{dim}], out={0})",
        (_RANKED, _alike(_source), _CHOSEN),
        _out_given_rule("index_select"),
        (_out_dim("index_select"),),
    ),
    _out_row(
        "mul_resized_out",
        "torch.mul({1}, {2}, out={0})",
        (_EMPTY, ARITHMETIC, Operand(_NUMBERS, lambda meta, earlier: meta.size == earlier[1].size)),
        _out_grown_rule("mul"),
        fills=_out_filled_elements("mul"),
        change=Change.RESIZE,
    ),
)
