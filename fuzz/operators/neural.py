"""What networks are made of: convolutions, pooling, normalization, padding and losses over classes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuzz.choices import Choices
from fuzz.operators.dtypes import FLOATS
from fuzz.operators.layout import contiguous
from fuzz.operators.parts import INDEX, NOTHING, SELF, VALUE, integer
from fuzz.operators.row import (
    Attribute,
    Attributes,
    Constant,
    Expanded,
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

_SINGLE = frozenset({"float32", "float64"})  # half precision is not implemented on every CPU


def _row(
    name: str,
    source: str,
    operands: tuple[Operand, ...],
    rule: Rule,
    saves: Saves,
    attributes: tuple[Attribute, ...] = (),
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.NEURAL,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        mutates=False,
        fills=None,
        change=None,
        expanded=Expanded.REFUSED,
        overlap=False,
        random=False,
        differentiable=True,
        saves=saves,
        defines="",
    )


def _made(metas: Sequence[Meta], size: Size) -> tuple[Result, ...]:
    """A new tensor, contiguous if the input is; kernels choose its strides otherwise."""
    plain = metas[0].stride == contiguous(metas[0].size)
    return (Result(Meta(metas[0].dtype, size, contiguous(size) if plain else None)),)


def _alike(metas: Sequence[Meta]) -> None:
    if len({meta.dtype for meta in metas}) > 1:
        raise Mismatch("the dtypes differ")
    if any(0 in meta.size for meta in metas):
        raise Mismatch("there are no elements")


def _convolved(transposed: bool) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        _alike(metas)
        x, weight = metas
        padding = integer(attributes, "padding")
        if len(weight.size) not in (3, 4) or len(x.size) != len(weight.size) or not 0 <= padding <= 1:
            raise Mismatch("an input and a weight of rank 3 or 4, and a padding of 0 or 1, are needed")
        taken, made = (0, 1) if transposed else (1, 0)
        if x.size[1] != weight.size[taken]:
            raise Mismatch("the channels differ")
        pairs = zip(x.size[2:], weight.size[2:], strict=True)
        if transposed:
            space = tuple(n + k - 1 - 2 * padding for n, k in pairs)
        else:
            space = tuple(n - k + 1 + 2 * padding for n, k in pairs)
        if min(space) < 1:
            raise Mismatch("the kernel is larger than the input")
        size = (x.size[0], weight.size[made], *space)
        # Which layout a kernel gives its result depends on both.
        plain = all(meta.stride == contiguous(meta.size) and 1 not in meta.size[:2] for meta in metas)
        return (Result(Meta(x.dtype, size, contiguous(size) if plain and len(size) == 4 else None)),)

    return rule


def _pooled(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Windows of two by two that overlap, or do not."""
    _alike(metas)
    size, step = metas[0].size, integer(attributes, "step")
    if len(size) not in (3, 4) or min(size[-2:]) < 2 or not 1 <= step <= 2:
        raise Mismatch("too small for windows of two by two")
    space = tuple((n - 2) // step + 1 for n in size[-2:])
    return _made(metas, size[:-2] + space)


def _averaged(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _alike(metas)
    size = metas[0].size
    if len(size) not in (3, 4):
        raise Mismatch("a tensor of rank 3 or 4 is needed")
    return (Result(Meta(metas[0].dtype, (*size[:-2], 2, 2), None)),)


def _batch_normalized(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _alike(metas)
    size = metas[0].size
    if len(size) < 2 or prod(size) // size[1] < 2:
        raise Mismatch("more than one value for each channel is needed")
    return _made(metas, size)


def _grouped(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _alike(metas)
    size = metas[0].size
    if len(size) < 2 or prod(size[1:]) < 2 or metas[0].stride != contiguous(size):
        raise Mismatch("a contiguous tensor of rank 2 or more is needed: of any other a copy is kept")
    return _made(metas, size)


def _padded(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if not size or 0 in size:
        raise Mismatch("nothing to pad")
    last = size[-1] + integer(attributes, "before") + integer(attributes, "after")
    if last < 1 or max(abs(integer(attributes, name)) for name in ("before", "after")) > 3:
        raise Mismatch("nothing is left, or too much is added")
    return _made(metas, (*size[:-1], last))


def _reflected(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if len(size) not in (2, 3) or 0 in size or size[-1] < 2:
        raise Mismatch("a tensor of rank 2 or 3, with two elements in a row, is needed")
    return _made(metas, (*size[:-1], size[-1] + 2))


def _halved(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if not size or size[-1] % 2 or 0 in size:
        raise Mismatch("the last dimension has no halves")
    return (Result(Meta(metas[0].dtype, (*size[:-1], size[-1] // 2), None)),)


def _classified(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    x, target = metas
    if len(x.size) != 2 or target.size != x.size[:1] or 0 in x.size:
        raise Mismatch("scores of classes, and a class for each row, are needed")
    return (Result(Meta(x.dtype, (), ())),)


def _compared(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0].size != metas[1].size or metas[0].dtype != metas[1].dtype:
        raise Mismatch("a loss of tensors of different size or dtype")
    return (Result(Meta(metas[0].dtype, (), ())),)


# ---------------------------------------------------------------------------------------------------------


def _draw_edge(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    return choices.pick((0, 1, 2, -1))


def _kernel(meta: Meta, earlier: Sequence[Meta]) -> bool:
    x = earlier[0]
    return (
        meta.dtype == x.dtype
        and len(meta.size) == len(x.size)
        and meta.size[1] == x.size[1]
        and all(k <= n for k, n in zip(meta.size[2:], x.size[2:], strict=True))
    )


def _back_kernel(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return (
        meta.dtype == earlier[0].dtype
        and len(meta.size) == len(earlier[0].size)
        and meta.size[0] == earlier[0].size[1]
    )


def _classes(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[0].size[:1]


def _twin(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[0].size and meta.dtype == earlier[0].dtype


_SPATIAL = Operand(_SINGLE, lambda meta, earlier: len(meta.size) in (3, 4) and 0 not in meta.size)
_SEQUENCE = Operand(_SINGLE, lambda meta, earlier: len(meta.size) == 3 and 0 not in meta.size)
_IMAGE = Operand(_SINGLE, lambda meta, earlier: len(meta.size) == 4 and 0 not in meta.size)
_CHANNELS = Operand(_SINGLE, lambda meta, earlier: len(meta.size) > 1 and 0 not in meta.size)
_RANKED = Operand(_SINGLE, lambda meta, earlier: len(meta.size) > 0)
_SCORES = Operand(_SINGLE, lambda meta, earlier: len(meta.size) == 2 and 0 not in meta.size)
_REAL = Operand(_SINGLE, lambda meta, earlier: True)
_TWIN = Operand(FLOATS, _twin)
_LABELS = Operand(INDEX.dtypes, _classes)
_PADDING = Attribute("padding", "int", lambda choices, metas, chosen: choices.integer(0, 1))
_STEP = Attribute("step", "int", lambda choices, metas, chosen: choices.integer(1, 2))
_EDGES = (Attribute("before", "int", _draw_edge), Attribute("after", "int", _draw_edge))
_PAIR: Saves = ((0, (0, 1)), (1, (0, 1)))
_FUNCTION = "torch.nn.functional."

ROWS = (
    _row(
        "conv1d",
        _FUNCTION + "conv1d({0}, {1}, padding={padding})",
        (_SEQUENCE, Operand(_SINGLE, _kernel)),
        _convolved(False),
        _PAIR,
        (_PADDING,),
    ),
    _row(
        "conv2d",
        _FUNCTION + "conv2d({0}, {1}, padding={padding})",
        (_IMAGE, Operand(_SINGLE, _kernel)),
        _convolved(False),
        _PAIR,
        (_PADDING,),
    ),
    _row(
        "conv_transpose1d",
        _FUNCTION + "conv_transpose1d({0}, {1}, padding={padding})",
        (_SEQUENCE, Operand(_SINGLE, _back_kernel)),
        _convolved(True),
        _PAIR,
        (_PADDING,),
    ),
    _row("avg_pool2d", _FUNCTION + "avg_pool2d({0}, 2, {step})", (_SPATIAL,), _pooled, SELF, (_STEP,)),
    _row("max_pool2d", _FUNCTION + "max_pool2d({0}, 2, {step})", (_SPATIAL,), _pooled, SELF, (_STEP,)),
    _row(
        "adaptive_avg_pool2d",
        _FUNCTION + "adaptive_avg_pool2d({0}, 2)",
        (_SPATIAL,),
        _averaged,
        SELF,
    ),
    _row(
        "batch_norm",
        _FUNCTION + "batch_norm({0}, None, None, training=True)",
        (_CHANNELS,),
        _batch_normalized,
        SELF,
    ),
    _row("group_norm", _FUNCTION + "group_norm({0}, 1)", (_CHANNELS,), _grouped, SELF),
    _row(
        "pad",
        _FUNCTION + "pad({0}, ({before}, {after}), value={value})",
        (_RANKED,),
        _padded,
        NOTHING,
        (*_EDGES, VALUE),
    ),
    _row(
        "pad_reflect",
        _FUNCTION + 'pad({0}, (1, 1), mode="reflect")',
        (_RANKED,),
        _reflected,
        SELF,
    ),
    _row("glu", _FUNCTION + "glu({0})", (_RANKED,), _halved, SELF),
    _row(
        "cross_entropy",
        _FUNCTION + "cross_entropy({0}, {1} % {0}.shape[1])",
        (_SCORES, _LABELS),
        _classified,
        NOTHING,
    ),
    _row(
        "nll_loss",
        _FUNCTION + "nll_loss({0}, {1} % {0}.shape[1])",
        (_SCORES, _LABELS),
        _classified,
        SELF,
    ),
    _row("smooth_l1_loss", _FUNCTION + "smooth_l1_loss({0}, {1})", (_REAL, _TWIN), _compared, _PAIR),
    _row("huber_loss", _FUNCTION + "huber_loss({0}, {1})", (_REAL, _TWIN), _compared, _PAIR),
    _row(
        "binary_cross_entropy_with_logits",
        _FUNCTION + "binary_cross_entropy_with_logits({0}, {1})",
        (_REAL, _TWIN),
        _compared,
        _PAIR,
    ),
)
