"""Scratch folders end with their owners, and those of dead owners with the next session."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fuzz.campaign.workers import scratch

ROOT = Path(__file__).parents[3]
LEASE = """
import os, signal, sys
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Job
if __name__ == "__main__":
    with Pool("tests.support.fuzz.pool_handlers:keep_a_lock", jobs=1) as pool:
        print([event.value for event in pool.run([Job(({},), 60.0)])], flush=True)
        if sys.argv[1:] == ["killed"]:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of its own, in which this process has no scratch folder yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_folders", {})
    return tmp_path


def _folder(parent: Path, name: str, *, lock: bool = True, days: int = 0) -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / "file").touch()
    if lock:
        (folder / "owner.lock").touch()
    moment = folder.stat().st_mtime - 86400 * days
    os.utime(folder, (moment, moment))
    return folder


def test_a_process_has_one_folder_that_others_leave_alone(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "_SOCKET_PATH", 1000)
    folder = scratch.scratch_folder()
    assert folder.parent == temporary and folder.name.startswith(f"aotfuzz-{os.getpid()}-")
    assert folder.stat().st_mode & 0o777 == 0o700
    scratch.remove_abandoned_folders()
    assert scratch.scratch_folder() == folder and folder.is_dir()
    with scratch.temporary_files_in_scratch():
        assert Path(tempfile.mkdtemp()).parent == folder
    assert tempfile.gettempdir() == str(temporary)


def test_those_of_dead_owners_are_removed_and_nothing_else(temporary: Path) -> None:
    dead = _folder(temporary, "aotfuzz-1-abcdefgh")
    long_in_the_making = _folder(temporary, "aotfuzz-2-abcdefgh", lock=False, days=1)
    living = _folder(temporary, "aotfuzz-3-abcdefgh")
    in_the_making = _folder(temporary, "aotfuzz-4-abcdefgh", lock=False)
    others = _folder(temporary, "aotfuzz-mine"), _folder(temporary, "x-aotfuzz-5-abcdefgh")
    link = temporary / "aotfuzz-6-abcdefgh"
    link.symlink_to(others[0])
    with (living / "owner.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        scratch.remove_abandoned_folders()
    assert not dead.exists() and not long_in_the_making.exists()
    assert all((one / "file").exists() for one in (living, in_the_making, *others)) and link.is_symlink()


def test_a_folder_of_another_user_is_left_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = _folder(temporary, "aotfuzz-1-abcdefgh")
    monkeypatch.setattr(os, "geteuid", lambda: dead.stat().st_uid + 1)
    scratch.remove_abandoned_folders()
    assert dead.is_dir()


def test_sockets_lie_elsewhere_where_their_path_would_be_too_long(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = temporary / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with scratch.temporary_files_in_scratch():
        assert tempfile.gettempdir() == str(deep)


def _without_leaks(text: str) -> str:
    """What a process wrote, without what Triton's bindings report at exit (CUDA builds of torch 2.15)."""
    return re.sub(r"nanobind: leaked .*?refleaks\.html\n?", "", text, flags=re.DOTALL)


def test_a_pool_leaves_nothing_and_a_killed_one_nothing_for_good(tmp_path: Path) -> None:
    script = tmp_path / "lease.py"
    script.write_text(LEASE)

    def run_pool(*arguments: str) -> tuple[int, str, list[str]]:
        command = [sys.executable, str(script), *arguments]
        run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
        assert run.stdout == "[True]\n", run.stderr
        # (Inductor's cache is for the next session.)
        return (
            run.returncode,
            _without_leaks(run.stderr),
            [name for name in os.listdir(folder) if "inductor" not in name],
        )

    with tempfile.TemporaryDirectory() as folder:  # with a short path, as the temporary folder has
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder}
        status, _, (name,) = run_pool("killed")
        assert status == -signal.SIGKILL and name.startswith("aotfuzz-")
        assert run_pool() == (0, "", [])
