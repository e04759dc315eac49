"""Safe text: make text of strangers harmless for a terminal, a file, a comment in a script, or a shell.

A target's exception, a corpus file or a file name may have any characters: terminal escapes, marks that
change the direction of writing, or lone surrogates. A character that is not printable becomes Python's escape
of it, which is visible and does nothing.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

_PERHAPS = re.compile(r"[^\n\t -~]")


def escape_unprintable(text: str) -> str:
    r"""Text in which each character is printable, a line feed or a tab.

    >>> print(escape_unprintable("\x1b[2J and \ud800, but not é"))
    \x1b[2J and \ud800, but not é
    """
    return _PERHAPS.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else ascii(character)[1:-1]


def one_line(text: str) -> str:
    r"""The same on one line: no text can pretend to be the next line of a list or a message.

    >>> print(one_line("a\nb"))
    a\nb
    """
    return escape_unprintable(text).replace("\n", r"\n").replace("\t", r"\t")


def shorten_middle(text: str, width: int) -> str:
    """Text on one line, cut in its middle to `width` characters, because its end may distinguish it.

    >>> shorten_middle("values/out elements/alias + clone/a a~", 24)
    'values/out ... one/a a~'
    """
    text = one_line(text)
    if len(text) <= width:
        return text
    kept = max(width - 3, 0)
    end = kept * 2 // 5
    return text[: kept - end] + "..." + text[len(text) - end :]


def shell_command(*words: str | Path) -> str:
    """A command line that a reader may copy. Each word is one word of the shell, whatever is in it.

    >>> shell_command("aotfuzz", "resume", Path("a b"))
    "aotfuzz resume 'a b'"
    """
    return shlex.join(str(word) for word in words)


def json_text(data: object, *, ascii_only: bool = True) -> str:
    """Plain data as one line of JSON in which each character is printable."""
    text = json.dumps(data, ensure_ascii=ascii_only)
    return _PERHAPS.sub(
        lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text
    )
