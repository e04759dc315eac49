"""The walk of docs/how-to/openvino.md, word for word, from an empty environment to a report."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "openvino.md"
NOT_SOURCES = (
    ".venv",
    ".git",
    "__pycache__",
    ".tox",
    "campaigns",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
)


def _blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_has_its_commands_in_order() -> None:
    commands = " ".join(_blocks())
    order = [
        "pip install -c constraints.txt",
        "aotfuzz run",
        "aotfuzz report",
        "python ",
        "--format issue > issue.md",
    ]
    places = [commands.index(words) for words in order]
    assert places == sorted(places)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_walk_ends_with_a_report(tmp_path: Path) -> None:
    checkout = tmp_path / "aotfuzz"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*NOT_SOURCES))
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(_blocks())],
        cwd=checkout,
        env={**kept, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    report = (checkout / "issue.md").read_text(encoding="utf-8")
    assert 'Compiler: `torch.compile(f, backend="openvino")`' in report
    assert "openvino version:" in report and "Title: [openvino] a write" in report
