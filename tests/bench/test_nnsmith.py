"""NNSmith beside the fuzzer: what is run and counted, and what is said where NNSmith is missing."""

from __future__ import annotations

import importlib.util
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.fuzzer.nnsmith import Model, Search
from tests.bench.test_commands import tables


def test_a_missing_nnsmith_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"NNSmith is not installed.*rivals"):
        tables(capsys, "nnsmith")


def test_a_model_does_what_its_operators_do() -> None:
    layer = nn.Linear(3, 4)
    made = SimpleNamespace(
        mlist=nn.ModuleList([layer]),
        instructions=[
            (layer, ["a"], ["b"], None),
            (lambda x: x.chunk(2, 1), ["b"], ["c", "d"], None),
            (torch.mul, ["c", "d"], ["e"], None),
        ],
        input_map={"a": None},
        output_map={"e": None, "c": None},
    )
    x = torch.ones(2, 3)
    c, d = layer(x).chunk(2, 1)
    product, part = Model(made)(x)
    assert torch.equal(product, c * d)
    assert torch.equal(part, c)
    assert [name for name, _ in Model(made).named_parameters()] == ["layers.0.weight", "layers.0.bias"]


def test_a_case_that_takes_its_process_down_is_a_finding_and_ends_no_search() -> None:
    def look(seed: int, index: int) -> str | None:
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 25:
            return f"found with {seed}"
        return None if index == 26 else ""

    search = Search(5, look)
    while search.cases < 40:
        search.run(search.seconds + 1e-6)
    assert search.found == [(0, "process died"), (25, "found with 5")]
    assert search.unfit == 1


@pytest.mark.nightly
def test_models_of_nnsmith_run_on_stock_and_show_what_our_judge_sees(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (table,) = tables(capsys, "nnsmith", "--seconds", "5", "--target", "torch-aot-function")
    assert table["columns"] == ["", "NNSmith", "models of NNSmith", "aotfuzz"]
    rows = {name: counts for name, *counts in table["rows"]}
    assert all(cases >= 20 for cases in rows["cases"])
    assert max(rows["that are not fit"]) < 10
    assert rows["pytorch/pytorch#198095"][:2] == [None, None]
    assert rows["findings"][1] > rows["findings"][0]
