"""Compilers of other people: named, listed, in scripts; what torch has is run, what is not here says so."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fuzz.cli import main
from fuzz.errors import TargetError
from fuzz.execute.case import execute
from fuzz.repro import script as repro_script
from fuzz.targets.adapters import ADAPTED, adapter
from fuzz.targets.adapters.adapter import imports, requires
from fuzz.targets.adapters.flat_calls import compile_flat, put_tensors, take_tensors
from fuzz.targets.builtin_targets import SHIPPED
from fuzz.targets.catalog import find_target, usable_targets
from fuzz.targets.plugins import _check_plugin_capabilities
from oracles import Finding
from tests.support.fuzz.outcomes import exit_status
from tests.support.fuzz.small_programs import DOUBLE_IN_PLACE, SINE, SQUARE_OF_LEAF

OF_TORCH = ["torch-export", "torchscript-trace", "functorch-ts-compile", "functorch-memory-efficient-fusion"]
OF_OTHERS = [name for name in ADAPTED if name not in OF_TORCH]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", ADAPTED)
def test_an_adapter_has_its_name_and_promises_and_lacks_what_there_is(name: str) -> None:
    target = find_target(name)
    assert target.name == name and name not in SHIPPED
    _check_plugin_capabilities(target, name)
    assert {"errors", "values"} <= set(target.promised)
    for control in target.controls:
        find_target(control)


@pytest.mark.parametrize("name", OF_TORCH)
def test_what_torch_has_computes_values_and_has_a_script(name: str) -> None:
    target = find_target(name)
    target.prepare()
    assert execute(SINE, target).outcome == "agree"
    assert execute(SQUARE_OF_LEAF, target).outcome == "agree"
    assert execute(DOUBLE_IN_PLACE, target).outcome == "agree"
    text = repro_script.repro_script(SINE, name, Finding("values", "out", "1", "2", "it was seen once"))
    assert exit_status(text) == 0
    target.reset()


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_script_of_another_library_has_its_lines_and_nothing_is_imported(name: str) -> None:
    text = repro_script.repro_script(SINE, name, Finding("values", "out", "1", "2", "it was seen once"))
    assert adapter(name).setup in text and adapter(name).compiled in text
    compile(text, "script", "exec")
    assert "openvino" not in sys.modules


def test_a_library_that_is_not_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert requires("openvino", "json")() is None
    reason = "it needs no_such_module: pip install 'aotfuzz[openvino]'"
    assert requires("openvino", "json", "no_such_module")() == reason
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TargetError, match="target 'onnxruntime' cannot run here: it needs onnx, onnxscript"):
        usable_targets(["onnxruntime"])


def test_a_library_that_this_torch_breaks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_for_another_torch.py").write_text("import torch\ntorch.Tensor.no_such_method\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert imports("thunder", "json", "aotfuzz")() is None
    assert imports("thunder", "no_such_module", "aotfuzz")() == requires("thunder", "no_such_module")()
    reason = imports("thunder", "made_for_another_torch", "aotfuzz")()
    assert (
        reason is not None
        and f"cannot be imported beside torch {importlib.metadata.version('torch')}" in reason
    )
    assert "no_such_method" in reason and "made_for_another_torch" not in sys.modules


def test_adapters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["targets"]]
    assert set(ADAPTED) <= set(names)


def test_an_exporter_sees_tensors_alone_and_the_rest_stays_as_it_is() -> None:
    seen: list[tuple[torch.Tensor, ...]] = []

    def export(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.nn.Module:
        seen.append(arguments)
        module(*arguments)
        return module

    compiled = compile_flat(export)(lambda pair, x, number: {"sum": [pair[0] + x, number], "none": None})
    one = torch.ones(2)
    result = compiled((one, "text"), one, 3)
    assert result["sum"][0].tolist() == [2, 2] and result["sum"][1] == 3 and result["none"] is None
    assert len(seen[0]) == 2 and seen[0][0] is one


def test_trees_are_taken_apart_and_put_together() -> None:
    tree = (torch.zeros(1), {"a": [torch.ones(1), 2]}, torch.ones(2).max(0))
    found: list[torch.Tensor] = []
    shape = take_tensors(tree, found)
    assert len(found) == 4
    again = put_tensors(shape, found)
    assert type(again[2]) is type(tree[2]) and again[2][1].item() == 0
    assert again[1]["a"][0] is tree[1]["a"][0] and not found


def test_openvino_says_what_it_leaves_to_others() -> None:
    target = find_target("openvino")
    assert target.refusal(NotImplementedError("OpenVINO's backend falls back to Inductor")) is not None
    assert target.refusal(NotImplementedError("no")) is None
    assert target.arithmetic.of_double.eps == torch.finfo(torch.float32).eps


def test_executorch_and_thunder_decline_what_they_have_no_kernel_or_no_name_for() -> None:
    executorch, thunder = find_target("executorch"), find_target("thunder")
    assert executorch.refusal(RuntimeError("Failed to execute method forward, error: 0x14")) == "no kernel"
    assert executorch.refusal(RuntimeError("Failed to execute method forward, error: 0x12")) is None
    assert thunder.refusal(AttributeError("Unknown attribute t_")) == "not implemented"
    assert thunder.refusal(AttributeError("'int' object has no attribute 'shape'")) is None


def test_executorch_gets_tensors_that_lie_as_its_runtime_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exported = []

    class Loaded:
        def forward(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
            assert all(one.is_contiguous() and not one.is_neg() for one in given)
            return [one + 1 for one in given]

    exir, portable_lib = ModuleType("executorch.exir"), ModuleType("portable_lib")
    exir.to_edge = lambda program: (  # type: ignore[attr-defined]
        exported.append(program) or SimpleNamespace(to_executorch=lambda: SimpleNamespace(buffer=b""))
    )
    portable_lib._load_for_executorch_from_buffer = lambda buffer: Loaded()  # type: ignore[attr-defined]
    packages = ("executorch", "executorch.extension", "executorch.extension.pybindings")
    for name in packages:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "executorch.exir", exir)
    monkeypatch.setitem(sys.modules, f"{packages[-1]}.portable_lib", portable_lib)

    x, y = torch.zeros(2, 3).t(), torch._neg_view(torch.ones(2, 3))
    result = find_target("executorch").compile(lambda x, y: (x + 1, y + 1))(x, y)
    assert [one.tolist() for one in result] == [[[1, 1]] * 3, [[0, 0, 0]] * 2]
    assert len(exported) == 1 and not x.is_contiguous() and y.is_neg()
