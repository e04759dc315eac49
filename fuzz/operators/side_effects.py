"""Operators that act outside of a program: they write down what they are given, forward and backward.

What is written down is a tensor that exists once in a process. `make` clears it and knows it by the name
`notes`, so that whoever looks at a call sees what was noted, how often and in which order.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.builders import SMOOTH, alike
from fuzz.operators.row import Attributes, Kind, Meta, Operand, Operator, Result, Rule

NOTES = "torch.ops.aotfuzz.notes"

# The last sums of what forwards were given, the latest first; how often backwards came by, and with what.
_NOTES = f"""
if not hasattr(torch.ops.aotfuzz, "notes"):
    {NOTES} = torch.zeros(8)
""".strip()

# Gives nothing, and so is there for what it does.
_NOTE = f"""
{_NOTES}

if not hasattr(torch.ops.aotfuzz, "note"):
    @torch.library.custom_op("aotfuzz::note", mutates_args=())
    def note(x: torch.Tensor) -> None:
        notes = {NOTES}
        notes[:6] = torch.cat([x.sum().to(notes).reshape(1), notes[:5]])

    note.register_fake(lambda x: None)
""".strip()

# Is registered as one that acts; so is its backward. (Between nodes of which none leads to the other,
# autograd documents no order: what backwards note does not depend on that.)
_TAP = f"""
{_NOTES}

if not hasattr(torch.ops.aotfuzz, "tap"):
    @torch.library.custom_op("aotfuzz::tap", mutates_args=())
    def tap(x: torch.Tensor) -> torch.Tensor:
        notes = {NOTES}
        notes[:6] = torch.cat([x.sum().to(notes).reshape(1), notes[:5]])
        return x.clone()

    @torch.library.custom_op("aotfuzz::tapped", mutates_args=())
    def tapped(gradient: torch.Tensor) -> torch.Tensor:
        notes = {NOTES}
        notes[6] += 1
        notes[7] = torch.maximum(notes[7], gradient.sum().to(notes))
        return gradient.clone()

    for one in (tap, tapped):
        one.register_fake(torch.empty_like)
        one.register_autograd(lambda ctx, gradient: torch.ops.aotfuzz.tapped(gradient))
        torch.library._register_effectful_op(one._qualname, torch._library.effects.EffectType.ORDERED)
""".strip()


def _side_effect_row(name: str, source: str, rule: Rule, defines: str, *, differentiable: bool) -> Operator:
    return Operator(
        name=name,
        kind=Kind.FUNCTION,
        operands=(_REAL,),
        rule=rule,
        source=source,
        has_side_effect=True,
        differentiable=differentiable,
        defines=defines,
    )


def _nothing(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return ()


_REAL = Operand(frozenset({"float32", "float64"}), SMOOTH.fits)

ROWS = (
    _side_effect_row("effect_note", "torch.ops.aotfuzz.note({0})", _nothing, _NOTE, differentiable=False),
    _side_effect_row("effect_tap", "torch.ops.aotfuzz.tap({0})", alike, _TAP, differentiable=True),
)
