"""Object names: the names of classes and the messages of exceptions, as text that UTF-8 can encode.

A target may return and raise anything: an exception whose `__str__` raises, a class whose metaclass overrides
its name, text with lone surrogates. Each of them gets a plain name here.
Invariant: nothing here raises for such an object.
"""

from __future__ import annotations

from typing import Any

_QUALNAME: Any = type.__dict__["__qualname__"]
_MODULE: Any = type.__dict__["__module__"]


def class_name(kind: type) -> str:
    """The qualified name of a class, with its module unless that is `builtins`.

    >>> class_name(int), class_name(BaseException.__class__)
    ('int', 'type')
    """
    # `type`'s own descriptors: a metaclass may override `__qualname__`, or raise.
    name, module = _QUALNAME.__get__(kind), _MODULE.__get__(kind)
    if not isinstance(module, str) or module == "builtins":
        return encodable(name)
    return encodable(f"{module}.{name}")


def message_of(error: BaseException) -> str:
    """The text of an exception, or a remark in brackets if its `__str__` raises."""
    try:
        return encodable(str(error))
    except BaseException as other:
        return f"(its text cannot be had: {class_name(type(other))})"


def encodable(text: str) -> str:
    """The text with lone surrogates written as escapes, so that UTF-8 can encode it."""
    return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")
