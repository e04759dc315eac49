"""What classes and exceptions are called, whatever they do when they are asked.

A target may return and raise anything: an exception whose `__str__` raises, a class whose metaclass answers
for its name, text with halves of surrogate pairs that no encoding has. What is recorded of them is plain text
that any file takes.
"""

from __future__ import annotations

from typing import Any

_QUALNAME: Any = type.__dict__["__qualname__"]
_MODULE: Any = type.__dict__["__module__"]


def class_name(kind: type) -> str:
    """The qualified name of a class; without the module for what Python has built in.

    >>> class_name(int), class_name(BaseException.__class__)
    ('int', 'type')
    """
    # Of the class itself: a metaclass may say otherwise, or raise.
    name, module = _QUALNAME.__get__(kind), _MODULE.__get__(kind)
    if not isinstance(module, str) or module == "builtins":
        return encodable(name)
    return encodable(f"{module}.{name}")


def message_of(error: BaseException) -> str:
    """What an exception says of itself."""
    try:
        return encodable(str(error))
    except BaseException as other:
        return f"(its text cannot be had: {class_name(type(other))})"


def encodable(text: str) -> str:
    """Text that UTF-8 has: halves of surrogate pairs are written as escapes, all else is as it was."""
    return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")
