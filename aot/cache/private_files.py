"""Private files: read and write files that belong to the user, and that nobody else can write to.

A folder or file of another user, or one that others may write to, is not used (`Unusable`), because others
could decide what is in it. A link, a pipe, a device, a socket or a folder is no file.
Invariant: a file is checked after it is opened, and it is opened relative to the folder that was checked. So
nobody can replace it between check and use.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

BEGUN = ".begun-"  # names of unfinished files begin with it

_PLAIN = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # to open a pipe without a writer does not block
_IN_PLACE = _PLAIN | os.O_NOFOLLOW


class Unusable(Exception):
    """A folder or a file is not the user's alone. The message ends with the advice what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}; {advice}")


def make_folder(path: Path) -> None:
    """Make a folder that only the user can access, and the missing folders above it."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)


@contextlib.contextmanager
def folder_opened(path: Path) -> Iterator[int]:
    """While it lasts, the folder is open. Yields its descriptor.

    Raises:
        Unusable: the folder is not the user's alone, or everybody may replace a folder above it.
        OSError: there is no such folder.
    """
    folder = os.open(path, _PLAIN | os.O_RDONLY | os.O_DIRECTORY)
    try:
        _check_private_file_owner(os.fstat(folder), str(path))
        for parent in {*path.absolute().parents, *path.resolve().parents}:
            known = os.stat(parent).st_mode
            if known & stat.S_IWOTH and not known & stat.S_ISVTX:
                raise Unusable(
                    f"everybody may put another folder in the place of {parent}", f"chmod o-w {parent}"
                )
        yield folder
    finally:
        os.close(folder)


def read_private_file(folder: int, name: str, limit: int) -> bytes:
    """Read a file in an open folder.

    Args:
        folder: the folder's descriptor.
        name: the file's name.
        limit: how many bytes the file may have.

    Raises:
        Unusable: it is no file, not the user's alone, or too large.
        OSError: there is no file, or it cannot be read.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = os.open(name, _IN_PLACE | os.O_RDONLY, dir_fd=folder)
        except FileNotFoundError:
            raise
        except OSError as error:  # a link, a socket, or a file that its owner may not read
            raise Unusable(f"{name} cannot be opened as a file ({error.strerror})", "remove it") from None
        stack.callback(os.close, file)
        return read_opened_private_file(file, name, limit)


def read_opened_private_file(file: int, name: str, limit: int) -> bytes:
    """Read a file that is open already, with the checks of `read_private_file`."""
    _check_file(os.fstat(file), name)
    content = bytearray()
    while len(content) <= limit:
        part = os.read(file, min(1 << 20, limit + 1 - len(content)))
        if not part:
            return bytes(content)
        content += part
    raise Unusable(f"{name} has more than {limit} bytes", "remove it")


def touch(folder: int, name: str) -> None:
    """Set the time of a file to now, to record that it was read."""
    with contextlib.suppress(OSError, NotImplementedError):
        os.utime(name, dir_fd=folder, follow_symlinks=False)


def append_to_private_file(folder: int, name: str, content: bytes) -> int:
    """Append to a file, which is made if there is none, and return its new size.

    Raises:
        Unusable: it is no file, not the user's alone, or has another name too (a hard link).
        OSError: it cannot be written.
    """
    file = os.open(name, _IN_PLACE | os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600, dir_fd=folder)
    try:
        known = os.fstat(file)
        _check_file(known, name)
        if known.st_nlink > 1:
            raise Unusable(f"{name} is the same file as another one", "remove it")
        os.write(file, content)
        return os.fstat(file).st_size
    finally:
        os.close(file)


def replace_file(folder: int, name: str, content: bytes) -> None:
    """Write a file under another name and rename it, so that readers see the old or the new file."""
    begun = f"{BEGUN}{secrets.token_hex(8)}"
    file = os.open(begun, _IN_PLACE | os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
        os.replace(begun, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        remove(folder, begun)
        raise


def remove(folder: int, name: str) -> bool:
    """Remove a file. Returns whether that was possible."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
        return True
    return False


def _check_file(known: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(known.st_mode):
        raise Unusable(f"{name} is no regular file", "remove it")
    _check_private_file_owner(known, name)


def _check_private_file_owner(known: os.stat_result, name: str) -> None:
    if known.st_uid != os.geteuid():
        raise Unusable(
            f"{name} belongs to user {known.st_uid}, and this is a process of user {os.geteuid()}",
            "use a folder of your own",
        )
    if known.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable(f"others may write to {name}", f"look at what is there, and chmod go-w {name}")
