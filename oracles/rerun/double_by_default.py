"""Double precision as the default dtype: what a reference makes out of integers is float64, too.

Of integers `torch.exp` makes float32, however precise the program is that it stands in: without this, a
reference would round as eager does, and its error would show nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def double_by_default() -> Iterator[None]:
    """While this lasts, functions of integers, and literals with a fraction, give float64.

    with double_by_default():
        torch.exp(torch.ones(2, dtype=torch.int64)).dtype    # torch.float64
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
