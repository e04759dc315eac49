"""The generator's motifs: a few statements that belong together, and hardly come together by chance.

Each shows what a compiler of this kind may forget, and the statements around it are drawn as ever: what they
are done to, and which operators do it, is chosen from what there is. A statement that eager would refuse is
left out, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.builder import Builder
from fuzz.ir import Region
from fuzz.operators import OPERATORS
from fuzz.operators.dtypes import COMPLEX
from fuzz.operators.layout import is_dense
from fuzz.operators.row import Constant, Kind, Meta
from fuzz.state import Tensor

_UNARY = ("sin", "cos", "exp", "tanh", "mul_number", "neg", "square", "function_square", "function_scale")
_SEVERAL = ("foreach_sin", "foreach_exp", "foreach_neg")  # whose results have one node for autograd
_FILLING = (Kind.IN_PLACE, Kind.RANDOM, Kind.SCATTER)
_WRITES = tuple(
    name
    for name, row in OPERATORS.items()
    if row.kind in _FILLING and row.writes == (0,) and len(row.operands) == 1
)
_TRIES = 4
_TURNS = ("t_", "transpose_", "unsqueeze_")


def motif(builder: Builder) -> bool:
    """Append one, or as much of it as eager takes; whether there was a place for any."""
    before = len(builder.statements)
    for _ in range(_TRIES):
        builder.choices.pick(_MOTIFS)(builder)
        if len(builder.statements) > before:
            return True
    return False


def _turned(builder: Builder) -> None:
    """A tensor with a history is written to and laid out otherwise, so that autograd notices it and so that
    it does not, in any order."""
    choices = builder.choices
    names = [n for n, t in builder.pool if _is_followed(t) and _alike(t.meta)]
    names = _shown(builder, names) or names
    if not names:
        return
    name = choices.pick(names)
    for what in choices.pick(_ORDERS):
        if what == "write":
            _write(builder, name, ("mul_number_", "sin_", "add_number_"))
        elif what == "noticed":
            _turn(builder, name, choices.pick(_TURNS))
        else:
            _under_no_grad(builder, lambda: _swap(builder, name))


_ORDERS = (
    ("hidden",),
    ("hidden", "write"),
    ("write", "hidden"),
    ("write", "noticed", "hidden"),
    ("write", "noticed", "noticed", "hidden"),
    ("write", "hidden", "noticed"),
    ("noticed", "write", "hidden"),
)


def _turn(builder: Builder, name: str, operator: str) -> None:
    rank = len(builder.state.meta(name).size)
    if operator == "t_":
        _append(builder, operator, (name,))
    elif operator == "unsqueeze_":
        _append(builder, operator, (name,), dim=builder.choices.integer(0, rank))
    elif rank > 1:
        first = builder.choices.integer(0, rank - 2)
        _append(builder, operator, (name,), dim0=first, dim1=first + 1)


def _swap(builder: Builder, name: str) -> None:
    """Exchange two dimensions of one length: the shape stays."""
    size = builder.state.meta(name).size
    pairs = [(i, j) for j in range(len(size)) for i in range(j) if size[i] == size[j] > 1]
    if pairs:
        dim0, dim1 = builder.choices.pick(pairs)
        _append(builder, "transpose_", (name,), dim0=dim0, dim1=dim1)


def _forked(builder: Builder) -> None:
    """Two results of one tensor, or of two, that meet twice: where autograd has one node for both, and not
    each of the gradients comes; and where both do."""
    choices = builder.choices
    names = [n for n, t in builder.pool if t.requires_grad and t.meta.dtype in ("float32", "float64")]
    # (What second derivatives by two ways make of infinities is not kept.)
    if not names or any(storage.special for storage in builder.inputs.storages):
        return
    first = choices.pick(names)
    like = builder.state.meta(first)[:2]
    twins = [n for n in names if builder.state.meta(n)[:2] == like]
    second = first if choices.chance(0.5) else choices.pick(twins)
    made = [_append(builder, choices.pick(_UNARY), (one,)) for one in (first, second)]
    if not all(made):
        return
    pair = tuple(map(str, made))
    _append(builder, choices.pick(_SEVERAL), pair)
    _append(builder, choices.pick(("mul", "add", "sub")), pair)


def _through(builder: Builder) -> None:
    """A tensor is written to through a chain of views."""
    choices = builder.choices
    names = [n for n, t in builder.pool if t.meta.size]
    names = _shown(builder, names) or names
    if not names:
        return
    name: str | None = choices.pick(names)
    for _ in range(choices.integer(1, 3)):
        assert name is not None
        rank = len(builder.state.meta(name).size)
        order = [*range(1, rank), 0]
        name = choices.pick(_VIEWS)(builder, name, rank, order) or name
    assert name is not None
    _write(builder, name, _WRITES)


_View = Callable[[Builder, str, int, Sequence[int]], "str | None"]
_VIEWS: tuple[_View, ...] = (
    lambda b, n, rank, order: _append(b, "permute", (n,), dims=tuple(order)),
    lambda b, n, rank, order: _append(b, "transpose", (n,), dim0=0, dim1=rank - 1),
    lambda b, n, rank, order: _append(b, "slice", (n,), dim=0, start=0, end=4, step=2),
    lambda b, n, rank, order: _append(b, "unsqueeze", (n,), dim=0),
    lambda b, n, rank, order: _append(b, "select", (n,), dim=rank - 1, index=0),
)


def _beside(builder: Builder) -> None:
    """A view shows what lies between the elements of a tensor, which is written to then."""
    names = [n for n, t in builder.pool if n[0] == "a" and _is_followed(t) and _has_gaps(t.meta)]
    if not names:
        return
    name = builder.choices.pick(names)
    meta = builder.state.meta(name)
    assert meta.stride is not None
    span = 1 + sum((n - 1) * step for n, step in zip(meta.size, meta.stride, strict=True))
    if _append(builder, "as_strided", (name,), size=(span,), stride=(1,), offset=meta.offset):
        _write(builder, name, ("mul_number_", "sin_", "add_number_"))


def _conjugates(builder: Builder) -> None:
    """A product of two lazily conjugated vectors, which is lazily conjugated itself."""
    names = [n for n, t in builder.pool if t.meta.dtype in COMPLEX and len(t.meta.size) == 1]
    if not names:
        return
    first = builder.choices.pick(names)
    like = builder.state.meta(first)[:2]
    second = builder.choices.pick([n for n in names if builder.state.meta(n)[:2] == like])
    made = [_append(builder, "conj", (one,)) for one in (first, second)]
    if all(made):
        _append(builder, "dot", tuple(map(str, made)))


_MOTIFS = (_turned, _turned, _forked, _forked, _through, _through, _beside, _conjugates)


# ---- what they are made of


def _append(builder: Builder, operator: str, operands: tuple[str, ...], **attributes: Constant) -> str | None:
    """Append a statement, with attributes that are drawn where none are given; its first result's name, "" if
    it has none, or None if eager does not take it."""
    row, kinds = OPERATORS[operator], dict(builder.profile.kinds)
    if builder.over or (kinds and row.kind not in kinds):
        return None
    metas = [builder.state.meta(name) for name in operands]
    fits = zip(row.operands, metas, strict=True)
    if any(m.dtype not in o.dtypes or not o.fits(m, metas[:i]) for i, (o, m) in enumerate(fits)):
        return None
    return builder.append(row, operands, metas, dict(attributes) or None)


def _write(builder: Builder, name: str, operators: Sequence[str]) -> None:
    for _ in range(4):
        if _append(builder, builder.choices.pick(operators), (name,)) is not None:
            return


def _under_no_grad(builder: Builder, append: Callable[[], None]) -> None:
    """A block under no_grad around what is appended."""
    before, outer = len(builder.statements), builder.block
    builder.blocks.append(Region("no_grad", outer))
    builder.enter(len(builder.blocks) - 1)
    append()
    builder.enter(outer)
    if len(builder.statements) == before:
        del builder.blocks[-1]


def _shown(builder: Builder, names: Sequence[str]) -> list[str]:
    """Those that lie in an argument's memory."""
    return [name for name in names if builder.state.tensor(name).memory in builder.memories]


def _is_followed(tensor: Tensor) -> bool:
    """Whether eager takes a write to it in grad mode, and autograd follows that."""
    return tensor.requires_grad and (tensor.base or tensor).grad_fn and tensor.made == "plain"


def _alike(meta: Meta) -> bool:
    """Whether two dimensions have one length."""
    long = [n for n in meta.size if n > 1]
    return len(long) > len(set(long))


def _has_gaps(meta: Meta) -> bool:
    return meta.stride is not None and 0 not in meta.size and not is_dense(meta.size, meta.stride)
