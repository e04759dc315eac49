"""The example backend is as wrong as its documentation says, and documented commands are commands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from fuzz.cli import _parser, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["compile", "target"])
def test_the_example_is_found_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "examples")
    command = ["run", "--target", f"slightly_wrong_backend:{name}", "--cases", "60", "--known", "none"]
    assert main([*command, "--json", "--out", str(tmp_path / "found")]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["findings"] == sum(bucket["count"] for bucket in data["buckets"]) > 0
    assert min(bucket["statements"] for bucket in data["buckets"]) <= 3
    assert (data["refused"] > 0) is (name == "target"), "only the Target says what it lacks"
    assert data["troubles"] == []


@pytest.mark.parametrize(
    "file",
    ["README.md", "CONTRIBUTING.md", "docs/fuzz-your-backend.md", "docs/campaigns.md", "docs/corpus.md"],
)
def test_documented_commands_are_commands(file: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / file).read_text(), re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("aotfuzz ")]
    assert commands or file == "docs/corpus.md"
    for command in commands:
        words = shlex.split(re.split(r"[>|;]", command)[0])[1:]
        _parser().parse_args(words)
