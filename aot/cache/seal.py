"""Seal: a code of an entry's key and content that only the user can make.

A checksum would detect damage, but a stranger can compute it too. So entries have an HMAC-SHA256 with a
random secret. The secret is in a file outside of the cache, which only its user may read. Files may come into
the cache's folder from an archive, another user, or a service that restores folders. They cannot be valid
entries.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from aot.cache.private_files import Unusable, make_folder

VARIABLE = "AOTFUZZ_CACHE_KEY"
_BYTES = 32


def key_file() -> Path:
    """The file of the secret: the one of ``AOTFUZZ_CACHE_KEY``, or one in the user's folder for state."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "aotfuzz" / "cache-key"


def seal_secret() -> bytes:
    """The user's secret, which is made at the first call.

    Raises:
        Unusable: others can read the secret's file, or it cannot be made.
    """
    path = key_file()
    advice = f"let {VARIABLE} name a file that only you can read"
    try:
        known = _read_secret(path)
        if known is None:
            _make_secret(path)
            known = _read_secret(path)
    except (OSError, RuntimeError) as error:  # `Path.home` raises RuntimeError without a home folder
        raise Unusable(f"its key cannot be kept in {path} ({error})", advice) from None
    if known is None:
        raise Unusable(f"its key is not in {path}", advice)
    return known


def seal(key: bytes, name: str, content: bytes) -> bytes:
    """The seal of an entry, in hexadecimal digits."""
    return hmac.new(key, name.encode() + b"\0" + content, hashlib.sha256).hexdigest().encode()


def _read_secret(path: Path) -> bytes | None:
    """The secret in a file, or None if there is no file. The path may be a link, as in mounted secrets."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    try:
        known = os.fstat(file)
        if not stat.S_ISREG(known.st_mode) or known.st_uid not in (0, os.geteuid()):
            raise Unusable(f"its key {path} is no file of yours", "remove it")
        if known.st_mode & 0o077:
            raise Unusable(f"others can read or write its key {path}", f"rm {path}")
        text = os.read(file, 3 * _BYTES).strip()
    finally:
        os.close(file)
    with contextlib.suppress(ValueError):
        key = bytes.fromhex(text.decode("ascii"))
        if len(key) == _BYTES:
            return key
    raise Unusable(f"{path} holds no key", f"rm {path}")


def _make_secret(path: Path) -> None:
    """Make the file with a new secret, unless another process makes it first."""
    make_folder(path.parent)
    begun = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    file = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(secrets.token_hex(_BYTES).encode() + b"\n")
        with contextlib.suppress(FileExistsError):
            os.link(begun, path)
    finally:
        os.unlink(begun)
