"""Scalar updates: numbers and strings that record the operators that are applied to them.

In: a value. Out: an equal value whose operators give values that know how they were computed.

A function may only update a number, as in ``self.calls += 1``. The result of the call then does not depend on
the number, so no guard is needed. While such a function is traced, a recording value takes the number's
place. A later call applies the recorded steps to the number that it finds.
Invariant: recorded operands are plain constants.
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
"""An operator, its other operand, and whether that operand stands on the left."""


class Update:
    """The base of the recording classes.

    Attributes:
        origin: the recording value that the function found.
        steps: the operators that computed this value from `origin`.
        leaked: of an `origin`: some result of it is a plain value, so not all uses are recorded.
    """

    origin: Update
    steps: tuple[Step, ...]
    leaked: bool

    @property
    def plain(self) -> Any:
        """The value as a plain `int`, `float` or `str`."""
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
_PLAIN: dict[type, Any] = {tracking: kind for kind, tracking in _KINDS.items()}


def make_tracked_scalar(value: Any) -> Update | None:
    """A recording value that equals `value`; None if it is no `int`, `float` or `str`.

    Example:
        >>> value = make_tracked_scalar(3)
        >>> replay_updates(value + 1, value, 7)
        8
    """
    kind = _KINDS.get(type(value))
    if kind is None:
        return None
    scalar: Update = kind(value)
    scalar.origin, scalar.steps, scalar.leaked = scalar, (), False
    return scalar


def replay_updates(scalar: Update, origin: Update, value: Any) -> Any:
    """Apply to `value` the steps that computed `scalar` from `origin`."""
    assert scalar.origin is origin
    for operate, other, reflected in scalar.steps:
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
        tracked = make_tracked_scalar(result) if type(other) in _OPERANDS else None
        if tracked is None:
            self.origin.leaked = True
            return result
        tracked.origin, tracked.steps = self.origin, (*self.steps, (operate, other, reflected))
        return tracked

    return method


for _kind, _tracking in _KINDS.items():
    for _name in _OPERATORS:
        for _reflected in (False, True):
            _method = _scalar_method(_kind, _name, _reflected)
            if _method is not None:
                setattr(_tracking, f"__{'r' if _reflected else ''}{_name}__", _method)
