"""Comparisons from beginning to end, of one torch that does otherwise under one of two interpreters.

Each comparison imports torch in ten processes, so the cases are few, and commands run in this process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fuzz.campaign.store import Store
from fuzz.cli import main
from fuzz.corpus import case_file
from tests.support.fuzz.interpreters import write_interpreter, write_script

ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.timeout(900)
TARGETS = "tests.fuzz.torch_pair_targets"
# The first of its programs writes to an argument, the second to none.
SEED, CASES = 28, 2
PYTHONS = ("AOTFUZZ_PYTHON_BEFORE", "AOTFUZZ_PYTHON_AFTER")


@dataclass(frozen=True)
class _Ended:
    """A command that has ended."""

    status: int
    data: dict[str, Any]
    err: str


def _aotfuzz(folder: Path, *words: str) -> _Ended:
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT))
        status = main([*words, "--json"])
    lines = out.getvalue().splitlines()
    return _Ended(status, json.loads(lines[-1]) if lines else {}, err.getvalue())


def _compare(
    folder: Path, *pythons: Path | str, targets: tuple[str, ...], cases: int, profile: str = "single"
) -> list[str]:
    words = [word for python in pythons for word in ("--python", str(python))]
    words += [word for target in targets for word in ("--target", target)]
    words += ["--seed", str(SEED), "--cases", str(cases), "--profile", profile]
    return ["compare", *words, "--jobs", "2", "--out", str(folder)]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pythons")
    before, after = (write_interpreter(folder / side / "python", side=side) for side in ("before", "after"))
    return before, after


@pytest.fixture(scope="module")
def compared(sides: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, _Ended]:
    """One target that the second torch mends, and one that it breaks."""
    folder = tmp_path_factory.mktemp("compared") / "out"
    targets = (f"{TARGETS}:loses_writes_before", f"{TARGETS}:loses_writes_after")
    return folder, _aotfuzz(folder.parent, *_compare(folder, *sides, targets=targets, cases=CASES))


def test_what_appears_and_what_is_gone_is_told_and_reduced(compared: tuple[Path, _Ended]) -> None:
    folder, ended = compared
    assert ended.status == 1, ended.err
    data = ended.data
    appeared, gone = data["appeared"], data["gone"]
    assert appeared["cases"] == gone["cases"] > 0
    assert data["changed"]["cases"] == data["undecided"]["cases"] == 0
    assert {bucket["target"] for bucket in appeared["buckets"]} == {f"{TARGETS}:loses_writes_after"}
    assert {bucket["target"] for bucket in gone["buckets"]} == {f"{TARGETS}:loses_writes_before"}
    smallest = min(appeared["buckets"], key=lambda bucket: bucket["statements"])
    assert smallest["statements"] <= 1 and smallest["other_side"] == "agree"
    assert case_file.read(Path(smallest["corpus_file"])).clause == smallest["clause"]
    assert data["eager"]["same_bits"] == data["eager"]["programs"] == CASES
    assert not data["interrupted"]
    assert (folder / "comparison.html").is_file() and (folder / "before" / "report.html").is_file()


@pytest.mark.nightly
def test_a_comparison_that_is_done_is_resumed_at_once_and_made_longer(compared: tuple[Path, _Ended]) -> None:
    folder, _ = compared
    kept = (folder / "examples.jsonl").read_text()
    again = _aotfuzz(folder.parent, "resume", str(folder), "--cases", str(CASES + 1))
    assert again.status == 1, again.err
    assert again.data["eager"]["programs"] == again.data["cases"] == CASES + 1
    assert (folder / "examples.jsonl").read_text().startswith(kept)
    for side in ("before", "after"):
        with Store.read(folder / side) as store:
            assert sum(1 for _ in store.rows()) == 2 * (CASES + 1)


def test_a_report_of_a_comparison_runs_nothing(compared: tuple[Path, _Ended]) -> None:
    folder, _ = compared
    told = _aotfuzz(folder.parent, "report", str(folder), "--out", "page.html")
    assert told.status == 0, told.err
    assert told.data["appeared"]["cases"] > 0
    assert (folder.parent / "page.html").is_file()


def test_a_folder_that_is_taken_is_left_alone(
    compared: tuple[Path, _Ended], sides: tuple[Path, Path]
) -> None:
    folder, _ = compared
    for taken, what in ((folder, "a comparison"), (folder / "before", "a campaign")):
        ended = _aotfuzz(folder.parent, *_compare(taken, *sides, targets=("eager",), cases=1))
        assert ended.status == 2
        assert f"already holds {what}" in ended.err and "aotfuzz resume" in ended.err


@pytest.mark.nightly  # two campaigns one after the other
def test_an_interrupted_comparison_of_one_interpreter_goes_on_and_shows_no_difference(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = _compare(folder, sys.executable, sys.executable, targets=("eager",), cases=4)
    process = subprocess.Popen(
        [sys.executable, "-m", "fuzz.cli", *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
    )
    while not (folder / "before" / "campaign.sqlite").is_file():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert b"aotfuzz resume" in err and b"Traceback" not in err
    assert process.returncode == 2, "there is nothing to tell yet"
    ended = _aotfuzz(tmp_path, "resume", str(folder))
    assert ended.status == 0, ended.err
    assert ended.data["outcomes"] == {"eager": ended.data["outcomes"]["eager"]}
    assert set(ended.data["outcomes"]["eager"]) <= {"agree -> agree", "poisoned -> poisoned"}
    assert ended.data["eager"]["same_bits"] == 4
    assert ended.data["caveats"] == ["both interpreters have the same version of torch"]
    assert not ended.data["interrupted"]


@pytest.mark.nightly
def test_an_interpreter_that_cannot_leaves_nothing_behind(tmp_path: Path) -> None:
    torchless = write_script(
        tmp_path / "torchless",
        """echo 'aotfuzz-answer: {"python": [3, 12, 1], "versions": {}, "error": "ImportError: no torch"}'""",
    )
    words = _compare(tmp_path / "out", sys.executable, torchless, targets=("eager",), cases=1)
    ended = _aotfuzz(tmp_path, *words)
    assert (ended.status, ended.data) == (2, {})
    assert "torchless cannot import torch (ImportError: no torch)" in ended.err
    words = _compare(tmp_path / "out", sys.executable, sys.executable, targets=("no-such",), cases=1)
    ended = _aotfuzz(tmp_path, *words)
    assert (ended.status, ended.data) == (2, {})
    assert "no target named 'no-such'" in ended.err
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_two_torches(tmp_path: Path) -> None:
    pythons = [os.environ.get(name, "") for name in PYTHONS]
    if not all(shutil.which(python) for python in pythons):
        pytest.skip(f"{' and '.join(PYTHONS)} name no two interpreters with a torch each (issue 47)")
    words = _compare(
        tmp_path / "out", *pythons, targets=("eager", "torch-aot-eager"), cases=60, profile="mixed"
    )
    ended = _aotfuzz(tmp_path, *words)
    assert ended.status in (0, 1), ended.err
    data = ended.data
    assert data["before"]["versions"]["torch"] != data["after"]["versions"]["torch"]
    assert data["eager"]["programs"] == 60 and not data["interrupted"]
    assert set(data["outcomes"]["eager"]) <= {"agree -> agree", "poisoned -> poisoned", "agree -> poisoned"}
