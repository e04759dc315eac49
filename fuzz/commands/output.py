"""Where text goes, what happens when nobody reads it, and what the exit statuses mean."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

NOTHING_NEW = 0
FINDINGS = 1
WRONG = 2
GONE = 3
# Targets and strangers' files have a say in what is printed, but none in what a terminal does.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def say(text: str, stream: TextIO | None = None) -> None:
    """Print text, to stdout by default; control characters in it are shown and not sent.

    A reader who has left (`aotfuzz run ... | head`) changes neither what is written to files nor the exit
    status: what is said from then on goes nowhere.
    """
    stream = stream or sys.stdout
    try:
        print(text.translate(_CONTROLS), file=stream, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def people(options: Any) -> TextIO:
    """Where text for people goes: with --json, stdout is for the object alone."""
    return sys.stderr if options.json else sys.stdout
