"""Buckets: the same bug has one key, another bug has another, and no key holds a number by chance."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz.corpus import buckets
from fuzz.program.decode import (
    Autocast,
    Loop,
    Program,
    Ref,
    Region,
    Root,
    Scalar,
    Scenario,
    Storage,
    View,
    Write,
)
from oracles import CLAUSES, Backward, Finding
from tests.support.fuzz.small_programs import (
    DOUBLE_IN_PLACE,
    DUPLICATE,
    LOST_IN_SCALAR,
    SINE,
    SQUARE_AND_THEN_IN_TWO_THREADS,
    SQUARE_IN_TWO_THREADS,
    TWO_MUTATED_ALIASES,
    call,
    program,
)


def _finding(clause: str, path: str, what: str, eager: str = "1", target: str = "2") -> Finding:
    return Finding(clause, path, eager, target, f"{what}: {eager} in eager, {target} in the target")


def test_every_clause_has_its_place_in_the_order() -> None:
    assert sorted(buckets.PRECEDENCE) == sorted(CLAUSES)


def test_a_lost_write_explains_a_wrong_gradient() -> None:
    gradient = _finding("gradients", "grad of arg[0]", "grad of arg[0] at element (0,) first")
    data = _finding("input-data", "arg[0]", "arg[0] at element (0,) first")
    assert buckets.primary_finding([gradient, data]) is data
    assert buckets.signature([gradient, data]) == buckets.signature([data, gradient])


@pytest.mark.parametrize(
    ("finding", "signature"),
    [
        (
            _finding("values", "out[0]['k']", "out[0]['k'] at element (1, 2) first, 3 of 6 elements differ"),
            "values/out elements",
        ),
        (
            _finding("values", "out", "out at the element first, 1 of 1 elements differ"),
            "values/out elements",
        ),
        (_finding("values", "out[1]", "shape of out[1]", "(2, 3)", "(3, 2)"), "values/shape of out"),
        (_finding("strides", "out", "strides of out", "(3, 1)", "(1, 3)"), "strides/strides of out"),
        (
            _finding("gradients", "grad of arg[0]", "grad of arg[0]", "None", "a tensor float32[3]"),
            "gradients/grad of arg None, not a tensor",
        ),
        (
            _finding(
                "gradients", "grad of arg[0]", "grad of arg[0]", "a tensor float32[2]", "a tensor float32[3]"
            ),
            "gradients/grad of arg",
        ),
        (
            _finding("autograd-metadata", "out[2]", "requires_grad of out[2]", "True", "False"),
            "autograd-metadata/requires_grad of out True, not False",
        ),
        (
            _finding(
                "errors",
                "call",
                "the call",
                "no exception",
                "RuntimeError: shape '[2, 3]' is invalid for input of size 4",
            ),
            "errors/call: RuntimeError shape is invalid for input of size",
        ),
        (
            _finding("repeat", "call 2: values: out", "in call 2, out at element (0,) first"),
            "repeat/out elements",
        ),
        (
            _finding(
                "threads",
                "call 1: values: out",
                "in call 1 of some in threads, out at element (0,) first",
            ),
            "threads/out elements",
        ),
        (
            _finding("errors", "backward from out[0], arg[1]", "", "ValueError: no", "no exception"),
            "errors/backward: nothing instead of ValueError no",
        ),
        (
            _finding("errors", "call", "", "ValueError: no", "torch.Error: yes (1, (2, 3)) at 0x7f"),
            "errors/call: torch.Error yes at instead of ValueError",
        ),
    ],
)
def test_a_signature_says_what_differs_and_where_without_numbers(finding: Finding, signature: str) -> None:
    assert buckets.signature([finding]) == signature


def test_sizes_seeds_and_constants_make_no_other_bucket() -> None:
    finding = _finding("input-data", "arg[0]", "arg[0] at element (0,) first")
    other = program(
        call("mul_number_", "a0", value=3.0), returns=Ref("a0"), storage=Storage("float32", (4,), 9)
    )
    assert buckets.bucket([finding], DOUBLE_IN_PLACE) == buckets.bucket([finding], other)
    assert buckets.bucket([finding], other) == "input-data/arg elements/in-place/a"


def _variants() -> list[Program]:
    base = DOUBLE_IN_PLACE
    view = View(0, (3,), (1,), 1)
    return [
        base,
        LOST_IN_SCALAR,
        replace(base, scenario=Scenario(grad=False)),
        replace(base, storages=(Storage("float32", (2, 3), 1, requires_grad=True, leaf=False),)),
        replace(base, storages=(Storage("float32", (0, 3), 1),)),
        replace(base, arguments=(view,)),
        replace(base, arguments=(replace(view, via="detach"),)),
        replace(base, arguments=(Root(0), view), parameters=(Ref("a0"), Ref("a1"))),
        *(
            replace(base, statements=(replace(base.statements[0], block=0),), blocks=(block,))
            for block in (Region("no_grad"), Autocast("bfloat16"), Loop(2))
        ),
        replace(base, statements=(*base.statements, *base.statements)),
        program(call("t_", "a0")),
        program(call("squeeze_", "a0")),
        DUPLICATE,
        TWO_MUTATED_ALIASES,
    ]


def test_another_program_makes_another_bucket() -> None:
    finding = _finding("input-data", "arg[0]", "arg[0] at element (0,) first")
    keys = [buckets.bucket([finding], variant) for variant in _variants()]
    assert len(set(keys)) == len(keys), keys


def test_arguments_are_written_by_how_they_alias() -> None:
    storages = (Storage("float64", (), 1), Storage("float32", (2,), 1, requires_grad=True, leaf=False))
    made = Program(
        storages,
        (View(1, (1,), (1,), 0, via="data"), Root(1), Root(0), Scalar(2)),
        (Ref("a0"), Ref("a1"), Ref("a2"), Ref("a3")),
        (),
        Ref("a0"),
    )
    assert buckets.bucket_arguments(made) == "a:grad:nonleaf~data a b:float64:0d"
    assert buckets.bucket_arguments(DUPLICATE) == "a:grad ="


def test_how_calls_are_made_is_written() -> None:
    assert buckets.ingredients(SINE) == "pointwise/a"
    assert buckets.ingredients(SQUARE_IN_TWO_THREADS) == "pointwise/a:grad two threads"
    assert buckets.ingredients(SQUARE_AND_THEN_IN_TWO_THREADS) == "pointwise/a:grad | a:grad two threads"
    steps = Scenario(grad=False, steps=(Write("a0"), Backward(how="plain")), threads=True)
    words = "pointwise/a no-grad, two threads, write argument, plain"
    assert buckets.ingredients(replace(SINE, scenario=steps)) == words


def test_a_death_is_an_error_whose_signature_is_its_cause() -> None:
    stack = 'Current thread (most recent call first):\n  File "/x/y/graph.py", line 7 in backward\n'
    crash = buckets.death("crash", "killed by SIGSEGV", stack)
    assert "graph.py:backward" in crash.message
    assert buckets.signature([crash]) == "errors/call: crash, killed by SIGSEGV"
    assert (
        buckets.signature([buckets.death("timeout", "over the time limit of 3 s", "")])
        == "errors/call: timeout"
    )


@pytest.mark.parametrize("path", ["state.cache[2]", "state.optimizer.state[0]", "state.calls"])
def test_a_signature_says_which_field_is_left_changed_and_not_how(path: str) -> None:
    message = f"{path}: NoneType None before the refused call, dict with keys ['step'] after it"
    found = Finding("refusals", path, "NoneType None", "dict with keys ['step']", message)
    assert buckets.signature([found]) == f"refusals/{path.partition('[')[0]}"
