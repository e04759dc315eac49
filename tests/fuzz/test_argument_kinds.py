"""Arguments that are lazily conjugated, leaves taken without grad, views of several bases: printed, followed,
changed in later calls, and made plainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_programs import call

from fuzz import buckets
from fuzz.features import features
from fuzz.ir import Call, Root, Scenario, Storage, View
from fuzz.program import Program, ProgramError, Ref, Seq, begin, check, from_json, to_json
from fuzz.reduce import reduce
from fuzz.source import load

ALL = View(0, (2, 2), (2, 1), 0)
ROW = View(0, (2,), (1,), 2)


def program(*arguments: View | Root, storage: Storage = Storage("float32", (2, 2), 1)) -> Program:
    names = tuple(Ref(f"a{i}") for i in range(len(arguments)))
    statements = (call("clone", "a0", to="v0"),)
    return Program((storage,), arguments, names, statements, Seq("tuple", (Ref("v0"), *names)))


COMPLEX = Storage("complex64", (2, 2), 1)
GRADED = Storage("float32", (2, 2), 1, requires_grad=True, leaf=False)
CASES = {
    "argument: lazily conjugated": program(replace(ALL, lazy="conj"), storage=COMPLEX),
    "argument: lazily negated": program(replace(ALL, lazy="neg")),
    "argument: leaf taken without grad": program(replace(ALL, via="no_grad", leaf=True), storage=GRADED),
    "argument: view of an alias": program(replace(ALL, base="detach"), storage=GRADED),
    "argument: its base detached since": program(ALL, storage=replace(GRADED, detached=True)),
    "alias: views of two bases": program(ALL, replace(ROW, base="data")),
    "repeat: other bases": replace(
        program(ALL, replace(ROW, base="detach")),
        later=(Call((Storage("float32", (2, 2), 1),), (ALL, ROW)),),
    ),
    "repeat: other bits": replace(
        program(ALL, storage=COMPLEX), later=(Call((COMPLEX,), (replace(ALL, lazy="conj"),)),)
    ),
}


@pytest.mark.parametrize("feature", CASES)
def test_it_survives_json_is_named_and_reduced(feature: str) -> None:
    case = CASES[feature]
    check(case)
    assert from_json(to_json(case)) == case
    assert feature in features(case)
    assert buckets.ingredients(case) != buckets.ingredients(program(ALL))
    assert reduce(case, lambda _: True).program.arguments in ((), (Root(0),))
    kept = reduce(case, lambda one: feature in features(one)).program
    assert not kept.statements


@pytest.mark.parametrize("feature", CASES)
def test_what_is_known_of_it_is_so(feature: str) -> None:
    case = CASES[feature]
    state = begin(case)
    args, leaves, _ = load(case).make()
    for i, real in enumerate(args):
        known = state.tensor(f"a{i}")
        assert (real.is_conj(), real.is_neg()) == (known.meta.conj, known.meta.neg)
        assert real.requires_grad == known.requires_grad
        assert real.is_leaf == (not known.grad_fn)
        assert (real._base is None) == (known.base is None)
        assert (f"a{i}" in leaves) == known.own
    bases = [state.tensor(f"a{i}").base for i in range(len(args))]
    assert (len({id(real._base) for real in args}) == 1) == (len(set(map(id, bases))) == 1)


def test_a_root_that_is_detached_since_leaves_histories() -> None:
    (view,), leaves, tensors = load(CASES["argument: its base detached since"]).make()
    assert view.requires_grad and not tensors["s0"].requires_grad
    (gradient,) = torch.autograd.grad(view.sum(), [leaves["leaf0"]])
    assert gradient.eq(1).all()


@pytest.mark.parametrize(
    ("argument", "changes", "where"),
    [
        (ALL, {"lazy": "conj"}, "arguments[0].lazy: float32 has no conj bit"),
        (ALL, {"lazy": "neg", "wrapped": "one"}, "arguments[0].wrapped: what is wrapped is a plain view"),
        (ALL, {"base": "data", "wrapped": "one"}, "arguments[0].wrapped: what is wrapped is a plain view"),
        (ALL, {"base": "other"}, "arguments[0].base: 'other' is not known"),
        (ALL, {"lazy": "later"}, "arguments[0].lazy: 'later' is not known"),
        (ALL, {"leaf": True}, "arguments[0].leaf: a float32 view via 'view' cannot be a leaf"),
    ],
)
def test_what_does_not_go_together_is_refused(argument: View, changes: dict[str, Any], where: str) -> None:
    document = to_json(program(argument))
    document["arguments"][0].update(changes)
    with pytest.raises(ProgramError) as refused:
        from_json(document)
    assert where in str(refused.value)


@pytest.mark.parametrize("changes", [{"leaf": True}, {"requires_grad": False}])
def test_what_has_no_history_is_not_detached(changes: dict[str, bool]) -> None:
    with pytest.raises(ProgramError, match=r"storages\[0\].detached: a root without a history"):
        check(program(ALL, storage=replace(GRADED, detached=True, **changes)))


def test_bases_are_made_once() -> None:
    case = program(replace(ALL, base="detach"), replace(ROW, base="detach"), replace(ROW, base="data"), ROW)
    (one, other, apart, plain), _, tensors = load(case).make()
    assert one._base is other._base is tensors["detach0"]
    assert apart._base is tensors["data0"] and plain._base is tensors["s0"]
    case = replace(case, scenario=Scenario(grad=False))
    assert len(set(map(id, (tensor.base for tensor in map(begin(case).tensor, ("a0", "a1")))))) == 1
