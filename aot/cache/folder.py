"""A folder of entries: read, written, kept small.

An entry is a file named after its key: a line that says what it is, a checksum of key and content, the
content. Writers put a whole file in its place at once, so that readers in other processes find all of it or
nothing; what is not found so is dropped. Those that were not read for the longest time go when there is no
room. What has happened is added to a file of its own, a line for each, so that it can be told later.

Nothing here raises for the sake of the file system: a folder that cannot be written to is told of once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aot.errors import CacheWarning

_HEAD = b"aotfuzz cache 1\n"
_SUFFIX = ".aot"
_NAME = re.compile(r"[0-9a-f]{64}\.aot")
_BEGUN = ".begun-"  # what files that are being written are called
_EVENTS = "events.log"
_EVENTS_LIMIT = 1 << 18  # bytes, from which on lines that are alike become one
_ABANDONED = 3600.0  # seconds after which nobody goes on writing

_told: set[tuple[Path, str]] = set()


@dataclass(frozen=True, slots=True)
class Stats:
    """What is in a cache, and what has become of it since it was last cleared.

    Attributes:
        folder: where it is.
        entries: how many compiles it has.
        bytes: their size.
        hits: how often one was found.
        misses: how often none was.
        dropped: how many were not as they had been written.
        uncached: how often a compile was not to be kept, by the reason.
    """

    folder: str
    entries: int
    bytes: int
    hits: int
    misses: int
    dropped: int
    uncached: dict[str, int]


class Folder:
    """One cache.

    Args:
        path: where it is; made when something is written.
        limit: how many bytes entries may take together.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit

    def read(self, key: str) -> bytes | None:
        """The content of an entry, if there is one that is as it was written."""
        file = self.path / f"{key}{_SUFFIX}"
        try:
            raw = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell("read", error)
            return None
        content = _content(key, raw)
        if content is None:
            self.drop(key, "it is not as it was written")
            return None
        with contextlib.suppress(OSError):  # (Others may have written it.)
            os.utime(file)
        return content

    def write(self, key: str, content: bytes) -> bool:
        """Put an entry into its place; whether that could be done."""
        if len(content) > self.limit // 2:
            self.note("uncached an entry that is larger than half the cache")
            return False
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._put(f"{key}{_SUFFIX}", _HEAD + _sum(key, content) + b"\n" + content)
            self._make_room()
        except OSError as error:
            self._tell("write to", error)
            return False
        return True

    def drop(self, key: str, why: object) -> None:
        """Take an entry away that cannot be used, and say so."""
        text = f"an entry of the cache in {self.path} is dropped, and compiled anew: {why}"
        warnings.warn(text, CacheWarning, stacklevel=2)
        self.note("dropped")
        with contextlib.suppress(OSError):
            (self.path / f"{key}{_SUFFIX}").unlink()

    def note(self, event: str) -> None:
        """Add to what has happened: ``hit``, ``miss``, ``dropped`` or ``uncached`` and why."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self.path / _EVENTS).open("ab", buffering=0) as log:
                log.write(f"1 {event}\n".encode())
                long = log.tell() > _EVENTS_LIMIT
            if long:  # (What others add meanwhile is lost.)
                lines = "".join(f"{count} {what}\n" for what, count in self._events().items())
                self._put(_EVENTS, lines.encode())
        except OSError as error:
            self._tell("write to", error)

    def stats(self) -> Stats:
        """What is in it, and what has happened."""
        sizes = [size for _, size, _ in self._entries()]
        events = self._events()
        reasons = (name for name in events if name.startswith("uncached "))
        return Stats(
            str(self.path),
            len(sizes),
            sum(sizes),
            events["hit"],
            events["miss"],
            events["dropped"],
            {name.removeprefix("uncached "): events[name] for name in reasons},
        )

    def clear(self) -> int:
        """Take away all entries, and what has happened; how many there were."""
        gone = 0
        for file, _, _ in self._entries():
            with contextlib.suppress(OSError):
                file.unlink()
                gone += 1
        with contextlib.suppress(OSError):
            (self.path / _EVENTS).unlink()
        self._abandoned(0)
        return gone

    def _put(self, name: str, content: bytes) -> None:
        """Write a whole file, and put it into its place at once."""
        handle, begun = tempfile.mkstemp(prefix=_BEGUN, dir=self.path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(begun, self.path / name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(begun)
            raise

    def _entries(self) -> Iterator[tuple[Path, int, float]]:
        """The files, their sizes, and when they were last read."""
        with contextlib.suppress(OSError), os.scandir(self.path) as files:
            for file in files:
                if _NAME.fullmatch(file.name):
                    with contextlib.suppress(OSError):
                        known = file.stat()
                        yield Path(file.path), known.st_size, known.st_mtime

    def _make_room(self) -> None:
        entries = sorted(self._entries(), key=lambda entry: entry[2])
        excess = sum(size for _, size, _ in entries) - self.limit
        if excess > 0:
            excess += self.limit // 10  # so that not each write has to
            for file, size, _ in entries[:-1]:
                if excess <= 0:
                    break
                with contextlib.suppress(OSError):
                    file.unlink()
                excess -= size
        self._abandoned(_ABANDONED)

    def _abandoned(self, seconds: float) -> None:
        for file in self.path.glob(f"{_BEGUN}*"):
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime >= seconds:
                    file.unlink()

    def _events(self) -> Counter[str]:
        found: Counter[str] = Counter()
        with contextlib.suppress(OSError):
            for line in (self.path / _EVENTS).read_text(errors="replace").splitlines():
                count, _, what = line.partition(" ")
                if count.isdecimal() and len(count) < 16 and what.isprintable():
                    found[what] += int(count)
        return found

    def _tell(self, what: str, error: OSError) -> None:
        """Warn, once in a process."""
        if (self.path, what) not in _told:
            _told.add((self.path, what))
            warnings.warn(f"cannot {what} the cache in {self.path}: {error}", CacheWarning, stacklevel=2)


def _sum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + content).hexdigest().encode()


def _content(key: str, raw: bytes) -> bytes | None:
    """The content of a file, if it is as it was written under this key."""
    rest = raw.removeprefix(_HEAD)
    known, _, content = rest.partition(b"\n")
    return content if len(rest) != len(raw) and known == _sum(key, content) else None
