"""Scratch folder: temporary files of a process and its workers.

`aotfuzz-PID-xxxxxxxx` in the temporary folder holds the sockets of the fork server, output and stacks of
workers, and the scripts that are tried. Its process removes it at its end. If the process is killed, the next
process that makes such a folder removes it. The owner holds a lock on a file in the folder, which the kernel
drops when the owner dies. So a reused process number does no harm, nor another container with the same
temporary folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path

_NAME = re.compile(r"aotfuzz-[0-9]+-[a-z0-9_]{8}")
_LOCK = "owner.lock"
# A folder without a lock is being made, or its owner died while making it.
_SECONDS_WITHOUT_LOCK = 3600.0
# It runs after multiprocessing has removed its own folder (priority -100), which may be in this one.
_EXIT_PRIORITY = -200
# A socket's path has at most 107 bytes, and multiprocessing needs so many of them for its own names.
_SOCKET_PATH, _SOCKET_NAMES = 107, 32

_folders: dict[int, Path] = {}  # by process number, because a fork has no folder of its own


def scratch_folder() -> Path:
    """The folder of this process, which is made if there is none.

    Raises:
        OSError: the temporary folder cannot be written.
    """
    own = os.getpid()
    if own not in _folders or not _folders[own].is_dir():
        remove_abandoned_folders()
        folder = Path(tempfile.mkdtemp(prefix=f"aotfuzz-{own}-"))
        _hold_lock(folder)
        util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=_EXIT_PRIORITY)
        _folders[own] = folder
    return _folders[own]


def use_scratch_folder(folder: Path) -> None:
    """Let this process, a worker, use a folder that its owner removes."""
    _folders[os.getpid()] = folder


@contextmanager
def temporary_files_in_scratch() -> Iterator[None]:
    """While it lasts, the standard library makes temporary files in the scratch folder.

    It does not if a socket there would have too long a path.
    """
    folder = str(scratch_folder())
    if len(os.fsencode(folder)) + _SOCKET_NAMES > _SOCKET_PATH:
        yield
        return
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before


def remove_abandoned_folders() -> None:
    """Remove the scratch folders of this user whose owners have died; never those of others, nor links."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    own = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                    if own and _is_abandoned(Path(entry.path)):
                        shutil.rmtree(entry.path, ignore_errors=True)


def _hold_lock(folder: Path) -> None:
    """Lock a file in the folder until this process ends. The file gets its name after it is locked."""
    partial = folder / f".{_LOCK}"
    lock = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)  # never closed
    fcntl.flock(lock, fcntl.LOCK_EX)
    partial.rename(folder / _LOCK)


def _is_abandoned(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - folder.lstat().st_mtime > _SECONDS_WITHOUT_LOCK
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
