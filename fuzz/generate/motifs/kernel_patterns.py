"""Motifs that compilers look for: what they put together, or replace by a kernel of their own.

Each is built on the tensors of one chain. A statement that does not fit is left out, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.generate.program_builder import ProgramBuilder
from fuzz.operators import OPERATORS
from fuzz.operators.dtypes import FLOATS
from fuzz.operators.row import Constant, Meta

Pattern = Callable[[ProgramBuilder, Sequence[str]], None]
_POINTWISE = (
    "sin",
    "tanh",
    "exp",
    "sigmoid",
    "relu",
    "gelu_kernel",
    "abs_kernel",
    "neg_kernel",
    "sqrt_kernel",
)
_REDUCTIONS = ("sum_along", "mean_along", "amax_along", "amin_along", "prod_along", "logsumexp_along")


def append_pattern(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """Append one of the patterns on these tensors, or as much of it as eager takes."""
    before = len(builder.statements)
    for _ in range(6):
        builder.choices.pick(PATTERNS)(builder, names)
        if len(builder.statements) > before:
            return


def _append(
    builder: ProgramBuilder, operator: str, *operands: str | None, **attributes: Constant
) -> str | None:
    """Append a statement, with attributes that are drawn where none are given, if eager takes it: its first
    result's name. None if it does not, or if an operand is missing."""
    row = OPERATORS[operator]
    if builder.over or any(name is None for name in operands):
        return None
    names = tuple(name for name in operands if name is not None)
    metas = [builder.state.meta(name) for name in names]
    fits = zip(row.operands, metas, strict=True)
    if any(m.dtype not in o.dtypes or not o.fits(m, metas[:i]) for i, (o, m) in enumerate(fits)):
        return None
    return builder.append(row, names, metas, dict(attributes) or None)


def _pick(builder: ProgramBuilder, names: Sequence[str], fits: Callable[[Meta], bool]) -> str | None:
    """One of the tensors, of floats, that fit."""
    fitting = [n for n in names if (m := builder.state.meta(n)).dtype in FLOATS and fits(m)]
    return builder.choices.pick(fitting) if fitting else None


def attention(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """Attention by hand: a product with keys that may be permuted, scaled, masked, softened, times values."""
    choices = builder.choices
    query = _pick(builder, names, lambda m: len(m.size) in (2, 3) and 0 not in m.size)
    if query is None:
        return
    meta = builder.state.meta(query)
    key = _pick(builder, names, lambda m: m[:2] == meta[:2])
    value = _pick(builder, names, lambda m: m[:2] == meta[:2])
    turned = _append(builder, "transpose", key, dim0=-2, dim1=-1)
    scores = _append(builder, "matmul", query, turned)
    match choices.integer(0, 3):
        case 0:
            scores = _append(builder, "div_kernel_number", scores, value=choices.pick((1.7, 3.0)))
        case 1:
            scores = _append(builder, "mul_kernel_number", scores, value=choices.pick((0.1, 0.5)))
        case 2:
            scores = _append(builder, "scaled_by_size", scores)
    if choices.chance(0.4) and scores is not None:
        mask = _append(builder, "gt_number", scores, value=choices.pick((0.1, 9.0)))
        masked = _append(builder, "where_number", mask, scores, value=-2.5)
        scores = masked or scores
    weights = _append(builder, "softmax", scores, dim=-1)
    if choices.chance(0.2):
        weights = _append(builder, "dropout_eval", weights) or weights
    result = _append(builder, "matmul", weights, value)
    if choices.chance(0.3):
        _append(builder, "transpose", result, dim0=-2, dim1=-1)


def fused_layer(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """A linear layer or a convolution, and an activation or an addition after it."""
    choices = builder.choices
    if choices.chance(0.5):
        x = _pick(builder, names, lambda m: len(m.size) == 4 and 0 not in m.size)
        weight = _pick(builder, names, lambda m: len(m.size) == 4 and m.size[2:] == (3, 3))
        result = _append(builder, "conv2d", x, weight)
    else:
        x = _pick(builder, names, lambda m: len(m.size) == 2 and 0 not in m.size)
        width = builder.state.meta(x).size[1] if x is not None else 0
        weight = _pick(builder, names, lambda m: len(m.size) == 2 and m.size[1] == width)
        result = _append(builder, "mm_transposed", x, weight)
    if result is None:
        return
    size = builder.state.meta(result).size
    if choices.chance(0.4):
        other = _pick(builder, names, lambda m: m.size == size)
        result = (
            _append(builder, choices.pick(("add_kernel", "sub_kernel", "mul_kernel")), result, other)
            or result
        )
    _append(
        builder, choices.pick((*_POINTWISE, "hardswish_kernel", "leaky_relu_kernel", "silu_kernel")), result
    )


def reduction_between(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """Pointwise operators before and after a reduction: a norm by hand, an online softmax, a centred sum."""
    choices = builder.choices
    x = _pick(builder, names, lambda m: len(m.size) in (1, 2, 3) and 0 not in m.size)
    if x is None:
        return
    rank = len(builder.state.meta(x).size)
    before = _append(builder, choices.pick(_POINTWISE), x) if choices.chance(0.6) else x
    dim = choices.integer(0, rank - 1)
    total = _append(builder, choices.pick(_REDUCTIONS), before, dim=dim, keepdim=True)
    other = choices.pick((x, before))
    after = _append(builder, choices.pick(("sub_kernel", "true_divide_kernel", "add_kernel")), other, total)
    if choices.chance(0.5):
        after = _append(builder, choices.pick(("exp", "square", "sin")), after)
        _append(builder, choices.pick(_REDUCTIONS), after, dim=dim, keepdim=choices.chance(0.5))


def online_softmax(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """A softmax by hand: the maximum of a dimension taken away, exponentials, divided by their sum."""
    x = _pick(builder, names, lambda m: len(m.size) in (1, 2, 3) and 0 not in m.size)
    if x is None:
        return
    dim = builder.choices.integer(0, len(builder.state.meta(x).size) - 1)
    top = _append(builder, "amax_along", x, dim=dim, keepdim=True)
    away = _append(builder, "sub_kernel", x, top)
    powers = _append(builder, "exp", away)
    total = _append(builder, "sum_along", powers, dim=dim, keepdim=True)
    if builder.choices.chance(0.5):
        _append(builder, "true_divide_kernel", powers, total)
    else:
        _append(builder, "add_kernel", _append(builder, "log_kernel", total), top)


def normalization(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """A layer, group or root mean square norm beside pointwise operators."""
    choices = builder.choices
    x = _pick(builder, names, lambda m: len(m.size) >= 2 and 0 not in m.size)
    if x is None:
        return
    if choices.chance(0.5):
        x = _append(builder, choices.pick(_POINTWISE), x) or x
    if len(builder.state.meta(x).size) == 4 and choices.chance(0.6):
        made = _append(builder, choices.pick(("batch_norm", "instance_norm", "group_norm")), x)
    else:
        made = _append(builder, choices.pick(("layer_norm_kernel", "rms_norm", "layer_norm", "normalize")), x)
    _append(builder, choices.pick(_POINTWISE), made)


def scaled_product(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """A product that is added to something, with factors: `addmm` by its name, or from its parts."""
    choices = builder.choices
    a = _pick(builder, names, lambda m: len(m.size) == 2 and 0 not in m.size)
    if a is None:
        return
    inner = builder.state.meta(a).size[1]
    b = _pick(builder, names, lambda m: len(m.size) == 2 and m.size[0] == inner)
    if b is None:
        return
    size = builder.state.meta(a).size[0], builder.state.meta(b).size[1]
    bias = _pick(builder, names, lambda m: m.size in (size, size[1:], (size[0], 1)))
    if bias is None:
        product = _append(builder, "mm_kernel", a, b)
        _append(builder, choices.pick(("add_alpha", "rsub_alpha")), product, product)
    elif choices.chance(0.4):
        _append(builder, choices.pick(("addmm_scaled", "addmm_bias")), bias, a, b)
    elif choices.chance(0.5):
        _append(builder, choices.pick(("product_added", "product_subtracted")), bias, a, b)
    else:
        product = _append(builder, "mm_kernel", a, b)
        _append(builder, choices.pick(("add_alpha", "sub_alpha", "add_kernel")), bias, product)


def slices_joined(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """Parts of tensors are joined, and used as one: by a pointwise operator, a padding or a reduction."""
    choices = builder.choices
    x = _pick(builder, names, lambda m: len(m.size) in (2, 3) and 0 not in m.size)
    if x is None:
        return
    meta = builder.state.meta(x)
    y = _pick(builder, names, lambda m: m[:2] == meta[:2])
    joined = _append(builder, "cat_of_slices", _append(builder, choices.pick(_POINTWISE), x) or x, y)
    for _ in range(choices.integer(1, 2)):
        then = choices.pick((*_POINTWISE, "pad_constant", "first_half", "flip_kernel", *_REDUCTIONS))
        joined = _append(builder, then, joined) or joined


def padded_and_pooled(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """An image is padded, and pooled or interpolated."""
    choices = builder.choices
    x = _pick(builder, names, lambda m: len(m.size) == 4 and 0 not in m.size)
    x = _append(builder, choices.pick(_POINTWISE), x) or x
    padded = _append(builder, choices.pick(("pad_constant", "pad_reflect", "pad")), x) or x
    pools = ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate_bilinear", "interpolate_nearest")
    _append(builder, choices.pick(pools), padded)


def scattered_and_written(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """Numbers are scattered into a new tensor, which is then written to in place, or through a view."""
    choices = builder.choices
    x = _pick(builder, names, lambda m: len(m.size) in (1, 2, 3) and 0 not in m.size)
    if x is None:
        return
    size = builder.state.meta(x).size
    indices = [
        n for n in names if builder.state.meta(n).dtype == "int64" and builder.state.meta(n).size == size
    ]
    made = _append(builder, "clone", x)
    if indices:
        made = _append(builder, "scatter_number", x, choices.pick(indices)) or made
    view = _append(builder, choices.pick(("select", "slice", "flatten", "transpose")), made)
    for _ in range(choices.integer(1, 2)):
        target = view if view is not None and choices.chance(0.6) else made
        _append(
            builder, choices.pick(("mul_number_", "add_number_", "sin_", "clamp_", "zero_", "relu_")), target
        )
    _append(builder, choices.pick((*_POINTWISE, *_REDUCTIONS)), made)


def list_written(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """A list operator, or a custom one, writes to a view of a new tensor, which is read afterwards."""
    choices = builder.choices
    fitting = [n for n in names if len(m := builder.state.meta(n).size) in (1, 2, 3) and 0 not in m]
    if not fitting:
        return
    made = _append(builder, "clone", choices.pick(fitting))
    view = _append(builder, choices.pick(("slice", "select", "flatten")), made)
    twin = _append(builder, "clone", view)
    match choices.integer(0, 2):
        case 0:
            _append(builder, "foreach_mul_number_", view)
        case 1:
            _append(builder, "foreach_add_", view, twin)
        case 2:
            _append(builder, "custom_accumulate_", view, twin)
    _append(builder, choices.pick((*_POINTWISE, *_REDUCTIONS)), made)


def mixed_precision(builder: ProgramBuilder, names: Sequence[str]) -> None:
    """A tensor is converted to another precision and back between pointwise operators."""
    choices = builder.choices
    x = _pick(builder, names, lambda m: True)
    if x is None:
        return
    dtype = builder.state.meta(x).dtype
    other = choices.pick(("float16", "bfloat16", "float32", "float64", "bool"))
    made: str | None = _append(builder, choices.pick(_POINTWISE), x) or x
    made = _append(builder, "to_copy", made, dtype=other)
    made = (
        _append(
            builder, choices.pick(("mul_kernel_number", "add_kernel_number", "square", "cumsum_kernel")), made
        )
        or made
    )
    _append(builder, "to_copy", made, dtype=dtype)


PATTERNS: tuple[Pattern, ...] = (
    attention,
    attention,
    fused_layer,
    reduction_between,
    online_softmax,
    normalization,
    scaled_product,
    slices_joined,
    padded_and_pooled,
    scattered_and_written,
    list_written,
    mixed_precision,
)
