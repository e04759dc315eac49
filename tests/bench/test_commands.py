"""The commands of `bench`: they run, and what they print is what was measured."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
import torch

from bench.__main__ import main
from bench.compiler import compile_time, inductor, scaling
from bench.compiler.call_overhead import Stubs
from bench.compiler.memory import Alive, usage
from bench.compiler.models import Model, transformer
from bench.timing import Spread, cells, interleaved
from fuzz.generate.profiles import PROFILES

BYTES = 4


def tables(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found: list[dict[str, Any]] = json.loads(line)["tables"]
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["resnet", "transformer"])
def test_min_cut_saves_no_more_than_default_stock_or_eager(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, peak, compiling = tables(capsys, "memory", "--small", "--model", model)
    assert saved["notes"] == []
    assert all(megabytes > 0 for megabytes in compiling["rows"][0][1:])
    columns = saved["columns"]
    assert columns[0] == "model"
    ((_, *numbers),) = saved["rows"]
    by_name = dict(zip(columns[1:], numbers, strict=True))
    assert 0 < by_name["aot min-cut"] == min(numbers)
    assert by_name["aot default"] <= by_name["eager"]
    assert all(p > s for p, s in zip(peak["rows"][0][1:], numbers, strict=True))


def test_partitioners_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    times, solvers, budgets = tables(capsys, "partition", "--small", "--model", "lstm")
    assert times["rows"][0][0] == solvers["rows"][0][0] == "lstm"
    saved = [row[1] for row in budgets["rows"]]
    recomputed = [row[3] for row in budgets["rows"]]
    assert saved == sorted(saved, reverse=True)
    assert recomputed == sorted(recomputed)
    assert saved[0] > saved[-1]


def test_a_table_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", "--small", "--model", "lstm"]) == 0
    assert "its minimum cut alone, ms of CPU time" in capsys.readouterr().out


def test_usage_is_what_a_step_keeps() -> None:
    """x is there anyway; the product is kept by exp's input being its own result, and the sum is the loss."""

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.w).exp()

    model = Model(Product(), (torch.ones(1000),), lambda result, _: result.sum())
    measured = usage(model, model.step)
    assert measured.saved == 1000 * BYTES
    assert measured.peak >= 2 * 1000 * BYTES


def test_views_are_counted_once_and_what_is_dropped_is_not() -> None:
    with Alive([]) as follower:
        kept = torch.ones(100)
        views = [kept[i:] for i in range(5)]
        torch.ones(1000)
        assert follower.alive() == 100 * BYTES
    assert follower.peak == 1100 * BYTES
    del kept, views
    assert follower.alive() == 0


@pytest.mark.nightly
def test_purity_counts_the_buckets_of_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    faults = ("--fault", "drops_mutation", "--fault", "leaks_grad_mode")
    found, shared = tables(capsys, "purity", "--cases", "25", "--jobs", "1", *faults)
    (name, findings, signatures, buckets, share), other = found["rows"]
    assert (name, other[0]) == ("drops_mutation", "leaks_grad_mode")
    assert findings >= buckets >= signatures > 0
    assert 0 < share <= 1
    assert shared["rows"] == [], "two different faults have no bucket in common"


def test_growth_is_timed_at_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["scale", "--sizes", "16", "8", "--program", "flat parameters, one written"]
    compiles, calls = tables(capsys, *arguments, "--compiler", "aot")
    assert compiles["columns"] == calls["columns"] == ["program", "8", "16"]
    ((name, *first),) = compiles["rows"]
    assert name == "flat parameters, one written: aot"
    ((_, *later),) = calls["rows"]
    assert all(ms > 0 for ms in first)
    assert all(0 < us < ms * 1e3 for us, ms in zip(later, first, strict=True))


def test_a_size_that_cannot_be_compiled_is_a_gap_with_a_note(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(function: object) -> object:
        raise ValueError("not this one")

    monkeypatch.setitem(scaling.COMPILERS, "stock", raising)
    compiles, _ = tables(capsys, "scale", "--sizes", "8", "--program", "slices, read", "--compiler", "stock")
    assert compiles["rows"] == [["slices, read: stock", None]]
    assert compiles["notes"] == ["slices, read: stock raises ValueError: not this one"]


def test_operators_and_modules_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["opinfo", "--only", "^(equal|addr|nn.Linear)$", "--samples", "1", "--list", "--target"]
    counted, unequal = tables(capsys, *arguments, "aot")
    by_variant = {row[0]: dict(zip(counted["columns"], row, strict=True)) for row in counted["rows"]}
    assert set(by_variant) == {"function", "no_grad", "in-place", "in-place plain", "training", "evaluation"}
    assert by_variant["function"]["equal"] == by_variant["function"]["refused"] == 1
    assert by_variant["training"]["equal"] == 1
    assert [row[:4] for row in unequal["rows"]] == [
        ["aot", "refused", "equal", "function"],
        ["aot", "refused", "equal", "no_grad"],
    ]


def test_wrong_targets_and_crashes_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    words = {}
    for target in ("copies_alias", "cannot_compile", "segfaults"):
        arguments = ["opinfo", "--only", "^(add|expand)$", "--samples", "12", "--variant", "function"]
        (counted,) = tables(capsys, *arguments, "--target", f"tests.fuzz.bad_targets:{target}")
        (row,) = counted["rows"]
        named = dict(zip(counted["columns"], row, strict=True))
        words[target] = {w for w in ("equal", "finding", "raises", "crashed") if named[w]}
    assert words["copies_alias"] == {"equal", "finding"}
    assert words["cannot_compile"] == {"raises"}
    assert "crashed" in words["segfaults"]


def named(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [(), ("--min-cut",)])
def test_compiling_is_timed_beside_stock(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--rounds", "2", "--program", "MLP", "20 aliased mutated inputs", "--chain", "110", "11")
    compiles, growth = tables(capsys, "compile", *arguments, *options)
    rows = named(compiles)
    names = ["MLP", "20 aliased mutated inputs", "chain of 11", "chain of 110"]
    assert [row["program"] for row in rows] == names
    targets = [0.1] * 4 if options else [0.2, 0.2, 0.2, 0.125]
    assert [row["target"] for row in rows] == targets
    for row in rows:
        assert row["met"] == ("yes" if row["ratio"] <= row["target"] else "no")
        for side in ("aot", "stock"):
            assert row[f"{side} 25 %"] <= row[side] <= row[f"{side} 75 %"]
    first, second = named(growth)
    assert (first["program"], second["program"]) == ("chain of 11", "chain of 110")
    assert first["aot, times that of the shortest"] == 1
    assert second["aot"] == pytest.approx(rows[3]["aot"] * 1e3 / 110)


def test_a_program_that_one_side_cannot_compile_is_a_gap_with_a_note(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*arguments: object, **options: object) -> object:
        raise ValueError("not this one")

    monkeypatch.setattr(compile_time.stock, "aot_function", raising)
    (compiles,) = tables(capsys, "compile", "--rounds", "1", "--program", "MLP", "--chain")
    (row,) = named(compiles)
    assert row["aot"] is not None
    assert (row["stock"], row["ratio"], row["met"]) == (None, None, None)
    assert compiles["notes"] == ["MLP: stock raises ValueError: not this one"]


def test_calls_are_timed_without_their_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    cases = (
        "inference, 10 mutated inputs",
        "training, 1 alias of an intermediate",
        "whole backward, 1 input",
    )
    (calls,) = tables(capsys, "calls", "--rounds", "2", "--calls", "3", "--case", *cases)
    assert calls["notes"] == []
    rows = named(calls)
    assert [row["call"] for row in rows] == list(cases)
    for row, target, other in zip(rows, (0.6, 0.6, 0.55), (1.0, 1.0, 0.55), strict=True):
        expected = {
            "aot simplified to simplified": target,
            "aot to simplified": target,
            "aot to stock": other,
        }
        for ratio, limit in expected.items():
            assert row[f"{ratio}: target"] == limit
            assert row[f"{ratio}: met"] == ("yes" if row[ratio] <= limit else "no")
        assert min(row["aot"], row["stock"], row["simplified"], row["aot simplified"]) > 0


def test_stubs_answer_once_for_each_prepared_call() -> None:
    runs = []

    def graph(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        runs.append(x)
        y = x + 1
        return y, y, None

    stubs = Stubs()
    stub = stubs(graph, ())  # type: ignore[arg-type]
    stub([torch.ones(2)])
    stubs.prepare(2)
    answers = [stub([torch.ones(2)]) for _ in range(2)]
    assert len(runs) == 1
    for first, second, nothing in answers:
        assert first is second and nothing is None
        assert first.tolist() == [2, 2]
    assert answers[0][0] is not answers[1][0]
    stub([torch.ones(2)])
    assert len(runs) == 2


def test_finding_a_specialization_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--rounds", "3", "--calls", "20", "--tensors", "3", "--specializations", "1", "8")
    (found,) = tables(capsys, "guards", *sizes)
    rows = named(found)
    kinds = [(row["differ in"], row["specializations"], row["tried"]) for row in rows]
    assert kinds == [("shapes", 1, 1), ("shapes", 8, 1), ("numbers", 1, 1), ("numbers", 8, 8)]
    for row in rows:
        each = row["for each tensor and specialization tried"]
        assert row["hit"] == pytest.approx(row["call"] - row["found"])
        assert each == pytest.approx(row["hit"] / 3 / row["tried"])
        assert row["met"] == ("yes" if each <= 0.1 else "no")


def test_cases_are_counted_and_their_time_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--cases", "10", "--target", "aot", "--target", "eager", "--programs", "100")
    rates, parts, programs = tables(capsys, "fuzz", *asked)
    assert {row["profile"] for row in named(programs)} == set(PROFILES)
    assert all(row["met"] == ("yes" if row["programs"] >= 5000 else "no") for row in named(programs))
    assert next(r for r in named(programs) if r["profile"] == "single")["statements of each"] < 2
    for rate, part in zip(named(rates), named(parts), strict=True):
        assert rate["agree"] + rate["poisoned"] + rate["refused"] + rate["finding"] == 10
        assert rate["finding"] == 0
        assert sum(v for k, v in part.items() if k != "target") == pytest.approx(1e3 / rate["cases"])
    ours, eager = named(parts)
    assert ours["target: compile and first call"] > eager["target: compile and first call"] > 0
    assert all(part["generate"] > 0 and part["judge"] > 0 for part in (ours, eager))


@pytest.mark.nightly
def test_sides_are_measured_in_turn() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    measured = interleaved({"a": lambda: side("a"), "b": lambda: side("b")}, rounds=3)
    assert order == ["a", "b"] * 3
    assert measured["a"].times == (1, 3, 5)
    assert cells(measured["a"], 0.5) == (6, 4, 8)
    assert cells(None, 1) == (None, None, None)
    assert Spread((2.0, 2.0, 9.0)).ratio(Spread((4.0, 8.0, 10.0))) == 0.5


@pytest.mark.nightly  # starts four processes in turn
def test_a_process_that_finds_its_compile_is_beside_one_that_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    backend, step = tables(capsys, "cache", "--rounds", "1", "--model", "TransformerEncoder, 2 layers")
    for table in (backend, step):
        ((name, none, *rest),) = table["rows"]
        assert name == "TransformerEncoder, 2 layers"
        assert rest[-1] == pytest.approx(rest[5] / none)
    assert backend["rows"][0][1] < step["rows"][0][1]


@pytest.mark.nightly  # Inductor compiles eight graphs in C++
def test_what_lies_above_inductor_is_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor, "MODELS", {"tiny": lambda: transformer(2, 4, 8, 1)})
    compiles, steps = tables(capsys, "inductor", "--rounds", "1", "--steps", "2")
    ours, stock, ratio = named(compiles)
    assert [row["side"] for row in (ours, stock, ratio)] == ["aot", "stock", "ratio"]
    for row in (ours, stock):
        between = row["first step"] - row["Dynamo"] - row["Inductor"]
        assert row["the layer between"] == pytest.approx(between)
        assert row["its share, %"] == pytest.approx(100 * between / row["first step"])
        assert row["Inductor"] > row["first step"] / 4
    assert ratio["the layer between"] == pytest.approx(ours["the layer between"] / stock["the layer between"])
    ((_, *times),) = steps["rows"]
    assert all(time > 0 for time in times)


@pytest.mark.nightly
def test_the_start_of_a_process_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    (started,) = tables(capsys, "start", "--rounds", "1", "--process", "aotfuzz --help", "import aot")
    rows = {row["process"]: row for row in named(started)}
    assert rows["aotfuzz --help"]["met"] == ("yes" if rows["aotfuzz --help"]["wall"] <= 200 else "no")
    assert rows["import aot"]["CPU beyond torch"] > rows["import torch"]["CPU beyond torch"] == 0
    assert rows["import torch"]["CPU"] > rows["aotfuzz --help"]["CPU"]


@pytest.mark.nightly  # starts processes in turn
def test_processes_with_more_objects_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    (table,) = tables(capsys, "objects", "--rounds", "1", "--count", "0", "1000")
    assert [row[:3] for row in table["rows"]] == [
        [process, "function", mode]
        for process in ("plain", "1,000 more tuples")
        for mode in ("inference", "training")
    ]
    assert all(row[3] > 0 and row[6] > 0 for row in table["rows"])


def test_nothing_is_frozen_while_sides_are_timed() -> None:
    frozen: list[int] = []
    before = gc.get_freeze_count()
    interleaved({"one": lambda: frozen.append(gc.get_freeze_count()) or 1.0}, 2)  # type: ignore[func-returns-value]
    assert frozen == [before, before]
