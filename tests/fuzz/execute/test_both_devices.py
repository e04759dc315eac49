"""Programs that run on the CPU and on a GPU. Where there is none, a second name of the CPU stands for it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from fuzz.corpus import buckets
from fuzz.execute import call as call_module
from fuzz.execute import case as execute_module
from fuzz.execute.call import CallSpec
from fuzz.execute.case import execute
from fuzz.features.traits import traits
from fuzz.ir.nodes import BOTH, DEVICES, on_device
from fuzz.program import decode as program_module
from fuzz.program.decode import Autocast, Program, Ref, Scenario, from_json, split_calls, to_json
from fuzz.program.printer import load, render
from fuzz.reduce import reduce
from fuzz.repro import script
from fuzz.targets.catalog import find_target
from fuzz.targets.target import Target
from oracles import Finding, Observation
from tests.support.fuzz.outcomes import exit_status
from tests.support.fuzz.small_programs import (
    CUBE_TWICE,
    DOUBLE_IN_PLACE,
    DUPLICATE,
    RETURN_VIEW,
    SINE,
    SINE_OF_ANOTHER_SIZE,
    SQUARE_AND_THEN_IN_TWO_THREADS,
    SQUARE_OF_LEAF,
    call,
    program,
)

Function = Callable[..., Any]

PROGRAMS = [
    *(SINE, DOUBLE_IN_PLACE, RETURN_VIEW, DUPLICATE, SQUARE_OF_LEAF, CUBE_TWICE, SINE_OF_ANOTHER_SIZE),
    SQUARE_AND_THEN_IN_TWO_THREADS,
]
SUM = program(
    call("zeros", to="v0", size=(2, 3), dtype="float32"), call("add", "a0", "v0", to="v1"), returns=Ref("v1")
)
DRAWN = program(call("rand_like", "a0", to="v0"), returns=Ref("v0"))


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> str:
    """The device that stands for the GPU."""
    monkeypatch.setattr(execute_module, "DEVICES", ("cpu", "cpu:0"))
    monkeypatch.setattr(script, "DEVICES", ("cpu", "cpu:0"))
    monkeypatch.setattr(program_module, "_DEVICE", re.compile("cpu(:0)?|both"))
    return "cpu:0"


def _wrong_at(times: tuple[int, ...]) -> Function:
    """A compiler whose compilations of these numbers are wrong by one."""
    compiled = []

    def compiler(function: Function) -> Function:
        compiled.append(function)
        return (lambda *args: function(*args) + 1) if len(compiled) in times else function

    return compiler


def _both(one: Program, compiler: Function, name: str = "under test") -> Any:
    return execute(on_device(one, BOTH), Target(name, "", compiler))


@pytest.mark.parametrize("one", PROGRAMS)
def test_what_agrees_everywhere_agrees(one: Program, second: str) -> None:
    assert _both(one, lambda function: function).outcome == "agree"


def test_devices_are_taken_for_one_another(second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen_on: list[str] = []
    observed = call_module.run_and_observe

    def as_on_a_gpu(trial: CallSpec, *rest: Any, **named: Any) -> Observation:
        seen = observed(trial, *rest, **named)
        if second not in trial.make.__code__.co_consts:
            return seen
        states = tuple(dataclasses.replace(one, device=torch.device("cuda", 0)) for one in seen.states)
        seen_on.append("cuda")
        return dataclasses.replace(seen, states=states)

    monkeypatch.setattr(call_module, "run_and_observe", as_on_a_gpu)
    assert _both(SINE, lambda function: function).outcome == "agree"
    assert len(seen_on) == 3  # eager and the target by themselves, and the latter once more


@pytest.mark.parametrize("time", [1, 2, 3])
def test_each_device_is_judged_and_then_one_by_the_other(time: int, second: str) -> None:
    result = _both(SINE, _wrong_at((time,)))
    assert result.outcome == "finding"
    assert [finding.clause for finding in result.findings] == ["values"]
    assert _both(SINE, _wrong_at((4,))).outcome == "agree"


@pytest.mark.parametrize(
    ("eager", "name", "outcome"),
    [
        (lambda function: lambda *args: function(*args) + 1, "under test", "poisoned"),
        (lambda function: lambda *args: function(*args).t().contiguous().t(), "under test", "finding"),
        (lambda function: lambda *args: function(*args) + 1, "eager", "finding"),
    ],
)
def test_what_eager_does_otherwise_on_the_gpu_is_not_held_against_others(
    eager: Function, name: str, outcome: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute_module, "find_target", lambda _: Target("eager", "", eager))
    square = dataclasses.replace(SINE, storages=(dataclasses.replace(SINE.storages[0], size=(3, 3)),))
    result = _both(square, _wrong_at((3,)), name)
    assert result.outcome == outcome
    assert ("eager does it too" in result.reason) is (outcome == "poisoned")


def test_what_each_device_draws_for_itself_is_not_compared(second: str) -> None:
    result = _both(DRAWN, lambda function: function)
    assert (result.outcome, result.reason) == ("poisoned", "each device draws numbers of its own")


def test_a_script_runs_the_target_on_the_other_device(second: str) -> None:
    """A target that is wrong on one device alone is seen only there."""
    wrong = """
def wrong(f):
    return lambda *args: f(*args) + (device == "cpu:0")
"""
    finding = Finding("values", "out", "1", "2", "it was seen once")
    text = script.repro_script(on_device(SUM, BOTH), "eager", finding)
    assert exit_status(text) == 0
    text = text.replace("look(lambda *args: (f)", "look(lambda *args: (wrong(f))")
    assert exit_status(text.replace("\n\n\ndef f(", f"\n\n{wrong}\n\ndef f(")) == 1


def test_a_script_of_a_crash_runs_on_each_device(second: str) -> None:
    text = script.repro_script(on_device(SUM, BOTH), "eager", buckets.death("crash", "killed by SIGABRT", ""))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    ran: list[str] = []
    with contextlib.suppress(SystemExit):
        exec(compile(text.split("\nif sys.argv")[0], "repro.py", "exec"), namespace)
    namespace["run"](lambda x: ran.append(namespace["device"]))
    assert ran == ["cpu", "cpu:0"]


def test_the_text_leaves_the_device_open() -> None:
    text = render(on_device(dataclasses.replace(SUM, blocks=(Autocast("bfloat16", True),)), BOTH))
    assert 'device = "cpu"  # and cuda' in text
    assert "torch.zeros((2, 3), dtype=torch.float32, device=device)" in text
    loaded = load(on_device(SUM, BOTH))
    args, _, _ = loaded.make()
    assert torch.equal(loaded.f(*args), args[0])


def test_autocast_is_that_of_the_device() -> None:
    inside = dataclasses.replace(SUM.statements[1], block=0)
    cast = dataclasses.replace(
        SUM, statements=(SUM.statements[0], inside), blocks=(Autocast("bfloat16", True),)
    )
    for device, kind in (("cpu", '"cpu"'), ("cuda:1", '"cuda"'), (BOTH, "device")):
        assert f"with torch.autocast({kind}, dtype" in render(on_device(cast, device))


def test_it_is_stored_counted_and_reduced() -> None:
    both = on_device(SINE_OF_ANOTHER_SIZE, BOTH)
    assert from_json(json.loads(json.dumps(to_json(both)))) == both
    assert {"device: cpu", "device: cuda"} <= traits(both)
    assert Target("", "", lambda function: function, lacks=("cuda",)).lacking(both) == "cuda"
    assert reduce(both, lambda _: True).program.scenario == Scenario()
    for device in (*DEVICES, BOTH):
        kept = reduce(both, partial(_differs_on, device)).program
        assert {one.scenario.device for one in split_calls(kept)} == {device}


def _differs_on(device: str, one: Program) -> bool:
    return one.scenario.device in (device, BOTH) and bool(one.later)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["eager", "aot", "aot-min-cut"])
@pytest.mark.parametrize("one", PROGRAMS)
def test_on_a_cpu_and_a_gpu(one: Program, name: str) -> None:
    result = execute(on_device(one, BOTH), find_target(name))
    assert result.outcome == "agree", result.reason
