"""JSON decoder: parse JSON of a stranger, with a limit on its depth, without objects, with integers only.

In: bytes. Out: lists, strings, integers, booleans and None, or `Corrupt`.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from aot.cache.codec import Corrupt, Data

DEEPEST = 100  # levels of lists; the deepest that are written are trees of results

_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_json(content: bytes) -> Data:
    """Parse the data of an entry.

    Raises:
        Corrupt: it has objects, floats or constants such as NaN, or is too deep.
        ValueError: it is no JSON in ASCII.

    Example:
        >>> parse_json(b'[1, "a", null]')
        [1, 'a', None]
    """
    _check_json_depth(content)
    return json.loads(
        content.decode("ascii"), parse_constant=_refuse, parse_float=_refuse, object_pairs_hook=_refuse
    )


def _check_json_depth(content: bytes) -> None:
    """Check the depth before parsing: the parser uses the C stack up to the user's recursion limit."""
    brackets = _TEXT.sub(b"", content).translate(None, _NO_BRACKETS)
    for _ in range(DEEPEST):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise Corrupt(f"lists that are more than {DEEPEST} deep")


def _refuse(given: Any) -> NoReturn:
    raise Corrupt(f"no data: {given!r:.80}")
