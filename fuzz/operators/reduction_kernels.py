"""Reductions and scans on every dtype: with indices, with `dtype=`, of booleans, norms, quantiles, losses."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.choices import Choices
from fuzz.operators.builders import (
    DIM,
    DTYPE,
    FILLED_DIM,
    KEEPDIM,
    empty_like,
    new_tensor,
    reduce_size,
    sized_dim,
)
from fuzz.operators.dtypes import COMPLEX, FLOATS, INTEGERS
from fuzz.operators.kernel_rows import (
    ALL_NUMBERS,
    REAL_AND_BOOL,
    REAL_NUMBERS,
    SINGLE,
    DtypeRule,
    choice,
    equal,
    filled,
    index,
    kernel_row,
    one_dtype,
    operand,
    real,
    same,
    summed,
    twin,
    unknown_layout,
    within,
)
from fuzz.operators.layout import dimension
from fuzz.operators.row import Attribute, Attributes, Constant, Meta, Mismatch, Operator, Result, Rule, Size

_ALONG = (FILLED_DIM, KEEPDIM)
_DIMMED = "({{0}}, {{dim}}, keepdim={{keepdim}}{})"


def _whole(dtype: DtypeRule) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        filled(metas)
        return new_tensor(dtype(metas[0].dtype), ())

    return rule


def _reduced(metas: Sequence[Meta], attributes: Attributes) -> Size:
    """The size that is left, of a dimension that has elements."""
    filled(metas)
    size = metas[0].size
    return reduce_size(size, [sized_dim(metas, attributes)], attributes["keepdim"])


def _along(dtype: DtypeRule, pairs: bool = False) -> Rule:
    """One dimension reduced; with indices, if there are `pairs`."""

    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        size = _reduced(metas, attributes)
        values = unknown_layout(dtype(metas[0].dtype), size)
        return (*values, *unknown_layout("int64", size)) if pairs else values

    return rule


def _spread(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = _reduced(metas, attributes)
    length = metas[0].size[dimension(attributes["dim"], len(metas[0].size))] if metas[0].size else 1
    correction = int(within(attributes, "correction", 0, 2)) if "correction" in attributes else 1
    if length <= correction:
        raise Mismatch("a variance of few elements")
    return unknown_layout(real(metas[0].dtype), size)


def _given_dtype(metas: Sequence[Meta], attributes: Attributes) -> str:
    """The dtype that is asked for; Mismatch where eager would lose an imaginary part, or makes integers of
    fractions, which is undefined for NaN and beyond their range."""
    dtype = attributes["dtype"]
    assert isinstance(dtype, str)
    if metas[0].dtype in COMPLEX or dtype in COMPLEX:
        raise Mismatch("complex numbers of another dtype")
    if metas[0].dtype in FLOATS and dtype in INTEGERS:
        raise Mismatch("fractions as integers")
    return dtype


def _typed(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return unknown_layout(_given_dtype(metas, attributes), _reduced(metas, attributes))


def _typed_scan(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dimension(attributes["dim"], len(metas[0].size))
    return unknown_layout(_given_dtype(metas, attributes), metas[0].size)


def _typed_fraction(rule: Rule) -> Rule:
    def checked(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        if attributes["dtype"] not in FLOATS:
            raise Mismatch("fractions of integers")
        return rule(metas, attributes)

    return checked


def _scan(dtype: DtypeRule, pairs: bool = False) -> Rule:
    def rule(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
        filled(metas)
        dimension(attributes["dim"], len(metas[0].size))
        values = unknown_layout(dtype(metas[0].dtype), metas[0].size)
        return (*values, *unknown_layout("int64", metas[0].size)) if pairs else values

    return rule


def _order(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dimension(attributes["dim"], len(metas[0].size))
    return (Result(empty_like(metas[0])._replace(stride=None)), *unknown_layout("int64", metas[0].size))


def _indices(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    dimension(attributes["dim"], len(metas[0].size))
    return unknown_layout("int64", metas[0].size)


def _draw_count(choices: Choices, metas: Sequence[Meta], chosen: Attributes) -> Constant:
    size = metas[0].size
    return choices.integer(1, size[dimension(chosen["dim"], len(size))] if size else 1)


_COUNT = Attribute("count", "int", _draw_count)


def _top(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    size, count = list(metas[0].size), int(within(attributes, "count", 1, 4096))
    dim = dimension(attributes["dim"], len(size))
    if count > (size[dim] if size else 1):
        raise Mismatch("more than there are")
    if size:
        size[dim] = count
    return (*unknown_layout(metas[0].dtype, tuple(size)), *unknown_layout("int64", tuple(size)))


def _kth(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    _top(metas, attributes)
    return _along(same, pairs=True)(metas, attributes)


def _difference(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = list(metas[0].size)
    if not size:
        raise Mismatch("no dimension")
    dim = dimension(attributes["dim"], len(size))
    order = int(within(attributes, "order", 1, 2))
    size[dim] = max(size[dim] - order, 0)
    return unknown_layout(metas[0].dtype, tuple(size))


def _joined_area(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if not metas[0].size:
        raise Mismatch("no dimension")
    return _along(same)(metas, {**attributes, "keepdim": False})


def _pairs(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    return new_tensor(metas[0].dtype, ()) * 2


def _counted(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    bins = int(within(attributes, "bins", 1, 100))
    return new_tensor(metas[0].dtype, (bins,))


def _loss(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    if metas[0].size != metas[1].size:
        raise Mismatch("a loss of tensors of different size")
    dtype = one_dtype(metas)
    if attributes.get("reduction") == "none":
        return unknown_layout(dtype, metas[0].size)
    return unknown_layout(dtype, ())


def _rowwise(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """A number for each row of two tensors."""
    filled(metas)
    if metas[0].size != metas[1].size or len(metas[0].size) < 2:
        raise Mismatch("rows of two tensors are needed")
    return unknown_layout(one_dtype(metas), metas[0].size[:-1])


def _as_operand(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    if not metas[0].size:
        raise Mismatch("no dimension")
    return unknown_layout(metas[0].dtype, metas[0].size)


def _renormed(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    within(attributes, "order", 1, 3)
    if len(metas[0].size) < 2:
        raise Mismatch("two dimensions are needed")
    return _as_operand(metas, attributes)


def _distance(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    filled(metas)
    return unknown_layout(one_dtype(metas), ())


def _quantile(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    within(attributes, "q", 0, 1)
    return unknown_layout(metas[0].dtype, _reduced(metas, attributes))


def _norm(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    within(attributes, "order", -3, 3)
    return unknown_layout(real(metas[0].dtype), _reduced(metas, attributes))


def _call(
    name: str, dtypes: frozenset[str], dtype: DtypeRule, *, pairs: bool = False, grad: bool = True
) -> Operator:
    source = f"torch.{name}" + _DIMMED.format("")
    return kernel_row(
        f"{name.replace('.', '_')}_along",
        source,
        (operand(dtypes),),
        _along(dtype, pairs),
        _ALONG,
        differentiable=grad,
        indices=pairs,
    )


def _total(name: str, dtypes: frozenset[str], dtype: DtypeRule, *, grad: bool = True) -> Operator:
    return kernel_row(
        f"{name}_total", f"torch.{name}({{0}})", (operand(dtypes),), _whole(dtype), differentiable=grad
    )


def _truth_of(dtype: str) -> str:
    """`any` and `all` of uint8 are uint8: it was torch's bool once."""
    return "uint8" if dtype == "uint8" else "bool"


def _criterion(
    name: str, more: str = "", dtypes: frozenset[str] = SINGLE, first: str = "{0}", second: str = "{1}"
) -> Operator:
    source = f"torch.nn.functional.{name}({first}, {second}{more}, reduction='mean')"
    suffix = "" if not more else "_" + more.strip(", ").split("=")[0]
    return kernel_row(f"{name}_mean{suffix}", source, (operand(dtypes), equal(dtypes)), _loss)


def _elementwise_criterion(name: str, more: str = "", first: str = "{0}", second: str = "{1}") -> Operator:
    source = f"torch.nn.functional.{name}({first}, {second}{more}, reduction='none')"
    return kernel_row(
        f"{name}_none",
        source,
        (operand(SINGLE), equal(SINGLE)),
        lambda m, a: _loss(m, {"reduction": "none"}),
    )


_CRITERIA = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss"),
    *("binary_cross_entropy_with_logits", "hinge_embedding_loss"),
)
_FIRST, _SECOND = "{0}.sigmoid()", "{1}.sigmoid()"  # probabilities
_NORM_ORDERS = (2, 1, 0, 3, 0.5, -1, 1.7)

ROWS = (
    _call("sum", ALL_NUMBERS, summed),
    _call("mean", FLOATS | COMPLEX, same),
    _call("prod", ALL_NUMBERS, summed),
    _call("nansum", REAL_AND_BOOL, summed),
    _call("nanmean", FLOATS, same),
    _call("amax", REAL_AND_BOOL, same),
    _call("amin", REAL_AND_BOOL, same),
    _call("max", REAL_AND_BOOL, same, pairs=True),
    _call("min", REAL_AND_BOOL, same, pairs=True),
    _call("median", REAL_NUMBERS, same, pairs=True),
    _call("nanmedian", REAL_NUMBERS, same, pairs=True),
    _call("mode", REAL_AND_BOOL, same, pairs=True),
    _call("argmax", REAL_NUMBERS, index, grad=False),
    _call("argmin", REAL_NUMBERS, index, grad=False),
    _call("any", ALL_NUMBERS, _truth_of, grad=False),
    _call("all", ALL_NUMBERS, _truth_of, grad=False),
    _call("logsumexp", FLOATS, same),
    *(_total(name, ALL_NUMBERS, summed) for name in ("sum", "prod")),
    *(_total(name, REAL_AND_BOOL, same) for name in ("max", "min")),
    *(_total(name, REAL_NUMBERS, same) for name in ("median", "nanmedian")),
    *(_total(name, REAL_NUMBERS, index, grad=False) for name in ("argmax", "argmin")),
    *(_total(name, ALL_NUMBERS, _truth_of, grad=False) for name in ("any", "all")),
    _total("mean", FLOATS | COMPLEX, same),
    _total("nansum", REAL_AND_BOOL, summed),
    _total("nanmean", FLOATS, same),
    _total("count_nonzero", ALL_NUMBERS, index, grad=False),
    kernel_row("aminmax", "torch.aminmax({0})", (operand(REAL_AND_BOOL),), _pairs),
    kernel_row(
        "count_nonzero_along",
        "torch.count_nonzero({0}, {dim})",
        (operand(ALL_NUMBERS),),
        lambda m, a: _along(index)(m, {**a, "keepdim": False}),
        (FILLED_DIM,),
        differentiable=False,
    ),
    *(
        kernel_row(
            f"{name}_correction",
            f"torch.{name}({{0}}, {{dim}}, correction={{correction}}, keepdim={{keepdim}})",
            (operand(FLOATS),),
            _spread,
            (*_ALONG, choice("correction", "int", (0, 1, 2))),
        )
        for name in ("var", "std")
    ),
    *(
        kernel_row(
            f"{name}_mean_kernel",
            f"torch.{name}_mean({{0}}, {{dim}}, keepdim={{keepdim}})",
            (operand(FLOATS),),
            lambda m, a: _spread(m, a) * 2,
            _ALONG,
        )
        for name in ("var", "std")
    ),
    *(
        kernel_row(
            f"{name}_typed",
            f"torch.{name}({{0}}, {{dim}}, keepdim={{keepdim}}, dtype={{dtype}})",
            (operand(REAL_AND_BOOL),),
            _typed,
            (*_ALONG, DTYPE),
        )
        for name in ("sum", "prod")
    ),
    kernel_row(
        "mean_typed",
        "torch.mean({0}, {dim}, keepdim={keepdim}, dtype={dtype})",
        (operand(REAL_AND_BOOL),),
        _typed_fraction(_typed),
        (*_ALONG, DTYPE),
    ),
    *(
        kernel_row(
            f"{name}_typed",
            f"torch.{name}({{0}}, {{dim}}, dtype={{dtype}})",
            (operand(REAL_AND_BOOL),),
            _typed_scan,
            (DIM, DTYPE),
        )
        for name in ("cumsum", "cumprod")
    ),
    *(
        kernel_row(
            f"{name}_typed",
            f"torch.{name}({{0}}, {{dim}}, dtype={{dtype}})",
            (operand(REAL_NUMBERS),),
            _typed_fraction(_typed_scan),
            (DIM, DTYPE),
        )
        for name in ("softmax", "log_softmax")
    ),
    kernel_row("softmin", "torch.nn.functional.softmin({0}, {dim})", (operand(FLOATS),), _scan(same), (DIM,)),
    kernel_row("softmax_kernel", "torch.softmax({0}, {dim})", (operand(FLOATS),), _scan(same), (DIM,)),
    kernel_row(
        "log_softmax_kernel", "torch.log_softmax({0}, {dim})", (operand(FLOATS),), _scan(same), (DIM,)
    ),
    kernel_row("cumsum_kernel", "torch.cumsum({0}, {dim})", (operand(ALL_NUMBERS),), _scan(summed), (DIM,)),
    kernel_row("cumprod_kernel", "torch.cumprod({0}, {dim})", (operand(ALL_NUMBERS),), _scan(summed), (DIM,)),
    kernel_row("logcumsumexp", "torch.logcumsumexp({0}, {dim})", (operand(FLOATS),), _scan(same), (DIM,)),
    *(
        kernel_row(
            f"{name}_kernel",
            f"torch.{name}({{0}}, {{dim}})",
            (operand(REAL_AND_BOOL),),
            _scan(same, pairs=True),
            (DIM,),
            indices=True,
        )
        for name in ("cummax", "cummin")
    ),
    kernel_row(
        "sort_kernel",
        "torch.sort({0}, dim={dim}, stable=True, descending={descending})",
        (operand(REAL_AND_BOOL),),
        _order,
        (DIM, choice("descending", "bool", (False, True))),
        indices=True,
    ),
    kernel_row(
        "argsort",
        "torch.argsort({0}, dim={dim}, stable=True)",
        (operand(REAL_AND_BOOL),),
        _indices,
        (DIM,),
        differentiable=False,
    ),
    kernel_row("msort", "torch.msort({0})", (operand(REAL_AND_BOOL),), _as_operand),
    kernel_row(
        "topk",
        "torch.topk({0}, {count}, {dim}, largest={largest})",
        (operand(REAL_NUMBERS),),
        _top,
        (DIM, _COUNT, choice("largest", "bool", (True, False))),
        indices=True,
    ),
    kernel_row(
        "kthvalue",
        "torch.kthvalue({0}, {count}, {dim}, keepdim={keepdim})",
        (operand(REAL_NUMBERS),),
        _kth,
        (*_ALONG, _COUNT),
        indices=True,
    ),
    kernel_row(
        "diff",
        "torch.diff({0}, {order}, {dim})",
        (operand(REAL_NUMBERS | COMPLEX),),
        _difference,
        (DIM, choice("order", "int", (1, 2))),
    ),
    kernel_row(
        "trapezoid",
        "torch.trapezoid({0}, dim={dim})",
        (operand(FLOATS),),
        _joined_area,
        (FILLED_DIM,),
    ),
    *(
        kernel_row(
            f"{name}_kernel",
            f"torch.{name}({{0}}, {{q}}, {{dim}}, keepdim={{keepdim}})",
            (operand(SINGLE),),
            _quantile,
            (*_ALONG, choice("q", "number", (0.5, 0.1, 0.0, 1.0, 0.7))),
        )
        for name in ("quantile", "nanquantile")
    ),
    kernel_row(
        "vector_norm_order",
        "torch.linalg.vector_norm({0}, {order}, {dim}, keepdim={keepdim})",
        (operand(FLOATS | COMPLEX),),
        _norm,
        (*_ALONG, choice("order", "number", _NORM_ORDERS)),
    ),
    kernel_row(
        "vector_norm_inf",
        "torch.linalg.vector_norm({0}, float('inf'), {dim}, keepdim={keepdim})",
        (operand(FLOATS | COMPLEX),),
        _along(real),
        _ALONG,
    ),
    kernel_row(
        "normalize", "torch.nn.functional.normalize({0}, dim={dim})", (operand(FLOATS),), _scan(same), (DIM,)
    ),
    kernel_row(
        "histc",
        "torch.histc({0}, {bins}, -2, 2)",
        (operand(SINGLE),),
        _counted,
        (choice("bins", "int", (1, 5, 17)),),
        differentiable=False,
    ),
    kernel_row(
        "renorm",
        "torch.renorm({0}, {order}, 0, 1.7)",
        (operand(SINGLE),),
        _renormed,
        (choice("order", "number", (2, 1, 3)),),
    ),
    kernel_row(
        "dist",
        "torch.dist({0}, {1}, {order})",
        (operand(SINGLE), twin(SINGLE)),
        _distance,
        (choice("order", "number", (2, 1, 0, 3)),),
    ),
    kernel_row(
        "cosine_similarity",
        "torch.nn.functional.cosine_similarity({0}, {1}, dim=-1)",
        (operand(FLOATS), equal(FLOATS)),
        _rowwise,
    ),
    kernel_row(
        "pairwise_distance",
        "torch.nn.functional.pairwise_distance({0}, {1})",
        (operand(FLOATS), equal(FLOATS)),
        _rowwise,
    ),
    kernel_row(
        "rms_norm", "torch.nn.functional.rms_norm({0}, {0}.shape[-1:])", (operand(FLOATS),), _as_operand
    ),
    kernel_row(
        "layer_norm_kernel",
        "torch.nn.functional.layer_norm({0}, {0}.shape[-1:])",
        (operand(FLOATS),),
        _as_operand,
    ),
    *(_criterion(name) for name in _CRITERIA),
    *(_elementwise_criterion(name) for name in _CRITERIA),
    _criterion("soft_margin_loss", second="{1}.detach()"),
    _elementwise_criterion("soft_margin_loss", second="{1}.detach()"),
    _criterion("smooth_l1_loss", ", beta=0.3"),
    _criterion("huber_loss", ", delta=0.7"),
    _criterion("poisson_nll_loss", ", log_input=False", second="{1}.abs()", first="{0}.abs()"),
    _criterion("binary_cross_entropy", first=_FIRST, second=_SECOND),
    _elementwise_criterion("binary_cross_entropy", first=_FIRST, second=_SECOND),
    _elementwise_criterion("kl_div"),
)
