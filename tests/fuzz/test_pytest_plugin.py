"""The pytest plugin: its fixture fails with the clause and a script, and passes where both do the same."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from fuzz import pytest_plugin
from fuzz.pytest_plugin import compiled_like_eager
from tests.fuzz import bad_targets, hostile_targets

ROOT = Path(__file__).parents[2]

__all__ = ["compiled_like_eager"]  # the fixture, also where this copy of the package is not the installed one


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2).sum()


def test_what_agrees_passes(compiled_like_eager: pytest_plugin.CompiledLikeEager) -> None:
    x = torch.ones(3)
    compiled_like_eager(_doubled, x, target=bad_targets.good)
    assert x.tolist() == [1.0, 1.0, 1.0], "the caller's tensors are left alone"


def test_what_differs_fails_with_the_clause_and_a_script(
    compiled_like_eager: pytest_plugin.CompiledLikeEager, tmp_path: Path
) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        compiled_like_eager(_doubled, torch.ones(3), target="tests.fuzz.bad_targets:drops_mutation")
    text = str(failure.value)
    assert text.startswith("input-data: ")
    script = tmp_path / "repro.py"
    script.write_text(text[text.index("# Exits with 1") :])
    run = subprocess.run(
        [sys.executable, script], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False, capture_output=True
    )
    assert run.returncode == 1, run.stderr


def test_what_is_refused_proves_nothing(compiled_like_eager: pytest_plugin.CompiledLikeEager) -> None:
    with pytest.raises(pytest.skip.Exception, match="refused: "):
        compiled_like_eager(_doubled, torch.ones(3), target=hostile_targets.refuses_with_half)


def test_pytest_finds_it_and_it_imports_nothing_heavy() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"aotfuzz": pytest_plugin.__name__}
    heavy = (
        "import sys, fuzz.pytest_plugin; sys.exit({'torch', 'hypothesis', 'numpy'} & {*sys.modules} != set())"
    )
    subprocess.run([sys.executable, "-c", heavy], cwd=ROOT, check=True)
