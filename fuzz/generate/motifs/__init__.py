"""The generator's motifs: a few statements that belong together, and hardly come together by chance.

Each shows what a compiler of this kind may forget, and the statements around it are drawn as ever: what they
are done to, and which operators do it, is chosen from what there is. A statement that eager would refuse is
left out, as everywhere.
"""

from __future__ import annotations

from fuzz.generate.motifs import aliasing, gradients, saved_tensors
from fuzz.generate.program_builder import ProgramBuilder

MOTIFS = (
    *(
        aliasing.write_and_lay_out_anew,
        aliasing.write_and_lay_out_anew,
        aliasing.write_through_views,
        aliasing.write_through_views,
        aliasing.write_between_elements,
        aliasing.grow_over_neighbour,
    ),
    *(
        aliasing.write_cycled_cube,
        aliasing.write_reread_numbers,
        aliasing.write_empty_view,
        aliasing.fill_empty_argument,
        aliasing.multiply_conjugates,
    ),
    *(
        gradients.fork_and_meet,
        gradients.fork_and_meet,
        gradients.sum_gradients,
        gradients.multiply_view,
        gradients.detach_beside_write,
    ),
    *(gradients.join_view_to_history, gradients.write_after_view),
    *(
        saved_tensors.read_piece_twice,
        saved_tensors.draw_in_backward,
        saved_tensors.save_beside_write,
        saved_tensors.save_two_aliases,
        saved_tensors.recompute_of_written,
        saved_tensors.read_first_in_backward,
    ),
)
_TRIES = 6


def motif(builder: ProgramBuilder) -> bool:
    """Append one, or as much of it as eager takes; whether there was a place for any."""
    before = len(builder.statements)
    for _ in range(_TRIES):
        builder.choices.pick(MOTIFS)(builder)
        if len(builder.statements) > before:
            return True
    return False
