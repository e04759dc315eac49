"""Campaigns on a GPU: several workers share it, and a case that breaks it breaks it for its worker alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cuda

HERE = Path(__file__).parents[1]


def _campaign(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the summary of one in a process of its own: this one's workers see no GPU."""
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "fuzz.cli", "run", "--json", "--out", str(folder / "out"), *options]
    done = subprocess.run(
        [*command, "--known", "none"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("device", "target"), [("cuda", "eager"), ("cpu,cuda", "aot")])
def test_nothing_is_found_where_nothing_is(device: str, target: str, tmp_path: Path) -> None:
    options = ("--target", target, "--cases", "40", "--jobs", "2", "--device", device)
    status, summary = _campaign(tmp_path, *options)
    assert (status, summary["new"]) == (0, 0)
    assert (summary["cases"], summary["findings"]) == (40, 0)
    assert summary["agree"] >= 20


def test_a_broken_device_is_told_and_costs_its_case_alone(tmp_path: Path) -> None:
    targets = ("--target", "tests.fuzz.bad_targets:breaks_the_device", "--target", "eager")
    status, summary = _campaign(tmp_path, *targets, "--cases", "16", "--jobs", "2", "--device", "cuda")
    broken, eager = (summary["targets"][name] for name in targets[1::2])
    assert status == 1
    assert (eager["cases"], eager["findings"], eager["crashes"]) == (16, 0, 0)
    assert (broken["cases"], broken["crashes"]) == (16, 0)
    assert 1 <= broken["findings"] <= 8
    told = [bucket["message"] for bucket in summary["buckets"]]
    assert all("CUDA error" in message or "Accelerator" in message for message in told), told
