"""Output: where text goes, what happens if its reader is gone, and what the exit statuses mean."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

from fuzz.safe_text import escape_unprintable, json_text

NOTHING_NEW = 0
FINDINGS = 1
WRONG = 2
GONE = 3
INTERRUPTED = 130  # the status that a shell gives to a process that SIGINT ended


def say(text: str, stream: TextIO | None = None) -> None:
    """Print text, to stdout by default, with unprintable characters as escapes.

    Targets and strangers' files decide what is printed, but must not control a terminal. Characters that the
    stream's encoding lacks are escapes too. If the reader has left (`aotfuzz run ... | head`), later text is
    dropped. Written files and the exit status do not depend on that.
    """
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    try:
        print(
            escape_unprintable(text).encode(encoding, "backslashreplace").decode(encoding),
            file=stream,
            flush=True,
        )
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def say_object(data: object) -> None:
    """Print plain data as one line of JSON, which has only printable characters."""
    say(json_text(data))


def people(options: Any) -> TextIO:
    """The stream for people. With --json, stdout is for the object only."""
    return sys.stderr if options.json else sys.stdout
