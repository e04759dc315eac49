"""Views that come several at once: unbind, split, chunk."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import DIM, integer
from fuzz.operators.layout import dimension
from fuzz.operators.row import Aliasing, Attribute, Attributes, Kind, Meta, Mismatch, Result
from fuzz.operators.view_rules import slice_rule
from fuzz.operators.views import RANKED, draw_piece, select_view_rule, view_row

PIECE = Attribute("length", "int", draw_piece)
CHUNKS = Attribute("chunks", "int", lambda choices, metas, chosen: choices.integer(1, 3))


def _unbind_views(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    meta = metas[0]
    if not meta.size:
        raise Mismatch("unbind of a 0-d tensor")
    dim = dimension(attributes["dim"], len(meta.size))
    if meta.size[dim] > 16:
        raise Mismatch("more than 16 results")
    return tuple(select_view_rule(metas, {"dim": dim, "index": i})[0] for i in range(meta.size[dim]))


def _split_views(metas: Sequence[Meta], attributes: Attributes, length: int) -> tuple[Result, ...]:
    meta = metas[0]
    dim = dimension(attributes["dim"], len(meta.size))
    n = meta.size[dim]
    if length < 1 or n > 16 * length or n == 0:
        raise Mismatch("not between 1 and 16 pieces")
    return tuple(
        Result(
            slice_rule(meta, {"dim": dim, "start": at, "end": min(at + length, n), "step": 1}),
            Aliasing.VIEW,
        )
        for at in range(0, n, length)
    )


def split(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if not metas[0].size:
        raise Mismatch("split of a 0-d tensor")
    return _split_views(metas, attributes, integer(attributes, "length"))


def chunk(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if not metas[0].size or integer(attributes, "chunks") < 1:
        raise Mismatch("no chunks")
    n = metas[0].size[dimension(attributes["dim"], len(metas[0].size))]
    return _split_views(metas, attributes, -(-n // integer(attributes, "chunks")))


def _tensor_split_views(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Slices one by one, which autograd does not take for views of several results; the first are longer."""
    meta, count = metas[0], integer(attributes, "chunks")
    if not meta.size or not 2 <= count <= 16:
        raise Mismatch("fewer than two slices, or too many")
    dim = dimension(attributes["dim"], len(meta.size))
    short, longer = divmod(meta.size[dim], count)
    ends = [(i + 1) * short + min(i + 1, longer) for i in range(count)]
    return tuple(
        Result(slice_rule(meta, {"dim": dim, "start": start, "end": end, "step": 1}), Aliasing.VIEW)
        for start, end in zip([0, *ends], ends, strict=False)
    )


ROWS = (
    view_row(
        "tensor_split",
        "{0}.tensor_split({chunks}, {dim})",
        _tensor_split_views,
        (DIM, Attribute("chunks", "int", lambda choices, metas, chosen: choices.integer(2, 3))),
        operands=(RANKED,),
    ),
    view_row("unbind", "{0}.unbind({dim})", _unbind_views, (DIM,), operands=(RANKED,), kind=Kind.MULTI_VIEW),
    view_row(
        "split",
        "{0}.split({length}, {dim})",
        split,
        (DIM, PIECE),
        operands=(RANKED,),
        kind=Kind.MULTI_VIEW,
    ),
    view_row(
        "chunk",
        "{0}.chunk({chunks}, {dim})",
        chunk,
        (DIM, CHUNKS),
        operands=(RANKED,),
        kind=Kind.MULTI_VIEW,
    ),
)
