"""The example backend is as wrong as its documentation says, and documented commands are commands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.cli import _command_line_parser, main
from fuzz.targets.adapters import ADAPTED
from fuzz.targets.builtin_targets import SHIPPED

ROOT = Path(__file__).parents[2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["compile", "target"])
def test_the_example_is_found_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "examples")
    command = ["run", "--target", f"slightly_wrong_backend:{name}", "--cases", "24", "--seed", "1"]
    command += ["--known", "none"]
    assert main([*command, "--json", "--out", str(tmp_path / "found")]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["findings"] == sum(bucket["count"] for bucket in data["buckets"]) > 0
    assert min(bucket["statements"] for bucket in data["buckets"]) <= 3
    assert data["refused"] == 0
    assert data["profile"] == ("mixed" if name == "compile" else "mixed{random}"), (
        "the Target says what it lacks"
    )
    assert data["troubles"] == []
    command = [sys.executable, data["buckets"][0]["repro"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    elsewhere = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert elsewhere.returncode == 2, "a module that is not there is no difference"
    assert main(["show", *(bucket["corpus_file"] for bucket in data["buckets"])]) == 0
    assert capsys.readouterr().out.count("def f(") == len(data["buckets"])


@pytest.mark.parametrize(
    "file",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/tutorial/first-campaign.md",
        "docs/how-to/compare-torches.md",
        "docs/how-to/fuzz-your-backend.md",
        "docs/how-to/reduce-a-function.md",
        "docs/how-to/campaigns.md",
        "docs/how-to/ci.md",
        "docs/reference/commands.md",
        "docs/reference/corpus.md",
        "docs/how-to/bisect.md",
        "docs/how-to/upstream.md",
    ],
)
def test_documented_commands_are_commands(file: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / file).read_text(), re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("aotfuzz ")]
    assert commands or file == "docs/reference/corpus.md"
    for command in commands:
        words = shlex.split(re.split(r"[>|;]", command)[0])[1:]
        _command_line_parser().parse_args(words)


def test_the_nightly_workflows_run_commands() -> None:
    yaml = pytest.importorskip("yaml", reason="comes with the extra cluster (issue 7)")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    jobs = workflow["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    lines = [line.strip() for step in steps for line in step.get("run", "").splitlines()]
    lines += [line.strip(" -") for line in (ROOT / "tox.ini").read_text().splitlines()]
    commands = [line for line in lines if line.startswith("aotfuzz ")]
    assert len(commands) >= 8
    for command in commands:
        plain = re.sub(r"\{posargs:(.*?)\}", r"\1", re.split(r" \|\|? ", command)[0])
        plain = plain.replace("$SECONDS_EACH", "5").replace("${SEED:-$(date +%Y%m%d)}", "5")
        options = _command_line_parser().parse_args(shlex.split(plain)[1:])
        for target in getattr(options, "target", []):
            assert target in SHIPPED or target in ADAPTED or target.startswith("${{ matrix.target")
    assert set(jobs["campaign"]["strategy"]["matrix"]["target"]) <= set(SHIPPED)
    assert {row["target"] for row in jobs["adapters"]["strategy"]["matrix"]["include"]} == set(ADAPTED)
