"""Motifs: each is made in its whole, where there is a place for it."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from fuzz.choices import SeededChoices
from fuzz.features.program_features import features
from fuzz.generate import generate
from fuzz.generate.motifs import MOTIFS
from fuzz.generate.profiles import PROFILES
from fuzz.operators import OPERATORS


def test_motifs_come_with_what_they_are_for() -> None:
    """Each is there, in its whole, in a few hundred programs: what hardly comes together by chance."""
    profile = dataclasses.replace(
        PROFILES["aliasing"], motif=1.0, requires_grad=1.0, leaf=0.1, grad_off=0.0, inference=0.0
    )
    seen: Counter[str] = Counter()
    for index in range(400):
        program = generate(SeededChoices(3, index), profile)
        names = [statement.operator for statement in program.statements]
        operands = [statement.operands for statement in program.statements]
        for i, name in enumerate(names):
            made = {result for statement in program.statements[:i] for result in statement.results}
            if name.startswith("foreach") and len({*operands[i]} & made) == 2:
                seen["forked"] += operands[i] in operands[i + 1 :]
            if name == "dot" and names[i - 2 : i] == ["conj", "conj"]:
                seen["conjugates"] += 1
            if OPERATORS[name].writes and names[i - 1] == "permute":
                seen["through"] += 1
            if OPERATORS[name].writes and names[i - 1] == "as_strided":
                seen["beside"] += operands[i][0] in (*operands[i - 1], *program.statements[i - 1].results)
        seen["turned"] += "metadata: past a history" in features(program)
    assert seen.keys() == {"forked", "conjugates", "through", "beside", "turned"}
    assert min(seen.values()) >= 2


BY_NAME = {motif.__name__: motif for motif in MOTIFS}
# What the last statements of each are, where all of it was taken.
ENDS: dict[str, tuple[set[str], ...]] = {
    "grow_over_neighbour": ({"mul_number_", "add_number_"}, {"resize_"}, {"mul_number"}),
    "fill_empty_argument": ({"mul_resized_out"},),
    "write_cycled_cube": ({"permute"}, {"permute"}, {"cumsum_", "tril_", "triu_", "renorm_"}),
    "write_reread_numbers": (
        {"view_as_real", "view_dtype"},
        {"transpose"},
        {"cumsum_", "tril_", "triu_", "renorm_"},
    ),
    "sum_gradients": ({"add"}, {"sin", "exp", "tanh", "square"}),
    "multiply_view": ({"mul_"}, {"sin", "exp", "tanh", "square"}),
    "detach_beside_write": ({"mul_number"}, {"sum"}, {"add"}, {"detach_"}),
    "join_view_to_history": ({"mul_"}, {"mul_number"}),
    "write_after_view": ({"unsqueeze"}, {"mul_number_", "add_number_"}),
    "read_piece_twice": ({"sin", "cos", "tanh"}, {"add"}),
    "draw_in_backward": ({"sin", "exp", "tanh", "square"}, {"rand_like", "randn_like"}),
    "save_beside_write": ({"mul_number_", "add_number_"}, {"view_as_real"}, {"mul"}),
    "save_two_aliases": ({"mul", "square"}, {"mul"}),
    "recompute_of_written": ({"sin"}, {"cos"}, {"mul"}, {"mul"}),
    "read_first_in_backward": ({"mul_number_", "add_number_"}, {"function_later"}),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_motif_is_there_in_its_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.generate.motifs.MOTIFS", (BY_NAME[name],))
    profiles = [
        dataclasses.replace(PROFILES[p], motif=1.0, flat=0.6, apart=0.3, share=0.8)
        for p in ("aliasing", "autograd")
    ]
    ends, found = ENDS[name], 0
    for index in range(600):
        program = generate(SeededChoices(5, index), profiles[index % 2])
        names = [statement.operator for statement in program.statements]
        places = range(len(names) - len(ends) + 1)
        found += any(all(n in end for n, end in zip(names[i:], ends, strict=False)) for i in places)
    assert found > 5


def test_a_motif_writes_to_what_shows_nothing() -> None:
    found = 0
    profile = dataclasses.replace(PROFILES["inferring"], motif=1.0)
    for index in range(300):
        program = generate(SeededChoices(5, index), profile)
        empty = {
            s.results[0]
            for s in program.statements
            if s.operator == "slice" and dict(s.attributes)["start"] == dict(s.attributes)["end"]
        }
        found += any(OPERATORS[s.operator].writes and s.operands[0] in empty for s in program.statements)
    assert found > 5
