"""A custom function whose backward writes to what its forward has made and kept.

It writes before it reads, so that each backward gives the same gradients: a backward that raises may have run
a part of what it consists of, and eager another part than a compiler.
"""

from __future__ import annotations

from fuzz.operators.autograd_functions import function_row
from fuzz.operators.builders import SMOOTH, alike
from fuzz.operators.row import Kind, Operand

# Writes to all of a tensor that it has made, and then to a part of it.
_REFILL = """
class Refill(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.kept = x.detach().clone(memory_format=torch.contiguous_format)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        ctx.kept.copy_(gradient).mul_(0.5)
        ctx.kept[:1] = 0
        return gradient * x.cos() + ctx.kept
""".strip()


_ROWED = Operand(
    frozenset({"float32", "float64"}),
    lambda meta, earlier: SMOOTH.fits(meta, earlier) and bool(meta.size),
)

ROWS = (
    function_row(
        "function_refill",
        Kind.FUNCTION,
        "Refill.apply({0})",
        (_ROWED,),
        alike,
        ((0, (0,)),),
        defines=_REFILL,
    ),
)
# Of what goes through it there are no second derivatives.
WRITE_IN_BACKWARD = frozenset(row.name for row in ROWS)
