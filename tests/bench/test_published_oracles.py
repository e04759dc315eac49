"""The published oracles notice what their rules say, and overlook what they do not look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bench.fuzzer.published_oracles import PUBLISHED, Ran, notices
from fuzz.choices import SeededChoices
from fuzz.generate import generate
from fuzz.ir.nodes import Literal, Program, Ref, Root, Statement, Storage
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target


def program(returned: Any, *statements: Statement) -> Program:
    storage = Storage("float32", (4,), 1, requires_grad=True, leaf=False)
    return Program((storage,), (Root(0),), (Ref("a0"),), statements, returned)


DOUBLED = Statement("mul_number", ("a0",), (("value", 2.0),), ("v0",))
WRITTEN = Statement("mul_number_", ("a0",), (("value", 2.0),), ())


def faulty(change: Callable[[Any], Any]) -> Target:
    """Eager, and then something else with the result."""
    return Target("faulty", "eager with a fault", lambda f: lambda *args: change(f(*args)))


def raising(_result: Any) -> Any:
    raise RuntimeError("no")


CHANGES: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "nothing": (lambda y: y, set()),
    "other values": (lambda y: y + 1, {"sums", "allclose", "same"}),
    "a permutation": (lambda y: y.flip(0), {"allclose", "same"}),
    "a thousandth": (lambda y: y * 1.004, {"same"}),
    "no gradient": (lambda y: y.detach(), {"same"}),
    "another dtype": (lambda y: y.double(), {"same"}),
    "other strides": (lambda y: y.repeat_interleave(2)[::2], set()),
    "an exception": (raising, {"sums", "allclose"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_rule_notices_what_it_says(change: str) -> None:
    fault, expected = CHANGES[change]
    seen = {
        n for n, oracle in PUBLISHED.items() if notices(oracle, program(Ref("v0"), DOUBLED), faulty(fault))
    }
    assert seen == expected


def test_a_write_to_an_argument_is_noticed_by_none() -> None:
    def lost(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda a: function(a * 1)

    target = Target("lost", "works on a copy", lost)
    assert not any(notices(o, program(Literal(None), WRITTEN), target) for o in PUBLISHED.values())


def test_a_missing_gradient_ends_the_comparison_of_one_and_is_zero_for_the_other() -> None:
    value = torch.ones(2)
    nothing = Ran((value,), (None, value), None)
    for other, seen in ((Ran((value,), (value, value * 2), None), {"same"}), (nothing, set())):
        assert {n for n, oracle in PUBLISHED.items() if oracle(nothing, other, lambda: None)} == seen


@pytest.mark.parametrize("name", PUBLISHED)
def test_none_notices_anything_of_eager(name: str) -> None:
    programs = [generate(SeededChoices(3, i), "mixed") for i in range(100)]
    assert not [i for i, one in enumerate(programs) if notices(PUBLISHED[name], one, find_target("eager"))]
