"""The seal of an entry: a code of key and content that only its user can make.

A checksum tells damage from what was written, and a stranger makes it anew. So entries carry an HMAC-SHA256
with a random secret. The secret lies apart from the cache, in a file that its user alone may read: who copies
files into the folder of the cache (an archive, another user, a service that restores folders) cannot make an
entry.
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
    """Where the secret is: where the environment says, or in the user's folder for state."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "aotfuzz" / "cache-key"


def seal_secret() -> bytes:
    """The user's secret, made when it is first asked for.

    Raises:
        Unusable: others can read it, or it cannot be kept.
    """
    path = key_file()
    advice = f"let {VARIABLE} name a file that only you can read"
    try:
        known = _read_secret(path)
        if known is None:
            _make_secret(path)
            known = _read_secret(path)
    except (OSError, RuntimeError) as error:  # (There may be no home.)
        raise Unusable(f"its key cannot be kept in {path} ({error})", advice) from None
    if known is None:
        raise Unusable(f"its key is not in {path}", advice)
    return known


def seal(key: bytes, name: str, content: bytes) -> bytes:
    """The seal of an entry, in hexadecimal digits."""
    return hmac.new(key, name.encode() + b"\0" + content, hashlib.sha256).hexdigest().encode()


def _read_secret(path: Path) -> bytes | None:
    """The secret in a file, or at the end of a link, as it may be mounted; None where there is none."""
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
    """Put a new secret into a file, unless another process does so first."""
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
