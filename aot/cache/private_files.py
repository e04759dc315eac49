"""Files of the user's own, and nobody else's: opened so that a path leads to nothing else.

What others may write to, they decide about: a folder or a file that belongs to another user, or that others
may write to, is not used (`Unusable`). A link, a pipe, a device, a socket and a folder are no files. A file
is looked at after it has been opened, and files in a folder are opened relative to the folder that has been
looked at, so that nobody can put another one in its place meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

BEGUN = ".begun-"  # what files that are being written are called

_PLAIN = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # (a pipe without a writer does not hold up)
_IN_PLACE = _PLAIN | os.O_NOFOLLOW


class Unusable(Exception):
    """A folder or a file that is not the user's alone.

    Attributes:
        advice: what to do.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}; {advice}")


def make_folder(path: Path) -> None:
    """Make a folder that is the user's alone, and those on the way to it."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)


@contextlib.contextmanager
def folder_opened(path: Path) -> Iterator[int]:
    """A descriptor of a folder.

    Raises:
        Unusable: it is not the user's alone.
        OSError: there is none.
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
    """A file in a folder.

    Args:
        limit: how many bytes it may have.

    Raises:
        Unusable: it is no file, not the user's alone, or too large.
        OSError: there is none, or it cannot be read.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = os.open(name, _IN_PLACE | os.O_RDONLY, dir_fd=folder)
        except FileNotFoundError:
            raise
        except OSError as error:  # a link or a socket, or one that its owner may not read
            raise Unusable(f"{name} cannot be opened as a file ({error.strerror})", "remove it") from None
        stack.callback(os.close, file)
        return read_opened_private_file(file, name, limit)


def read_opened_private_file(file: int, name: str, limit: int) -> bytes:
    """What is in a file that has been opened, as `read_private_file`."""
    _check_file(os.fstat(file), name)
    content = bytearray()
    while len(content) <= limit:
        part = os.read(file, min(1 << 20, limit + 1 - len(content)))
        if not part:
            return bytes(content)
        content += part
    raise Unusable(f"{name} has more than {limit} bytes", "remove it")


def touch(folder: int, name: str) -> None:
    """Note that a file was read."""
    with contextlib.suppress(OSError, NotImplementedError):
        os.utime(name, dir_fd=folder, follow_symlinks=False)


def append_to_private_file(folder: int, name: str, content: bytes) -> int:
    """Add to a file, and make it if there is none; how large it is then.

    Raises:
        Unusable: it is no file, or not the user's alone.
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
    """Write a whole file, and put it into its place at once."""
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
    """Take a file away; whether that could be done."""
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
