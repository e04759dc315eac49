"""Values that a trace takes as they are, and when two of them are the same."""

from __future__ import annotations

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


def key_of(value: object) -> object:
    """Equal for two constants exactly when nothing can tell them apart: type, sign of zero and nan count.

    Example:
        >>> nan = float("nan")
        >>> key_of(0.0) == key_of(-0.0), key_of(1) == key_of(True), key_of(nan) == key_of(-nan)
        (False, False, True)
    """
    if isinstance(value, float):
        return (type(value), value.hex())  # 0.0 == -0.0 and nan != nan
    if isinstance(value, complex):
        return (type(value), value.real.hex(), value.imag.hex())
    return (type(value), value)
