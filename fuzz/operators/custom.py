"""Operators of the user's own, by `torch.library.custom_op`.

One has a formula for autograd, one several results, and one writes to its argument.
A program's text may be run several times, and an operator exists once in a process: whoever comes first makes
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import NOTHING, SELF, SMOOTH, elementwise, empty_like
from fuzz.operators.dtypes import INTEGERS
from fuzz.operators.row import Attributes, Kind, Meta, Operand, Operator, Result, Rule, Saves

# Keeps its argument.
_CUBE = """
if not hasattr(torch.ops.aotfuzz, "cube"):
    @torch.library.custom_op("aotfuzz::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x * x * x

    cube.register_fake(torch.empty_like)
    cube.register_autograd(
        lambda ctx, gradient: 3 * gradient * ctx.saved_tensors[0].square(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
""".strip()

# Keeps nothing; one of its results may get no gradient.
_BUTTERFLY = """
if not hasattr(torch.ops.aotfuzz, "butterfly"):
    @torch.library.custom_op("aotfuzz::butterfly", mutates_args=())
    def butterfly(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + y, x - y

    @butterfly.register_fake
    def _(x, y):
        return x + y, x - y

    butterfly.register_autograd(lambda ctx, first, second: (first + second, first - second))
""".strip()

# Writes to its first argument, and makes nothing.
_ACCUMULATE = """
if not hasattr(torch.ops.aotfuzz, "accumulate_"):
    @torch.library.custom_op("aotfuzz::accumulate_", mutates_args={"x"})
    def accumulate_(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(y * 2)
""".strip()


def _custom_operator_row(
    name: str,
    source: str,
    operands: tuple[Operand, ...],
    rule: Rule,
    defines: str,
    *,
    saves: Saves = NOTHING,
    writes: tuple[int, ...] = (),
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.FUNCTION,
        operands=operands,
        rule=rule,
        source=source,
        writes=writes,
        differentiable=not writes,
        saves=saves,
        defines=defines,
    )


def _cubed(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return (Result(empty_like(metas[0])),)


def _both(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return elementwise(metas[0].dtype, metas) * 2


def _nothing(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return ()


_REAL = Operand(frozenset({"float32", "float64"}), SMOOTH.fits)
_COUNTS = Operand(INTEGERS, SMOOTH.fits)


def _twin(dtypes: frozenset[str]) -> Operand:
    return Operand(dtypes, lambda meta, earlier: meta[:2] == earlier[0][:2])


ROWS = (
    _custom_operator_row("custom_cube", "torch.ops.aotfuzz.cube({0})", (_REAL,), _cubed, _CUBE, saves=SELF),
    _custom_operator_row(
        "custom_butterfly",
        "torch.ops.aotfuzz.butterfly({0}, {1})",
        (_REAL, _twin(_REAL.dtypes)),
        _both,
        _BUTTERFLY,
    ),
    _custom_operator_row(
        "custom_accumulate_",
        "torch.ops.aotfuzz.accumulate_({0}, {1})",
        (_COUNTS, _twin(INTEGERS)),
        _nothing,
        _ACCUMULATE,
        writes=(0,),
    ),
)
