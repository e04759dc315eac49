"""Replaying graphs: the same in every process, and what changes is found and shown."""

from __future__ import annotations

import json
import types
from pathlib import Path

import pytest
import torch

import aot
from bench.__main__ import main
from bench.compiler import call_overhead, replay_graphs
from bench.compiler.generated_code import GUARDS, PARTS, CodeRecorder, normalize, watch_sources
from bench.compiler.replay_graphs import Change, find_changes
from bench.fuzzer.cases import forked

ONE = "call inference, 1 mutated input: aot"
FEW = ("--cases", "6", "--only", f"^program|^{ONE}$|^operator mul$")


@pytest.fixture(scope="module")
def before(forkable: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what a few cases have left."""
    folder = tmp_path_factory.mktemp("before")
    kept = ("--output", str(folder / "before.json"), "--texts", str(folder / "texts"))
    assert main(["replay_graphs", *FEW, *kept]) == 0
    return folder


def compare(before: Path, *options: str) -> int:
    """The exit status of a comparison with that."""
    folders = ("--against", str(before / "before.json"), "--texts", str(before / "texts"))
    return main(["replay_graphs", *FEW, *folders, *options])


def test_where_nothing_differs_the_exit_status_is_0(
    before: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = json.loads((before / "before.json").read_text())
    assert len(digests) == 8
    assert {part for parts in digests.values() for part in parts} == set(PARTS)
    monkeypatch.setattr(replay_graphs, "replay", lambda *_: digests)
    assert compare(before) == 0
    assert f"0 differ from {before / 'before.json'}" in capsys.readouterr().out


def test_a_case_that_is_compiled_otherwise_is_the_only_one_that_differs(
    before: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are the same in another process, beside others."""

    def compile_otherwise(
        case: call_overhead.Case, stubs: call_overhead.Stubs, _: str
    ) -> call_overhead.Function:
        return aot.aot_function(case.function, stubs, keep_inference_input_mutations=True)

    monkeypatch.setitem(call_overhead.COMPILERS, "aot", compile_otherwise)
    assert compare(before, "--json", "--jobs", "2") == 1
    counts, differ = json.loads(capsys.readouterr().out)["tables"]
    assert counts["notes"][0].endswith(f"1 differ from {before / 'before.json'}")
    assert {part for part, _, changed in counts["rows"] if changed} == {
        "graphs",
        "joint",
        "metadata",
        "wrapper",
    }
    ((case, parts),) = differ["rows"]
    assert (case, sorted(parts.split(", "))) == (ONE, ["graphs", "joint", "metadata", "wrapper"])
    (metadata,) = (note for note in differ["notes"] if note.startswith(f"{ONE}: metadata"))
    assert "\n-input 0: mutated out of graph" in metadata
    assert "\n+input 0: mutated in graph" in metadata


def test_a_case_that_one_side_lacks_differs() -> None:
    assert find_changes({"a": {"graphs": "1"}}, {"b": {"graphs": "1"}}) == [
        Change("a", "graphs", "1", ""),
        Change("b", "graphs", "", "1"),
    ]


def test_tests_of_guards_and_of_the_inline_cache_are_recorded_each_time() -> None:
    # (Generated tests are kept by their text: one of this name is no other test's.)
    settings = types.SimpleNamespace(rate_of_replayed_guards=2.0)

    def record(given: object) -> list[str]:
        watch_sources()
        texts = []
        for _turn in range(2):
            with CodeRecorder() as recorder:
                compiled = aot.aot_function(lambda x: x * settings.rate_of_replayed_guards, aot.nop)
                for _call in range(3):
                    compiled(torch.ones(2))
            texts.append(recorder.texts()[GUARDS])
        return texts

    (first, second), _, _ = forked(record)  # as a process is watched for good
    assert first.count("def ") == 2
    assert second == first


def test_names_of_modules_addresses_and_folders_make_no_difference() -> None:
    module = type(aot.config.settings()).__module__  # a public one, and one that is not
    internal = aot.CompiledFunction.__module__
    text = (
        f"<{internal}.CompiledFunction object at 0x7fd000001234> {internal.replace('.', '_')}_run {module}.a"
    )
    assert normalize(text) == f"<aot.CompiledFunction object at 0x> aot.run {module}.a"
    assert normalize(f"{Path(torch.__file__).parents[1]}/torch/a.py") == "torch/a.py"
    assert (
        normalize("v12 = torch.ops.aot_rng.draw(aot.nop, 0x1p-1)")
        == "v12 = torch.ops.aot_rng.draw(aot.nop, 0x1p-1)"
    )
