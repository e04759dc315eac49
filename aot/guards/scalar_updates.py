"""Numbers and strings that note what is done to them, in place of those that a function does nothing with but
update: ``self.calls += 1`` reads a value that the function never sees.

In: a value. Out: one that is equal to it, and whose results of operators say how they were made, so that the
same can be done to whatever stands there at a later call.
Invariant: what is noted holds plain constants alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

_OPERATORS = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
)
_OPERANDS = frozenset((int, float, bool, complex, str))

Step = tuple[Callable[[Any, Any], Any], Any, bool]
"""An operator, its other operand, and whether that one stands on the left."""


class Update:
    """What all such values have.

    Attributes:
        origin: the value that it was made of, by `steps`.
        leaked: whether something was made of it that does not say so.
    """

    origin: Update
    steps: tuple[Step, ...]
    leaked: bool

    @property
    def plain(self) -> Any:
        """The value as Python has it."""
        return _PLAIN[type(self)](self)

    def __reduce__(self) -> tuple[Any, ...]:  # a copy is a plain value
        return type(self.plain), (self.plain,)

    def __copy__(self) -> Any:
        return self.plain

    def __deepcopy__(self, known: object) -> Any:
        return self.plain


class _Int(Update, int):
    pass


class _Float(Update, float):
    pass


class _Str(Update, str):
    pass


_KINDS: dict[type, Any] = {int: _Int, float: _Float, str: _Str}
_PLAIN: dict[type, Any] = {noting: kind for kind, noting in _KINDS.items()}


def make_tracked_scalar(value: Any) -> Update | None:
    """A value that is equal to this and notes what is done to it; None where there is none of its type.

    Example:
        >>> value = make_tracked_scalar(3)
        >>> replay_updates(value + 1, value, 7)
        8
    """
    kind = _KINDS.get(type(value))
    if kind is None:
        return None
    made: Update = kind(value)
    made.origin, made.steps, made.leaked = made, (), False
    return made


def replay_updates(made: Update, origin: Update, value: Any) -> Any:
    """What comes of a value by the steps that have made `made` of `origin`."""
    assert made.origin is origin
    for operate, other, reflected in made.steps:
        value = operate(other, value) if reflected else operate(value, other)
    return value


def _scalar_method(kind: type, name: str, reflected: bool) -> Callable[[Any, Any], Any] | None:
    plain = getattr(kind, f"__{'r' if reflected else ''}{name}__", None)
    operate = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    if plain is None:
        return None

    def method(self: Any, other: Any) -> Any:
        result = plain(self, other)
        if result is NotImplemented:
            return result
        noted = make_tracked_scalar(result) if type(other) in _OPERANDS else None
        if noted is None:
            self.origin.leaked = True
            return result
        noted.origin, noted.steps = self.origin, (*self.steps, (operate, other, reflected))
        return noted

    return method


for _kind, _noting in _KINDS.items():
    for _name in _OPERATORS:
        for _reflected in (False, True):
            _made = _scalar_method(_kind, _name, _reflected)
            if _made is not None:
                setattr(_noting, f"__{'r' if _reflected else ''}{_name}__", _made)
