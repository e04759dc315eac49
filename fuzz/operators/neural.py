"""What networks are made of: convolutions, pooling, padding and losses over classes."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.choices import Choices
from fuzz.operators.builders import INDEX, NOTHING, SELF, VALUE, draw_bool, integer
from fuzz.operators.dtypes import FLOATS
from fuzz.operators.layout import contiguous_strides
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

SINGLE = frozenset({"float32", "float64"})  # half precision is not implemented on every CPU


def neural_row(
    name: str,
    source: str,
    operands: tuple[Operand, ...],
    rule: Rule,
    saves: Saves,
    attributes: tuple[Attribute, ...] = (),
    *,
    writes: tuple[int, ...] = (),
    counted: bool = True,
    statistics: tuple[int, ...] = (),
    expanded: Expanded = Expanded.REFUSED,
    kind: Kind = Kind.NEURAL,
) -> Operator:
    """A row of the family."""
    return Operator(
        name=name,
        kind=kind,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        writes=writes,
        bumps_version=counted,
        statistics=statistics,
        expanded=expanded,
        saves=saves,
    )


def new_output(metas: Sequence[Meta], size: Size) -> tuple[Result, ...]:
    """A new tensor, contiguous if the input is; kernels choose its strides otherwise."""
    plain = metas[0].stride == contiguous_strides(metas[0].size)
    return (Result(Meta(metas[0].dtype, size, contiguous_strides(size) if plain else None)),)


def check_one_dtype(metas: Sequence[Meta]) -> None:
    if len({meta.dtype for meta in metas}) > 1:
        raise Mismatch("the dtypes differ")
    if any(0 in meta.size for meta in metas):
        raise Mismatch("there are no elements")


def _convolution_rule(transposed: bool) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        check_one_dtype(metas)
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
        plain = all(meta.stride == contiguous_strides(meta.size) and 1 not in meta.size[:2] for meta in metas)
        return (Result(Meta(x.dtype, size, contiguous_strides(size) if plain and len(size) == 4 else None)),)

    return rule


def _volume_convolution_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """A volume without a batch, and the kernel of one channel."""
    check_one_dtype(metas)
    whole, kernel = metas[0].size, metas[1].size
    padding = integer(attributes, "padding")
    if len(whole) != 4 or len(kernel) != 4 or kernel[0] != whole[0] or not 0 <= padding <= 1:
        raise Mismatch("a volume, a kernel for as many channels, and a padding of 0 or 1, are needed")
    volume = whole[1:]
    space = tuple(n - k + 1 + 2 * padding for n, k in zip(volume, kernel[1:], strict=True))
    if min(space) < 1:
        raise Mismatch("the kernel is larger than the volume")
    return (Result(Meta(metas[0].dtype, (1, *space), None)),)


def _pooling_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Windows of two by two that overlap, or do not."""
    check_one_dtype(metas)
    size, step = metas[0].size, integer(attributes, "step")
    if len(size) not in (3, 4) or min(size[-2:]) < 2 or not 1 <= step <= 2:
        raise Mismatch("too small for windows of two by two")
    space = tuple((n - 2) // step + 1 for n in size[-2:])
    return new_output(metas, size[:-2] + space)


def _row_pooling_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """Windows of two that overlap, or do not."""
    check_one_dtype(metas)
    size, step = metas[0].size, integer(attributes, "step")
    if len(size) not in (2, 3) or size[-1] < 2 or not 1 <= step <= 2:
        raise Mismatch("too small for windows of two")
    if metas[0].neg:  # eager's kernel reads what lies in memory, torch 2.13, and overlooks the bit
        raise Mismatch("a lazily negated tensor")
    return (Result(Meta(metas[0].dtype, (*size[:-1], (size[-1] - 2) // step + 1), None)),)


def _upsampling_rule(times: float, *ranks: int) -> Rule:
    """As many times as large in space."""

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        check_one_dtype(metas)
        size = metas[0].size
        if len(size) not in ranks:
            raise Mismatch("batches of channels are needed")
        return new_output(metas, size[:2] + tuple(int(times * n) for n in size[2:]))

    return rule


def _attention_rule(rank: int) -> Rule:
    """Contiguous queries, keys and values: of others, kernels choose what a backward keeps."""

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        check_one_dtype(metas)
        query, key, value = (meta.size for meta in metas)
        if len(query) != rank or key != value or key != (*query[:-2], *key[-2:-1], query[-1]):
            raise Mismatch("queries, keys and values do not fit")
        if any(meta.stride != contiguous_strides(meta.size) for meta in metas):
            raise Mismatch("queries, keys or values are not contiguous")
        return (Result(Meta(metas[0].dtype, query, None)),)

    return rule


def _averaged(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    check_one_dtype(metas)
    size = metas[0].size
    if len(size) not in (3, 4):
        raise Mismatch("a tensor of rank 3 or 4 is needed")
    return (Result(Meta(metas[0].dtype, (*size[:-2], 2, 2), None)),)


def _padding_rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if not size or 0 in size:
        raise Mismatch("nothing to pad")
    last = size[-1] + integer(attributes, "before") + integer(attributes, "after")
    if last < 1 or max(abs(integer(attributes, name)) for name in ("before", "after")) > 3:
        raise Mismatch("nothing is left, or too much is added")
    return new_output(metas, (*size[:-1], last))


def _reflected(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if len(size) not in (2, 3) or 0 in size or size[-1] < 2:
        raise Mismatch("a tensor of rank 2 or 3, with two elements in a row, is needed")
    return new_output(metas, (*size[:-1], size[-1] + 2))


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


def _labelled(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """One label for each sequence of scores; class 0 is the blank."""
    x, target = metas
    if len(x.size) != 3 or target.size != x.size[1:2] or 0 in x.size or x.size[2] < 2:
        raise Mismatch("scores of two classes or more, and a label for each sequence, are needed")
    return (Result(Meta(x.dtype, (), ())),)


def _compared(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0].size != metas[1].size or metas[0].dtype != metas[1].dtype:
        raise Mismatch("a loss of tensors of different size or dtype")
    return (Result(Meta(metas[0].dtype, (), ())),)


# ---------------------------------------------------------------------------------------------------------


def _draw_edge(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    return choices.pick((0, 1, 2, -1))


def _convolution_kernel(meta: Meta, earlier: Sequence[Meta]) -> bool:
    x = earlier[0]
    return (
        meta.dtype == x.dtype
        and len(meta.size) == len(x.size)
        and meta.size[1] == x.size[1]
        and all(k <= n for k, n in zip(meta.size[2:], x.size[2:], strict=True))
    )


def _volume_convolution_kernel(meta: Meta, earlier: Sequence[Meta]) -> bool:
    x = earlier[0]
    return (
        meta.dtype == x.dtype
        and meta.size[:1] == x.size[:1]
        and len(meta.size) == 4
        and all(k <= n for k, n in zip(meta.size[1:], x.size[1:], strict=True))
    )


def _back_kernel(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return (
        meta.dtype == earlier[0].dtype
        and len(meta.size) == len(earlier[0].size)
        and meta.size[0] == earlier[0].size[1]
    )


def _classes(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[0].size[:1]


def _labels(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[0].size[1:2]


def _keys(meta: Meta, earlier: Sequence[Meta]) -> bool:
    size = earlier[0].size
    return (
        meta.dtype == earlier[0].dtype
        and len(meta.size) == len(size)
        and (meta.size[:-2], meta.size[-1]) == (size[:-2], size[-1])
    )


def _values(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta[:2] == earlier[1][:2]


def _twin(meta: Meta, earlier: Sequence[Meta]) -> bool:
    return meta.size == earlier[0].size and meta.dtype == earlier[0].dtype


_SPATIAL = Operand(SINGLE, lambda meta, earlier: len(meta.size) in (3, 4) and 0 not in meta.size)
_SEQUENCE = Operand(SINGLE, lambda meta, earlier: len(meta.size) == 3 and 0 not in meta.size)
_IMAGE = Operand(SINGLE, lambda meta, earlier: len(meta.size) == 4 and 0 not in meta.size)
_ROWS = Operand(
    SINGLE, lambda meta, earlier: len(meta.size) in (2, 3) and 0 not in meta.size and not meta.neg
)
_RANKED = Operand(SINGLE, lambda meta, earlier: len(meta.size) > 0)
_SCORES = Operand(SINGLE, lambda meta, earlier: len(meta.size) == 2 and 0 not in meta.size)
_REAL = Operand(SINGLE, lambda meta, earlier: True)
_TWIN = Operand(FLOATS, _twin)
_LABELS = Operand(INDEX.dtypes, _classes)
_PADDING = Attribute("padding", "int", lambda choices, metas, chosen: choices.integer(0, 1))
_STEP = Attribute("step", "int", lambda choices, metas, chosen: choices.integer(1, 2))
_CAUSAL = Attribute("causal", "bool", draw_bool)
_EDGES = (Attribute("before", "int", _draw_edge), Attribute("after", "int", _draw_edge))
_PAIR: Saves = ((0, (0, 1)), (1, (0, 1)))
FUNCTION = "torch.nn.functional."


def _attention_row(name: str, rank: int, saves: Saves) -> Operator:
    """Attention with other kernels, which keep other things, for each rank."""
    return neural_row(
        name,
        FUNCTION + "scaled_dot_product_attention({0}, {1}, {2}, is_causal={causal})",
        (_SEQUENCE if rank == 3 else _IMAGE, Operand(SINGLE, _keys), Operand(SINGLE, _values)),
        _attention_rule(rank),
        saves,
        (_CAUSAL,),
    )


ROWS = (
    neural_row(
        "conv1d",
        FUNCTION + "conv1d({0}, {1}, padding={padding})",
        (_SEQUENCE, Operand(SINGLE, _convolution_kernel)),
        _convolution_rule(False),
        _PAIR,
        (_PADDING,),
    ),
    neural_row(
        "conv2d",
        FUNCTION + "conv2d({0}, {1}, padding={padding})",
        (_IMAGE, Operand(SINGLE, _convolution_kernel)),
        _convolution_rule(False),
        _PAIR,
        (_PADDING,),
    ),
    neural_row(
        "conv3d",
        FUNCTION + "conv3d({0}, {1}.unsqueeze(0), padding={padding})",
        (_IMAGE, Operand(SINGLE, _volume_convolution_kernel)),
        _volume_convolution_rule,
        _PAIR,
        (_PADDING,),
    ),
    neural_row(
        "conv_transpose1d",
        FUNCTION + "conv_transpose1d({0}, {1}, padding={padding})",
        (_SEQUENCE, Operand(SINGLE, _back_kernel)),
        _convolution_rule(True),
        _PAIR,
        (_PADDING,),
    ),
    neural_row(
        "avg_pool2d", FUNCTION + "avg_pool2d({0}, 2, {step})", (_SPATIAL,), _pooling_rule, SELF, (_STEP,)
    ),
    neural_row(
        "max_pool2d", FUNCTION + "max_pool2d({0}, 2, {step})", (_SPATIAL,), _pooling_rule, SELF, (_STEP,)
    ),
    neural_row(
        "max_pool1d", FUNCTION + "max_pool1d({0}, 2, {step})", (_ROWS,), _row_pooling_rule, SELF, (_STEP,)
    ),
    neural_row(
        "interpolate_nearest",
        FUNCTION + "interpolate({0}, scale_factor=2)",
        (_SPATIAL,),
        _upsampling_rule(2, 3, 4),
        NOTHING,
    ),
    neural_row(
        "interpolate_linear",
        FUNCTION + 'interpolate({0}, scale_factor=2, mode="linear")',
        (_SEQUENCE,),
        _upsampling_rule(2, 3),
        NOTHING,
    ),
    neural_row(
        "interpolate_bilinear",
        FUNCTION + 'interpolate({0}, scale_factor=1.5, mode="bilinear", align_corners=True)',
        (_IMAGE,),
        _upsampling_rule(1.5, 4),
        NOTHING,
    ),
    _attention_row("attention", 3, ((2, (0, 1)),)),
    _attention_row("attention_heads", 4, tuple((kept, (0, 1, 2)) for kept in (0, 1, 2, "result"))),
    neural_row(
        "adaptive_avg_pool2d",
        FUNCTION + "adaptive_avg_pool2d({0}, 2)",
        (_SPATIAL,),
        _averaged,
        SELF,
    ),
    neural_row(
        "pad",
        FUNCTION + "pad({0}, ({before}, {after}), value={value})",
        (_RANKED,),
        _padding_rule,
        NOTHING,
        (*_EDGES, VALUE),
    ),
    neural_row(
        "pad_reflect",
        FUNCTION + 'pad({0}, (1, 1), mode="reflect")',
        (_RANKED,),
        _reflected,
        SELF,
    ),
    neural_row("glu", FUNCTION + "glu({0})", (_RANKED,), _halved, SELF),
    neural_row(
        "cross_entropy",
        FUNCTION + "cross_entropy({0}, {1} % {0}.shape[1])",
        (_SCORES, _LABELS),
        _classified,
        NOTHING,
    ),
    neural_row(
        "nll_loss",
        FUNCTION + "nll_loss({0}, {1} % {0}.shape[1])",
        (_SCORES, _LABELS),
        _classified,
        SELF,
    ),
    neural_row(
        "ctc_loss",
        FUNCTION
        + "ctc_loss({0}.log_softmax(2), {1} % ({0}.shape[2] - 1) + 1, ({0}.shape[0],) * {0}.shape[1], "
        '(1,) * {0}.shape[1], reduction="sum", zero_infinity=True)',
        (_SEQUENCE, Operand(INDEX.dtypes, _labels)),
        _labelled,
        NOTHING,
    ),
    neural_row("smooth_l1_loss", FUNCTION + "smooth_l1_loss({0}, {1})", (_REAL, _TWIN), _compared, _PAIR),
    neural_row("huber_loss", FUNCTION + "huber_loss({0}, {1})", (_REAL, _TWIN), _compared, _PAIR),
    neural_row(
        "binary_cross_entropy_with_logits",
        FUNCTION + "binary_cross_entropy_with_logits({0}, {1})",
        (_REAL, _TWIN),
        _compared,
        _PAIR,
    ),
)
