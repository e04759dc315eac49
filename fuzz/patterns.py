"""Patterns: texts in which `*` stands for anything, and every other character for itself."""

from __future__ import annotations


def matches(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern.

    >>> matches("errors/*: timeout", "errors/call: timeout"), matches("a[b]", "ab")
    (True, False)
    """
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    *between, last = others
    # Each piece matches at its first place. A regular expression could take very long for a stranger's
    # pattern.
    at, end = len(first), len(text) - len(last)
    if at > end or not (text.startswith(first) and text.endswith(last)):
        return False
    for piece in between:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
