"""The generator's motifs: a few statements that belong together, and hardly come together by chance.

Each shows what a compiler of this kind may forget, and the statements around it are drawn as ever: what they
are done to, and which operators do it, is chosen from what there is. A statement that eager would refuse is
left out, as everywhere.
"""

from __future__ import annotations

from fuzz.builder import Builder
from fuzz.motifs import gradients, kept, memory

MOTIFS = (
    *(memory.turned, memory.turned, memory.through, memory.through, memory.beside, memory.across),
    *(memory.cycled, memory.reread, memory.nothing, memory.filled, memory.conjugates),
    *(gradients.forked, gradients.forked, gradients.summed, gradients.multiplied, gradients.cut_off),
    *(gradients.joined, gradients.overtaken),
    *(kept.piece, kept.redrawn, kept.beside_written, kept.kept_twice, kept.recomputed, kept.first_read_later),
)
_TRIES = 6


def motif(builder: Builder) -> bool:
    """Append one, or as much of it as eager takes; whether there was a place for any."""
    before = len(builder.statements)
    for _ in range(_TRIES):
        builder.choices.pick(MOTIFS)(builder)
        if len(builder.statements) > before:
            return True
    return False
