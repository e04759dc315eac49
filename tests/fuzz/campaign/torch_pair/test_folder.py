"""What a comparison keeps: cut lines are left out, damage is said, and what is written comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.torch_pair.folder import (
    EagerCase,
    Request,
    add_eager,
    is_comparison,
    read_eager,
    read_examples,
    read_request,
    write_request,
)
from fuzz.errors import StoreError
from oracles import Finding

REQUEST = Request(("a/bin/python", "b/bin/python"), Configuration(("aot",), cases=7), {"commit": "abc"})
FINDING = Finding("values", "out", "1.0", "2.0", "out: 1.0 in eager, 2.0 in the target")


def test_a_request_comes_back(tmp_path: Path) -> None:
    assert not is_comparison(tmp_path)
    write_request(tmp_path, REQUEST)
    assert is_comparison(tmp_path)
    assert read_request(tmp_path) == REQUEST


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"version": 1}', '{"version": 1, "pythons": ["a"], "configuration": {}, "aotfuzz": {}}'],
)
def test_a_damaged_request_is_said(text: str, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(StoreError, match="damaged"):
        read_request(tmp_path)


def test_a_request_of_another_version_is_said(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text('{"version": 99}')
    with pytest.raises(StoreError, match="another version of aotfuzz"):
        read_request(tmp_path)
    with pytest.raises(StoreError, match="holds no comparison"):
        read_request(tmp_path / "absent")


def test_a_line_that_was_cut_is_left_out_and_those_after_it_count(tmp_path: Path) -> None:
    cases = [EagerCase(0, "same bits"), EagerCase(1, "differs", "it", (FINDING,)), EagerCase(2, "undecided")]
    add_eager(tmp_path, cases[0])
    file = tmp_path / "eager.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:20])
    for case in cases[1:]:
        add_eager(tmp_path, case)
    assert read_eager(tmp_path) == {case.index: case for case in cases}


def test_a_line_that_says_something_else_is_said(tmp_path: Path) -> None:
    (tmp_path / "eager.jsonl").write_text('{"index": "x"}\n')
    with pytest.raises(StoreError, match=r"eager.jsonl is damaged"):
        read_eager(tmp_path)
    (tmp_path / "examples.jsonl").write_text('{"kind": "appeared", "example": []}\n')
    with pytest.raises(StoreError, match=r"examples.jsonl is damaged"):
        read_examples(tmp_path)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        write_request(tmp_path / "file", REQUEST)
    with pytest.raises(StoreError, match="cannot write"):
        add_eager(tmp_path / "file", EagerCase(0, "same bits"))
