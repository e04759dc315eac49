"""Store: a folder of cache entries with a limit on its size.

In: a key and bytes. Out: the bytes, if they are as they were written. An entry is a file with the key as its
name. It has a line with the format, the user's seal of key and content (`seal`), and the content. Writers
replace whole files, so that readers in other processes find all of an entry or nothing. A damaged entry is
dropped. If there is no room, the entries that were not read for the longest time are removed. A second file
has a line for each event, such as a hit, for statistics.

Invariant: nothing here raises because of the file system. If a folder is not the user's alone
(`private_files`), or cannot be written to, there is one warning.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aot.cache import private_files, seal
from aot.cache.private_files import Unusable
from aot.errors import CacheWarning

LARGEST = 1 << 26  # the most bytes of an entry
_HEAD = b"aotfuzz cache 2\n"
_SUFFIX = ".aot"
_NAME = re.compile(r"[0-9a-f]{64}\.aot")
_EVENTS = "events.log"
_EVENTS_LIMIT = 1 << 18  # bytes; in a larger file of events, equal lines are merged
_ABANDONED = 3600.0  # seconds after which an unfinished file is abandoned

_warned: set[tuple[Path, str]] = set()


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of a cache since it was last cleared.

    Attributes:
        folder: the folder.
        entries: the number of compiles in it.
        bytes: their size.
        hits: how often an entry was found.
        misses: how often none was found.
        dropped: how many entries were damaged or could not be used.
        uncached: how often a compile was not stored, by the reason.
        unusable: why the cache is not used, or "".
    """

    folder: str
    entries: int
    bytes: int
    hits: int
    misses: int
    dropped: int
    uncached: dict[str, int]
    unusable: str = ""


class Store:
    """One cache.

    Args:
        path: the folder, which is made when something is written.
        limit: how many bytes all entries together may have.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit

    def read(self, key: str) -> bytes | None:
        """The content of an entry; None if there is none, or it is not as the user has written it."""
        name = f"{key}{_SUFFIX}"
        try:
            with private_files.folder_opened(self.path) as folder:
                secret = seal.seal_secret()
                try:
                    raw = private_files.read_private_file(folder, name, LARGEST)
                except Unusable as error:
                    self.drop(key, error)
                    return None
                private_files.touch(folder, name)
        except FileNotFoundError:
            return None
        except (OSError, Unusable) as error:
            self._tell("read", error)
            return None
        content = _content(secret, key, raw)
        if content is None:
            self.drop(key, "it is not as it was written, or was written with another key than yours")
        return content

    def write(self, key: str, content: bytes) -> bool:
        """Write an entry. Returns whether that was possible."""
        whole = len(_HEAD) + 65 + len(content)
        if len(content) > self.limit // 2 or whole > LARGEST:
            self.note("uncached an entry that is larger than half the cache")
            return False
        try:
            private_files.make_folder(self.path)
            with private_files.folder_opened(self.path) as folder:
                sealed = _HEAD + seal.seal(seal.seal_secret(), key, content) + b"\n" + content
                private_files.replace_file(folder, f"{key}{_SUFFIX}", sealed)
                self._evict_entries(folder)
        except (OSError, Unusable) as error:
            self._tell("write to", error)
            return False
        return True

    def drop(self, key: str, why: object) -> None:
        """Take an entry away that cannot be used, and say so."""
        text = f"an entry of the cache in {self.path} is dropped, and compiled anew: {why}"
        warnings.warn(text, CacheWarning, stacklevel=2)
        self.note("dropped")
        with contextlib.suppress(OSError, Unusable), private_files.folder_opened(self.path) as folder:
            private_files.remove(folder, f"{key}{_SUFFIX}")

    def note(self, event: str) -> None:
        """Record an event: ``hit``, ``miss``, ``dropped``, or ``uncached`` with the reason."""
        try:
            private_files.make_folder(self.path)
            with private_files.folder_opened(self.path) as folder:
                if (
                    private_files.append_to_private_file(folder, _EVENTS, f"1 {event}\n".encode())
                    > _EVENTS_LIMIT
                ):
                    # Events that other processes add in the meantime are lost.
                    lines = "".join(f"{count} {what}\n" for what, count in _stored_events(folder).items())
                    private_files.replace_file(folder, _EVENTS, lines.encode())
        except (OSError, Unusable) as error:
            self._tell("write to", error)

    def stats(self) -> Stats:
        """The statistics of the cache."""
        sizes: list[int] = []
        events: Counter[str] = Counter()
        unusable = ""
        try:
            with private_files.folder_opened(self.path) as folder:
                sizes = [size for _, size, _ in _stored_entries(folder)]
                events = _stored_events(folder)
                seal.seal_secret()
        except FileNotFoundError:
            pass
        except (OSError, Unusable) as error:
            unusable = str(error)
        reasons = (name for name in events if name.startswith("uncached "))
        return Stats(
            str(self.path),
            len(sizes),
            sum(sizes),
            events["hit"],
            events["miss"],
            events["dropped"],
            {name.removeprefix("uncached "): events[name] for name in reasons},
            unusable,
        )

    def clear(self) -> int:
        """Remove all entries and events, and return how many entries there were."""
        gone = 0
        try:
            with private_files.folder_opened(self.path) as folder:
                gone = sum(private_files.remove(folder, name) for name, _, _ in list(_stored_entries(folder)))
                private_files.remove(folder, _EVENTS)
                _remove_abandoned(folder, 0)
        except FileNotFoundError:
            pass
        except (OSError, Unusable) as error:
            self._tell("clear", error)
        return gone

    def _evict_entries(self, folder: int) -> None:
        entries = sorted(_stored_entries(folder), key=lambda entry: entry[2])
        excess = sum(size for _, size, _ in entries) - self.limit
        if excess > 0:
            excess += self.limit // 10  # make room for later writes too
            for name, size, _ in entries[:-1]:
                if excess <= 0:
                    break
                private_files.remove(folder, name)
                excess -= size
        _remove_abandoned(folder, _ABANDONED)

    def _tell(self, what: str, error: Exception) -> None:
        """Warn about an error of the file system, once in a process."""
        if isinstance(error, Unusable):
            what = "use"
        if (self.path, what) not in _warned:
            _warned.add((self.path, what))
            warnings.warn(f"cannot {what} the cache in {self.path}: {error}", CacheWarning, stacklevel=2)


def _stored_entries(folder: int) -> Iterator[tuple[str, int, float]]:
    """The files of entries, each with its size and the time when it was last read."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for file in found:
            if _NAME.fullmatch(file.name):
                with contextlib.suppress(OSError):
                    known = file.stat(follow_symlinks=False)
                    yield file.name, known.st_size, known.st_mtime


def _remove_abandoned(folder: int, seconds: float) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for file in found:
            if file.name.startswith(private_files.BEGUN):
                with contextlib.suppress(OSError):
                    if time.time() - file.stat(follow_symlinks=False).st_mtime >= seconds:
                        private_files.remove(folder, file.name)


def _stored_events(folder: int) -> Counter[str]:
    found: Counter[str] = Counter()
    with contextlib.suppress(OSError, Unusable):
        for line in (
            private_files.read_private_file(folder, _EVENTS, 4 * _EVENTS_LIMIT)
            .decode(errors="replace")
            .splitlines()
        ):
            count, _, what = line.partition(" ")
            if count.isdecimal() and len(count) < 16 and what.isprintable():
                found[what] += int(count)
    return found


def _content(secret: bytes, key: str, raw: bytes) -> bytes | None:
    """The content of a file; None if format or seal are wrong."""
    rest = raw.removeprefix(_HEAD)
    known, _, content = rest.partition(b"\n")
    is_whole = len(rest) != len(raw) and hmac.compare_digest(known, seal.seal(secret, key, content))
    return content if is_whole else None
