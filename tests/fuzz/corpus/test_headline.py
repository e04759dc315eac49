"""A finding as one plain sentence."""

from __future__ import annotations

import pytest

from fuzz.corpus import buckets
from fuzz.corpus.headline import headline
from fuzz.program.decode import Program, Ref
from oracles import Finding
from tests.support.fuzz.small_programs import (
    DOUBLE_IN_PLACE,
    DUPLICATE,
    LOST_THROUGH_EXPAND,
    RETURN_VIEW,
    SINE,
    call,
    program,
)
from tests.support.fuzz.summaries import raises, wrong

SCATTER = program(call("tril_", "a0", diagonal=0), call("sin", "a0", to="v0"), returns=Ref("v0"))
FAILED = "torch._dynamo.exc.BackendCompilerFailed: backend='mine' raised: a.b.OpError: no such op"


def _sides(clause: str, path: str, eager: str, target: str, what: str = "") -> Finding:
    return Finding(clause, path, eager, target, f"{what or path}: {eager} in eager, {target} in the target")


@pytest.mark.parametrize(
    ("finding", "given", "text"),
    [
        (
            wrong("input-data", "arg[0]", "arg[0] at element 1"),
            LOST_THROUGH_EXPAND,
            "a write through `expand` to an argument is lost or wrong",
        ),
        (
            wrong("input-data", "arg[0]", "arg[0] at element 1"),
            DOUBLE_IN_PLACE,
            "a write to an argument is lost or wrong",
        ),
        (wrong(), SINE, "a result of `sin` has wrong elements"),
        (wrong(), RETURN_VIEW, "a result of `t` has wrong elements"),
        (wrong(), DUPLICATE, "a result of `mul` has wrong elements; one argument is passed twice"),
        (wrong(), LOST_THROUGH_EXPAND, "a result of `expand` and a write has wrong elements"),
        (
            wrong("gradients", "grad of arg[0]", "grad of arg[0] at element 0"),
            SINE,
            "the gradient of an argument is wrong: `sin`",
        ),
        (
            _sides("gradients", "grad of arg[0]", "None", "a tensor float32[2]"),
            SINE,
            "the gradient of an argument is a tensor float32[2], not None after `sin`",
        ),
        (
            _sides("strides", "out", "(1, 2)", "(2, 1)", "strides of out"),
            RETURN_VIEW,
            "strides of a result of `t` is (2, 1), not (1, 2)",
        ),
        (raises(FAILED), SINE, "`sin` raises OpError: no such op"),
        (
            raises("RuntimeError: no", "backward"),
            LOST_THROUGH_EXPAND,
            "the backward of `expand` and a write raises RuntimeError: no",
        ),
        (
            _sides("errors", "call", "a.IndexError: no", "no exception", "the call"),
            SINE,
            "`sin`: no exception where eager raises IndexError: no",
        ),
        (
            buckets.death("crash", "killed by SIGSEGV", ""),
            SINE,
            "`sin` takes the process down (killed by SIGSEGV)",
        ),
        (buckets.death("timeout", "10 s", ""), LOST_THROUGH_EXPAND, "`expand` and a write do not return"),
        (
            wrong("repeat", "call 2: values: out", "in call 2, out at element 0"),
            SINE,
            "in call 2: a result of `sin` has wrong elements",
        ),
        (
            wrong("refusals", "values: out", "after the refused call, in eager: out at element 0"),
            SINE,
            "after a refused call: a result of `sin` has wrong elements",
        ),
    ],
)
def test_a_finding_is_said_in_words(finding: Finding, given: Program, text: str) -> None:
    assert headline(finding, given) == text


def test_a_stranger_s_text_stays_on_one_line_and_short() -> None:
    text = headline(raises("Error: \x1b[2J" + "x" * 1000 + "\nsecond"), SINE)
    assert len(text) < 120 and text.isprintable()


def test_many_operators_are_counted() -> None:
    names = ("t", "sum", "clone", "cumsum", "relu")
    many = program(*(call(name, "a0", to=f"v{n}") for n, name in enumerate(names)), returns=Ref("v0"))
    assert headline(wrong(), many).startswith("a result of `t`, `sum`, `clone` and ")
