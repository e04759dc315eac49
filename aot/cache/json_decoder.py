"""JSON of a stranger: no deeper than what is written, without objects, and of whole numbers alone."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from aot.cache.codec import Corrupt, Data

DEEPEST = 100  # lists in lists; the deepest that are written are trees of results

_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_json(content: bytes) -> Data:
    """The data of an entry.

    Raises:
        Corrupt: it is none.

    Example:
        >>> parse_json(b'[1, "a", null]')
        [1, 'a', None]
    """
    _check_json_depth(content)
    return json.loads(
        content.decode("ascii"), parse_constant=_refuse, parse_float=_refuse, object_pairs_hook=_refuse
    )


def _check_json_depth(content: bytes) -> None:
    """(The parser takes some of the C stack for each level, as far as the user's recursion limit lets it.)"""
    brackets = _TEXT.sub(b"", content).translate(None, _NO_BRACKETS)
    for _ in range(DEEPEST):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise Corrupt(f"lists that are more than {DEEPEST} deep")


def _refuse(given: Any) -> NoReturn:
    raise Corrupt(f"no data: {given!r:.80}")
