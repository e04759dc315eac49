"""Double by default: float64 as the default dtype, so that a reference computes integers in it too.

`torch.exp` of integers gives the default dtype, which is float32, whatever the other dtypes of the program.
Without this, the reference would round there as eager does, and eager's error would not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def double_by_default() -> Iterator[None]:
    """While it lasts, functions of integers, and literals with a fraction, give float64.

    Example:
        with double_by_default():
            torch.exp(torch.ones(2, dtype=torch.int64)).dtype    # torch.float64
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
