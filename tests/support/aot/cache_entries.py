"""Entries of the cache on disk, opened, changed and sealed again, as who has the user's key can do it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aot.cache import seal, store


def sealed(content: bytes, key: str) -> bytes:
    """A file with this content, for a key of a compile."""
    return store._HEAD + seal.seal(seal.seal_secret(), key, content) + b"\n" + content


def content_of(file: Path) -> Any:
    """What is in an entry."""
    return json.loads(file.read_bytes().split(b"\n", 2)[2])


def put(file: Path, content: Any) -> None:
    """Put something else there."""
    text = json.dumps(content, separators=(",", ":")).encode()
    file.write_bytes(sealed(text, file.stem))
