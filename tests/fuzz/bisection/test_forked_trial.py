"""A script in a fork: how it ended, and nothing left in this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fuzz.bisection.forked_trial import run_forked

WRAPPED = """
class Outer(Exception):
    pass
try:
    raise LookupError("root")
except LookupError as error:
    raise Outer("around") from error
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "script.py"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("print('fine')", "exit 0", "fine\n"),
        ("import sys; sys.exit()", "exit 0", ""),
        ("import sys; sys.exit(3)", "exit 3", ""),
        ("import sys; sys.exit('no')", "exit 1", "no\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "signal 15", ""),
        (WRAPPED, "raises LookupError", "Outer: around"),
        ("import time; time.sleep(60)", "timeout", ""),
    ],
)
def test_endings(text: str, kind: str, said: str, tmp_path: Path) -> None:
    ending = run_forked(write(tmp_path, text), [], tmp_path, 1.5, lambda: None)
    assert (ending.kind, ending.said.removeprefix("<run_path>.")) == (kind, said)


def test_it_runs_as_the_main_program_with_its_folder_importable(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("status = 4")
    text = "import sys, neighbour\nif __name__ == '__main__': sys.exit(neighbour.status + len(sys.argv))"
    assert run_forked(write(tmp_path, text), ["a", "b"], tmp_path, 20, lambda: None).kind == "exit 7"


def test_what_it_changes_is_not_changed_here(tmp_path: Path) -> None:
    file = write(tmp_path, "import os, sys; sys.exit(int(os.environ['AOTFUZZ_TRIED']))")

    def prepare() -> None:
        os.environ["AOTFUZZ_TRIED"] = "5"
        sys.path.clear()

    path = list(sys.path)
    assert run_forked(file, [], tmp_path, 20, prepare).kind == "exit 5"
    assert "AOTFUZZ_TRIED" not in os.environ
    assert sys.path == path


def test_only_the_status_for_it_cannot_tell(tmp_path: Path) -> None:
    endings = [
        run_forked(write(tmp_path, f"import sys; sys.exit({status})"), [], tmp_path, 20, lambda: None)
        for status in (0, 1, 125)
    ]
    assert [(ending.is_right, ending.is_wrong) for ending in endings] == [
        (True, False),
        (False, True),
        (False, False),
    ]
