"""Clauses that a target promises, or that a campaign judges: no other one counts."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuzz import Target
from fuzz.campaign.configuration import Configuration, from_json, to_json
from fuzz.campaign.workers import handlers
from fuzz.cli import _command_line_parser, main
from fuzz.commands.campaigns import _campaign_configuration
from fuzz.errors import ConfigurationError, TargetError
from fuzz.execute.case import as_promised, execute
from fuzz.ir.nodes import Backward, Program, Ref, Scenario, Storage
from fuzz.targets.catalog import find_target
from fuzz.targets.clause_sets import CLAUSE_SETS, clauses_of
from fuzz.targets.plugins import load
from oracles import CLAUSES, Finding, is_judged
from tests.support.fuzz.small_programs import (
    DOUBLE_IN_PLACE,
    SINE,
    SINE_OF_ANOTHER_SIZE,
    SQUARE_OF_LEAF,
    call,
    program,
)

Function = Callable[..., Any]

misspelt = Target("misspelt", "", lambda function: function, clauses=("valeus",))


def _target(compile_function: Callable[[Function], Function], *clauses: str) -> Target:
    return Target("here", "", compile_function, clauses=clauses)


def _without_history(function: Function) -> Function:
    """An inference runtime: what it returns has no history, and a backward raises."""

    def run(*args: Any) -> Any:
        with torch.no_grad():
            return function(*args)

    return run


def test_the_sets_are_nested_and_in_the_order_of_the_contract() -> None:
    sets = list(CLAUSE_SETS.values())
    assert sets[0] == CLAUSES
    assert all(set(narrow) < set(wide) for wide, narrow in itertools.pairwise(sets) if wide != sets[1])
    assert all(clauses_of((name,)) == clauses for name, clauses in CLAUSE_SETS.items())
    assert set(CLAUSE_SETS["training"]) - set(CLAUSE_SETS["inference"]) == {"gradients", "autograd-metadata"}


def test_clauses_are_chosen_by_name_and_set() -> None:
    assert clauses_of(("values", "results"), ("repeat", "results")) == ()
    assert clauses_of(("strides", "values")) == ("values", "strides")
    with pytest.raises(TargetError, match="'valeus' is neither a set of clauses"):
        clauses_of(("valeus",))
    with pytest.raises(TargetError, match=r"target 'tests.*:misspelt' promises what is no clause: 'valeus'"):
        load(f"{__name__}:misspelt")


def test_an_error_in_a_backward_is_judged_where_gradients_are() -> None:
    finding = Finding("errors", "backward from out[0]", "no exception", "RuntimeError: no", "it raises")
    assert is_judged(finding, CLAUSES)
    assert not is_judged(finding, CLAUSE_SETS["inference"])
    assert is_judged(replace(finding, path="call"), CLAUSE_SETS["inference"])


def test_a_program_is_called_as_the_target_promises() -> None:
    both = replace(
        SINE_OF_ANOTHER_SIZE, scenario=Scenario(differentiate=(0,), steps=(Backward(),), threads=True)
    )
    assert as_promised(both, find_target("eager")) == both
    judged = as_promised(both, _target(len, "inference"))
    assert judged.scenario == Scenario(grad=False, threads=True)
    assert judged.later[0].scenario == Scenario(grad=False)
    narrow = as_promised(both, _target(len, "values", "gradients"))
    assert (narrow.later, narrow.scenario) == ((), replace(both.scenario, threads=False))


def test_a_program_that_needs_a_gradient_is_lacking_where_none_is_promised() -> None:
    retained = program(
        call("sin", "a0", to="v0"),
        call("retain_grad", "v0"),
        returns=Ref("v0"),
        storage=Storage("float32", (3,), 1, requires_grad=True),
    )
    assert execute(retained, find_target("eager")).outcome == "agree"
    result = execute(retained, _target(_without_history, "inference"))
    assert (result.outcome, result.reason) == ("refused", "lacks gradients")


@pytest.mark.parametrize("given", [SINE, SQUARE_OF_LEAF, DOUBLE_IN_PLACE, SINE_OF_ANOTHER_SIZE])
def test_a_runtime_for_inference_differs_in_nothing_that_it_promises(given: Program) -> None:
    assert execute(given, _target(_without_history, "inference")).outcome == "agree"


def test_what_stands_behind_a_clause_that_is_not_judged_is_seen() -> None:
    def wrong(function: Function) -> Function:
        return lambda *args: [function(*args).detach().mul(2)]

    found = {
        clauses: execute(SQUARE_OF_LEAF, _target(wrong, *clauses)).findings
        for clauses in (("everything",), ("values",), ("gradients",), ("threads",))
    }
    assert {name[0]: [one.clause for one in findings][:1] for name, findings in found.items()} == {
        "everything": ["structure"],
        "values": [],  # where the trees differ, nothing in them can be compared
        "gradients": [],
        "threads": [],
    }
    for clauses, outcome in ((("gradients",), "agree"), (("gradients", "autograd-metadata"), "finding")):
        assert execute(SQUARE_OF_LEAF, _target(detaching, *clauses)).outcome == outcome


def test_a_target_that_raises_proves_nothing_where_errors_are_not_judged() -> None:
    def fails(_function: Function) -> Function:
        raise ValueError("cannot do that")

    result = execute(SINE, _target(fails, "values", "gradients"))
    assert (result.outcome, result.findings) == ("poisoned", ())
    assert result.reason == "not judged: no exception in eager, ValueError: cannot do that in the target"


def test_a_campaign_judges_what_is_chosen_of_what_is_promised() -> None:
    item = handlers.program_item(SQUARE_OF_LEAF, f"{__name__}:detaching")
    assert [one["clause"] for one in handlers.handle_item(item)["findings"]] == ["autograd-metadata"]
    for clauses, outcome in ((("values", "gradients"), "agree"), (clauses_of(("training",)), "finding")):
        item = handlers.program_item(SQUARE_OF_LEAF, f"{__name__}:detaching", clauses)
        assert handlers.handle_item(item)["outcome"] == outcome


def detaching(function: Function) -> Function:
    return lambda *args: function(*args).detach()


def _options(*words: str) -> argparse.Namespace:
    return _command_line_parser().parse_args(["run", "--target", "eager", *words])


def test_a_campaigns_clauses_are_in_its_configuration() -> None:
    assert _campaign_configuration(_options()).clauses == ()
    configuration = _campaign_configuration(_options("--clauses", "results, strides", "--without", "errors"))
    assert configuration.clauses[:3] == ("structure", "values", "strides")
    assert from_json(to_json(configuration)) == configuration
    earlier = to_json(Configuration(("eager",)))
    del earlier["clauses"]
    assert from_json(earlier) == Configuration(("eager",))
    with pytest.raises(ConfigurationError, match="promises none of the clauses that are to be judged"):
        _campaign_configuration(_options("--clauses", "values", "--without", "values"))


def test_a_clause_that_is_none_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--target", "eager", "--clauses", "valeus"]) == 2
    assert "'valeus' is neither a set of clauses (everything, torch.compile, " in capsys.readouterr().err
