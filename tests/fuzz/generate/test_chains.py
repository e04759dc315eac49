"""Chains of kernels: what the profile `lowerings` draws, measured."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from math import prod

import pytest

from fuzz.choices import SeededChoices
from fuzz.generate import generate
from fuzz.generate.motifs import kernel_patterns
from fuzz.generate.profiles import PROFILES
from fuzz.ir.nodes import Program
from fuzz.operators import OPERATORS, Kind
from fuzz.operators.dtypes import COMPLEX, DTYPES
from fuzz.operators.row import Meta, Mismatch
from fuzz.program.decode import from_json, to_json

LOWERINGS = PROFILES["lowerings"]
PROGRAMS = [generate(SeededChoices(3, index), LOWERINGS) for index in range(1500)]


def operators(program: Program) -> list[str]:
    return [statement.operator for statement in program.statements]


def share(found: list[bool]) -> float:
    return sum(found) / len(found)


def test_each_dtype_but_complex_ones_is_in_one_of_twelve_programs() -> None:
    seen = Counter(dtype for program in PROGRAMS for dtype in {s.dtype for s in program.storages})
    assert seen.keys() == DTYPES
    assert min(seen[dtype] for dtype in DTYPES - COMPLEX) >= 0.08 * len(PROGRAMS)


def test_sizes_reach_thousands_of_elements_and_none() -> None:
    largest = [max(prod(s.size) for s in program.storages) for program in PROGRAMS]
    assert share([n > 64 for n in largest]) > 0.6 and share([n > 1000 for n in largest]) > 0.3
    assert max(largest) <= LOWERINGS.elements
    assert share([any(prod(s.size) == 0 for s in program.storages) for program in PROGRAMS]) > 0.03
    odd = [any(s.size and s.size[-1] > 16 and s.size[-1] % 8 for s in p.storages) for p in PROGRAMS]
    assert share(odd) > 0.4


def test_numbers_are_of_every_value_class() -> None:
    seen = Counter(values for program in PROGRAMS for values in {s.values for s in program.storages})
    assert len(seen) == 9 and min(seen.values()) > 20


def test_no_operand_is_shared_by_two_chains() -> None:
    several = 0
    for program in PROGRAMS:
        linked: list[set[str]] = []
        for statement in program.statements:
            touched = {*statement.operands, *statement.results}
            apart = [names for names in linked if not names & touched]
            joined = set().union(touched, *(names for names in linked if names & touched))
            linked = [*apart, joined]
        several += len(linked) > 1
    assert several > len(PROGRAMS) / 3


def test_nearly_every_kernel_is_drawn_and_some_calls_are_refused() -> None:
    used = {name for program in PROGRAMS for name in operators(program)}
    kernels = {name for name, row in OPERATORS.items() if row.kind is Kind.KERNEL}
    assert len(kernels - used) < 0.15 * len(kernels)
    refused = [
        program for program in PROGRAMS if any(OPERATORS[n].kind is Kind.REFUSED for n in operators(program))
    ]
    assert 0.03 < len(refused) / len(PROGRAMS) < 0.1
    for program in refused:
        kinds = [OPERATORS[name].kind is Kind.REFUSED for name in operators(program)]
        assert kinds.count(True) == 1 and kinds[-1]


def test_a_program_is_called_again_with_no_elements_and_with_one() -> None:
    later = [call for program in PROGRAMS for call in program.later]
    sizes = [n for call in later for storage in call.storages for n in storage.size]
    assert len(later) > 50 and {0, 1} <= {*sizes}


def test_more_indices_than_a_program_may_hold_are_no_program() -> None:
    """Chains have dimensions of thousands; what a file may have is less."""
    many, few = Meta("float32", (3000, 1), None), Meta("float32", (2, 1), None)
    rule = OPERATORS["index_copy_"].rule
    rule((many, few), {"dim": 0, "index": (2, 0)})
    with pytest.raises(Mismatch, match="at most 256"):
        rule((many, many), {"dim": 0, "index": tuple(range(3000))})


def test_no_row_makes_integers_of_fractions() -> None:
    """Which is undefined for NaN and for what is too large."""
    rule = OPERATORS["sum_typed"].rule
    fractions = Meta("float32", (2, 1), None)
    attributes = {"dim": 0, "keepdim": False}
    rule((fractions,), attributes | {"dtype": "float64"})
    with pytest.raises(Mismatch, match="fractions as integers"):
        rule((fractions,), attributes | {"dtype": "int64"})


def test_programs_survive_json() -> None:
    for program in PROGRAMS[:300]:
        assert from_json(json.loads(json.dumps(to_json(program), allow_nan=False))) == program


# What each pattern ends with, or has in it, where all of it was taken.
PARTS = {
    "attention": {"softmax", "matmul"},
    "fused_layer": {"mm_transposed"},
    "reduction_between": {"sub_kernel"},
    "online_softmax": {"amax_along", "exp", "sum_along"},
    "normalization": {"rms_norm"},
    "scaled_product": {"mm_kernel", "add_alpha"},
    "slices_joined": {"cat_of_slices"},
    "padded_and_pooled": {"max_pool2d"},
    "scattered_and_written": {"scatter_number", "mul_number_"},
    "list_written": {"foreach_mul_number_"},
    "mixed_precision": {"to_copy"},
}


@pytest.mark.parametrize(
    "pattern", dict.fromkeys(kernel_patterns.PATTERNS), ids=lambda pattern: pattern.__name__
)
def test_each_pattern_is_made_in_its_whole(
    pattern: kernel_patterns.Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_patterns, "PATTERNS", (pattern,))
    profile = replace(LOWERINGS, pattern=1.0, refused=0.0, resized=0.0)
    made = [{*operators(generate(SeededChoices(5, index), profile))} for index in range(150)]
    assert any(PARTS[pattern.__name__] <= names for names in made)


def test_a_quarter_or_so_of_mixed_programs_are_kernels() -> None:
    mixed = [generate(SeededChoices(4, index)) for index in range(600)]
    kernels = share([any(OPERATORS[n].kind is Kind.KERNEL for n in operators(p)) for p in mixed])
    assert 0.15 < kernels < 0.35
