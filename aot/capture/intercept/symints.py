"""What the user's code sees of a size that is a symbol: the number, and an `int`.

While a function is traced with symbols for sizes, ``f"{x.shape[0]}"`` in it would give the symbol's name, and
``isinstance(x.shape[0], int)`` would be False. Text is made of the number of this call, which the trace
then takes for itself; that a symbol is an int (a float, a bool) holds in every call.

torch's own Python, and ours, tell symbols from numbers, and print them; there everything stays as it was.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from aot.capture.intercept.number_calls import value_refusal
from aot.errors import DataDependentValue

_NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_OURS = frozenset({"torch", "aot", "sympy"})
_CONVERTED_BY = "__bool__", "__int__", "__index__", "__float__"
_SHOWN_BY = "__repr__", "__str__", "__format__", "__getattribute__"


@contextlib.contextmanager
def symints_as_ints(is_computed: Callable[[Any], bool] = lambda _: False) -> Iterator[None]:
    """While this lasts, symbols look like numbers to the user's code in this thread.

    Args:
        is_computed: whether a symbol depends on values, so that the user's code may not ask what it is.

    Raises:
        DataDependentValue: it does; or something is done with a symbol that numbers can do, and symbols
            cannot.

    Example:
        >>> with symints_as_ints():
        ...     f"{x.shape[0]}", isinstance(x.shape[0], int)  # with symbols: ("s69", False) outside
        ('3', True)
    """
    thread = threading.get_ident()
    with contextlib.ExitStack() as undo:
        for symbolic, number in _NUMBERS.items():
            for name, value in _symint_appearance(symbolic, number, thread, is_computed).items():
                undo.callback(_put, symbolic, name, vars(symbolic).get(name))
                setattr(symbolic, name, value)
        try:
            yield
        except (TypeError, AttributeError) as error:
            if _ABOUT_SYMBOLS.search(str(error)) is None:
                raise
            raise DataDependentValue(
                f"the function does with a number that follows from sizes or values what only numbers can do "
                f"({error}); compute with tensors, or outside"
            ) from error


_ASKED = (
    "the function asks what a number is that depends on the values of a tensor (item, nonzero, the size of "
    "what a mask selects): in a condition, in a range, or as text; compute with tensors instead "
    "(torch.where), or outside"
)
_ABOUT_SYMBOLS = re.compile(r"\b(Sym(Int|Float|Bool)|Proxy)\b")


def _put(symbolic: type, name: str, was: Any) -> None:
    if was is None:
        delattr(symbolic, name)
    else:
        setattr(symbolic, name, was)


def _symint_appearance(
    symbolic: type, number: type, thread: int, is_computed: Callable[[Any], bool]
) -> dict[str, Any]:
    """The attributes of a class of symbols by which its instances are shown, and taken for numbers."""
    plain = {name: getattr(symbolic, name) for name in _SHOWN_BY}

    def shown(self: Any) -> Any:
        if is_computed(self):
            raise DataDependentValue(_ASKED)
        return number(self)

    def repr_(self: Any) -> str:
        return repr(shown(self)) if _is_symint_shown_to_user(thread) else plain["__repr__"](self)

    def str_(self: Any) -> str:
        return str(shown(self)) if _is_symint_shown_to_user(thread) else plain["__str__"](self)

    def format_(self: Any, spec: str) -> str:
        return (
            format(shown(self), spec) if _is_symint_shown_to_user(thread) else plain["__format__"](self, spec)
        )

    def asked(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def as_number(self: Any) -> Any:
            if _is_symint_shown_to_user(thread) and is_computed(self):
                raise value_refusal(sys._getframe(1), convert.__name__, _ASKED)
            return convert(self)

        return as_number

    def getattribute(self: Any, name: str) -> Any:
        if name == "__class__" and _is_symint_shown_to_user(thread):  # which `isinstance` asks for
            return number
        return plain["__getattribute__"](self, name)

    conversions = {name: asked(getattr(symbolic, name)) for name in _CONVERTED_BY if name in vars(symbolic)}
    shown_by = {"__repr__": repr_, "__str__": str_, "__format__": format_, "__getattribute__": getattribute}
    return shown_by | conversions


def _is_symint_shown_to_user(thread: int) -> bool:
    """Whether it is the user's code that looks; the standard library looks for who called it."""
    if threading.get_ident() != thread:
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in sys.stdlib_module_names:
            return package not in _OURS
        frame = frame.f_back
    return False
