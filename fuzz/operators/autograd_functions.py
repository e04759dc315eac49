"""What a program does with autograd itself: custom functions of several shapes, hooks, the grad mode."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import (
    ANY,
    NOTHING,
    PYTHON,
    RESULT,
    SELF,
    SMOOTH,
    VALUE,
    alike,
    draw_bool,
    empty_like,
)
from fuzz.operators.dtypes import COMPLEX
from fuzz.operators.layout import contiguous_strides
from fuzz.operators.row import (
    Aliasing,
    Attribute,
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

# Keeps its input, and is not linear.
_SQUARE = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 * x
""".strip()

# Keeps its result, and has another that is not differentiable.
_EXP = """
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result, small = x.exp(), x.abs() < 1
        ctx.save_for_backward(result)
        ctx.mark_non_differentiable(small)
        return result, small

    @staticmethod
    def backward(ctx, gradient, _):
        (result,) = ctx.saved_tensors
        return gradient * result
""".strip()

# Gives the first input alone a gradient, if it needs one, and asks for no zeros in place of missing ones.
_WEIGH = """
class Weigh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        if gradient is None or not ctx.needs_input_grad[0]:
            return None, None
        return gradient * weight, None
""".strip()

# Keeps what it does not read before its backward does.
_LATER = """
class Later(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        return gradient * weight, None
""".strip()

# Gives another tensor on the memory of its input, which shares its version counter and is no view of it.
_ALIAS = """
class Alias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3
""".strip()

# Its gradient is not that of what it does, and is made of a number that it keeps as an attribute.
_SCALE = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x + factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None
""".strip()


def function_row(
    name: str,
    kind: Kind,
    source: str,
    operands: tuple[Operand, ...],
    rule: Rule,
    saves: Saves = NOTHING,
    attributes: tuple[Attribute, ...] = (),
    *,
    differentiable: bool = True,
    defines: str = "",
) -> Operator:
    """A row of what a program does with autograd itself, by a class that it `defines`."""
    return Operator(
        name=name,
        kind=kind,
        operands=operands,
        attributes=attributes,
        rule=rule,
        source=source,
        differentiable=differentiable,
        saves=saves,
        defines=defines,
    )


def _scaled(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[1].dtype in COMPLEX:
        raise Mismatch("a complex number")
    return (Result(empty_like(metas[0])),)


def _flagged(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return Result(empty_like(metas[0])), Result(empty_like(metas[0], "bool"))


def _weighed(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    x, weight = metas
    if x[:2] != weight[:2]:
        raise Mismatch("a weight of another size or dtype")
    plain = all(meta.stride == contiguous_strides(meta.size) for meta in metas)
    return (Result(Meta(x.dtype, x.size, contiguous_strides(x.size) if plain else None)),)


def _doubled(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if metas[0][:2] != metas[1][:2]:
        raise Mismatch("a weight of another size or dtype")
    return (Result(empty_like(metas[0])),)


def _tied(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(metas[0], Aliasing.TIED),)


def _nothing(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return ()


_REAL = Operand(frozenset({"float32", "float64"}), SMOOTH.fits)
_TWIN = Operand(_REAL.dtypes, lambda meta, earlier: meta[:2] == earlier[0][:2])

ROWS = (
    function_row(
        "function_square", Kind.FUNCTION, "Square.apply({0})", (_REAL,), alike, SELF, defines=_SQUARE
    ),
    function_row("function_exp", Kind.FUNCTION, "Exp.apply({0})", (_REAL,), _flagged, RESULT, defines=_EXP),
    function_row(
        "function_weigh",
        Kind.FUNCTION,
        "Weigh.apply({0}, {1})",
        (_REAL, _TWIN),
        _weighed,
        ((1, (0, 1)),),
        defines=_WEIGH,
    ),
    function_row(
        "function_later",
        Kind.FUNCTION,
        "Later.apply({0}, {1})",
        (_REAL, _TWIN),
        _doubled,
        ((1, (0,)),),
        defines=_LATER,
    ),
    function_row(
        "function_scale",
        Kind.FUNCTION,
        "Scale.apply({0}, {value})",
        (_REAL,),
        alike,
        attributes=(VALUE,),
        defines=_SCALE,
    ),
    function_row(
        "function_scale_argument",
        Kind.FUNCTION,
        "Scale.apply({0}, {1})",
        (_REAL, PYTHON),
        _scaled,
        defines=_SCALE,
    ),
    function_row("function_alias", Kind.FUNCTION, "Alias.apply({0})", (ANY,), _tied, defines=_ALIAS),
    function_row(
        "register_hook",
        Kind.HOOK,
        "{0}.register_hook(lambda gradient: gradient if gradient is None else gradient * {value})",
        (SMOOTH,),
        _nothing,
        attributes=(VALUE,),
    ),
    function_row("retain_grad", Kind.RETAIN, "{0}.retain_grad()", (SMOOTH,), _nothing),
    function_row(
        "set_grad_enabled",
        Kind.MODE,
        "torch.set_grad_enabled({enabled})",
        (),
        _nothing,
        attributes=(Attribute("enabled", "bool", draw_bool),),
        differentiable=False,
    ),
)
