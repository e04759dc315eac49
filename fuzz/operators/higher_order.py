"""Operators that take functions: a condition on data, loops over rows, a loop that counts."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import NOTHING, SELF, empty_like, fits_anywhere, new_tensor
from fuzz.operators.dtypes import INTEGERS
from fuzz.operators.layout import contiguous_strides
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
)

_MAP = "from torch._higher_order_ops.map import map as map_rows"
_SCAN = "from torch._higher_order_ops.scan import scan"
_WHILE = "from torch._higher_order_ops.while_loop import while_loop"
# (Torch has `switch` from 2.14 on. Before that the same program has a condition within another one.)
_SWITCH = """
try:
    from torch._higher_order_ops.switch import switch
except ImportError:

    def switch(index, branches, operands):
        first, *others = branches
        if not others:
            return first(*operands)
        return torch.cond(index < 1, first, lambda *args: switch(index - 1, others, args), operands)
""".strip()


def _higher_order_row(
    name: str, source: str, operand: Operand, rule: Rule, *, saves: Saves = NOTHING, defines: str = ""
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.HIGHER_ORDER,
        operands=(operand,),
        rule=rule,
        source=source,
        differentiable=operand is _REAL,
        saves=saves,
        defines=defines,
    )


def _resolved(metas: Sequence[Meta]) -> Meta:
    """The operand, unless it is lazily negated: Dynamo, which eager has capture the functions, takes none."""
    if metas[0].neg:
        raise Mismatch("it is lazily negated")
    return metas[0]


def _alike(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(empty_like(_resolved(metas))),)


def _rows(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = _resolved(metas)
    if not meta.size or not meta.size[0]:
        raise Mismatch("there are no rows")
    return new_tensor(meta.dtype, meta.size)


def _carried(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    (rows,) = _rows(metas, attributes)
    return *new_tensor(rows.meta.dtype, rows.meta.size[1:]), rows


def _counted(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = _resolved(metas)
    if meta.stride != contiguous_strides(meta.size):
        raise Mismatch("what is carried from one turn to the next would lie otherwise")
    return new_tensor(meta.dtype, meta.size)


def _rounds(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = _resolved(metas)
    return new_tensor(meta.dtype, meta.size)


_REAL = Operand(frozenset({"float32", "float64"}), fits_anywhere)
_COUNTS = Operand(INTEGERS, fits_anywhere)

ROWS = (
    _higher_order_row(
        "cond",
        "torch.cond({0}.sum() > 0, lambda x: x.sin(), lambda x: x * 2, ({0},))",
        _REAL,
        _alike,
        saves=SELF,
    ),
    # (What it gives is a view that eager does not write to.)
    _higher_order_row(
        "map_rows",
        "map_rows(lambda row: row.sin() * 2, {0}).clone()",
        _REAL,
        _rows,
        saves=SELF,
        defines=_MAP,
    ),
    # (Of what it is given, eager's backward takes what is there by then, and notices no write; and what is
    # carried has to lie as it did before.)
    _higher_order_row(
        "scan",
        "scan(lambda carry, row: (carry + row, carry * row), {0}.new_zeros({0}.shape[1:]), "
        "{0}.clone(memory_format=torch.contiguous_format))",
        _REAL,
        _carried,
        defines=_SCAN,
    ),
    _higher_order_row(
        "while_loop",
        "while_loop(lambda turn, x: turn < 3, lambda turn, x: (turn + 1, x * 2), "
        "(torch.zeros((), dtype=torch.int64), {0}))[1]",
        _COUNTS,
        _counted,
        defines=_WHILE,
    ),
    # (There is a turn in any case: eager's backward goes through the body without one as well. For the rest
    # see `map_rows` and `scan`.)
    _higher_order_row(
        "while_followed",
        "while_loop(lambda turn, x: turn < 1 + (x.sum() > 0), lambda turn, x: (turn + 1, x.sin() * 2), "
        "(torch.zeros((), dtype=torch.int64), {0}.clone(memory_format=torch.contiguous_format)))[1].clone()",
        _REAL,
        _rounds,
        defines=_WHILE,
    ),
    _higher_order_row(
        "switch",
        "switch(({0} > 0).sum() % 3, (lambda x: x.sin(), lambda x: x * 2, lambda x: x.neg()), ({0},))",
        _REAL,
        _alike,
        saves=SELF,
        defines=_SWITCH,
    ),
)
