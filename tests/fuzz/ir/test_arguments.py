"""Arguments that are lazily conjugated, leaves taken without grad, views of several bases, inference tensors,
and calls under autocast: printed, followed, changed in later calls, and made plainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fuzz.corpus import buckets
from fuzz.execute.case import execute
from fuzz.features.program_features import features
from fuzz.ir.nodes import Call, Root, Scenario, Storage, View
from fuzz.program.decode import (
    Program,
    ProgramError,
    Ref,
    Seq,
    check,
    final_state,
    from_json,
    initial_state,
    to_json,
)
from fuzz.program.printer import load
from fuzz.reduce import reduce
from fuzz.repro import script as repro_script
from fuzz.targets.catalog import find_target
from tests.support.fuzz.small_programs import call

ALL = View(0, (2, 2), (2, 1), 0)
ROW = View(0, (2,), (1,), 2)


PLAIN = Storage("float32", (2, 2), 1)


def program(*arguments: View | Root, storage: Storage = PLAIN) -> Program:
    names = tuple(Ref(f"a{i}") for i in range(len(arguments)))
    statements = (call("clone", "a0", to="v0"),)
    return Program((storage,), arguments, names, statements, Seq("tuple", (Ref("v0"), *names)))


COMPLEX = Storage("complex64", (2, 2), 1)
GRADED = Storage("float32", (2, 2), 1, requires_grad=True, leaf=False)
CASES = {
    "argument: lazily conjugated": program(replace(ALL, lazy="conj"), storage=COMPLEX),
    "argument: lazily negated": program(replace(ALL, lazy="neg")),
    "argument: leaf taken without grad": program(replace(ALL, via="no_grad", leaf=True), storage=GRADED),
    "argument: multi": program(replace(ALL, via="multi"), storage=GRADED),
    "argument: view of an alias": program(replace(ALL, base="detach"), storage=GRADED),
    "argument: its base detached since": program(ALL, storage=replace(GRADED, detached=True)),
    "alias: views of two bases": program(ALL, replace(ROW, base="data")),
    "repeat: other bases": replace(
        program(ALL, replace(ROW, base="detach")),
        later=(Call((PLAIN,), (ALL, ROW)),),
    ),
    "argument: inference": program(ALL, storage=replace(PLAIN, inference=True)),
    "repeat: other inference": replace(
        program(ALL), later=(Call((replace(PLAIN, inference=True),), (ALL,)),)
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
    state = initial_state(case)
    args, leaves, _ = load(case).make()
    for i, real in enumerate(args):
        known = state.tensor(f"a{i}")
        assert (real.is_conj(), real.is_neg()) == (known.meta.conj, known.meta.neg)
        assert real.requires_grad == known.requires_grad
        assert real.is_leaf == (not known.grad_fn)
        assert (real._base is None) == (known.base is None or known.inference)
        assert real.is_inference() == known.inference
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
        (ALL, {"via": "multi", "size": [], "stride": []}, "arguments[0].via: nothing without dimensions"),
        (ALL, {"via": "multi", "leaf": True}, "arguments[0].leaf: a float32 view via 'multi'"),
        (ALL, {"leaf": True}, "arguments[0].leaf: a float32 view via 'view' cannot be a leaf"),
    ],
)
def test_what_does_not_go_together_is_refused(argument: View, changes: dict[str, Any], where: str) -> None:
    document = to_json(program(argument))
    document["arguments"][0].update(changes)
    with pytest.raises(ProgramError) as refused:
        from_json(document)
    assert where in str(refused.value)


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (replace(ALL, via="detach"), "via: what was made in inference mode is detached outside"),
        (replace(ALL, base="data"), "via: what was made in inference mode is detached outside"),
        (replace(ALL, via="no_grad", leaf=True), "leaf: a tensor made in inference mode cannot be that"),
        (replace(ALL, wrapped="one"), "wrapped: a tensor made in inference mode cannot be that"),
    ],
)
def test_what_is_made_of_inference_tensors_is_no_argument(view: View, reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        check(program(view, storage=replace(PLAIN, inference=True)))


CAST = Program(
    (PLAIN,),
    (Root(0),),
    (Ref("a0"),),
    (call("matmul", "a0", "a0", to="v0"), call("add", "v0", "v0", to="v1")),
    Ref("v1"),
    Scenario(autocast="bfloat16"),
)


def test_a_call_is_made_under_autocast() -> None:
    check(CAST)
    assert from_json(to_json(CAST)) == CAST
    assert "mode: autocast around" in features(CAST)
    assert buckets.ingredients(CAST).endswith("a autocast")
    assert final_state(CAST).tensor("v1").meta.dtype == "bfloat16"
    seen: list[torch.dtype] = []

    def compiled(function: Any) -> Any:
        return lambda *args: (seen.append((result := function(*args)).dtype), result)[1]

    target = replace(find_target("eager"), name="notes", compile=compiled)
    later = Call(CAST.storages, CAST.arguments)
    program = replace(CAST, later=(later, replace(later, scenario=Scenario(autocast="float16"))))
    assert execute(program, target).outcome == "agree"
    assert seen == [torch.bfloat16, torch.float32, torch.float16]
    assert "repeat: other autocast" in features(program)
    assert reduce(program, lambda _: True).program.scenario == Scenario()


def test_a_compiler_that_forgets_autocast_is_found() -> None:
    def compiled(function: Any) -> Any:
        def uncast(*args: Any) -> Any:
            with torch.autocast("cpu", enabled=False):
                return function(*args)

        return uncast

    result = execute(CAST, replace(find_target("eager"), name="forgets", compile=compiled))
    assert [finding.clause for finding in result.findings][:1] == ["values"]
    script = repro_script.repro_script(CAST, "torch-aot-eager", result.findings[0])
    assert 'with torch.autocast("cpu", dtype=torch.bfloat16):' in script
    compile(script, "script", "exec")


def test_a_call_under_another_autocast_is_refused() -> None:
    document = to_json(CAST)
    document["scenario"]["autocast"] = "float32"
    with pytest.raises(ProgramError, match="'float32' is not known here"):
        from_json(document)


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
    assert len(set(map(id, (tensor.base for tensor in map(initial_state(case).tensor, ("a0", "a1")))))) == 1
