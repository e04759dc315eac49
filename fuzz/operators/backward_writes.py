"""Custom functions whose backward writes to what their forward has kept, so that each backward gives another
gradient: counters, and averages as of delayed scaling."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.autograd_functions import function_row
from fuzz.operators.builders import SMOOTH, empty_like
from fuzz.operators.row import Attributes, Kind, Meta, Operand, Result

# Counts its backwards in a tensor that it makes.
_COUNT = """
class Count(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.count = torch.ones((), dtype=x.dtype, device=x.device)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.count.add_(1)
        return gradient * ctx.count
""".strip()

# Averages its gradients, a part of which is written by itself, with what it was given.
_AVERAGE = """
class Average(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.mean = x.detach().clone(memory_format=torch.contiguous_format)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        ctx.mean.mul_(0.5).add_(gradient)
        ctx.mean[:1] = 0
        return gradient * x.cos() + ctx.mean
""".strip()


def _alike(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(empty_like(metas[0])),)


_REAL = Operand(frozenset({"float32", "float64"}), SMOOTH.fits)
_ROWED = Operand(_REAL.dtypes, lambda meta, earlier: SMOOTH.fits(meta, earlier) and bool(meta.size))

ROWS = (
    function_row("function_count", Kind.FUNCTION, "Count.apply({0})", (_REAL,), _alike, defines=_COUNT),
    function_row(
        "function_average",
        Kind.FUNCTION,
        "Average.apply({0})",
        (_ROWED,),
        _alike,
        ((0, (0,)),),
        defines=_AVERAGE,
    ),
)
# Of what goes through these there are no second derivatives.
WRITE_IN_BACKWARD = frozenset(row.name for row in ROWS)
