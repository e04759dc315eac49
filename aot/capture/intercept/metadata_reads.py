"""What a function asks of tensors besides what is in them: where they lie, what they are views of, what
gradients they hold.

Most functions ask for none of it. What such a one computes of arguments that it neither writes to nor returns
does not depend on it, and calls that differ in nothing else are answered alike.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from aot.torch_internals import plain_fakes, torch_fakes


class MetadataReads:
    """Of one trace, in the thread `thread`.

    Attributes:
        happened: whether the function has asked any tensor for any of it.
    """

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.happened = False


_now: MetadataReads | None = None  # one thread traces at a time


@contextlib.contextmanager
def recording_metadata_reads() -> Iterator[MetadataReads]:
    """Note what is asked for as long as it lasts, in this thread of any tensor, in others of those of a
    trace."""
    global _now
    before, now = _now, MetadataReads(threading.get_ident())
    _now = now
    try:
        yield now
    finally:
        _now = before


def record_dependence() -> None:
    """An operation of the trace depends on it."""
    if _now is not None:
        _now.happened = True


def record_metadata_read(tensor: Tensor) -> None:
    """It is asked of a tensor by what calls the caller of this. (This package asks for it all the time, and
    torch asks its fake tensors.)"""
    now = _now
    if (
        now is not None
        and not now.happened
        and not isinstance(tensor, torch_fakes.FakeTensor)
        and (now.thread == threading.get_ident() or plain_fakes.is_fake(tensor))
        and not str(sys._getframe(2).f_globals.get("__name__")).startswith("aot.")
    ):
        now.happened = True


# What asks for it, as somebody may have it under a name of his own, where it is not replaced.
_NAMES = frozenset(
    ("storage_offset", "_is_view", "grad", "_grad", "_base", "untyped_storage", "_typed_storage", "storage")
)
_ASKING = tuple(getattr(Tensor, name) for name in _NAMES)
NAMES = _NAMES | {"_is_alias_of", "_overlaps"}
"""What code names that asks for it in whatever way: by `super`, or of the class in C below `Tensor`."""


def reads_metadata(value: object) -> bool:
    """Whether this is a function of torch's that asks for it, or one of several things is."""
    if isinstance(value, (tuple, frozenset)):
        return any(map(reads_metadata, value))
    if isinstance(value, functools.partial):
        return reads_metadata((value.func, *value.args, *value.keywords.values()))
    if isinstance(value, (operator.attrgetter, operator.methodcaller)):
        texts = (text for text in value.__reduce__()[1] if isinstance(text, str))
        return any(name in _NAMES for text in texts for name in text.split("."))
    if isinstance(value, types.MethodWrapperType):  # ``Tensor.grad.__get__``
        value = value.__self__
    return any(value is one for one in _ASKING)


def metadata_method(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that asks for it."""

    @functools.wraps(original)
    def ask(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        record_metadata_read(self)
        return original(self, *args, **kwargs)

    return ask


class _Attribute(property):
    """It tells of itself what the attribute of a class in C does, which libraries ask that are imported
    meanwhile (as torch 2.11's FakeTensorMode imports Dynamo)."""

    __name__: str
    __objclass__: type


def attribute(original: Any) -> property:
    """An attribute that is it."""

    def ask(self: Tensor) -> Any:
        record_metadata_read(self)
        return original.__get__(self)

    def change(self: Tensor, value: Any) -> None:  # to what it is, perhaps
        record_metadata_read(self)
        original.__set__(self, value)

    def delete(self: Tensor) -> None:
        record_metadata_read(self)
        original.__delete__(self)

    attribute = _Attribute(ask, change, delete)
    attribute.__name__, attribute.__objclass__ = original.__name__, original.__objclass__
    return attribute
