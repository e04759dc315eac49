"""Names, logs, settings, and where the nodes of graphs come from."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import aot
from aot import errors


@pytest.fixture(autouse=True)
def fresh_names() -> Iterator[None]:
    yield
    aot.set_model_name("model")


def test_each_graph_has_a_name_while_it_is_compiled() -> None:
    seen = []

    def compiler(module: fx.GraphModule, example_inputs: Any) -> Any:
        seen.append((aot.get_aot_compilation_context(), aot.get_aot_graph_name()))
        return module

    aot.set_model_name("net")
    compiled = aot.aot_function(lambda x: x.sin() * x, compiler)
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    compiled(torch.ones(2))
    ((forward, model, first), name), ((backward, _, second), _), ((inference, _, third), _) = seen
    one = forward[0].split("_")[0]
    assert forward == [f"{one}_forward"] and backward == [f"{one}_backward"]
    assert inference == [f"{int(one) + 1}_inference"]
    assert (model, second, third) == ("net", first + 1, first + 2)
    assert name == f"net__{one}_forward_{first}"
    assert aot.get_aot_compilation_context()[0] == []


def test_a_compiler_that_raises_leaves_no_name() -> None:
    def compiler(module: fx.GraphModule, example_inputs: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        aot.aot_function(torch.sin, compiler)(torch.ones(2))
    assert aot.get_aot_compilation_context()[0] == []


FACTOR = [2.0]


def test_loggers_tell_each_stage(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("graphs", "joint", "wrapper", "guards"):
        caplog.set_level(logging.DEBUG, f"aot.{name}")

    def scaled(x: Tensor) -> Tensor:
        return x.cos() * FACTOR[0]

    compiled = aot.aot_function(scaled, aot.nop)
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    by_logger: dict[str, list[str]] = {}
    for record in caplog.records:
        by_logger.setdefault(record.name, []).append(record.getMessage())
    forward, backward = by_logger["aot.graphs"]
    assert "_forward_" in forward and "aten.cos" in forward and "_backward_" in backward
    (joint,) = by_logger["aot.joint"]
    assert "tangents_1" in joint and "aten.cos" in joint
    assert any("def call(" in wrapper for wrapper in by_logger["aot.wrapper"])
    (guards,) = by_logger["aot.guards"]
    assert guards.startswith("scaled: specialization 1") and "FACTOR" in guards
    caplog.clear()
    FACTOR[0] = 3.0
    compiled(torch.ones(2, requires_grad=True))
    FACTOR[0] = 2.0
    assert any("changed: " in record.getMessage() for record in caplog.records if record.name == "aot.guards")


def test_a_process_has_logs_by_its_environment_and_what_symbols_need_when_there_are_some() -> None:
    script = (
        "import sys, torch, aot; before = 'sympy' in sys.modules\n"
        "aot.aot_function(torch.sin, aot.nop, dynamic=True)(torch.ones(2))\n"
        "print(before, 'sympy' in sys.modules)"
    )
    environment = {**os.environ, "AOT_LOGS": "graphs,nothing"}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert "aten.sin" in run.stderr and "there is no 'nothing'" in run.stderr and "def call" not in run.stderr
    assert run.stdout.split() == ["False", "True"]


def test_settings_last_as_long_as_their_block() -> None:
    with aot.config.patch(warn_after=2) as settings:
        assert settings is aot.config.settings() and settings.warn_after == 2
        factor = [1.0]
        compiled = aot.aot_function(lambda x: x * factor[0], aot.nop)
        compiled(torch.ones(2))
        factor[0] = 2.0
        with pytest.warns(errors.RecompileWarning, match="2 times"):
            compiled(torch.ones(2))
    assert aot.config.settings().warn_after == 8
    with (
        pytest.raises(errors.UnsupportedOption, match="there is no setting 'nothing'"),
        aot.config.patch(nothing=1),
    ):
        pass


@pytest.mark.parametrize("option", ["fw_compiler", "bw_compiler", "inference_compiler"])
def test_the_name_of_a_compiler_is_refused_with_what_to_give(option: str) -> None:
    given: dict[str, Any] = {"fw_compiler": aot.nop, option: "inductor"}
    with pytest.raises(
        errors.UnsupportedOption, match=f"^{option} is 'inductor'.*GraphModule.*lookup_backend"
    ):
        aot.aot_function(torch.sin, **given)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x) * 2
        return result


def sources(graph: fx.GraphModule, name: str) -> list[tuple[str, list[str]]]:
    """The last line and the modules of each node that calls an operation of that name."""
    return [
        (
            node.meta["stack_trace"].strip().splitlines()[-1].strip(),
            [n for n, _ in node.meta["nn_module_stack"].values()],
        )
        for node in graph.graph.nodes
        if name in str(node.target) and "nn_module_stack" in node.meta
    ]


def test_nodes_tell_lines_and_modules_forward_and_backward() -> None:
    with aot.config.patch(stack_traces=True):
        compiled = aot.aot_module(Net(), aot.nop)
        compiled(torch.ones(1, 2)).sum().backward()
    (specialization,) = compiled.compiled.specializations
    line = "result: Tensor = self.inner(x) * 2"
    assert sources(specialization.forward, "aten.tanh.") == [(line, ["", "inner", "inner.1"])]
    assert (line, [""]) in sources(specialization.forward, "aten.mul")
    (backward,) = specialization.backwards
    assert sources(backward, "tanh_backward") == [(line, ["", "inner", "inner.1"])]
    assert (line, ["", "inner", "inner.0"]) in sources(backward, "aten.mm")


def test_nodes_tell_what_a_front_end_says_of_its_graph() -> None:
    graph = fx.symbolic_trace(Net())
    for node in graph.graph.nodes:
        node.meta["stack_trace"] = f"line of {node.name}"
    with aot.config.patch(stack_traces=True):
        forward = aot.aot_module_simplified(graph, [torch.ones(1, 2)], aot.nop)
    (specialization,) = forward.compiled.specializations
    assert [line for line, _ in sources(specialization.forward, "aten.tanh")] == ["line of inner_1"]


def test_nothing_is_noted_unless_it_is_asked_for() -> None:
    compiled = aot.aot_function(torch.sin, aot.nop)
    compiled(torch.ones(2))
    (specialization,) = compiled.specializations
    assert not any("stack_trace" in node.meta for node in specialization.forward.graph.nodes)
