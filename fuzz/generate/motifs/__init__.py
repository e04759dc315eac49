"""The generator's motifs: a few statements that belong together, and hardly come together by chance.

Each shows what a compiler of this kind may forget, and the statements around it are drawn as ever: what they
are done to, and which operators do it, is chosen from what there is. A statement that eager would refuse is
left out, as everywhere.
"""

from __future__ import annotations

from fuzz.generate.motifs import aliasing, gradients, saved_tensors
from fuzz.generate.program_builder import Builder

MOTIFS = (
    *(aliasing.turned, aliasing.turned, aliasing.through, aliasing.through, aliasing.beside, aliasing.across),
    *(aliasing.cycled, aliasing.reread, aliasing.nothing, aliasing.filled, aliasing.conjugates),
    *(gradients.forked, gradients.forked, gradients.summed, gradients.multiplied, gradients.cut_off),
    *(gradients.joined, gradients.overtaken),
    *(
        saved_tensors.piece,
        saved_tensors.redrawn,
        saved_tensors.beside_written,
        saved_tensors.kept_twice,
        saved_tensors.recomputed,
        saved_tensors.first_read_later,
    ),
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
