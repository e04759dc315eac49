"""Backends of torch.compile as targets: by name, by function, on the command line, and in scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz import Target
from fuzz.cli import main
from fuzz.errors import TargetError
from fuzz.execute.case import execute
from fuzz.repro import script as repro_script
from fuzz.targets.catalog import find_target, usable_targets
from oracles import Finding
from tests.support.fuzz.outcomes import exit_status
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, SINE


@pytest.fixture(autouse=True)
def dynamo_as_it_was() -> Iterator[None]:
    import torch._dynamo
    import torch._functorch.config

    before = torch._dynamo.config.suppress_errors, torch._functorch.config.enable_autograd_cache
    yield
    torch._dynamo.config.suppress_errors, torch._functorch.config.enable_autograd_cache = before
    torch._dynamo.reset()


def _run_as_captured(module: torch.fx.GraphModule, _example_inputs: object) -> Callable[..., Any]:
    return module.forward


def _without_writes(module: torch.fx.GraphModule, _example_inputs: object) -> Callable[..., Any]:
    """A backend that forgets to write to its inputs."""
    return lambda *inputs: module(*(one.clone() for one in inputs))


def test_a_target_of_a_backend_loads_nothing_when_it_is_made() -> None:
    target = Target.from_backend("openvino", lacks=("complex",))
    assert (target.name, target.controls, target.in_pieces) == ("openvino", ("torch-dynamo",), True)
    assert target.lacks == ("complex",)
    assert "openvino" not in sys.modules


def test_a_target_of_a_backend_has_its_controls_and_is_made_ready() -> None:
    seen: list[str] = []

    def backend(module: torch.fx.GraphModule, _example_inputs: object) -> Callable[..., Any]:
        seen.append("compiled")
        return module.forward

    torch._dynamo.config.suppress_errors = True
    target = Target.from_backend(
        backend,
        aot=True,
        prepare=lambda: seen.append("ready"),
        reset=lambda: seen.append("reset"),
        exact=True,
    )
    assert (target.name, target.controls) == ("backend", ("torch-dynamo", "torch-aot-eager"))
    target.prepare()
    assert seen == ["ready", "compiled", "reset"]
    assert not torch._dynamo.config.suppress_errors
    assert execute(SINE, target).outcome == "agree"


def test_a_backend_that_fails_on_a_toy_is_made_ready_all_the_same() -> None:
    def fails(_module: torch.fx.GraphModule, _example_inputs: object) -> Callable[..., Any]:
        raise ValueError("cannot do that")

    target = Target.from_backend(fails)
    target.prepare()
    result = execute(SINE, target)
    assert (result.outcome, result.findings[0].clause) == ("finding", "errors")


def test_what_a_backend_gets_wrong_is_a_finding_and_what_dynamo_does_is_not() -> None:
    target = Target.from_backend(_without_writes)
    target.prepare()
    result = execute(DOUBLE_IN_PLACE, target)
    assert (result.outcome, result.findings[0].clause) == ("finding", "input-data")
    assert execute(DOUBLE_IN_PLACE, Target.from_backend(_run_as_captured)).outcome == "agree"


@pytest.mark.parametrize("backend", ["", 3])
def test_what_is_no_backend_is_said(backend: Any) -> None:
    with pytest.raises(TargetError, match="a backend is a name or a function of a GraphModule"):
        Target.from_backend(backend)


def test_a_name_that_dynamo_does_not_know_is_unavailable() -> None:
    reason = Target.from_backend("no_such").available()
    assert reason is not None and reason.startswith("Dynamo has no backend 'no_such'; it has ")
    assert Target.from_backend("eager").available() is None


def test_dynamos_backends_are_targets_by_name() -> None:
    (target,) = usable_targets(["backend:aot_eager"])
    assert (target.name, target.controls) == ("backend:aot_eager", ("torch-dynamo", "torch-aot-eager"))
    assert find_target("backend:eager").controls == ("torch-dynamo",)
    target.prepare()
    assert execute(DOUBLE_IN_PLACE, target).outcome == "agree"
    text = repro_script.repro_script(
        SINE, "backend:aot_eager", Finding("values", "out", "1", "2", "seen once")
    )
    assert "torch.compile(f, backend='aot_eager')" in text
    assert exit_status(text) == 0
    with pytest.raises(
        TargetError, match=r"'backend:no_such': Dynamo has no such backend; it has .*aot_eager"
    ):
        find_target("backend:no_such")


def test_a_module_of_ones_own_may_be_called_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backend.py").write_text("def compile(function):\n    return function\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    try:
        assert find_target("backend:compile").compile(len) is len
    finally:
        sys.modules.pop("backend", None)


def test_the_list_of_targets_says_how_a_backend_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    assert "backend:NAME " in capsys.readouterr().out
    assert main(["targets", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["targets"]]
    assert names.index("torch-inductor-dynamic") == names.index("torch-inductor") + 1
    assert find_target("torch-inductor-dynamic").controls == (
        "torch-dynamo",
        "torch-aot-eager",
        "torch-inductor",
    )
