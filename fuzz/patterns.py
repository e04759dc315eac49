"""Patterns in which `*` stands for anything, and every other character for itself."""

from __future__ import annotations

import re


def matches(pattern: str, text: str) -> bool:
    """Whether a text is what a pattern says.

    >>> matches("errors/*: timeout", "errors/call: timeout"), matches("a[b]", "ab")
    (True, False)
    """
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None
