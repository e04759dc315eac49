"""Where text goes, what happens when nobody reads it, and what the exit statuses mean."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

from fuzz.safe_text import escape_unprintable, json_text

NOTHING_NEW = 0
FINDINGS = 1
WRONG = 2
GONE = 3
INTERRUPTED = 130  # as a shell says of a process that SIGINT has ended


def say(text: str, stream: TextIO | None = None) -> None:
    """Print text, to stdout by default; what is not printable in it is shown and not sent.

    Targets and strangers' files have a say in what is printed, but none in what a terminal does. What the
    stream's encoding lacks is shown as an escape, too.

    A reader who has left (`aotfuzz run ... | head`) changes neither what is written to files nor the exit
    status: what is said from then on goes nowhere.
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
    """Print plain data as one line of JSON, which holds printable characters alone."""
    say(json_text(data))


def people(options: Any) -> TextIO:
    """Where text for people goes: with --json, stdout is for the object alone."""
    return sys.stderr if options.json else sys.stdout
