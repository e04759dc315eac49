"""Constants: values that a trace takes as they are, and keys that are equal if two of them are the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

CONSTANTS = (
    int,
    float,
    bool,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def constant_key(value: object) -> object:
    """A key that is equal for two constants exactly if no code can tell them apart.

    The type and the sign of zero count, and all NaNs of a type are equal.

    Example:
        >>> nan = float("nan")
        >>> constant_key(0.0) == constant_key(-0.0), constant_key(1) == constant_key(True)
        (False, False)
        >>> constant_key(nan) == constant_key(-nan)
        True
    """
    if isinstance(value, float):
        return (type(value), value.hex())  # 0.0 == -0.0 and nan != nan
    if isinstance(value, complex):
        return (type(value), value.real.hex(), value.imag.hex())
    return (type(value), value)


def identity_key(value: object) -> object:
    """A key that is equal for the same object, and for constants with equal `constant_key`."""
    return constant_key(value) if type(value) in CONSTANTS else _Identity(value)


class _Identity:
    """A key for one object. It keeps the object alive only if the object's class has no weak references."""

    def __init__(self, value: object) -> None:
        self._number = id(value)
        self._value: Callable[[], object]
        try:
            self._value = weakref.ref(value)
        except TypeError:
            self._value = lambda: value

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._value() is other._value() is not None
