"""Whether one reduced program has all that another one has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fuzz.corpus.containment import bare_operators, contains, has_operators
from fuzz.program.decode import Program, Ref, Root, Scenario, Seq, Statement, Storage, View
from oracles import Backward
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, DUPLICATE, LOST_THROUGH_EXPAND, SINE, call

ROOT, OTHER, VIEW, OTHER_VIEW = (
    Root(0),
    Root(1),
    View(0, (3,), (1,), 0, "view"),
    View(1, (3,), (1,), 0, "view"),
)
WRITE = call("mul_number_", "a0", value=2.0)


def _program(*arguments: Root | View, statements: tuple[Statement, ...] = (WRITE,)) -> Program:
    storages = (Storage("float32", (3,), 1), Storage("float32", (3,), 1))
    refs = tuple(Ref(f"a{number}") for number in range(len(arguments)))
    return Program(storages, arguments, refs, statements, Seq("tuple", ()))


@pytest.mark.parametrize(
    ("whole", "part", "expected"),
    [
        (LOST_THROUGH_EXPAND, DOUBLE_IN_PLACE, True),
        (DOUBLE_IN_PLACE, LOST_THROUGH_EXPAND, False),
        (SINE, DOUBLE_IN_PLACE, False),
        (DUPLICATE, DUPLICATE, True),
        (_program(ROOT, VIEW), _program(ROOT, VIEW), True),
        (_program(ROOT, OTHER, OTHER_VIEW), _program(ROOT, VIEW), True),
        (_program(ROOT, OTHER, VIEW), _program(ROOT, VIEW), True),
        (_program(ROOT, OTHER_VIEW), _program(ROOT, VIEW), False),
        (_program(ROOT, VIEW), _program(ROOT, OTHER), False),
        (_program(VIEW, ROOT), _program(ROOT, VIEW), False),
        (_program(ROOT, statements=(WRITE, WRITE)), _program(ROOT), True),
        (_program(ROOT), _program(ROOT, statements=(WRITE, WRITE)), False),
    ],
)
def test_operators_and_arguments_are_contained(whole: Program, part: Program, expected: bool) -> None:
    assert contains(whole, part) is expected


def test_steps_count_as_well() -> None:
    twice = replace(SINE, scenario=Scenario(steps=(Backward(), Backward())))
    once = replace(SINE, scenario=Scenario(steps=(Backward(),)))
    assert contains(twice, once) and not contains(once, twice)
    assert contains(once, SINE) and not contains(SINE, once)


def test_a_program_as_generated_has_the_operators_of_its_reduced_one() -> None:
    assert bare_operators(LOST_THROUGH_EXPAND) == Counter({"expand": 1, "in-place": 1})
    assert has_operators(bare_operators(LOST_THROUGH_EXPAND), bare_operators(DOUBLE_IN_PLACE))
